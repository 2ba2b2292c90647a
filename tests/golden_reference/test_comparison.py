"""A golden reference: what changed, what is missing; what is unknown is no agreement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dumpdiff
from dumpdiff.golden_reference import (
    GoldenReference,
    build_reference,
    check_trace,
    read_reference,
    write_reference,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumpdiff.demo(tmp_path_factory.mktemp("golden") / "runs")


@pytest.fixture(scope="module")
def reference(runs: Path) -> GoldenReference:
    return build_reference(dumpdiff.read(runs / "megatron" / "dump"))


def change(reference: GoldenReference, row: int, **cells: object) -> GoldenReference:
    """Return the reference with other cells in one row."""
    values = reference.values.copy()
    for name, cell in cells.items():
        values.loc[row, name] = cell
    return replace(reference, values=values)


def test_a_dump_agrees_with_itself_after_writing_and_reading(
    reference: GoldenReference, tmp_path: Path
) -> None:
    file = tmp_path / "golden.json"
    write_reference(reference, file)
    again = read_reference(file)
    pd.testing.assert_frame_equal(again.values, reference.values)
    check = check_trace(reference, again)
    assert check.verdict == "agree"
    assert check.headline == "272 identical"
    assert file.stat().st_size < 250 * 272


def test_equal_values_are_one_line_each(reference: GoldenReference, tmp_path: Path) -> None:
    write_reference(reference, tmp_path / "golden.json")
    lines = (tmp_path / "golden.json").read_text().splitlines()
    assert len(lines) == 272 + 2
    assert json.loads(lines[1].rstrip(","))[:2] == ["Functional.embedding.0.forward", "output.0"]


def test_the_first_change_in_the_order_of_execution_is_named(reference: GoldenReference) -> None:
    changed = change(reference, 40, norm=1.01 * reference.values["norm"][40], digest="0")
    changed = change(changed, 90, digest="1")
    check = check_trace(changed, reference)
    assert check.verdict == "differ"
    assert (check.counts["identical"], check.counts["changed"]) == (270, 2)
    first, second = check.differences
    assert first.op == reference.values["op"][40]
    assert first.message == "statistics differ by 1.0e-2"
    assert first.source.startswith("pytorch_model.py:")
    assert second.message == "other elements; the recorded statistics do not show it"


def test_a_tolerance_compares_statistics_and_says_so(reference: GoldenReference) -> None:
    changed = change(reference, 40, norm=1.0001 * reference.values["norm"][40], digest="0")
    check = check_trace(changed, reference, 1e-3)
    assert check.verdict == "agree"
    assert check.headline == ("271 identical, 1 within tolerance, 1 compared by statistics only")
    assert check_trace(changed, reference, 1e-5).verdict == "differ"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_tolerance_allows_a_value_that_is_no_longer_finite(
    reference: GoldenReference, value: float
) -> None:
    check = check_trace(change(reference, 7, norm=value, digest="0"), reference, 1e9)
    assert check.verdict == "differ"
    assert check.differences[0].message == "a statistic was finite and is not, or was 0"


def test_what_only_one_side_has_is_a_difference(reference: GoldenReference) -> None:
    shorter = replace(reference, values=reference.values.drop(index=3).reset_index(drop=True))
    assert check_trace(shorter, reference).counts["missing"] == 1
    assert check_trace(reference, shorter).counts["new"] == 1
    assert check_trace(shorter, reference).verdict == "differ"


def test_what_nothing_is_known_of_is_no_agreement(reference: GoldenReference) -> None:
    unknown = dict.fromkeys(("max", "min", "mean", "norm"), np.nan)
    values = change(reference, 5, **unknown, digest="")
    check = check_trace(values, values)
    assert check.verdict == "inconclusive"
    assert check.counts["unknown"] == 1


@pytest.mark.parametrize("text", ["{}", "[1]", "no JSON", '{"golden_format": 9}'])
def test_another_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(dumpdiff.DumpError, match="expected a golden reference, as 'dumpdiff gold"):
        read_reference(file)


def test_two_frameworks_are_compared_by_align(runs: Path, tmp_path: Path) -> None:
    dumpdiff.golden.record(runs / "megatron" / "dump", tmp_path / "golden.json")
    with pytest.raises(dumpdiff.DumpError, match="to compare two frameworks: dumpdiff align"):
        dumpdiff.golden.check(runs / "mindformers" / "dump", tmp_path / "golden.json")
