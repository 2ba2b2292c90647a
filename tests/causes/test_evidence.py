"""What the records themselves show comes first: ops and tables that only one side has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.fault_case import FaultCase
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES, HYPOTHESES
from dumpdiff.causes.hypothesis import Candidate, Hypothesis
from dumpdiff.causes.region import Region
from dumpdiff.model.arrays import AnyArray
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case, make_operand, make_operands
from .test_composites import make_region

RNG = np.random.default_rng(11)
X, SKIP = RNG.standard_normal((2, 6, 16)), RNG.standard_normal((2, 6, 16))
SCORES = RNG.standard_normal((2, 4, 6, 6))
POSITIONS = np.arange(6)
ANGLES = np.outer(POSITIONS, np.repeat(1e4 ** (-np.arange(4) / 4), 2))
CAUSAL = np.triu(np.full((6, 6), -1e9), 1)


def make_case(region: Region, faulty: AnyArray, faulty_kinds: tuple[str, ...] = ()) -> FaultCase:
    """Return a case with a region, whose faulty side has ops of some kinds."""
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="block")
    kinds = tuple(step.kind for step in region.steps)
    return replace(case, load_region=lambda: region, kinds=kinds, faulty_kinds=faulty_kinds)


def explain(case: FaultCase) -> tuple[str, str]:
    """Return (cause, sentence without place and residual) of the best cause."""
    causes = search_causes([case], HYPOTHESES).causes
    text = causes[0].text.partition(" behaves as ")[2].partition("; residual")[0]
    return causes[0].name, text


SCALED = make_region([
    ("mul", [("embedding", X), ("scale", 5.0)]),
    ("add", [("last", 0), ("skip", SKIP)]),
])  # fmt: skip
CAPPED = make_region([
    ("div", [("scores", SCORES), ("cap", 2.0)]),
    ("tanh", [("last", 0)]),
    ("mul", [("last", 0), ("cap", 2.0)]),
    ("softmax", [("last", 0)]),
])  # fmt: skip


def test_a_factor_that_only_one_side_has_is_left_out() -> None:
    cause, text = explain(make_case(SCALED, X + SKIP, ("add",)))
    assert cause == "residual-scale"
    assert text == "a factor of 1, without mul_0 (mul); the reference multiplies by 5"


def test_the_sentence_is_about_the_target_if_only_the_target_has_the_op() -> None:
    case = replace(make_case(SCALED, X + SKIP, ("add",)), faulty_side="reference")
    search = search_causes([case], HYPOTHESES)
    side, causes = search.faulty_side, search.causes
    assert side == "target"
    sentence = "block behaves as a factor of 5 (mul_0 (mul)); the reference has a factor of 1; "
    assert causes[0].text.startswith(sentence)
    assert causes[0].parameters == {"factor": 5.0}


def test_a_soft_cap_is_several_ops_in_a_row() -> None:
    cause, text = explain(make_case(CAPPED, softmax(SCORES), ("softmax",)))
    assert cause == "soft-cap"
    names = "div_0 (div), tanh_1 (tanh), mul_2 (mul)"
    assert text == f"no soft cap; the reference has soft cap ({names})"


TABLES = [
    ("rope-scaling", np.cos(ANGLES), np.cos(ANGLES / 4), "positions 0.25 times the reference's"),
    ("rope-direction", np.sin(ANGLES), -np.sin(ANGLES), "a rotation in the other direction"),
    ("mask-kind", CAUSAL, CAUSAL + np.tril(np.full((6, 6), -1e9), -3),
     "a mask that sees a window of 3 tokens; the reference hides from diagonal 1 on"),
    ("mask-fill", CAUSAL, np.maximum(CAUSAL, -4),
     "a mask that adds -4: hidden scores still count; the reference hides them"),
    ("relative-bias", CAUSAL, CAUSAL - 0.125 * np.tril(np.subtract.outer(POSITIONS, POSITIONS)),
     "scores with a bias of 0.125 more per token of distance"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "table", "other_table", "sentence"), TABLES)
def test_tables_that_differ_are_compared_themselves(
    cause: str, table: AnyArray, other_table: AnyArray, sentence: str
) -> None:
    x = SCORES if table is CAUSAL else RNG.standard_normal((2, 4, 6, 8))
    kind = "add" if table is CAUSAL else "mul"
    region = make_region([(kind, [("x", x), ("table", table)])])
    faulty = x + other_table if kind == "add" else x * other_table
    unpaired = replace(region.steps[0].inputs[1], agrees=False)
    step = replace(region.steps[0], inputs=(region.steps[0].inputs[0], unpaired))
    case = make_case(Region((step,), None, region.shape), faulty)
    case = replace(
        case,
        operands=(make_operand("an input", table, agrees=False),),
        faulty_operands=(make_operand("an input", other_table, agrees=False),),
        consumer_kinds=frozenset({"softmax"}) if kind == "add" else frozenset(),
    )
    said_cause, text = explain(case)
    assert said_cause == cause
    assert text == sentence


RELATIVE = np.clip(np.subtract.outer(POSITIONS, POSITIONS), -3, 3) + 3
TABLE = RNG.standard_normal((8, 4)).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(("ids", "sentence"), [
    (RELATIVE.T, "other rows of the table of relative positions (30 of 36): "
     "distances with the other sign"),
    (RELATIVE + 1, "other rows of the table of relative positions (36 of 36): shifted by 1"),
    (np.clip(RELATIVE, 1, 5), "other rows of the table of relative positions (12 of 36): "
     "5 buckets; the reference has 7"),
])  # fmt: skip
def test_buckets_of_relative_positions_are_read_from_the_rows(ids: AnyArray, sentence: str) -> None:
    case = make_fault_case(TABLE[ids], TABLE[RELATIVE], {})
    case = replace(case, operands=make_operands({"bias.weight": TABLE}))
    assert explain(case) == ("relative-bias", sentence)


def make_choice(cause: str, predicted: AnyArray, faithful: AnyArray, is_choice: bool) -> Hypothesis:
    """Return a hypothesis that suggests one value."""
    candidate = Candidate(predicted, f"a {cause}", unchanged=faithful)
    return Hypothesis(cause, lambda _: [candidate], is_choice)


def test_two_choices_that_explain_equally_well_are_undecided() -> None:
    case = make_fault_case(2 * X, X, {})
    first, second = (make_choice(name, 2 * X, X, True) for name in ("row-shift", "input-source"))
    search = search_causes([case], [first, second])
    assert search.causes == ()
    assert search.faulty_side == "unknown"
    assert [cause.name for cause in search.undecided] == ["row-shift", "input-source"]


def test_a_simple_cause_comes_before_choices() -> None:
    case = make_fault_case(2 * X, X, {})
    simple = make_choice("scale", 2 * X, X, False)
    choice = make_choice("row-shift", 2 * X, X, True)
    assert search_causes([case], [simple, choice]).causes[0].name == "scale"


def test_excluded_causes_are_listed_with_what_they_leave() -> None:
    case = make_fault_case(2 * X, X, {})
    near, far = make_choice("near", 1.9 * X, X, False), make_choice("far", 1.2 * X, X, False)
    search = search_causes([case], [far, near])
    assert [item.name for item in search.excluded] == ["near", "far"]
    assert [item.residual for item in search.excluded] == pytest.approx([0.05, 0.4], rel=1e-4)


def test_region_hypotheses_choose_among_many_inputs() -> None:
    assert [item.cause for item in COMPOSITE_HYPOTHESES if item.is_choice] == [
        "input-source", "scan-direction", "heads-permuted",
    ]  # fmt: skip
