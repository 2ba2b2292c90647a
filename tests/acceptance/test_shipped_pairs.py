"""The first model, recorded by MindSpore's graph mode and by four generations of ptdbg_ascend."""

import pytest

from .verdicts import assert_aligned, assert_compared, describe_result, get_first_divergence

REFERENCES = ("v6.0_api_stack", "v4.0.T2_api_stack", "v1.0_api_stack", "v6.0_api_stack_summary")
TWO_REFERENCES = ("v6.0_api_stack", "v1.0_api_stack")

#: Consumers of the weight that is 1 % too large, in the names of both generations.
CONSUMERS = {"Functional.linear.18.forward", "Functional_linear_18_forward"}


def assert_weight_found(result):
    first = get_first_divergence(result)
    assert first.kind == "parameter", describe_result(result)
    assert CONSUMERS & set(first.reference_ops), describe_result(result)
    assert first.metrics["error"] == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("reference", REFERENCES)
class TestWholeTensorsAndGraph:
    def test_the_clean_pair_is_aligned(self, dump, compared, reference):
        assert_aligned(compared(dump("ms_graph"), dump(reference)))

    def test_almost_every_pytorch_op_is_compared(self, dump, compared, reference):
        assert_compared(
            compared(dump("ms_graph"), dump(reference)), "reference", forward=0.95, backward=0.90
        )

    def test_every_file_has_its_node_and_every_edge_its_bytes(self, dump, compared, reference):
        details = compared(dump("ms_graph"), dump(reference)).details
        matched, files = details["target_npy_matched"]
        equal, edges = details["target_edges_verified"]
        assert matched == files == 2471
        assert equal >= 0.99 * edges > 900

    def test_a_weight_1_percent_too_large_is_the_first_divergence(self, dump, compared, reference):
        assert_weight_found(compared(dump("ms_graph_bug_w1"), dump(reference)))

    def test_the_wrong_weight_is_named(self, dump, compared, reference):
        first = get_first_divergence(compared(dump("ms_graph_bug_w1"), dump(reference)))
        assert "layers.2.mlp.w1.weight" in first.title
        assert first.scope == "layers.2.mlp.gate_proj"

    def test_one_fault_is_one_finding(self, dump, compared, reference):
        result = compared(dump("ms_graph_bug_w1"), dump(reference))
        assert len(result.findings) == 1, describe_result(result)


@pytest.mark.parametrize("reference", TWO_REFERENCES)
class TestStatisticsAndGraph:
    def test_the_clean_pair_is_aligned(self, statistic_csv, dump, compared, reference):
        result = compared(statistic_csv("ms_graph"), dump(reference))
        assert_aligned(result)
        assert_compared(result, "reference", forward=0.95, backward=0.90)

    def test_the_wrong_weight_is_found(self, statistic_csv, dump, compared, reference):
        assert_weight_found(compared(statistic_csv("ms_graph_bug_w1"), dump(reference)))


def test_means_of_token_ids_in_6_digits_are_no_difference(statistic_csv, dump, compared):
    assert_aligned(
        compared(statistic_csv("ms_graph", "max,min,avg,l2norm"), dump("v6.0_api_stack"))
    )


@pytest.mark.parametrize("reference", TWO_REFERENCES)
class TestWholeTensorsWithoutGraph:
    def test_the_clean_pair_is_aligned(self, without_graph, dump, compared, reference):
        result = compared(without_graph("ms_graph"), dump(reference))
        assert_aligned(result)
        assert_compared(result, "reference", forward=0.95, backward=0.90)

    def test_the_wrong_weight_is_found(self, without_graph, dump, compared, reference):
        assert_weight_found(compared(without_graph("ms_graph_bug_w1"), dump(reference)))


@pytest.mark.parametrize("swapped", [False, True], ids=["target", "reference"])
def test_a_mask_that_is_not_added_is_found_in_statistics_of_bfloat16(dump, compared, swapped):
    """In bfloat16 statistics the activation and logits look equal; nearly no gradient does."""
    pair = dump("pt_gpt2_no_mask"), dump("pt_gpt2")
    result = compared(*(reversed(pair) if swapped else pair))
    first = get_first_divergence(result)
    names = (first.reference_ops, first.target_ops)[swapped]
    assert names == ("Tensor.__add__.4.forward", "Functional.softmax.1.forward"), describe_result(
        result
    )
    assert first.scope == "layers.1.attention"
