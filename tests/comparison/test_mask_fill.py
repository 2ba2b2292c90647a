"""Mask fill is a matter of the graph: what feeds a softmax, not what is large and negative."""

from dataclasses import replace

import numpy as np
import pytest
from traces import edit_tensors, find_op, find_tensor, find_value, load_shipped_rules

from dumpdiff.alignment.values import Fingerprints
from dumpdiff.comparison.mask_fill import find_fill_limit, flag_fill, flag_mask_fill, set_aside_fill
from dumpdiff.graph import build_flow
from dumpdiff.model.dtypes import is_floating


def flag_values(trace):
    """Return the flow of a trace, and the flags of its values."""
    rules = load_shipped_rules()
    flow = build_flow(trace)
    kinds = tuple(map(rules.resolve_kind, trace.ops["kind"]))
    return flow, flag_mask_fill(flow, kinds, rules)


class TestValuesWithFill:
    def test_scores_and_everything_they_are_scaled_and_added_from(self, trace):
        flow, flags = flag_values(trace("pt_none"))
        for name, slot in (
            ("Functional.softmax.0.forward", "input.0"),
            ("Tensor.__add__.0.forward", "input.0"),
            ("Tensor.__add__.0.forward", "input.1"),
            ("Tensor.__truediv__.0.forward", "input.0"),
        ):
            assert flags[find_value(flow, name, slot)]

    def test_not_what_the_scores_were_multiplied_from(self, trace):
        flow, flags = flag_values(trace("pt_none"))
        for name, slot in (
            ("Torch.matmul.0.forward", "input.0"),
            ("Torch.matmul.0.forward", "input.1"),
            ("Functional.softmax.0.forward", "output.0"),
            ("Functional.silu.0.forward", "output.0"),
            ("Tensor.__add__.1.forward", "output.0"),
        ):
            assert not flags[find_value(flow, name, slot)]

    @pytest.mark.parametrize(
        "dump_name", ["ms_mf_none", "ms_graph", "ms_gpt2", "pt_none", "pt_gpt2", "v6.0_api_stack"]
    )
    def test_every_mask_of_a_real_dump_and_few_other_values(self, trace, dump_name):
        flow, flags = flag_values(trace(dump_name))
        has_fill = (flow.classes["min"] <= -9e3).to_numpy()
        assert has_fill.sum() >= 4
        assert flags[has_fill].all()
        assert flags.sum() < 0.1 * len(flags)
        assert not flags[(flow.classes["parameter"] != "").to_numpy()].any()

    def test_the_output_of_masked_fill_that_feeds_a_written_out_softmax(self, trace):
        flow, flags = flag_values(trace("demo_pytorch"))
        fills = [
            op for op, kind in enumerate(flow.trace.ops["kind"]) if kind == "Tensor.masked_fill"
        ]
        assert fills
        assert all(flags[value] for op in fills for value in flow.writes[op])

    def test_a_mask_that_a_module_is_given(self, trace):
        flow, flags = flag_values(trace("pt_none"))
        name = "Module.model.layers.0.self_attn.LlamaAttention.forward.0"
        assert flags[find_value(flow, name, "input.1")]

    def test_no_gradients(self, trace):
        flow, flags = flag_values(trace("pt_none"))
        assert not flags[(flow.classes["phase"] == "backward").to_numpy()].any()

    def test_no_integers(self, trace):
        flow, flags = flag_values(trace("demo_mindspore"))
        assert flow.classes["dtype"][flags].map(is_floating).all()

    def test_an_attention_operator_reads_a_mask_after_query_key_and_value(self, trace):
        name = "Functional.linear.4.forward"
        clean_trace = trace("pt_none")
        ops = clean_trace.ops.copy()
        ops.loc[find_op(clean_trace, name), "kind"] = "Functional.scaled_dot_product_attention"
        attention_trace = replace(clean_trace, ops=ops)
        row = find_tensor(clean_trace, name, "input.0")
        for slot, is_mask in (("input.0", False), ("input.2", False), ("input.3", True)):
            flow, flags = flag_values(edit_tensors(attention_trace, row, slot=slot))
            assert flags[flow.tensor_class[row]] == is_mask


class TestLimit:
    """The number from which on an element is fill."""

    SCORES = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)

    def make(self, fill, share=0.3):
        is_masked = np.random.default_rng(1).random(self.SCORES.size) < share
        return np.where(is_masked, np.float32(fill), self.SCORES)

    @pytest.mark.parametrize("fill", [-1e4, -65504.0, -1e9, -3.4e38])
    def test_fill_far_from_everything_else(self, fill):
        assert fill <= find_fill_limit(self.make(fill)) <= -9e3

    def test_infinities_alone(self):
        assert find_fill_limit(self.make(-np.inf)) == -np.inf

    def test_no_fill(self):
        assert find_fill_limit(self.SCORES) == 0
        assert find_fill_limit(self.SCORES * np.float32(8e3 / np.abs(self.SCORES).max())) == 0

    def test_large_numbers_near_others_are_no_fill(self):
        assert find_fill_limit(self.SCORES * np.float32(1e5)) == 0

    def test_fill_next_to_large_numbers(self):
        array = self.make(-1e9)
        array[array > -1e8] *= np.float32(1e5)
        assert -1e9 <= find_fill_limit(array) < -1e6

    def test_infinities_next_to_large_numbers(self):
        array = self.make(-np.inf)
        array[np.isfinite(array)] *= np.float32(1e5)
        assert find_fill_limit(array) == -np.inf

    @pytest.mark.parametrize("fill", [1e4, 65504.0, 1e9, np.inf])
    def test_fill_above_everything_else(self, fill):
        limit = find_fill_limit(self.make(fill))
        assert 9e3 <= limit <= fill
        assert np.array_equal(flag_fill(self.make(fill), limit), self.make(fill) > 10)

    def test_nothing_is_fill_without_a_limit(self):
        assert not flag_fill(self.make(-1e9), 0.0).any()

    def test_nan_and_infinity_of_the_other_sign_are_neither(self):
        array = self.make(-1e4)
        array[5], array[50_000] = np.nan, np.inf
        assert find_fill_limit(array) == -9e3

    def test_integers_have_none(self):
        assert find_fill_limit(np.array([-100_000, 1, 2])) == 0


class TestStatistics:
    @staticmethod
    def make(low, high, mean, norm):
        columns = (np.array([float(number)]) for number in (1024, high, low, mean, norm, 4))
        return Fingerprints(*columns)

    def set_aside(self, target, reference, is_candidate=True):
        row = np.array([0])
        prints = set_aside_fill(target, row, reference, row, np.array([is_candidate]))
        return bool(prints[2][0]), [prints[0].low[0], prints[0].mean[0], prints[0].norm[0]]

    MASKED = make(-1e4, 3.0, -5e3, 2.3e5)

    @pytest.mark.parametrize("other", [(-1e9, 3.0, -5e8, 2.3e10), (-np.inf, 3.0, -np.inf, np.inf)])
    def test_another_constant_decides_minimum_mean_and_norm(self, other):
        is_set_aside, numbers = self.set_aside(self.make(*other), self.MASKED)
        assert is_set_aside
        assert np.isnan(numbers).all()

    def test_another_constant_above_everything_else_decides_the_maximum(self):
        target, reference = self.make(0.5, np.inf, np.inf, np.inf), self.make(0.5, 1e9, 5e8, 2.3e10)
        row = np.array([0])
        of_target, of_reference, is_set_aside = set_aside_fill(
            target, row, reference, row, np.array([True])
        )
        assert is_set_aside.all()
        assert np.isnan([of_target.high, of_reference.high, of_target.norm]).all()
        assert of_target.low == of_reference.low == 0.5

    def test_the_same_constant_with_a_score_on_top_decides_nothing(self):
        target = self.make(-10_003.0, 3.0, -5001.0, 2.3e5)
        assert not self.set_aside(target, self.MASKED)[0]

    def test_nothing_is_set_aside_where_the_graph_has_no_mask(self):
        target = self.make(-1e9, 3.0, -5e8, 2.3e10)
        assert not self.set_aside(target, self.MASKED, is_candidate=False)[0]

    def test_nor_where_one_side_has_no_fill(self):
        assert not self.set_aside(self.make(-4.0, 3.0, 0.1, 30.0), self.MASKED)[0]

    def test_nor_where_another_share_of_the_elements_is_masked(self):
        target = self.make(-1e9, 3.0, -2.5e8, 1.6e10)
        assert not self.set_aside(target, self.MASKED)[0]

    def test_nor_where_the_low_extreme_is_no_farther_than_the_high_one(self):
        pair = self.make(-2e4, 2e4, 0.0, 1e5), self.make(-3e4, 2e4, 0.0, 1e5)
        assert not self.set_aside(*pair)[0]
