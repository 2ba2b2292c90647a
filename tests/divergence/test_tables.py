"""The tables of a result: a row per pair of tensors, a row per op without a partner."""

import pytest
from traces import (
    find_op,
    find_tensor,
    locate_divergence,
    remove_ops,
    scale_result,
    scale_tensors,
    skip_op,
)

from dumpdiff.model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS
from dumpdiff.model.verdict import VALUE_STATES

SILU, DIVISION, MASKED = (
    "Functional.silu.1.forward",
    "Tensor.__truediv__.1.forward",
    "Tensor.__add__.3.forward",
)
DOWN, SOFTMAX = "Functional.linear.13.forward", "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def own_pairs(trace):
    """The pairs of a trace with itself."""
    return locate_divergence(trace("pt_none"), trace("pt_none")).pairs


class TestPairs:
    def test_pairs_have_the_documented_columns(self, own_pairs):
        assert list(own_pairs.columns) == list(PAIR_COLUMNS)

    def test_name_the_tensors_of_both_sides(self, own_pairs):
        assert (own_pairs["target"] == own_pairs["reference"]).all()
        assert (own_pairs["target_op"] == own_pairs["reference_op"]).all()
        assert (own_pairs["target_slot"] == own_pairs["reference_slot"]).all()

    def test_follow_the_execution_of_the_target(self, own_pairs, trace):
        ops = trace("pt_none").tensors["op"].to_numpy()[own_pairs["target"]]
        assert (ops[1:] >= ops[:-1]).all()

    def test_hold_what_was_recorded(self, own_pairs, trace):
        row = own_pairs[
            (own_pairs["target_op"] == SILU) & (own_pairs["target_slot"] == "output.0")
        ].iloc[0]
        recorded = trace("pt_none").tensors.iloc[find_tensor(trace("pt_none"), SILU, "output.0")]
        for name in ("dtype", "shape", "max", "min", "mean", "norm"):
            assert row[f"target_{name}"] == row[f"reference_{name}"] == recorded[name]

    def test_every_result_is_there(self, own_pairs, trace):
        """Outputs that are believed, of calls and of modules."""
        tensors = trace("pt_none").tensors
        results = tensors.index[(tensors["slot_kind"] == "output") & tensors["trusted"]]
        assert set(results) <= set(own_pairs["reference"])

    def test_parameters_are_there_once(self, own_pairs, trace):
        named = trace("pt_none").tensors["parameter"].to_numpy()[own_pairs["reference"]]
        forward = own_pairs[(named != "") & (own_pairs["phase"] == "forward")]
        assert len(forward) == 48
        assert (
            forward["reference_slot"]
            .isin(["input.1", "input.2", "input.3", "parameter.weight", "parameter.bias"])
            .all()
        )

    def test_say_where_in_the_model(self, own_pairs):
        assert own_pairs.loc[own_pairs["target_op"] == SILU, "scope"].tolist() == [
            "layers.1.mlp.activation"
        ]

    def test_name_the_op_of_the_other_framework(self, trace):
        pairs = locate_divergence(trace("ms_mf_none"), trace("pt_none")).pairs
        row = pairs[pairs["reference_op"] == SILU].iloc[0]
        target = trace("ms_mf_none")
        assert "silu" in target.ops["kind"].iat[find_op(target, row["target_op"])].lower()

    def test_every_pair_has_a_state(self, trace):
        clean_trace = trace("pt_none")
        pairs = locate_divergence(
            scale_result(clean_trace, SILU, 1.05, and_after=True), clean_trace
        ).pairs
        assert pairs.loc[pairs["target_op"] == SILU, "state"].tolist() == ["introduced"]
        assert pairs["state"].isin(VALUE_STATES).all()

    def test_a_difference_without_consequences_is_isolated(self, trace):
        clean_trace = trace("pt_none")
        pairs = locate_divergence(scale_result(clean_trace, SILU, 1.05), clean_trace).pairs
        assert pairs.loc[pairs["target_op"] == SILU, "state"].tolist() == ["isolated"]

    def test_no_agreeing_pair_is_beyond_the_tolerance_that_it_shows(self, trace):
        """The tolerance is what the pair was judged by, cancellation and conditioning included."""
        pairs = locate_divergence(trace("ms_mf_attn_scale"), trace("pt_none")).pairs
        agreeing = pairs[pairs["state"] == "agreeing"]
        assert len(agreeing) > 50
        assert (agreeing["error"] <= agreeing["tolerance"]).all()

    def test_a_slot_that_holds_another_value_has_a_row(self, trace):
        clean_trace = trace("pt_none")
        row = find_tensor(clean_trace, DOWN, "input.0")
        pairs = locate_divergence(scale_tensors(clean_trace, [row], 2.0), clean_trace).pairs
        (pair,) = pairs[pairs["evidence"] == "slot"].to_dict("records")
        assert (pair["target_op"], pair["target_slot"]) == (DOWN, "input.0")
        assert (pair["reference_op"], pair["reference_slot"]) == (DOWN, "input.0")
        assert (pair["state"], pair["error"]) == ("isolated", pytest.approx(1.0, rel=0.01))


class TestUncompared:
    @pytest.mark.parametrize("pair", [("ms_graph", "v6.0_api_stack"), ("ms_gpt2", "pt_gpt2")])
    def test_every_value_is_compared_or_listed(self, trace, pair):
        result = locate_divergence(*map(trace, pair))
        assert list(result.uncompared.columns) == list(UNCOMPARED_COLUMNS)
        for side in ("target", "reference"):
            for phase, counts in result.coverage[side].items():
                by_state = result.states[side][phase]["values"]
                assert sum(by_state.values()) == counts["values"]
        n_uncompared = {
            side: sum(
                counts["values"] - counts["compared_values"]
                for counts in result.coverage[side].values()
            )
            for side in ("target", "reference")
        }
        is_value = ~result.uncompared["reason"].str.startswith("untrusted")
        listed = result.uncompared[is_value]["side"].value_counts().to_dict()
        assert listed == {side: count for side, count in n_uncompared.items() if count}

    def test_a_value_has_a_state_and_a_reason(self, trace):
        clean_trace = trace("pt_none")
        result = locate_divergence(skip_op(clean_trace, DIVISION), clean_trace)
        (row,) = result.uncompared[result.uncompared["op"] == DIVISION].to_dict("records")
        assert (row["side"], row["slot"], row["state"]) == ("reference", "output.0", "reconverged")
        assert row["reason"].startswith("reconverged: an equivalent decomposition")

    def test_a_value_whose_tolerance_allows_any_error_is_not_compared(self, trace):
        result = locate_divergence(trace("ms_gpt2"), trace("pt_gpt2"))
        is_hidden = result.uncompared["reason"] == "its tolerance allows any error"
        assert result.uncompared[is_hidden]["state"].tolist() == ["incomparable"] * 4
        assert result.states["target"]["backward"]["values"]["incomparable"] == 2
        assert result.states["reference"]["backward"]["values"]["incomparable"] == 2

    def test_untrusted_records_are_listed_too(self, trace):
        clean_trace = trace("pt_none")
        n_untrusted = int((~clean_trace.tensors["trusted"]).sum())
        table = locate_divergence(clean_trace, clean_trace).uncompared
        is_untrusted = table["reason"].str.startswith("untrusted")
        assert is_untrusted.groupby(table["side"]).sum().to_dict() == {
            "target": n_untrusted,
            "reference": n_untrusted,
        }


class TestUnmatched:
    def list_reasons(self, target, reference, side):
        table = locate_divergence(target, reference).unmatched
        assert list(table.columns) == list(UNMATCHED_COLUMNS)
        side_rows = table[table["side"] == side]
        return dict(zip(side_rows["op"], side_rows["reason"], strict=True))

    def test_two_equal_runs_have_none(self, trace):
        assert locate_divergence(trace("pt_none"), trace("pt_none")).unmatched.empty

    def test_an_op_that_leads_to_agreement_is_another_decomposition(self, trace):
        clean_trace = trace("pt_none")
        reasons = self.list_reasons(skip_op(clean_trace, DIVISION), clean_trace, "reference")
        assert reasons == {
            DIVISION: "reconverged: an equivalent decomposition, "
            "all values computed from it agree again"
        }

    def test_an_op_between_agreement_and_disagreement_is_of_the_region(self, trace):
        clean_trace = trace("pt_none")
        diverged_trace = scale_result(
            scale_result(clean_trace, MASKED, 3.0), SOFTMAX, 1.07, and_after=True
        )
        reasons = self.list_reasons(skip_op(diverged_trace, DIVISION), clean_trace, "reference")
        assert reasons == {DIVISION: "region: between values that agree and values that differ"}

    def test_the_side_that_has_an_unmatched_op_is_named(self, trace):
        clean_trace = trace("pt_none")
        assert set(self.list_reasons(clean_trace, skip_op(clean_trace, DIVISION), "target")) == {
            DIVISION
        }
        assert self.list_reasons(clean_trace, skip_op(clean_trace, DIVISION), "reference") == {}

    def test_an_op_without_a_result_says_so(self, trace):
        """A backward record without its forward call: its gradient belongs to no known value."""
        clean_trace = trace("pt_none")
        reasons = self.list_reasons(remove_ops(clean_trace, MASKED), clean_trace, "target")
        assert reasons == {"Tensor.__add__.3.backward": "no tensor to compare"}

    def test_ops_of_another_model_have_no_partner(self, trace):
        reasons = self.list_reasons(trace("ms_graph"), trace("pt_none"), "reference")
        assert len(reasons) > 100
        assert "no partner, and nothing computed from it has one" in reasons.values()

    def test_kind_phase_and_scope_are_those_of_the_op(self, trace):
        clean_trace = trace("pt_none")
        row = locate_divergence(skip_op(clean_trace, DIVISION), clean_trace).unmatched.iloc[0]
        assert (row["kind"], row["phase"], row["scope"]) == (
            "Tensor.__truediv__",
            "forward",
            "layers.1.attention",
        )
