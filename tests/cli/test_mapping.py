"""``dumpdiff mapping RESULT --for msprobe``: its dumps are read again, and a mapping is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .conftest import MovedResult, Run


@pytest.fixture
def result(run: Run, dump: Callable[[str], Path], tmp_path: Path) -> Path:
    file = tmp_path / "result.json"
    folders = (dump("ms_mf_none") / "statistics_mix", dump("pt_none") / "statistics_mix")
    assert run("align", *folders, "--json", file, "-q").exit_code == 0
    return file


def test_it_writes_the_mapping_and_counts_its_pairs(run: Run, result: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    outcome = run("mapping", result, "--for", "msprobe", "-o", file)
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert "tensors and numbers have a partner" in outcome.stderr
    pairs = yaml.safe_load(file.read_text())
    assert pairs["Functional.softmax.3.forward.output.0"] == "Functional.softmax.3.forward.output.0"


def test_standard_output_holds_the_mapping_alone(run: Run, result: Path) -> None:
    outcome = run("mapping", result, "--for", "msprobe", "--kind", "cell")
    assert outcome.stderr == ""
    cells = yaml.safe_load(outcome.stdout)
    assert cells["model.layers.0.attention.wq.Dense"] == "model.layers.0.self_attn.q_proj.Linear"


def test_the_version_decides_how_backward_calls_are_numbered(run: Run, result: Path) -> None:
    name = "Functional.softmax.3.backward.input.0"
    numbered = {
        version: yaml.safe_load(
            run("mapping", result, "--for", "msprobe", "--msprobe-version", version).stdout
        )[name]
        for version in ("8.3.3", "26.2")
    }
    assert numbered == {"8.3.3": name, "26.2": "Functional.softmax.0.backward.input.0"}


def test_an_invalid_version_is_refused_in_one_line(run: Run, result: Path) -> None:
    outcome = run("mapping", result, "--for", "msprobe", "--msprobe-version", "new")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "dumpdiff: new: expected a version of msprobe such as 26.2 or 8.3.3\n"


def test_moved_dumps_are_named(run: Run, moved_result: MovedResult) -> None:
    outcome = run("mapping", moved_result.folder, "--for", "msprobe")
    assert outcome.exit_code == 2
    assert "the target dump is missing; say where it is now with --target PATH" in outcome.stderr
    dumps = ("--target", moved_result.target, "--reference", moved_result.reference)
    outcome = run("mapping", moved_result.folder, "--for", "msprobe", *dumps)
    assert outcome.exit_code == 2  # it is found now, and its target is no dump of msprobe
    assert "missing" not in outcome.stderr
