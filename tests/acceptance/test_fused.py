"""MindSpore with a weight per projection against PyTorch with fused q, k, v and gate, up."""

import pytest

from .verdicts import (
    assert_aligned,
    assert_compared,
    assert_located,
    describe_result,
    get_first_divergence,
)

pytestmark = pytest.mark.record

#: --fused -> layout of the rows of linear_qkv and of gate_up (4 heads), and their parts.
LAYOUTS = {
    "concat": ("concat(0,1,2) of rows", "concat(0,1) of rows"),
    "blocks": ("blocks(4: 0,1,2) of rows", "interleaved(0,1) of rows"),
}
FUSED = pytest.mark.parametrize("fused", LAYOUTS)


@pytest.fixture(scope="module")
def pair(recorded, compared):
    """``pair("blocks", "--fault", "w1")``: MindSpore with options against the fused PyTorch."""
    return lambda fused, *mindspore: compared(
        recorded("mindspore", *mindspore), recorded("pytorch", "--fused", fused)
    )


@pytest.fixture(scope="module")
def reverse(recorded, compared):
    """``reverse("blocks")``: the fused PyTorch against MindSpore."""
    return lambda fused: compared(recorded("pytorch", "--fused", fused), recorded("mindspore"))


def select_fused_weights(result, side):
    """Return the pairs that compare a fused weight of this side with its parts."""
    rows = result.pairs[result.pairs[f"{side}_shape"].isin([(192, 64), (344, 64)])]
    return rows[(rows["phase"] == "forward") & (rows["layout"] != "same")]


@FUSED
class TestClean:
    def test_aligned_against_the_fused_reference(self, pair, fused):
        result = pair(fused)
        assert_aligned(result)
        assert_compared(result, "reference", forward=0.90, backward=0.95)

    def test_aligned_against_the_unfused_reference(self, reverse, fused):
        result = reverse(fused)
        assert_aligned(result)
        assert_compared(result, "target", forward=0.90, backward=0.95)

    def test_each_fused_weight_is_compared_whole_and_its_layout_named(self, pair, fused):
        qkv, gate_up = LAYOUTS[fused]
        rows = select_fused_weights(pair(fused), "reference")
        assert sorted(rows["layout"]) == sorted(2 * [f"reference {qkv}", f"reference {gate_up}"])
        assert set(rows["state"]) == {"agreeing"}
        assert set(rows["metric"]) == {"relative_l2"}
        assert (rows["error"] == 0).all()

    def test_each_part_is_compared_with_the_fused_weight_and_its_layout_named(self, reverse, fused):
        qkv, gate_up = LAYOUTS[fused]
        rows = select_fused_weights(reverse(fused), "target")
        assert sorted(rows["layout"]) == sorted(6 * [qkv] + 4 * [gate_up])
        assert set(rows["state"]) == {"agreeing"}
        assert (rows["error"] == 0).all()

    def test_the_gradients_of_the_fused_weights_are_compared_too(self, pair, fused):
        rows = pair(fused).pairs
        rows = rows[rows["reference_op"].str.contains("(?:qkv|gate_up)_proj.*parameters_grad")]
        assert len(rows) == 4
        assert set(rows["state"]) == {"agreeing"}
        assert rows["layout"].str.startswith("reference ").all()


@FUSED
class TestFault:
    def test_a_part_1_percent_too_large_is_the_first_divergence(self, pair, fused):
        result = pair(fused, "--fault", "w1")
        first = get_first_divergence(result)
        assert first.kind == "parameter", describe_result(result)
        assert "layers.1.mlp.w1.weight" in first.title
        assert first.scope == "layers.1.mlp"  # it holds both parts
        assert first.reference_ops == ("Functional.linear.6.forward",)
        assert len(result.findings) == 1, describe_result(result)

    def test_two_heads_swapped_in_a_part_are_the_first_divergence(self, pair, fused):
        result = pair(fused, "--fault", "head_order")
        first = get_first_divergence(result)
        assert first.kind == "parameter", describe_result(result)
        assert first.reference_ops == ("Functional.linear.4.forward",)
        assert f"layout reference {LAYOUTS[fused][0]}" in first.evidence

    @pytest.mark.parametrize("fault", ["eps", "attn_scale"])
    def test_a_fault_elsewhere_is_located(self, pair, fused, fault):
        result = pair(fused, "--fault", fault)
        assert_located(result, fault)
        assert len(result.findings) == 1, describe_result(result)


@pytest.mark.parametrize(
    "options",
    [
        ("--level", "L1", "--task", "statistics"),
        (
            "--level",
            "L0",
        ),
        ("--names", "plain"),
    ],
)
def test_it_stays_aligned_with_less_recorded(recorded, compared, options):
    """Statistics alone show no layout, but those of the parts together are those of the fused."""
    assert_aligned(
        compared(recorded("mindspore"), recorded("pytorch", "--fused", "blocks", *options))
    )


def test_a_part_1_percent_too_large_shows_in_statistics_alone(recorded, compared):
    reference = recorded("pytorch", "--fused", "concat", "--task", "statistics")
    first = get_first_divergence(compared(recorded("mindspore", "--fault", "w1"), reference))
    assert first.kind == "parameter"
    assert first.reference_ops == ("Functional.linear.6.forward",)
