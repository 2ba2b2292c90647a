"""Damaged logs and lists result in norms or in an error of one line, never in a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumpdiff.gradient_norms import compare, read_norms
from dumpdiff.model.errors import DumpError
from gradient_norms.sides import MEGATRON, MINDFORMERS, RULES

TEXTS = [
    MEGATRON.read_text()[:4000],
    MINDFORMERS.read_text()[:6000],
    "step:[1] local_norm/a.weight: 0.5\nstep:[1] local_norm/b.weight: 0.25\n" * 3,
    "dump local norm: \na.weight\n0.5\ndump local norm: \nb.bias\n0.25\n",
    "parameter,norm\nlayers.0.wq.weight,0.5\nlayers.1.wq.weight,0.25\n",
    '{"norms": {"a": 0.5, "b": [1, 2], "c": {"d": 3}}}',
    "0.5\n0.25\n1e-3\n",
]


DAMAGE = [
    "9" * 400,
    "nan",
    "-inf",
    "1e99999",
    "1e-99999",
    "...",
    "[",
    "]",
    "(",
    ",",
    ":",
    "{",
    "\n",
    "\r",
    "\0",
    '"',
    "-",
]


edits = st.lists(
    st.tuples(st.integers(0, 5999), st.integers(0, 40), st.sampled_from(DAMAGE)), max_size=6
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.sampled_from(TEXTS), edits=edits)
def test_damage_causes_no_crash(
    tmp_path: Path, text: str, edits: list[tuple[int, int, str]]
) -> None:
    for offset, length, damage in edits:
        begin = offset % (len(text) + 1)
        text = text[:begin] + damage + text[begin + length :]
    file = tmp_path / "damaged.log"
    file.write_text(text)
    try:
        norms = read_norms(file, rules=RULES)
        verdict = compare(norms, norms, RULES).verdict
    except DumpError as error:
        verdict = str(error)
    assert "\n" not in verdict


@pytest.mark.parametrize(
    "text",
    [
        f"step:[{'9' * 5000}] local_norm/a.weight: 0.5",
        f"step:[1] local_norm/{'a' * 100_000}: 0.5",
        "local_norm:\n[" + "1 " * 100_000,
        "print torch local norm:\n[" + "tensor(" * 100_000,
    ],
    ids=["a step without end", "a name without end", "a block without end", "a list without end"],
)
def test_text_without_an_end_contains_no_norms(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(DumpError, match="no gradient norms"):
        read_norms(tmp_path / "a.log")


def test_the_root_of_a_negative_square_is_nan(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"squared": [-1.0, 4.0]}')
    norms = read_norms(tmp_path / "a.json")
    assert norms.squared
    assert str(norms.values.tolist()) == "[nan, 2.0]"
