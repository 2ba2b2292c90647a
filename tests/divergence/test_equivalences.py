"""What the agreeing part of a pair of dumps teaches: equivalent ops of two frameworks."""

import pytest
from traces import locate_divergence, scale_result


@pytest.fixture(scope="module")
def frameworks(trace):
    """MindSpore's graph mode and PyTorch's calls."""
    return locate_divergence(trace("ms_graph"), trace("v6.0_api_stack"))


def count_equivalences(result):
    return {
        (equivalence.target, equivalence.reference): equivalence.count
        for equivalence in result.learned
    }


class TestEquivalences:
    def test_operators_that_frameworks_name_differently(self, frameworks):
        kinds = count_equivalences(frameworks)
        assert any(len(target) == len(reference) == 1 for target, reference in kinds)

    def test_one_op_against_several(self, frameworks):
        kinds = count_equivalences(frameworks)
        silu = {target for target, reference in kinds if reference == ("Functional.silu",)}
        assert any(len(target) > 1 for target in silu), "graph mode expands it"

    def test_the_most_frequent_first(self, frameworks):
        counts = [equivalence.count for equivalence in frameworks.learned]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] >= 4, "once in every layer"

    def test_kinds_that_are_one_by_the_rules_are_not_repeated(self, frameworks):
        assert (("MatMul",), ("Functional.linear",)) not in count_equivalences(frameworks)

    def test_no_part_of_the_network_is_taken_for_a_decomposition(self, frameworks):
        assert all(
            len(equivalence.target) <= 8 and len(equivalence.reference) <= 8
            for equivalence in frameworks.learned
        )

    def test_two_runs_of_one_framework_teach_nothing(self, trace):
        assert locate_divergence(trace("pt_none"), trace("pt_none")).learned == ()

    def test_what_disagrees_teaches_nothing(self, trace):
        clean_trace = trace("pt_none")
        clean = count_equivalences(locate_divergence(trace("ms_mf_none"), clean_trace))
        after_divergence = count_equivalences(
            locate_divergence(
                scale_result(trace("ms_mf_none"), "Tensor.__mul__.0.forward", 1.1, and_after=True),
                clean_trace,
            )
        )
        assert after_divergence
        assert sum(after_divergence.values()) < sum(clean.values())


class TestParameterNames:
    def test_parameter_names_of_both_sides_are_joined(self, trace):
        names = dict(locate_divergence(trace("ms_mf_none"), trace("pt_none")).parameters)
        assert (
            names["model.layers.1.feed_forward.w1.weight"] == "model.layers.1.mlp.gate_proj.weight"
        )
        assert len(names) == 48

    def test_need_names_on_both_sides(self, frameworks):
        assert frameworks.parameters == (), "ptdbg_ascend names no parameter"
