"""One computation written in two ways is aligned, in both directions, as tensors and statistics."""

import numpy as np
import pytest
from traces import (
    classify_traces,
    compare_traces,
    edit_tensors,
    find_outputs,
    find_result,
    find_value,
    scale_arrays,
)

import dumpdiff
from dumpdiff import read

PAIRS = (
    ("rotation_pairs", "rotation_halves"),
    ("rotation_pairs", "rotation_complex"),
    ("recurrence_call", "recurrence_steps"),
    ("step_cell", "step_written"),
    ("norm_call", "norm_root"),
    ("norm_root", "norm_inverse"),
    ("norm_call", "norm_inverse"),
    ("loss_call", "loss_gathered"),
    ("distance_plain", "distance_reversed"),  # |a - b| and |b - a|
    ("clipped_shared", "clipped_first"),  # gradients of a maximum of equal numbers
    ("halves_factored", "halves_written"),  # a gradient that is added up, next to one that is not
    ("paths_call", "paths_written"),  # gradients are exponentials of sums of 64 terms
    ("experts_rows", "experts_masks"),
    ("gate_sigmoid", "gate_exponential"),
    ("attention_written", "attention_fused"),
    ("extent_exponentials", "extent_logarithms"),  # the largest number, and its logarithm
)

#: First word of variants -> the archive with them, if it is not that of most.
ARCHIVES = {
    "clipped": "pt_clipped", "distance": "pt_distances", "halves": "pt_halves",
    "extent": "pt_extents",
}  # fmt: skip


@pytest.fixture(scope="module")
def align_variants(dump):
    """Return the result of two variants, compared once in each direction."""
    results = {}

    def align(first, second):
        if (first, second) not in results:
            folder = dump(ARCHIVES.get(first.partition("_")[0], "pt_variants"))
            results[first, second] = dumpdiff.align(folder / first, folder / second, explained=())
        return results[first, second]

    return align


def test_gradients_of_what_is_used_twice_are_sums(dump):
    """Of an attention that is called twice, and of a parameter in both weights of a mean."""
    folders = dump("ms_shared"), dump("pt_shared")
    for target, reference in (folders, folders[::-1]):
        result = dumpdiff.align(target, reference, explained=())
        assert (result.verdict, result.findings) == ("aligned", ())


def test_a_clipped_loss_without_gradient_is_found(align_variants):
    """The gradient of the other loss is the same, but what follows from both is not."""
    result = align_variants("clipped_shared", "clipped_stopped")
    assert result.verdict == "diverged"
    assert "Torch.max.0.backward" in result.first_divergence.target_ops


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_variants_are_aligned_in_both_directions(align_variants, first, second):
    result, mirrored = align_variants(first, second), align_variants(second, first)
    assert result.verdict == mirrored.verdict == "aligned"
    assert result.findings == mirrored.findings == ()
    assert result.coverage["target"] == mirrored.coverage["reference"]
    assert result.coverage["reference"] == mirrored.coverage["target"]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_most_of_both_sides_is_compared_or_lies_between_compared_values(
    align_variants, first, second
):
    coverage = align_variants(first, second).coverage
    for side in ("target", "reference"):
        for phase in ("forward", "backward"):
            counts = coverage[side][phase]
            assert counts["compared"] + counts["reconverged"] >= 0.85 * counts["ops"]


@pytest.mark.parametrize("form", ["gate_sigmoid", "gate_exponential"])
def test_a_wrong_sign_is_no_other_way_to_write_it(align_variants, form):
    """Both sides multiply by numbers of opposite signs here, too, and what follows differs."""
    result = align_variants("gate_negated", form)
    assert result.verdict == "diverged"
    assert result.first_divergence.scope == "module"


class TestNoise:
    """Noise that enters before two ways to compute the same is allowed behind them."""

    LOGITS, DIFFERENCE, DISTANCE = (
        "Functional.linear.0.forward",
        "Tensor.__sub__.0.forward",
        "Torch.abs.0.forward",
    )

    @pytest.mark.parametrize(
        ("error", "states"),
        [(4e-6, ["reconverged", "agreeing"]), (4e-5, ["introduced", "propagated"])],
    )
    def test_an_error_is_noise_up_to_what_the_values_before_the_difference_explain(
        self, dump, error, states
    ):
        first, second = (
            read(dump("pt_distances") / f"distance_{form}") for form in ("plain", "reversed")
        )
        noisy = scale_arrays(first, find_result(first, self.LOGITS), 1 + 2.5e-6)
        noisy = scale_arrays(noisy, find_result(noisy, self.DISTANCE), 1 + error)
        graph, classified = classify_traces(noisy, second)
        flow = graph.comparison.alignment.target
        nodes = graph.target_nodes[
            [find_value(flow, name, "output.0") for name in (self.DIFFERENCE, self.DISTANCE)]
        ]
        assert classified.state[nodes].tolist() == states


class TestUpdate:
    """Clipping multiplies gradients in place; AdamW divides each by its own size."""

    def test_clipped_gradients_come_from_the_recorded_ones(self, align_variants):
        result = align_variants("attention_written", "attention_fused")
        assert result.details["bridges"]["multiple"] == 2 * 8

    def test_the_update_of_noise_says_nothing(self, align_variants):
        """Softmax does not change if one number is added to all scores of a row."""
        uncompared = align_variants("attention_fused", "attention_written").uncompared
        is_update = uncompared["phase"] == "optimizer"
        assert "incomparable" in set(uncompared.loc[is_update, "state"])

    def test_another_limit_of_the_norm_is_one_finding(self, align_variants):
        (finding,) = align_variants("attention_clipped", "attention_written").findings
        assert finding.explain().causes[0].name == "clip"

    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_missing_decay_of_all_weights_is_one_finding(self, align_variants, is_mirrored):
        names = ["attention_undecayed", "attention_written"]
        (finding,) = align_variants(*sorted(names, reverse=is_mirrored)).findings
        assert finding.phase == "optimizer"
        # not with the key's bias: its gradient is rounding noise, so its update says nothing
        assert any("and 1 more" in sentence for sentence in finding.evidence)
        assert finding.explain().causes[0].name == "weight-decay"


class TestRotation:
    def test_the_gradients_of_permuted_weights_are_compared_in_their_order(self, align_variants):
        pairs = align_variants("rotation_pairs", "rotation_halves").pairs
        permuted = pairs[pairs["layout"] == "rows permuted"]
        assert len(permuted) == 2
        assert (permuted["error"] < 1e-6).all()

    def test_the_permuted_weights_are_compared_and_beyond_their_tolerance(self, align_variants):
        result = align_variants("rotation_pairs", "rotation_halves")
        weights = result.pairs[result.pairs["target_slot"].eq("input.1")]
        differing = weights[weights["error"] > weights["tolerance"]]
        assert set(differing["state"]) == {"reconverged"}
        assert np.allclose(differing["error"].max(), 1.0, atol=0.5)


class TestLoss:
    def test_a_minus_that_was_not_recorded_is_the_layout_of_the_pair(self, align_variants):
        pairs = align_variants("loss_call", "loss_gathered").pairs
        negated = pairs[pairs["layout"] == "negated"]
        assert len(negated) == 1
        assert negated["error"].iat[0] < 1e-6

    def test_a_loss_of_another_size_is_no_loss_of_another_sign(self, dump):
        """The recorded mean is doubled."""
        folder = dump("pt_variants")
        trace = read(folder / "loss_gathered")
        rows = find_outputs(trace, "Tensor.mean.0.forward")
        loss = 2 * trace.tensors["max"].iloc[rows].iat[0]
        numbers = {"max": loss, "min": loss, "mean": loss, "norm": abs(loss), "file": ""}
        pairs = compare_traces(
            read(folder / "loss_call"), edit_tensors(trace, rows, **numbers)
        ).pairs
        assert "negated" not in set(pairs["layout"])


class TestNorm:
    def test_the_gradient_that_only_rounding_is_left_of_says_nothing(self, align_variants):
        """An instance norm takes the bias of the convolution away."""
        uncompared = align_variants("norm_call", "norm_root").uncompared
        assert "incomparable" in set(uncompared.loc[uncompared["side"] == "target", "state"])
