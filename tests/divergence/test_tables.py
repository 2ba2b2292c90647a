"""The tables of a result: a row per pair of tensors, a row per op without a partner."""

import pytest
from traces import locate_divergence, find_op, scale_result, skip_op, find_tensor, remove_ops

from dumpdiff.model.result import PAIR_COLUMNS, UNMATCHED_COLUMNS

SILU, DIVISION, MASKED = (
    "Functional.silu.1.forward",
    "Tensor.__truediv__.1.forward",
    "Tensor.__add__.3.forward",
)
SOFTMAX = "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def same(trace):
    """The pairs of a trace with itself."""
    return locate_divergence(trace("pt_none"), trace("pt_none")).pairs


class TestPairs:
    def test_have_the_columns_that_are_documented(self, same):
        assert list(same.columns) == list(PAIR_COLUMNS)

    def test_name_the_tensors_of_both_sides(self, same):
        assert (same["target"] == same["reference"]).all()
        assert (same["target_op"] == same["reference_op"]).all()
        assert (same["target_slot"] == same["reference_slot"]).all()

    def test_follow_the_execution_of_the_target(self, same, trace):
        ops = trace("pt_none").tensors["op"].to_numpy()[same["target"]]
        assert (ops[1:] >= ops[:-1]).all()

    def test_hold_what_was_recorded(self, same, trace):
        row = same[(same["target_op"] == SILU) & (same["target_slot"] == "output.0")].iloc[0]
        recorded = trace("pt_none").tensors.iloc[find_tensor(trace("pt_none"), SILU, "output.0")]
        for name in ("dtype", "shape", "max", "min", "mean", "norm"):
            assert row[f"target_{name}"] == row[f"reference_{name}"] == recorded[name]

    def test_every_result_is_there(self, same, trace):
        """Outputs that are believed, of calls and of modules."""
        tensors = trace("pt_none").tensors
        results = tensors.index[(tensors["role"] == "output") & tensors["trusted"]]
        assert set(results) <= set(same["reference"])

    def test_parameters_are_there_once(self, same, trace):
        named = trace("pt_none").tensors["parameter"].to_numpy()[same["reference"]]
        forward = same[(named != "") & (same["phase"] == "forward")]
        assert len(forward) == 48
        assert (
            forward["reference_slot"]
            .isin(["input.1", "input.2", "input.3", "parameter.weight", "parameter.bias"])
            .all()
        )

    def test_say_where_in_the_model(self, same):
        assert same.loc[same["target_op"] == SILU, "scope"].tolist() == ["layers.1.mlp.activation"]

    def test_name_the_op_of_the_other_framework(self, trace):
        pairs = locate_divergence(trace("ms_mf_none"), trace("pt_none")).pairs
        row = pairs[pairs["reference_op"] == SILU].iloc[0]
        ours = trace("ms_mf_none")
        assert "silu" in ours.ops["kind"].iat[find_op(ours, row["target_op"])].lower()

    def test_say_what_became_of_them(self, trace):
        whole = trace("pt_none")
        pairs = locate_divergence(scale_result(whole, SILU, 1.05, and_after=True), whole).pairs
        assert pairs.loc[pairs["target_op"] == SILU, "state"].tolist() == ["introduced"]
        assert (
            pairs["state"]
            .isin(["agreeing", "introduced", "propagated", "amplified", "incomparable"])
            .all()
        )

    def test_what_heals_is_no_divergence(self, trace):
        whole = trace("pt_none")
        pairs = locate_divergence(scale_result(whole, SILU, 1.05), whole).pairs
        assert pairs.loc[pairs["target_op"] == SILU, "state"].tolist() == ["incomparable"]


class TestUnmatched:
    def reasons(self, target, reference, side):
        table = locate_divergence(target, reference).unmatched
        assert list(table.columns) == list(UNMATCHED_COLUMNS)
        chosen = table[table["side"] == side]
        return dict(zip(chosen["op"], chosen["reason"], strict=True))

    def test_two_equal_runs_have_none(self, trace):
        assert locate_divergence(trace("pt_none"), trace("pt_none")).unmatched.empty

    def test_an_op_that_leads_to_agreement_is_another_decomposition(self, trace):
        whole = trace("pt_none")
        found = self.reasons(skip_op(whole, DIVISION), whole, "reference")
        assert found == {DIVISION: "reconverged: an equivalent decomposition, all values computed from it agree again"}

    def test_an_op_between_agreement_and_disagreement_is_of_the_region(self, trace):
        whole = trace("pt_none")
        parted = scale_result(scale_result(whole, MASKED, 3.0), SOFTMAX, 1.07, and_after=True)
        found = self.reasons(skip_op(parted, DIVISION), whole, "reference")
        assert found == {DIVISION: "region: between values that agree and values that differ"}

    def test_the_side_that_has_it_is_named(self, trace):
        whole = trace("pt_none")
        assert set(self.reasons(whole, skip_op(whole, DIVISION), "target")) == {DIVISION}
        assert self.reasons(whole, skip_op(whole, DIVISION), "reference") == {}

    def test_an_op_without_a_result_says_so(self, trace):
        """A backward record whose forward call is missing: nobody knows what its gradient belongs to."""
        whole = trace("pt_none")
        found = self.reasons(remove_ops(whole, MASKED), whole, "target")
        assert found == {"Tensor.__add__.3.backward": "no tensor to compare"}

    def test_ops_of_another_model_have_no_partner(self, trace):
        found = self.reasons(trace("ms_graph"), trace("pt_none"), "reference")
        assert len(found) > 100
        assert "no partner, and nothing computed from it has one" in found.values()

    def test_kind_phase_and_scope_are_those_of_the_op(self, trace):
        whole = trace("pt_none")
        row = locate_divergence(skip_op(whole, DIVISION), whole).unmatched.iloc[0]
        assert (row["kind"], row["phase"], row["scope"]) == (
            "Tensor.__truediv__",
            "forward",
            "layers.1.attention",
        )
