"""The evidence of a case: every comparison made once, and any selection of what was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path

import dumpdiff
from dumpdiff import batches, gradient_norms
from dumpdiff.diagnosis.case import Case, Run
from dumpdiff.diagnosis.evidence import STAGES, Evidence
from dumpdiff.diagnosis.stages import (
    build_dump_stages,
    build_optimizer_stage,
    build_weights_stage,
)
from dumpdiff.gradient_norms import NormComparison
from dumpdiff.optimizers import inputs as optimizer_inputs
from dumpdiff.optimizers.comparison import compare_updates
from dumpdiff.optimizers.update_analysis import UpdateAnalysis
from dumpdiff.run_settings.checklist import check

#: One run is a side of many cases, and read once.
_read_batches = cache(batches.read_batches)
_read_norms = cache(gradient_norms.read_norms)

#: What a user may give, in the order in which it is easy to give.
INPUTS = ("logs", "settings", "data", "weights", "dumps", "steps")
#: The inputs of a training of ``fixtures/``, by framework.
_SETTINGS_FILES = {"mindspore": "settings.yaml", "pytorch": "train.sh"}


@dataclass(frozen=True)
class Comparisons:
    """All comparisons of a case."""

    evidence: Evidence  #: with everything given
    saved_data: batches.DataComparison  #: of the saved batches
    dumped_data: batches.DataComparison  #: of the batches in the dumps
    saved_norms: tuple[NormComparison, NormComparison]  #: of the gradients in the steps, ...
    dumped_norms: tuple[NormComparison, NormComparison]  #: ... without and with the precision


@cache
def _analyze_updates(steps: str) -> UpdateAnalysis:
    return optimizer_inputs.read_run(steps)


def compare_runs(target: Path, reference: Path, min_steps: int) -> Comparisons:
    """Return all comparisons of two folders of trainings."""
    runs = _build_run(target), _build_run(reference)
    without_steps = [replace(run, steps="") for run in runs]
    evidence = dumpdiff.triage(Case(*without_steps, min_steps=min_steps)).evidence
    updates = compare_updates(*(_analyze_updates(run.steps) for run in runs))
    evidence = replace(evidence, optimizer=updates)
    dumps = [run.dump for run in runs]
    return Comparisons(
        evidence,
        batches.compare(*(_read_batches(run.data) for run in runs)),
        batches.compare(*(_read_batches(path) for path in dumps)),
        _compare_norms([run.steps for run in runs], evidence),
        _compare_norms(dumps, evidence),
    )


def _compare_norms(
    paths: Sequence[str], evidence: Evidence
) -> tuple[NormComparison, NormComparison]:
    """Return the comparison of gradients without the precision of the settings, and with it."""
    assert evidence.settings is not None
    target, reference = (_read_norms(path) for path in paths)
    dtype = evidence.settings.compute_dtype
    return (
        gradient_norms.compare(target, reference),
        gradient_norms.compare(target, reference, precision=dtype),
    )


def _build_run(folder: Path) -> Run:
    files = [folder / name for name in _SETTINGS_FILES.values()]
    settings = next(path for path in files if path.exists())
    return Run(
        settings=str(settings),
        data=str(folder / "batch.npz"),
        log=str(folder / "train.log"),
        weights=str(folder / "checkpoint"),
        steps=str(folder / "steps"),
        dump=str(folder / "dump"),
    )


def list_selections() -> Iterator[tuple[str, ...]]:
    """Yield every selection of inputs but the empty one, small ones first."""
    for count in range(1, 1 + len(INPUTS)):
        yield from combinations(INPUTS, count)


def select_evidence(comparisons: Comparisons, inputs: Sequence[str]) -> Evidence:
    """Return the evidence as if only these inputs had been given."""
    full = comparisons.evidence
    results = {
        "settings": full.settings if "settings" in inputs else None,
        "logs": full.logs if "logs" in inputs else None,
        "weights": full.weights if "weights" in inputs else None,
        "dumps": full.dumps if "dumps" in inputs else None,
        "optimizer": full.optimizer if "steps" in inputs else None,
    }
    results["data"] = _select_data(comparisons, inputs)
    if "steps" in inputs or "dumps" in inputs:
        norms = comparisons.saved_norms if "steps" in inputs else comparisons.dumped_norms
        results["norms"] = norms["settings" in inputs]
    if "settings" in inputs or "logs" in inputs:
        results["checklist"] = check(results["settings"], results["logs"])
    stages = {}
    for name in ("settings", "checklist", "data", "logs", "norms"):
        if results.get(name) is not None:
            stages[name] = results[name].to_stage()
    if results["weights"] is not None:
        stages["weights"] = build_weights_stage(results["weights"])
    if results["dumps"] is not None:
        stages["forward"], stages["backward"] = build_dump_stages(results["dumps"])
    if results["optimizer"] is not None:
        stages["optimizer"] = build_optimizer_stage(results["optimizer"])
    return Evidence(
        stages=tuple(stages[name] for name in STAGES if name in stages),
        skipped={name: "not given" for name in STAGES if name not in stages},
        **results,
    )


def _select_data(comparisons: Comparisons, inputs: Sequence[str]) -> batches.DataComparison | None:
    """Return the comparison of the batches that 'dumpdiff triage' would make."""
    saved = comparisons.saved_data if "data" in inputs else None
    dumped = comparisons.dumped_data if "dumps" in inputs else None
    if saved is None or dumped is None:
        return saved or dumped
    return batches.choose_comparison(dumped, saved)
