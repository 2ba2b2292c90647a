"""Two regions whose ops differ in a way that no single change of one of them explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import LAST_HYPOTHESES
from dumpdiff.causes.region import Region

from .fault_cases import make_fault_case
from .test_composites import make_region

RNG = np.random.default_rng(21)
X, Y = RNG.standard_normal((2, 3, 8))
IMAGE = RNG.standard_normal((2, 3, 6, 6))
KERNEL = RNG.standard_normal((3, 3, 1, 1))


def explain(faulty: Region, faithful: Region, *, is_near_loss: bool = False) -> tuple[str, str]:
    """Return (cause, sentence without place and residual) of what both regions show."""
    values = (region.steps[-1].output for region in (faulty, faithful))
    case = make_fault_case(*values, {}, scope="block", is_near_loss=is_near_loss)
    case = replace(case, load_region=lambda: faithful, load_faulty_region=lambda: faulty)
    causes = search_causes([case], LAST_HYPOTHESES, checked_only=True).causes
    if not causes:
        return "", ""
    text = causes[0].text.removeprefix("block behaves as ").partition("; residual")[0]
    return causes[0].name, text


def test_an_op_may_be_behind_another_one() -> None:
    before = make_region([("tanh", [("x", X)]), ("exp", [("last", 0)])])
    behind = make_region([("exp", [("x", X)]), ("tanh", [("last", 0)])])
    assert explain(behind, before) == (
        "layer-order",
        "the ops exp, tanh; the reference has tanh, exp",
    )


def test_an_op_may_be_another_one() -> None:
    own = make_region([("exp", [("x", X)]), ("abs", [("last", 0)])])
    other = make_region([("softplus", [("x", X)]), ("abs", [("last", 0)])])
    assert explain(other, own) == (
        "activation-kind",
        "the ops softplus, abs; the reference has exp, abs",
    )


def test_an_exponential_is_no_sigmoid_of_a_sum() -> None:
    own = make_region([("exp", [("x", X)])])
    other = make_region([("add", [("x", X), ("other", 2.0)]), ("sigmoid", [("last", 0)])])
    assert explain(other, own)[0] == "activation-kind"


def test_a_running_sum_may_be_missing() -> None:
    own = make_region([("cumsum", [("x", X), ("axis", -1)])])
    running = make_region(
        [("cumsum", [("x", X), ("axis", -1)]), ("sum", [("last", 0), ("axis", -1)])],
        {1: (3,)},
    )
    plain = make_region([("sum", [("x", X), ("axis", -1)])], {0: (3,)})
    assert own.steps[-1].output.shape == X.shape
    assert explain(plain, running) == ("missing-step", "the ops sum; the reference has cumsum, sum")


@pytest.mark.parametrize(("is_near_loss", "cause"), [(True, "loss-reduction"), (False, "pooling")])
def test_a_sum_is_no_mean(is_near_loss: bool, cause: str) -> None:
    mean, total = (
        make_region([(kind, [("x", X), ("axis", -1)]), ("abs", [("last", 0)])], {0: (3,), 1: (3,)})
        for kind in ("mean", "sum")
    )
    assert explain(total, mean, is_near_loss=is_near_loss)[0] == cause


def test_a_term_may_be_missing() -> None:
    whole = make_region([("add", [("x", X), ("y", Y)]), ("tanh", [("last", 0)])])
    part = make_region([("tanh", [("x", X)])])
    assert explain(part, whole) == ("missing-term", "the ops tanh; the reference has add, tanh")


def test_the_parts_of_an_op_are_the_op() -> None:
    fused = make_region([("silu", [("x", X)]), ("exp", [("last", 0)])])
    written = make_region(
        [("exp", [("x", X)]), ("sigmoid", [("last", 0)]), ("mul", [("last", 0), ("0", 0)])]
    )
    assert explain(written, fused)[0] == "layer-order"


def test_equal_ops_may_give_other_shapes() -> None:
    calls = [
        ("convolution", [("x", IMAGE), ("weight", KERNEL)]),
        ("mean", [("last", 0), ("axes", np.array([2, 3]))]),
    ]
    every, other = (make_region(calls, {0: (2, 3, n, n), 1: (2, 3)}) for n in (6, 3))
    cause, sentence = explain(every, other)
    assert cause == "argument"
    assert "convolution with stride 1" in sentence.partition("; the reference has")[0]
    assert "convolution with stride 2" in sentence.partition("; the reference has")[2]


def test_a_region_that_begins_earlier_is_no_other_formula() -> None:
    short = make_region([("exp", [("x", X)])])
    long = make_region([("layer_norm", [("y", Y)]), ("tanh", [("last", 0)])])
    assert explain(long, short) == ("", "")


def test_rows_may_be_read_step_by_step() -> None:
    """Logits are flattened with the steps first, labels are not."""
    weights = RNG.standard_normal((12, 5))
    logits = RNG.standard_normal((4, 3, 5))
    own, other = (
        make_region([("mul", [("logits", rows), ("labels", weights)]), ("exp", [("last", 0)])])
        for rows in (logits.reshape(12, 5), logits.swapaxes(0, 1).reshape(12, 5))
    )
    assert explain(other, own) == (
        "axes-swapped",
        "logits with its axes of 4 and 3 elements exchanged, as those of what it is computed with "
        "are not; the reference has them in the other order",
    )


def test_the_heads_may_be_others() -> None:
    own, other = (
        make_region(
            [
                ("softmax", [("scores", RNG.standard_normal((2, n_heads, 3, 3)))]),
                (
                    "matmul",
                    [("last", 0), ("v", RNG.standard_normal((2, n_heads, 3, 8 // n_heads)))],
                ),
            ],
            {1: (2, n_heads, 3, 8 // n_heads)},
        )
        for n_heads in (4, 2)
    )
    assert explain(other, own) == ("argument", "attention with 2 heads; the reference has 4 heads")


def test_equal_formulas_are_no_cause() -> None:
    own = make_region([("tanh", [("x", X)])])
    other = make_region([("tanh", [("x", 1.5 * X)])])
    assert explain(other, own) == ("", "")


def test_a_norm_may_be_applied_to_parts() -> None:
    """Virtual batches of a few rows have statistics of their own."""
    rows = RNG.standard_normal((6, 8))
    affine = [("norm.weight", np.ones(8)), ("norm.bias", np.zeros(8))]
    halves = (np.arange(3), np.arange(3, 6))
    own = make_region([("batch_norm", [("x", rows), *affine]), ("sigmoid", [("last", 0)])])
    other = make_region(
        [
            *(("gather_rows", [("x", rows), ("ids", half)]) for half in halves),
            *(("batch_norm", [(name, 0), *affine]) for name in "01"),
            ("concat", [("2", 0), ("3", 0)]),
            ("sigmoid", [("last", 0)]),
        ],
        {0: (3, 8), 1: (3, 8), 4: (6, 8)},
    )
    assert explain(other, own)[0] == "norm-groups"
