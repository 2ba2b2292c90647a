"""Products with paired weights correspond, whether their bias is added by them or by another op."""

import numpy as np
from traces import find_op, load_shipped_rules, start_matching

from dumpdiff.alignment.weight_products import find_weight_products, pair_weight_products
from dumpdiff.graph import build_flow

#: A layer of GPT-2 in graph mode, and the same layer in an API dump.
PRODUCT = "c_fc-Dense/MatMul-op0"


def find_products(trace):
    flow = build_flow(trace)
    kinds = [load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    return flow, find_weight_products(flow, kinds)


class TestFinding:
    def test_the_output_in_graph_mode_is_the_sum_with_the_bias(self, trace):
        flow, products = find_products(trace("ms_gpt2"))
        with_bias = [product for product in products.values() if product.bias >= 0]
        assert with_bias
        for product in with_bias:
            adding_op = int(flow.producers[product.output])
            assert flow.trace.ops["kind"].iat[adding_op] in ("BiasAdd", "Add")
            assert product.bias in flow.reads[adding_op]

    def test_a_module_call_around_the_op_is_no_second_product(self, trace):
        flow, products = find_products(trace("v6.0_api_stack"))
        names = flow.trace.ops["name"].to_numpy()
        linear = find_op(flow.trace, "Functional.linear.0.forward")
        weights = [value for value in flow.reads[linear] if value in products]
        assert len(weights) == 1
        assert names[flow.producers[products[weights[0]].output]] == names[linear]


def test_outputs_and_inputs_are_paired_whatever_their_values(trace):
    clean_trace = trace("pt_gpt2")
    matching = start_matching(trace("ms_gpt2"), clean_trace)
    products_t = find_weight_products(matching.target, matching.kinds_t)
    products_r = find_weight_products(matching.reference, matching.kinds_r)
    product_t = next(product for product in products_t.values() if product.bias >= 0)
    candidates_r = [
        product
        for product in products_r.values()
        if product.bias >= 0 and matching.compute_distance(product_t.weight, product.weight) < 1e-5
    ]
    (product_r,) = candidates_r
    assert not pair_weight_products(matching)  # no weights are paired yet
    matching.pair(product_t.weight, product_r.weight, "parameter", 0.9)
    assert pair_weight_products(matching)
    assert matching.classes_t[product_t.bias] == product_r.bias  # of equal numbers
    assert matching.classes_t[product_t.output] == product_r.output
    assert matching.classes_t[product_t.input] == product_r.input
    assert np.count_nonzero(matching.classes_t >= 0) == 4


def test_biases_of_other_numbers_are_paired_if_the_results_are(trace):
    matching = start_matching(trace("ms_gpt2"), trace("pt_gpt2"))
    products_t = find_weight_products(matching.target, matching.kinds_t)
    products_r = find_weight_products(matching.reference, matching.kinds_r)
    product_t = next(product for product in products_t.values() if product.bias >= 0)
    product_r = next(
        product
        for product in products_r.values()
        if product.bias >= 0
        and matching.can_pair(product_t.weight, product.weight)
        and matching.compute_distance(product_t.bias, product.bias) > 1e-2
    )
    matching.pair(product_t.weight, product_r.weight, "parameter", 0.9)
    assert not pair_weight_products(matching)
    matching.pair(product_t.output, product_r.output, "value", 0.9)
    pair_weight_products(matching)
    assert matching.classes_t[product_t.bias] == product_r.bias
