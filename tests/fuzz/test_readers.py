"""Every reader answers a mutated input, and every input that once made it fail.

The examples are the same in every run. ``make fuzz`` draws many more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .runner import MutatedInputs, find_failure, list_regressions
from .targets import TARGETS, Target

#: Targets whose inputs are whole dumps take 0.2 s each.
EXAMPLES, DUMP_EXAMPLES = 60, 6


def count_examples(target: Target) -> int:
    is_dump = target.file.endswith((".csv", ".pb", ".ir", ".pkl")) or target.name.endswith("json")
    return DUMP_EXAMPLES if is_dump or target.name.startswith(("align", "dump_")) else EXAMPLES


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_mutated_input_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    inputs = MutatedInputs(target, tmp_path / "input")

    @settings(
        max_examples=count_examples(target), database=None, suppress_health_check=list(HealthCheck)
    )
    @given(number=st.integers(0, 2**32))
    def read(number: int) -> None:
        inputs.write(number)
        assert find_failure(target, inputs.folder) == ""

    read()


@pytest.mark.parametrize(
    ("target", "file"),
    [(target, file) for target in TARGETS for file in list_regressions(target)],
    ids=lambda value: value.name,
)
def test_an_input_that_once_failed_is_read_or_refused(
    target: Target, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    place = target.build(tmp_path / "input")
    shutil.copy(file, place)
    assert find_failure(target, tmp_path / "input") == ""
