"""Commands on the folder of ``align -o``, if runs of many ranks were compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run

FAULTY = "parallel_pt_tp2_norm_eps"  #: rank 1 has another epsilon


@pytest.mark.parametrize(
    ("target", "reference", "ranks"),
    [
        pytest.param(FAULTY, "parallel_pt_tp2", [1], id="rank by rank"),
        pytest.param(FAULTY, "parallel_pt_tp1", [], id="merged target"),
        pytest.param("parallel_pt_tp1", FAULTY, [], id="merged reference"),
    ],
)
def test_a_finding_is_explained_narrowed_and_reported(
    run: Run,
    dump: Callable[[str], Path],
    tmp_path: Path,
    target: str,
    reference: str,
    ranks: list[int],
) -> None:
    """``ranks`` are those to dump next; [] is all."""
    folder = tmp_path / "result"
    outcome = run("align", dump(target), dump(reference), "-o", folder, "-j", 1, "-q")
    assert outcome.exit_code == 1

    explanation = run("explain", folder, "--finding", 1, "--json", tmp_path / "why.json")
    assert "Tensor.__add__.8.forward" in explanation.stdout
    assert json.loads((tmp_path / "why.json").read_text())["title"].startswith(
        "layers.1.input_norm"
    )
    assert run("explain", folder, "--finding", 99).exit_code == 2

    assert run("narrow", folder, "-o", tmp_path / "next", "--finding", 1).exit_code == 0
    for side in ("target", "reference"):
        config = json.loads((tmp_path / "next" / f"{side}_config.json").read_text())
        assert config["rank"] == ranks
        assert "Tensor.__add__.8.forward" in config["tensor"]["list"]

    files = {name: tmp_path / f"report.{name}" for name in ("html", "markdown", "junit", "csv")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    assert run("report", folder, *options).exit_code == 0
    for file in files.values():
        assert "layers.1.input_norm" in file.read_text()


def test_msprobe_gets_no_mapping_of_merged_runs(
    run: Run, dump: Callable[[str], Path], tmp_path: Path
) -> None:
    result = tmp_path / "merged.json"
    run("align", dump(FAULTY), dump("parallel_pt_tp1"), "--json", result, "-q")
    outcome = run("mapping", result, "--for", "msprobe", "-o", tmp_path / "mapping.yaml")
    assert outcome.exit_code == 2
    assert "msprobe compares rank with rank, and the ranks of these runs were merged" in (
        outcome.stderr
    )
