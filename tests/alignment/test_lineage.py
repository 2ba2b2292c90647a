"""Pairs by the nearest paired values that results follow from, on recorded pairs.

In ``calls`` an attention is called for several states, on one side in the other order, more often,
and with masked scores. In ``addend`` one side adds the bias of a layer by an op of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from traces import align_traces, start_matching

from dumpdiff import Trace, read
from dumpdiff.alignment import anchors, stages
from dumpdiff.alignment.lineage import pair_by_lineage
from dumpdiff.alignment.matches import Matching
from dumpdiff.graph import Flow

Load = Callable[[str], Trace]


@pytest.fixture(scope="module")
def load(dump: Callable[[str], Path]) -> Load:
    """Return the trace of a form."""
    folder = dump("pt_unrecorded")
    return cache(lambda form: read(folder / form))


def match_equal_values(target: Trace, reference: Trace) -> Matching:
    """Return a matching in which what has one value is paired."""
    matching = start_matching(target, reference)
    anchors.pair_by_value(matching)
    return matching


def list_pairs(matching: Matching, kind: str) -> set[tuple[str, str]]:
    """Return the names of (target, reference) ops of a kind whose results are paired."""
    names_t, names_r = (
        [_name_producer(flow, value) for value in range(len(flow.producers))]
        for flow in (matching.target, matching.reference)
    )
    return {
        (names_t[t], names_r[r])
        for t, r in enumerate(matching.classes_t.tolist())
        if r >= 0 and f".{kind}." in names_t[t]
    }


def _name_producer(flow: Flow, value: int) -> str:
    op = int(flow.producers[value])
    return str(flow.trace.ops["name"].iat[op]) if op >= 0 else ""


def swap(pairs: set[tuple[str, str]], is_mirrored: bool) -> set[tuple[str, str]]:
    return {(r, t) for t, r in pairs} if is_mirrored else pairs


#: The plain form calls the attention for states 0 to 3, the other one for 3, 2 and 1.
SOFTMAX_PAIRS = {
    (f"Torch.softmax.{t}.forward", f"Torch.softmax.{r}.forward")
    for t, r in ((0, 3), (1, 2), (2, 1))
}


@pytest.mark.parametrize("is_mirrored", [False, True])
class TestWhereOneSideLeavesAMaskOut:
    def test_results_of_the_same_scores_are_paired(self, load: Load, is_mirrored: bool) -> None:
        traces = [load("calls_unmasked"), load("calls_plain")]
        matching = match_equal_values(*(reversed(traces) if is_mirrored else traces))
        assert not list_pairs(matching, "softmax")
        assert pair_by_lineage(matching)
        assert list_pairs(matching, "softmax") == swap(SOFTMAX_PAIRS, is_mirrored)
        assert not pair_by_lineage(matching)

    def test_the_whole_alignment_has_these_pairs(self, load: Load, is_mirrored: bool) -> None:
        traces = [load("calls_unmasked"), load("calls_plain")]
        alignment = align_traces(*(reversed(traces) if is_mirrored else traces))
        names_t, names_r = (
            flow.trace.ops["name"].to_numpy() for flow in (alignment.target, alignment.reference)
        )
        pairs = {
            (names_t[t], names_r[r])
            for t, r in alignment.op_partners.items()
            if ".softmax." in names_t[t]
        }
        assert pairs == swap(SOFTMAX_PAIRS, is_mirrored)


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_multiples_are_left(load: Load, is_mirrored: bool) -> None:
    """One side multiplies the queries by 0.5 and the scores by 0.6, the other one scores by 0.3."""
    traces = [load("calls_scaled"), load("calls_plain")]
    matching = match_equal_values(*(reversed(traces) if is_mirrored else traces))
    n_pairs = (matching.classes_t >= 0).sum()
    assert not pair_by_lineage(matching)
    assert (matching.classes_t >= 0).sum() == n_pairs


@pytest.mark.parametrize(
    ("form", "is_expected"), [("calls_unmasked", True), ("calls_scaled", False)]
)
def test_it_is_asked_only_where_the_runs_diverged(
    load: Load, monkeypatch: pytest.MonkeyPatch, form: str, is_expected: bool
) -> None:
    answers: list[bool] = []

    def pair_and_remember(matching: Matching) -> bool:
        answers.append(pair_by_lineage(matching))
        return answers[-1]

    monkeypatch.setattr(stages, "pair_by_lineage", pair_and_remember)
    align_traces(load(form), load("calls_plain"))
    assert answers == ([True, False] if is_expected else [])


@pytest.mark.parametrize("is_mirrored", [False, True])
class TestAProductBeforeItsBias:
    """The product is nearer to the value with the bias than the value with 20 times the bias."""

    def test_it_is_no_near_value(self, load: Load, is_mirrored: bool) -> None:
        traces = [load("addend_many"), load("addend_plain")]
        matching = match_equal_values(*(reversed(traces) if is_mirrored else traces))
        assert not anchors.pair_by_near_value(matching, runs_diverged=True)
        assert find_partner(matching, "Functional.linear.2.forward") == ""

    def test_it_is_no_pair_by_lineage(self, load: Load, is_mirrored: bool) -> None:
        """The layer behind it, which reads one value without a partner, is one."""
        traces = [load("addend_many"), load("addend_plain")]
        matching = match_equal_values(*(reversed(traces) if is_mirrored else traces))
        assert pair_by_lineage(matching)
        assert find_partner(matching, "Functional.linear.2.forward") == ""
        assert find_partner(matching, "Functional.linear.3.forward") == (
            "Functional.linear.3.forward"
        )


def find_partner(matching: Matching, name: str) -> str:
    """Return the op whose result is the partner of what an op of the target computes, or ''."""
    (value,) = [
        v for v in range(len(matching.classes_t)) if _name_producer(matching.target, v) == name
    ]
    partner = int(matching.classes_t[value])
    return _name_producer(matching.reference, partner) if partner >= 0 else ""
