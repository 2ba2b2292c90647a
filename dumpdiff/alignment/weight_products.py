"""Pairs of products with a weight: one op with a bias on one side, two ops on the other.

A linear layer or convolution is one op in one record, and a product followed by the addition of the
bias in the other. What such ops read differs, so their signatures do. But where both sides use
paired weights once in the forward pass, the results with the bias correspond, whatever their
values. So do the inputs, unless one of them has another partner: a norm before the layer may be
missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags
from ..model.trace import FORWARD
from . import confidence
from .matches import Matching

#: Kinds of operators that multiply an input with a weight.
_PRODUCT_KINDS = frozenset({"matmul", "addmm", "convolution"})


@dataclass(frozen=True)
class WeightProduct:
    """The only product of a forward pass with one weight, by class."""

    weight: int
    bias: int  #: -1 if there is none
    input: int
    output: int  #: with the bias


def pair_weight_products(matching: Matching) -> bool:
    """Pair the results, and then the inputs, of products with paired weights and biases.

    Returns whether any pair was added.
    """
    weights_t = _flag_open_weights(matching)
    weights_r = np.zeros(len(matching.classes_r), dtype=bool)
    partners = matching.classes_t[weights_t]
    weights_r[partners[partners >= 0]] = True
    products_t = find_weight_products(matching.target, matching.kinds_t, weights_t)
    products_r = find_weight_products(matching.reference, matching.kinds_r, weights_r)
    output_pairs, input_pairs = [], []
    for weight_t, product_t in products_t.items():
        product_r = products_r.get(int(matching.classes_t[weight_t]))
        if product_r is not None:
            _pair_biases(matching, product_t, product_r)
        if product_r is None or not _have_paired_biases(matching, product_t, product_r):
            continue
        output_pairs.append((product_t.output, product_r.output))
        if matching.can_pair(product_t.input, product_r.input):
            input_pairs.append((product_t.input, product_r.input))
    progress = False
    for t, r in matching.sort_pairs(output_pairs):
        progress |= matching.pair(t, r, "structure", confidence.PARTIAL_INPUTS)
    for t, r in matching.sort_pairs(input_pairs):
        progress |= matching.pair(t, r, "structure", confidence.REMAINING_INPUT)
    return progress


def _flag_open_weights(matching: Matching) -> Flags:
    """Return (target classes,) those read where a value without a partner is read or computed.

    What is paired around the products with other weights stays as it is.
    """
    flow, is_open = matching.target, matching.classes_t < 0
    reads, writes = flow.reads, flow.writes
    writes_open = np.zeros(len(writes), dtype=bool)
    writes_open[writes.rows[is_open[writes.values]]] = True
    leads_to_open = is_open.copy()  # by the op of the value or by one that reads it
    leads_to_open[reads.values[writes_open[reads.rows]]] = True
    is_concerned = flow.flag_readers(is_open)
    is_concerned[writes.rows[leads_to_open[writes.values]]] = True
    is_weight = np.zeros(len(is_open), dtype=bool)
    is_weight[reads.values[is_concerned[reads.rows]]] = True
    return is_weight & (flow.producers < 0)


def _pair_biases(matching: Matching, product_t: WeightProduct, product_r: WeightProduct) -> None:
    """Pair biases of equal numbers, or of one result: one number is no evidence by itself."""
    t, r = product_t.bias, product_r.bias
    if min(t, r) < 0:
        return
    has_one_result = matching.classes_t[product_t.output] == product_r.output
    if has_one_result or matching.compute_distance(t, r) <= matching.tolerance:
        matching.pair(t, r, "structure", confidence.REMAINING_INPUT)


def _have_paired_biases(
    matching: Matching, product_t: WeightProduct, product_r: WeightProduct
) -> bool:
    if product_t.bias < 0 or product_r.bias < 0:
        return product_t.bias < 0 and product_r.bias < 0
    return bool(matching.classes_t[product_t.bias] == product_r.bias)


def find_weight_products(
    flow: Flow, kinds: Sequence[str], is_weight: Flags | None = None
) -> dict[int, WeightProduct]:
    """Return weight -> its product, for weights with one product in the forward pass.

    With ``is_weight`` (classes,) only of these.
    """
    products: dict[int, WeightProduct] = {}
    ambiguous_weights = set()
    names = flow.list_column("parameter")
    is_searched = flow.flag_phase(FORWARD)
    if is_weight is not None:
        is_searched = is_searched & flow.flag_readers(is_weight)
    for op in np.flatnonzero(is_searched).tolist():
        if kinds[op] not in _PRODUCT_KINDS:
            continue
        product = _read_product(flow, kinds, op)
        if product is None:
            continue
        # the record of a module call around the op reads and writes the same values; a bias of one
        # number is known by its name only
        first = products.setdefault(product.weight, product)
        if min(first.bias, product.bias) >= 0 and names[first.bias] == names[product.bias] != "":
            product = replace(product, bias=first.bias)
        if product != first:
            ambiguous_weights.add(product.weight)
    return {
        weight: product
        for weight, product in products.items()
        if weight not in ambiguous_weights and (is_weight is None or is_weight[weight])
    }


def _read_product(flow: Flow, kinds: Sequence[str], op: int) -> WeightProduct | None:
    """Return the product that an op computes, None if it is not that of an input with a weight.

    Without a recorded producer, the input is what alone has no parameter's name.
    """
    producers, sizes = flow.list_column("producer"), flow.list_column("size")
    leaves = [value for value in flow.operands[op] if producers[value] < 0]
    computed_inputs = [value for value in flow.operands[op] if producers[value] >= 0]
    if not computed_inputs:
        names = flow.list_column("parameter")
        computed_inputs = [value for value in leaves if not names[value]]
        leaves = [value for value in leaves if names[value]]
    if len(computed_inputs) != 1 or len(flow.writes[op]) != 1 or len(leaves) not in (1, 2):
        return None
    weight = max(leaves, key=sizes.__getitem__)
    output = flow.writes[op][0]
    if len(leaves) == 2:
        bias = leaves[1] if weight == leaves[0] else leaves[0]
        return WeightProduct(weight, bias, computed_inputs[0], output)
    users = [user for user in flow.users[output] if flow.phases[user] == FORWARD]
    adding_users = [user for user in users if kinds[user] == "add" and flow.writes[user]]
    if len(users) == len(adding_users) == 1:
        terms = [value for value in flow.operands[users[0]] if value != output]
        is_bias = len(terms) == 1 and producers[terms[0]] < 0
        shape = flow.shapes[output]
        least_size = min(2, shape[-1] if shape else 2)  # a head of one number has a bias of one
        if is_bias and least_size <= sizes[terms[0]] < sizes[output]:
            total = flow.writes[users[0]][0]
            return WeightProduct(weight, terms[0], computed_inputs[0], total)
    return WeightProduct(weight, -1, computed_inputs[0], output)
