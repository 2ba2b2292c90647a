"""Scalings: what each side's dump holds of a factor, for every way to scale attention scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dumpdiff import align
from dumpdiff.causes.comparison_index import ComparisonIndex
from dumpdiff.causes.scaling_search import find_scalings
from dumpdiff.causes.scalings import Scaling, describe_scalings, select_scalings
from dumpdiff.graph import build_flow
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.operators.softmax import softmax

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal((2, 4, 6, 16)) for _ in range(3))
SCORES = Q @ K.swapaxes(2, 3)
MASK = np.where(np.triu(np.ones((6, 6)), 1) > 0, -1e9, 0.0)
SIXTEEN = np.full((1,), 16.0)


class Recorder:
    """Calls of one run, recorded with statistics."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.rows: list[dict[str, object]] = []

    def call(self, kind: str, slots: Mapping[str, AnyArray | float], output: AnyArray) -> AnyArray:
        """Record a call and return its output."""
        op = len(self.kinds)
        self.kinds.append(kind)
        for name, value in slots.items():
            self._add_row(op, f"input.{name}", value)
        self._add_row(op, "output.0", output)
        return output

    def _add_row(self, op: int, slot: str, value: AnyArray | float) -> None:
        array = np.asarray(value, dtype=np.float64)
        statistics = {"max": array.max(), "min": array.min(), "mean": array.mean()}
        self.rows.append(
            {
                "op": op,
                "slot": slot,
                "slot_kind": slot.partition(".")[0],
                "dtype": "float32",
                "shape": array.shape,
                "size": array.size,
                "constant": isinstance(value, float),
                "norm": float(np.linalg.norm(array)),
                **statistics,
            }
        )

    def find_last_scalings(self, *agreeing: AnyArray) -> tuple[Scaling, ...]:
        """Return the scalings of the last output; ``agreeing`` values end the search."""
        names = [f"{kind}.{number}" for number, kind in enumerate(self.kinds)]
        ops = build_op_table({"name": names, "kind": self.kinds})
        columns = {name: [row[name] for row in self.rows] for name in self.rows[0]}
        trace = Trace(Source("", "msprobe", "", "pytorch"), ops, build_tensor_table(columns))
        flow = build_flow(trace)
        agreed_norms = [np.linalg.norm(array) for array in agreeing]
        agreed_classes = set()
        for row, norm in enumerate(flow.tensors["norm"]):
            if norm in agreed_norms:
                agreed_classes.add(int(flow.tensor_class[row]))
        index = SimpleNamespace(flows=[flow], kinds=[self.kinds], agreed_classes=[agreed_classes])
        value = int(flow.tensor_class[len(self.rows) - 1])
        return find_scalings(cast(ComparisonIndex, index), 0, value)


def multiply_scores(run: Recorder) -> AnyArray:
    return run.call("mul", {"0": SCORES, "1": 0.25}, 0.25 * SCORES)


def multiply_by_scores(run: Recorder) -> AnyArray:
    return run.call("mul", {"0": 0.25, "1": SCORES}, 0.25 * SCORES)


def divide_scores(run: Recorder) -> AnyArray:
    return run.call("div", {"0": SCORES, "1": 4.0}, SCORES / 4)


def divide_scores_recorded_in_reverse(run: Recorder) -> AnyArray:
    return run.call("div", {"0": 4.0, "1": SCORES}, SCORES / 4)


def divide_by_computed_root(run: Recorder) -> AnyArray:
    root = run.call("sqrt", {"0": SIXTEEN}, np.sqrt(SIXTEEN))
    return run.call("div", {"0": SCORES, "1": root}, SCORES / root)


def scale_queries(run: Recorder) -> AnyArray:
    q = run.call("mul", {"0": Q, "1": 0.25}, 0.25 * Q)
    return run.call("matmul", {"0": q, "1": K}, q @ K.swapaxes(2, 3))


def scale_queries_and_keys(run: Recorder) -> AnyArray:
    q = run.call("mul", {"0": Q, "1": 0.5}, 0.5 * Q)
    k = run.call("div", {"0": K, "1": 2.0}, K / 2)
    return run.call("matmul", {"0": q, "1": k}, q @ k.swapaxes(2, 3))


def multiply_with_alpha(run: Recorder) -> AnyArray:
    slots = {"0": MASK, "1": Q, "2": K, "alpha": 0.25}
    return run.call("addmm", slots, 0.25 * SCORES + 0 * MASK)


def scale_masked_scores(run: Recorder) -> AnyArray:
    scaled = run.call("mul", {"0": SCORES, "1": 0.25}, 0.25 * SCORES)
    return run.call("add", {"0": scaled, "1": MASK}, scaled + MASK)


@pytest.mark.parametrize(("compute", "actions"), [
    (multiply_scores, ["multiplies by 0.25"]),
    (multiply_by_scores, ["multiplies by 0.25"]),
    (divide_scores, ["divides by 4"]),
    (divide_scores_recorded_in_reverse, ["divides by 4"]),
    (divide_by_computed_root, ["divides by 4"]),
    (scale_queries, ["multiplies by 0.25"]),
    (scale_queries_and_keys, ["multiplies by 0.5", "divides by 2"]),
    (multiply_with_alpha, ["has alpha = 0.25"]),
    (scale_masked_scores, ["multiplies by 0.25"]),
])  # fmt: skip
def test_every_form_of_a_quarter_is_an_effective_factor_of_a_quarter(
    compute: Callable[[Recorder], AnyArray], actions: list[str]
) -> None:
    run = Recorder()
    compute(run)
    scalings = run.find_last_scalings()
    assert [scaling.action for scaling in scalings] == actions
    assert np.prod([scaling.factor for scaling in scalings]) == pytest.approx(0.25)
    assert not any(scaling.in_softmax for scaling in scalings)


def test_a_scale_inside_attention_is_one_of_the_scores_not_of_the_output() -> None:
    fused, composed = Recorder(), Recorder()
    scaled = composed.call("div", {"0": SCORES, "1": 4.0}, SCORES / 4)
    probabilities = composed.call("softmax", {"0": scaled}, softmax(scaled))
    output = composed.call("matmul", {"0": probabilities, "1": V}, probabilities @ V)
    fused.call("attention", {"0": Q, "1": K, "2": V, "scale": 0.25}, output)
    (fused_scaling,) = fused.find_last_scalings()
    (composed_scaling,) = composed.find_last_scalings()
    assert (fused_scaling.action, composed_scaling.action) == ("has scale = 0.25", "divides by 4")
    assert fused_scaling.in_softmax
    assert composed_scaling.in_softmax
    assert select_scalings([fused_scaling, composed_scaling]) == []


def test_a_mean_divides_by_the_number_of_its_elements() -> None:
    run = Recorder()
    run.call("mean", {"0": SCORES}, SCORES.mean(-1))
    (scaling,) = run.find_last_scalings()
    assert (scaling.action, scaling.factor) == ("averages over 6", pytest.approx(1 / 6))


def test_the_reciprocal_of_a_tensor_is_no_scaling() -> None:
    run = Recorder()
    run.call("div", {"0": 4.0, "1": SCORES}, 4 / SCORES)
    assert run.find_last_scalings() == ()


def test_the_search_ends_at_agreement() -> None:
    """What both sides do alike before the divergence explains nothing."""
    run = Recorder()
    q = run.call("mul", {"0": Q, "1": 0.5}, 0.5 * Q)
    run.call("div", {"0": q, "1": 2.0}, q / 2)
    assert [scaling.factor for scaling in run.find_last_scalings(q)] == [0.5]
    assert [scaling.factor for scaling in run.find_last_scalings()] == [0.5, 0.5]


PRODUCT = Scaling("Mul-op3", "multiplies by 0.0625", 0.0625)
QUOTIENT = Scaling("Tensor.div.0.forward", "divides by 4", 0.25)


def test_both_sides_are_named_with_their_own_numbers() -> None:
    assert describe_scalings([PRODUCT], [QUOTIENT], 0.25) == (
        "the target multiplies by 0.0625 (Mul-op3), the reference divides by 4 "
        "(Tensor.div.0.forward): 0.0625 against 0.25"
    )
    assert describe_scalings([PRODUCT], [], 0.0625) == (
        "the target multiplies by 0.0625 (Mul-op3), the reference multiplies by no recorded "
        "number: 0.0625 against 1"
    )


@pytest.mark.parametrize("ratio", [4.0, 0.5, 1.0])
def test_numbers_that_do_not_explain_the_factor_are_not_reported(ratio: float) -> None:
    """The scale of another op, or one that the dump does not hold, decides."""
    assert describe_scalings([PRODUCT], [QUOTIENT], ratio) == ""


def test_nothing_recorded_is_nothing_said() -> None:
    assert describe_scalings([], [], 1.0) == ""


def test_a_divisor_is_not_taken_for_a_factor(dump: Callable[[str], Path]) -> None:
    """Scores of layer 1 multiplied by 1/16 in place of divided by 4; only statistics recorded."""
    finding = align(str(dump("ms_mf_attn_scale")), str(dump("pt_none"))).first_divergence
    assert finding is not None
    assert [cause.name for cause in finding.causes] == ["scale"]
    sentence, _, residual = finding.causes[0].text.rpartition("; residual ")
    assert sentence == (
        "layers.1.attention behaves as attention scores 0.25 times the reference's, by its "
        "statistics; recorded: the target multiplies by 0.0625 (Tensor.__mul__.2.forward), the "
        "reference divides by 4 (Tensor.__truediv__.1.forward): 0.0625 against 0.25"
    )
    assert float(residual) < 1e-6


def test_with_the_sides_exchanged_the_numbers_are_exchanged(dump: Callable[[str], Path]) -> None:
    finding = align(str(dump("pt_none")), str(dump("ms_mf_attn_scale"))).first_divergence
    assert finding is not None
    text = finding.causes[0].text
    assert "attention scores 4 times the reference's" in text
    assert "the target divides by 4 (Tensor.__truediv__.1.forward)" in text
    assert "the reference multiplies by 0.0625 (Tensor.__mul__.2.forward): 0.25 against" in text
