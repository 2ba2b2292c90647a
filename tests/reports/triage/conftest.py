"""One triage for all reports: real settings, logs, weights, gradients, updates and dumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from optimizers.sgd_run import save_sgd_run

import dumpdiff
from dumpdiff.diagnosis.case import Case, Run
from dumpdiff.diagnosis.outcome import TriageResult

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory, dump: Callable[[str], Path]) -> Case:
    """The demo's dumps (epsilon differs), and twice the learning rate in the reference."""
    folder = tmp_path_factory.mktemp("case")
    inputs = {
        "target": ("llama.yaml", "logs/mindformers_1.6.log", 0.1, "demo_mindspore"),
        "reference": ("llama_megatron.sh", "logs/megatron_0.12.log", 0.2, "demo_pytorch"),
    }
    runs = {}
    for side, (settings, log, rate, name) in inputs.items():
        steps = save_sgd_run(folder / side, rate=rate)
        runs[side] = Run(
            settings=str(SAMPLES / settings),
            log=str(SAMPLES / log),
            norms=str(steps / "gradients_1.npz"),
            weights=str(steps / "weights_0.npz"),
            steps=str(steps),
            dump=str(dump(name)),
        )
    return Case(**runs)


@pytest.fixture(scope="session")
def triaged(case: Case) -> TriageResult:
    return dumpdiff.triage(case)


@pytest.fixture(scope="session")
def weights_only(case: Case) -> TriageResult:
    """The same runs with weights only: no other stage has input."""
    return dumpdiff.triage(
        Case(Run(weights=case.target.weights), Run(weights=case.reference.weights))
    )
