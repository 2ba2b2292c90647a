"""Masks and sums that no recorder shows, in regions that are run again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.causes.hypotheses.row_selection import HYPOTHESES as ROW_HYPOTHESES
from dumpdiff.causes.region import Region
from dumpdiff.model.finding import Cause

from .fault_cases import make_fault_case, make_operand
from .test_composites import make_region

RNG = np.random.default_rng(17)
X = RNG.standard_normal((2, 5, 8))
WEIGHT = RNG.standard_normal((6, 8))


def make_unagreeing(region: Region) -> Region:
    """Return the region of one step whose first input no recorded op computed."""
    (step,) = region.steps
    inputs = (replace(step.inputs[0], agrees=False), *step.inputs[1:])
    return region.replace_steps({0: replace(step, inputs=inputs)})


def explain_masked(x: np.ndarray, faulty: np.ndarray) -> tuple[Cause, ...]:
    """Return the causes where the faithful side reads ``x`` with rows of padding set to 0."""
    masked = X.copy()
    masked[1, 3:] = 0
    inputs = [("masked", masked), ("fc.weight", WEIGHT)]
    region = make_unagreeing(make_region([("matmul", inputs)], {0: (2, 5, 6)}))
    case = make_fault_case(faulty, region.steps[-1].output, {"x": x}, scope="fc")
    case = replace(case, load_region=lambda: region)
    return search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)])
def test_a_mask_without_a_record_is_missing(axes: tuple[int, ...]) -> None:
    cause = explain_masked(X.transpose(axes), X @ WEIGHT.T)[0]
    assert cause.name == "mask-missing"
    assert "(matmul) of x itself; the reference sets 16 of 80 numbers of it to 0" in cause.text


def test_what_differs_elsewhere_too_is_no_mask() -> None:
    other = X + 0.01 * RNG.standard_normal(X.shape)
    names = [cause.name for cause in explain_masked(other, X @ WEIGHT.T)]
    assert "mask-missing" not in names


TERMS = {name: RNG.standard_normal((10, 6)) for name in ("norm", "scale", "square", "other")}


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (("scale",), "a gradient without that of scale; the reference adds it"),
        (("scale", "square"), "a gradient without those of scale and square; the reference adds"),
    ],
)
def test_terms_that_are_missing_before_a_product_are_named(
    missing: tuple[str, ...], text: str
) -> None:
    total = TERMS["norm"] + sum(TERMS[name] for name in missing)
    inputs = [("norm", TERMS["norm"]), ("fc.weight", WEIGHT)]
    faulty_region = make_region([("matmul", inputs)], {0: (10, 8)})
    case = make_fault_case(TERMS["norm"] @ WEIGHT, total @ WEIGHT, {}, phase="backward", scope="fc")
    gradients = [make_operand(name, TERMS[name], agrees=False) for name in missing]
    case = replace(
        case,
        operands=(make_operand("a sum", total, agrees=False), *gradients),
        load_faulty_region=lambda: faulty_region,
    )
    cause = search_causes([case], COMPOSITE_HYPOTHESES).causes[0]
    assert cause.name == "gradient-stopped"
    assert text in cause.text


def test_a_recurrent_layer_gives_the_state_of_another_step_in_one_direction() -> None:
    states = RNG.standard_normal((3, 7, 8))
    ends = np.array([6, 4, 2])
    rows = np.arange(3)
    faithful = np.concatenate([states[rows, ends, :4], states[rows, 0, 4:]], axis=-1)
    case = make_fault_case(states[rows, ends], faithful, {"states": states}, scope="rnn")
    cause = search_causes([case], ROW_HYPOTHESES).causes[0]
    assert cause.name == "pooling"
    assert "tokens [6 4 2] in part 1 and token 0 in part 2" in cause.text
