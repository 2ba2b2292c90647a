"""Damaged logs give curves or an error message of one line, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumpdiff.model.errors import DumpError
from dumpdiff.training_logs import compare, read_log

LOGS = Path(__file__).parents[1] / "samples" / "logs"
TEXTS = [file.read_text()[-6000:] for file in sorted(LOGS.iterdir())]
DAMAGE = [
    "9" * 400,
    "nan",
    "-inf",
    "1e99999",
    "None",
    "[",
    "|",
    ":",
    "{'loss': ",
    "}",
    "\n",
    "\r",
    "\x1b[A",
    "\0",
    '"',
    "'",
]

edits = st.lists(
    st.tuples(st.integers(0, 5999), st.integers(0, 40), st.sampled_from(DAMAGE)), max_size=6
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.sampled_from(TEXTS), edits=edits)
def test_damage_does_not_crash_the_reader(
    tmp_path: Path, text: str, edits: list[tuple[int, int, str]]
) -> None:
    for position, length, damage in edits:
        text = text[:position] + damage + text[position + length :]
    file = tmp_path / "damaged.log"
    file.write_text(text)
    try:
        curves = read_log(file)
        verdict = compare(curves, curves, least_steps=1).verdict
    except DumpError as error:
        verdict = str(error)
    assert "\n" not in verdict


@pytest.mark.parametrize(
    "line",
    [
        f" iteration {'9' * 5000}/ 6 | lm loss: 1.0E+00 | learning rate: 1.0E-05 |",
        f"{{ Epoch:[  1/  2], step:[{'9' * 5000}/    8], loss: 4.1, lr: 0.1",
    ],
)
def test_endless_numbers_are_no_steps(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.log").write_text(line + "\n")
    with pytest.raises(DumpError, match="no training step"):
        read_log(tmp_path / "a.log")


def test_a_record_without_a_valid_step_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{{'loss': 4.1, 'global_step/max_steps': '{'9' * 5000}/4'}}\n")
    assert read_log(tmp_path / "a.log").steps.tolist() == [1]
