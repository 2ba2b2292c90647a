"""Rows, losses and gradients that one side reduces otherwise: sums, means, padding, branches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.causes.element_places import find_join, take_places
from dumpdiff.model.finding import Finding

Explain = Callable[[str, str], Finding]


@pytest.fixture(scope="module")
def explain(dump: Callable[[str], Path]) -> Explain:
    """Return the first finding of two recorded networks, by the names of their folders."""
    folder = dump("pt_reductions")

    def find_first(target: str, reference: str) -> Finding:
        finding = dumpdiff.align(folder / target, folder / reference).first_divergence
        assert finding is not None
        return finding

    return find_first


@pytest.mark.parametrize(
    ("faulty", "clean", "cause", "sentence"),
    [
        ("bag_padding", "bag_mean", "pooling",
         "the mean of all rows of Functional.embedding.0.forward; the reference takes the mean of "
         "the rows of Functional.embedding.0.forward that are no padding (number 0)"),
        ("bag_sum", "bag_mean", "pooling",
         "the sum of all rows of Tensor.__mul__.0.forward; the reference takes the mean of"),
        ("bag_root", "bag_mean", "pooling", "the sum, divided by the root of their number, of"),
        ("bag_linear", "bag_mean", "missing-step", "without Torch.log1p.0.forward (log1p)"),
        ("table_padding", "table_mean", "pooling",
         "the mean of all rows of table.weight; the reference takes the mean of the rows of "
         "table.weight that are no padding"),
        ("table_sum", "table_mean", "pooling", "the sum of the rows of table.weight"),
        ("table_max", "table_mean", "pooling", "the maximum of the rows of table.weight"),
        ("pools_beyond", "pools_padded", "pooling",
         "the maximum of windows of 3, stride 2, padding (0, 1); the reference takes the maximum "
         "of windows of 3, stride 2, padding 1"),
        ("contrast_offset", "contrast_both", "label-shift", "labels plus 1, modulo 8"),
        ("tokens_sequences", "tokens_mean", "loss-reduction", "divided by the 4 rows"),
        ("tokens_means", "tokens_mean", "loss-reduction",
         "the mean over the 4 rows of the mean of each"),
        ("binary_sigmoid", "binary_logits", "activation-kind", "sigmoid"),
        ("branches_weights", "branches_none", "gradient-stopped",
         "query.Linear.backward.0 and Module.key.Linear.backward.0 missing in a sum"),
        ("branches_skip", "branches_none", "gradient-stopped",
         "the gradient of Torch.tanh.1.backward missing in a sum"),
        ("branches_half", "branches_none", "gradient-scaled",
         "the gradient of Module.query.Linear.backward.0 times 0.5 in a sum"),
        # the square of numbers that are not negative is no activation
        ("steps_square", "steps_none", "argument", "the number = 1 in Tensor.__pow__.0.forward"),
        # a root alone is no norm
        ("steps_root", "steps_none", "missing-step", "without Torch.sqrt.0.forward (sqrt)"),
    ],
)  # fmt: skip
def test_the_cause_is_named(
    explain: Explain, faulty: str, clean: str, cause: str, sentence: str
) -> None:
    finding = explain(faulty, clean)
    assert finding.causes, finding.unexplained
    assert finding.causes[0].name == cause
    assert sentence in finding.causes[0].text


@pytest.mark.parametrize("form", ["mean", "max"])
def test_messages_of_a_node_are_rows_of_one_group(explain: Explain, form: str) -> None:
    """The sum is a form of its own on the other side, so either side may be the subject."""
    cause = explain(f"graph_{form}", "graph_sum").causes[0]
    assert cause.name == "pooling"
    assert "the sum of all rows of Tensor.index_select.0.forward" in cause.text


@pytest.mark.parametrize(("target", "reference"), [("one", "both"), ("both", "one")])
def test_one_of_two_losses_is_no_label_smoothing(
    explain: Explain, target: str, reference: str
) -> None:
    """A mean of two similar losses is near one of them with some smoothing of two digits."""
    causes = explain(f"contrast_{target}", f"contrast_{reference}").causes
    assert "label-smoothing" not in [cause.name for cause in causes]


class TestJoint:
    """The places of the parts of a joined tensor, whose numbers repeat."""

    def test_parts_are_found_in_any_order_and_with_more_axes(self) -> None:
        counts = np.array([[1.0, 1.0, 2.0], [2.0, 1.0, 1.0]])
        rows = np.array([[[1.0, 2.0], [3.0, 1.0]], [[2.0, 2.0], [1.0, 4.0]]])
        joined = np.concatenate([rows.reshape(2, 4), counts], axis=1)
        places = find_join([counts, rows], joined)
        assert places is not None
        changed = take_places([-counts, rows], places, joined.shape)
        np.testing.assert_array_equal(changed[:, 4:], -counts)
        np.testing.assert_array_equal(changed[:, :4], joined[:, :4])

    def test_other_numbers_are_not_joined_from_the_parts(self) -> None:
        part = np.array([[1.0, 1.0]])
        assert find_join([part, part], np.array([[1.0, 1.0, 1.0, 2.0]])) is None


def test_rounding_may_decide_which_elements_relu_passes_on(dump: Callable[[str], Path]) -> None:
    folder = dump("pt_reductions")
    result = dumpdiff.align(folder / "kinks_sums", folder / "kinks_product")
    assert result.verdict == "aligned"
    gradients = result.pairs[result.pairs["reference_op"] == "Torch.relu.0.backward"]
    assert gradients["error"].max() > 0.1
