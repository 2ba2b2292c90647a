"""Ops that put the numbers of a value in another order before a difference."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from traces import (
    find_dependents,
    find_tensor,
    locate_divergence,
    scale_arrays,
    scale_tensors,
)

import dumpdiff
from dumpdiff.divergence import rearrangements
from dumpdiff.divergence.rearrangements import find_misread_parts

TRANSPOSE, PRODUCT = "Tensor.transpose.2.forward", "Torch.matmul.1.forward"


@pytest.fixture(scope="module")
def clean_trace(trace):
    """Whole tensors of a real run."""
    return trace("v6.0_api_stack")


@pytest.fixture(scope="module")
def wrong_trace(clean_trace):
    """The product, and all that is computed from it, is another one."""
    rows = find_dependents(clean_trace, PRODUCT)
    return scale_arrays(scale_tensors(clean_trace, rows, 1.3), rows, 1.3)


@pytest.fixture(scope="module")
def rolled_trace(clean_trace, wrong_trace):
    """The values of an attention are rolled by one token: another result, with the same numbers."""
    rows = [
        find_tensor(clean_trace, TRANSPOSE, "output.0"),
        find_tensor(clean_trace, PRODUCT, "input.1"),
    ]
    rolled_files = set(clean_trace.tensors["file"].iloc[rows])

    def load(file):
        array = wrong_trace.load(file)
        return np.roll(array, 1, axis=2) if file in rolled_files else array

    return replace(wrong_trace, load=load)


class TestRearrangedInput:
    def test_the_op_that_rearranges_is_part_of_the_finding(self, rolled_trace, clean_trace):
        finding = locate_divergence(rolled_trace, clean_trace).findings[0]
        assert finding.target_ops == (TRANSPOSE, PRODUCT)
        assert finding.reference_ops == (PRODUCT,)
        assert f"an input is in another order from {TRANSPOSE} on" in finding.title

    def test_the_same_in_the_other_direction(self, rolled_trace, clean_trace):
        finding = locate_divergence(clean_trace, rolled_trace).findings[0]
        assert finding.target_ops == (PRODUCT,)
        assert finding.reference_ops == (TRANSPOSE, PRODUCT)

    def test_inputs_in_one_order_name_no_op(self, wrong_trace, clean_trace):
        finding = locate_divergence(wrong_trace, clean_trace).findings[0]
        assert finding.target_ops == finding.reference_ops == (PRODUCT,)
        assert "another order" not in finding.title

    def test_statistics_do_not_show_an_order(self, rolled_trace, clean_trace):
        sides = [
            replace(side, tensors=side.tensors.assign(file=""))
            for side in (rolled_trace, clean_trace)
        ]
        (finding, *_) = locate_divergence(*sides).findings
        assert "another order" not in finding.title


class TestExchangedParts:
    """Gate and up are cut from one product; the cut itself is not recorded."""

    PRODUCT, GATE, UP = (
        "Functional.linear.2.forward",
        "Functional.silu.0.forward",
        "Tensor.__mul__.9.forward",
    )

    @pytest.fixture
    def reference(self, trace):
        """Statistics of a real run."""
        return trace("parallel_pt_tp1")

    @pytest.fixture
    def wrong_gate(self, reference):
        """What is computed from the gate is another value."""
        return scale_tensors(reference, find_dependents(reference, self.GATE), 1.3)

    @pytest.fixture
    def exchanged(self, reference, wrong_gate):
        """The activation gets the upper half, and the product the gate."""
        gate = find_tensor(reference, self.GATE, "input.0")
        up = find_tensor(reference, self.UP, "input.1")
        tensors = wrong_gate.tensors.copy()
        numbers = ["max", "min", "mean", "norm"]
        tensors.loc[[gate, up], numbers] = tensors.loc[[up, gate], numbers].to_numpy()
        return replace(wrong_gate, tensors=tensors)

    def test_what_is_cut_is_in_another_order(self, exchanged, reference):
        finding = locate_divergence(exchanged, reference).findings[0]
        assert finding.target_ops[0] == finding.reference_ops[0] == self.PRODUCT
        assert f"an input is in another order from {self.PRODUCT} on" in finding.title

    def test_parts_that_are_read_alike_name_no_op(self, wrong_gate, reference):
        finding = locate_divergence(wrong_gate, reference).findings[0]
        assert finding.target_ops == finding.reference_ops == (self.GATE,)

    def test_an_order_that_both_runs_undo_is_no_difference(self, exchanged):
        assert locate_divergence(exchanged, exchanged).findings == ()


class TestPossibleOrder:
    """Statistics of a permuted result agree. What computes with it shows the order."""

    NORM = "Tensor.__mul__.1.forward"  # its last op
    QUERY, KEY = "Functional.linear.0.forward", "Functional.linear.1.forward"

    @pytest.fixture
    def reference(self, trace):
        """Statistics of a real run."""
        return trace("v6.0_api_stack_summary")

    def diverge(self, reference, *names):
        rows = {row for name in names for row in find_dependents(reference, name)}
        return locate_divergence(scale_tensors(reference, rows, 1.3), reference).findings[0]

    def test_what_several_diverging_ops_read_may_be_in_another_order(self, reference):
        finding = self.diverge(reference, self.QUERY, self.KEY)
        assert finding.target_ops == (self.NORM, self.QUERY)
        assert any("do not show the order of its numbers" in fact for fact in finding.evidence)

    def test_one_diverging_op_is_wrong_itself(self, reference):
        finding = self.diverge(reference, self.QUERY)
        assert finding.target_ops == (self.QUERY,)


class TestOtherSplit:
    """Queries, keys and values: of one projection, or of three that are its thirds head by head.

    Without names, the weights agree as far as their sums show.
    """

    PARTS = tuple(f"Functional.linear.{number}.forward" for number in range(3))

    @pytest.fixture
    def read_form(self, dump):
        """Return a run by its form, without the names of its parameters."""

        def read_form(form):
            run = dumpdiff.read(dump("pt_projection_forms") / f"project_{form}")
            return replace(run, tensors=run.tensors.assign(parameter="", gradient_of=""))

        return read_form

    @pytest.mark.parametrize(("target", "reference"), [("by_head", "fused"), ("fused", "by_head")])
    def test_the_projections_are_part_of_the_finding(self, read_form, target, reference):
        finding = locate_divergence(read_form(target), read_form(reference)).findings[0]
        ops_of_form = {"by_head": self.PARTS, "fused": self.PARTS[:1]}
        assert set(ops_of_form[target]) < set(finding.target_ops)
        assert set(ops_of_form[reference]) < set(finding.reference_ops)
        assert f"in another order from {', '.join(self.PARTS)} on" in finding.title

    def test_thirds_of_the_rows_as_they_are_read_are_no_difference(self, read_form):
        result = locate_divergence(read_form("parts"), read_form("fused"))
        assert (result.verdict, result.findings) == ("aligned", ())


class TestMisreadPart:
    """Keys and values are cut from one value; msprobe records no cut, so the graphs are made up."""

    @staticmethod
    def make_graph(read_by_target: int) -> SimpleNamespace:
        """Return a joint graph of equal values 0 (whole), 1 and 2 (its parts), on both sides.

        Ops: 0 and 1 cut the parts, 2 and 3 read one each.
        """
        sides = []
        for first in (read_by_target, 1):
            reads = [(0,), (0,), (first,), (3 - first,)]
            consumers = {1: [2 if first == 1 else 3], 2: [3 if first == 1 else 2]}
            flow = SimpleNamespace(reads=reads, consumers=consumers, phases=["forward"] * 4)
            producers = {0: -1, 1: 0, 2: 1}
            sides.append(
                SimpleNamespace(
                    flow=flow,
                    classes=[0, 1, 2],
                    kinds=["slice", "slice", "matmul", "matmul"],
                    find_producer=producers.__getitem__,
                )
            )
        return SimpleNamespace(sides=sides)

    def test_the_op_that_cut_it_is_named(self):
        assert find_misread_parts(self.make_graph(2), [1, 2], ([2], [2])) == ([1], [0])

    def test_parts_that_are_read_alike_name_no_op(self):
        assert find_misread_parts(self.make_graph(1), [1, 2], ([2], [2])) == ([], [])


@pytest.mark.parametrize(("is_rearranged", "wholes"), [(True, [2]), (False, [])])
def test_a_value_in_another_order_is_named_where_parts_of_it_are_read(
    monkeypatch, is_rearranged, wholes
):
    """Both sides read parts 0 and 1 of value 2, which differs; value 3 agrees."""
    pairs = pd.DataFrame({"agrees": [True, True, False, True]})
    graph = SimpleNamespace(
        comparison=SimpleNamespace(pairs=pairs),
        parents=[(2,), (2, 3), (3,), ()],
        phase=["forward"] * 4,
    )
    monkeypatch.setattr(rearrangements, "is_rearranged", lambda *_: is_rearranged)
    assert rearrangements._list_rearranged_wholes(graph, [0, 1]) == wholes


def test_a_weight_with_exchanged_axes_is_named_by_its_first_reader():
    graph = SimpleNamespace(
        comparison=SimpleNamespace(pairs=pd.DataFrame({"agrees": [True]})), parents=[()]
    )
    flow = SimpleNamespace(users=[(4, 7)])
    side = SimpleNamespace(flow=flow, classes=[0], find_producer=lambda _: -1)
    assert rearrangements._list_ops_before_exchange(graph, side, 0) == [4]
