"""Faults that only the names of parameters show: another shape, or two parameters exchanged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..alignment import Alignment
from ..alignment.weight_products import WeightProduct, find_weight_products
from ..comparison import Comparison
from ..graph import Flow
from ..graph.module_paths import find_common_path
from ..model.finding import Cause, Finding, Kind
from ..model.trace import FORWARD
from ..rulebook import Rules
from .locations import MAX_NAMED_OPS

#: Confidence of a finding that rests on names.
_CONFIDENCE = 0.9
#: Ops that are followed back from two values to their common one.
_MAX_CHAIN = 64
_DIGITS = re.compile(r"\d+")
_GATE_NAME = re.compile(r"\b(?:gate|up)\b")


def find_shape_mismatches(alignment: Alignment, rules: Rules) -> tuple[Finding, ...]:
    """Return one finding per parameter of equal canonical name but different size.

    Fused parameters are left out. So is a name that each side gives to another thing: there one
    parameter holds, under this name only, what the other side has under another one.
    """
    target, reference = alignment.target, alignment.reference
    parameters_t = _index_parameters(target, rules)
    parameters_r = _index_parameters(reference, rules)
    fused_t = {value for group in alignment.groups for value in group.target}
    fused_r = {value for group in alignment.groups for value in group.reference}
    partners_r = set(alignment.partners.values())
    n_names_t, n_names_r = (Counter(flow.parameter_values.values()) for flow in (target, reference))
    findings: list[Finding] = []
    for name in sorted(parameters_r, key=lambda name: reference.consumers[parameters_r[name]][:1]):
        t, r = parameters_t.get(name), parameters_r[name]
        if t is None or t in fused_t or r in fused_r:
            continue
        is_name_of_others = (t in alignment.partners and n_names_t[t] == 1) or (
            r in partners_r and n_names_r[r] == 1
        )
        if target.sizes[t] == reference.sizes[r] or is_name_of_others:
            continue
        shape_t, shape_r = _get_shape(target, t), _get_shape(reference, r)
        if shape_t is None or shape_r is None:
            continue  # shards that could not be joined: the size may be that of padded rows
        title = f"parameter {name} has shape {shape_t} against {shape_r}"
        metrics = {
            "target_size": float(target.sizes[t]),
            "reference_size": float(reference.sizes[r]),
        }
        evidence = "one canonical name"
        findings.append(_build_finding("shape", name, title, metrics, evidence, alignment, (t, r)))
    return tuple(findings)


def find_exchanged_parameters(
    alignment: Alignment, rules: Rules, diverged_scopes: Sequence[str]
) -> tuple[Finding, ...]:
    """Return one finding per group of parameters that hold what others hold on the other side.

    A group are modules that changed places with all their parameters, such as two experts, or
    several in a circle. Both sides must have both names. One side may use a name in another way
    (which of w1, w2, w3 is the gate?). So an exchange is a fault only where values diverge in the
    same module, or where something diverges and other layers are right. ``diverged_scopes`` are the
    canonical scopes of what is introduced.
    """
    parameters_t = _index_parameters(alignment.target, rules)
    parameters_r = _index_parameters(alignment.reference, rules)
    held_names = _find_held_names(alignment, parameters_t, parameters_r)
    exchanged_names = {
        name: held_name
        for name, held_name in held_names.items()
        if held_name != name and held_name in parameters_t
    }
    right_names = {_DIGITS.sub("", name) for name in held_names.keys() - exchanged_names.keys()}
    consumers = alignment.target.consumers
    reported_names = {}
    for name in sorted(exchanged_names, key=lambda name: consumers[parameters_t[name]][:1]):
        module = _get_enclosing_module(name)
        is_diverged = any(f".{module}." in f".{scope}." for scope in diverged_scopes)
        is_right_elsewhere = bool(diverged_scopes) and _DIGITS.sub("", name) in right_names
        if is_diverged or is_right_elsewhere:
            reported_names[name] = exchanged_names[name]
    findings = []
    for group in _group_exchanges(reported_names):
        values = [(parameters_t[name], parameters_r[name]) for name in group]
        findings.append(_build_exchange_finding(group, alignment, values))
    return tuple(findings)


def find_exchanged_products(
    comparison: Comparison, rules: Rules, diverged_ops: frozenset[int]
) -> tuple[Finding, ...]:
    """Return one finding for every two weights whose products are read in each other's place.

    Two weights that changed places leave equal values: each product has a partner, and only the ops
    that read the products differ. There each of them reads what the other one reads on the other
    side. The names of the weights do not matter. What is read must follow from one value by ops of
    the same kinds, among them the products, and one of the ops must be among ``diverged_ops`` (of
    the target): two ops that are paired crosswise look alike otherwise.
    """
    if not diverged_ops:
        return ()
    alignment = comparison.alignment
    products = find_weight_products(alignment.target, alignment.target_kinds)
    readers = _find_readers_of_others(comparison, products)
    partners_r = {r: t for t, r in alignment.partners.items()}
    product_of_output = {product.output: product for product in products.values()}
    findings: list[Finding] = []
    reported_values: set[int] = set()
    for (value, value_r), reader in readers.items():
        other = partners_r.get(value_r, -1)
        other_reader = readers.get((other, alignment.partners.get(value, -1)))
        if other_reader is None or value in reported_values:
            continue
        weights = _list_exchanged_weights(alignment, product_of_output, value, other)
        if weights and not diverged_ops.isdisjoint((reader, other_reader)):
            reported_values |= {value, other}
            findings.append(_build_product_finding(alignment, rules, weights))
    return tuple(findings)


def _find_readers_of_others(
    comparison: Comparison, products: Mapping[int, WeightProduct]
) -> dict[tuple[int, int], int]:
    """Return the target op that reads a value where the reference reads no partner of it.

    Keys are the two values. They are read by ops that are partners, or multiplied with weights that
    are: the op of a product may add its bias on one side only. ``products`` are the target's.
    """
    alignment = comparison.alignment
    agrees = comparison.pairs["agrees"].tolist()
    readers = {
        (pair.target, pair.reference): pair.target_op
        for node, pair in comparison.slot_pairs
        if pair.slot_kind == "input" and not agrees[node]
    }
    products_r = find_weight_products(alignment.reference, alignment.reference_kinds)
    for weight, product in products.items():
        product_r = products_r.get(alignment.partners.get(weight, -1))
        if product_r and alignment.partners.get(product.input, -1) != product_r.input:
            op = int(alignment.target.producers[product.output])
            readers.setdefault((product.input, product_r.input), op)
    return readers


def _list_exchanged_weights(
    alignment: Alignment, product_of_output: Mapping[int, WeightProduct], value: int, other: int
) -> list[tuple[int, int]]:
    """Return the weights by whose products two target values follow from one, the first ones first.

    The list is empty if the ops between it and the two values are of other kinds, too many, or read
    more than one value that the other one does not read.
    """
    flow, kinds = alignment.target, alignment.target_kinds
    weights: list[tuple[int, int]] = []
    for _ in range(_MAX_CHAIN):
        if value == other:
            return weights
        product, other_product = product_of_output.get(value), product_of_output.get(other)
        if product is not None and other_product is not None:
            weights.insert(0, (product.weight, other_product.weight))
            value, other = product.input, other_product.input
            continue
        op, other_op = int(flow.producers[value]), int(flow.producers[other])
        if min(op, other_op) < 0 or kinds[op] != kinds[other_op]:
            return []
        own_operands = set(flow.operands[op]) - set(flow.operands[other_op])
        other_operands = set(flow.operands[other_op]) - set(flow.operands[op])
        if len(own_operands) != 1 or len(other_operands) != 1:
            return []
        (value,), (other,) = own_operands, other_operands
    return []


def _build_product_finding(
    alignment: Alignment, rules: Rules, weights: Sequence[tuple[int, int]]
) -> Finding:
    """Return the finding for pairs of weights of the target; one without a name has a number."""
    parameter_names = alignment.target.list_column("parameter")
    value, other = weights[0]
    first, second = parameter_names[value] or "weight 1", parameter_names[other] or "weight 2"
    canonical_names = [rules.resolve_parameter(name) or name for name in (first, second)]
    n_more = len(weights) - 1
    title = (
        f"parameters {first} and {second} changed places: their products are read in each other's "
        "place"
        if not n_more
        else f"parameters {first} and {second} changed places, and {n_more} more behind them: what "
        "follows is read in each other's place"
    )
    weights_r = _list_reference_weights(alignment, weights)
    text = f"{first} and {second} changed places"
    if weights_r[0] >= 0 and alignment.partners.get(other, -1) < 0:
        whole = alignment.reference.list_column("parameter")[weights_r[0]]
        text = f"{first} and {second}, parts of {whole} of the reference, changed places"
    finding = _build_finding(
        "parameter",
        first,
        title,
        {},
        "the products agree, and the ops that read them read each other's partners",
        alignment,
        (value, alignment.partners.get(other, -1)),
        (Cause(_classify_exchange(*canonical_names), text, 0.0),),
    )
    sides = (
        (alignment.target, [own for own, _ in weights]),
        (alignment.reference, weights_r),
    )
    ops = [
        tuple(op for value in values for op in _name_first_consumer(flow, value))
        for flow, values in sides
    ]
    return replace(finding, target_ops=ops[0][:MAX_NAMED_OPS], reference_ops=ops[1][:MAX_NAMED_OPS])


def _list_reference_weights(alignment: Alignment, weights: Sequence[tuple[int, int]]) -> list[int]:
    """Return the weights of the reference in whose place weights of the target are read.

    The reference may have them in one.
    """
    fused_weights = {
        part: group.reference[0] for group in alignment.groups for part in group.target
    }
    return [alignment.partners.get(other, fused_weights.get(other, -1)) for _, other in weights]


def _find_held_names(
    alignment: Alignment, parameters_t: Mapping[str, int], parameters_r: Mapping[str, int]
) -> dict[str, str]:
    """Return name in the target -> name under which the reference holds the same value."""
    names_r = {value: name for name, value in parameters_r.items()}
    held_names = {}
    for name, value in parameters_t.items():
        partner = alignment.partners.get(value)
        if partner is not None and partner in names_r and name in parameters_r:
            held_names[name] = names_r[partner]
    return held_names


def _group_exchanges(held_names: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the exchanges in groups: those of modules that hold each other's parameters.

    Every group is name -> held name, in the order of ``held_names``.
    """
    groups: list[tuple[set[str], dict[str, str]]] = []
    for name, held_name in held_names.items():
        modules = set(_split_exchange(name, held_name))
        own_names = {name: held_name}
        remaining_groups = []
        for group_modules, group_names in groups:
            if modules.isdisjoint(group_modules):
                remaining_groups.append((group_modules, group_names))
            else:
                modules |= group_modules
                own_names = {**group_names, **own_names}
        groups = [*remaining_groups, (modules, own_names)]
    position = {name: place for place, name in enumerate(held_names)}
    return sorted((names for _, names in groups), key=lambda names: position[next(iter(names))])


def _split_exchange(name: str, held_name: str) -> tuple[str, str]:
    """Return the modules that changed places: both names up to where they differ.

    >>> _split_exchange("experts.0.up_proj.weight", "experts.3.up_proj.weight")
    ('experts.0', 'experts.3')
    """
    steps, held_steps = name.split("."), held_name.split(".")
    differing = [
        place
        for place, pair in enumerate(zip(steps, held_steps, strict=False))
        if len(set(pair)) > 1
    ]
    if len(steps) != len(held_steps) or len(differing) != 1:
        return name, held_name
    end = differing[0] + 1
    return ".".join(steps[:end]), ".".join(held_steps[:end])


def _build_exchange_finding(
    held_names: Mapping[str, str], alignment: Alignment, values: Sequence[tuple[int, int]]
) -> Finding:
    """Return the finding for a group: its scope is the module in which the places are.

    ``values`` are the classes of both sides by name.
    """
    name, held_name = next(iter(held_names.items()))
    subject, other = _split_exchange(name, held_name)
    title = f"the parameters of {subject} hold what those of {other} hold in the reference"
    is_one_parameter = all(
        set(_split_exchange(*pair)) == {subject, other} for pair in held_names.items()
    )
    if len(held_names) <= 2 and is_one_parameter:
        subject, other = name, held_name
        title = f"parameter {name} holds what {held_name} holds in the reference"
    n_more = len(held_names) - 1
    if n_more:
        title += f"; {n_more} more changed places"
    cause = Cause(_classify_exchange(name, held_name), f"{subject} and {other} changed places", 0.0)
    finding = _build_finding(
        "parameter",
        name,
        title,
        {},
        "both names on both sides, and equal values under the other name",
        alignment,
        values[0],
        (cause,),
    )
    modules = {module for pair in held_names.items() for module in _split_exchange(*pair)}
    target_ops: list[str] = []
    reference_ops: list[str] = []
    for value_t, value_r in values:
        target_ops += _name_first_consumer(alignment.target, value_t)
        reference_ops += _name_first_consumer(alignment.reference, value_r)
    return replace(
        finding,
        scope=_find_common_module(sorted(modules)) or finding.scope,
        target_ops=tuple(dict.fromkeys(target_ops))[:MAX_NAMED_OPS],
        reference_ops=tuple(dict.fromkeys(reference_ops))[:MAX_NAMED_OPS],
    )


def _find_common_module(modules: Sequence[str]) -> str:
    """Return the module around modules, '' if it is no layer; a list of them is no module.

    >>> _find_common_module(["layers.1.mlp.experts.0", "layers.1.mlp.experts.3"])
    'layers.1.mlp'
    """
    common_path = find_common_path(modules)
    if all(module.rpartition(".")[2].isdecimal() for module in modules):
        return common_path.rpartition(".")[0]
    return common_path


def _classify_exchange(name: str, held_name: str) -> str:
    """Return the name of the cause, see docs/explain.md: experts, gate and up, or any weights."""
    differ_by_number = _DIGITS.sub("", name) == _DIGITS.sub("", held_name)
    if "experts." in name and differ_by_number:
        return "experts-permuted"
    if _GATE_NAME.search(name):
        return "gate-up-swapped"
    return "weight-swapped"


def _get_enclosing_module(name: str) -> str:
    """Return the module around the one that owns a parameter.

    >>> _get_enclosing_module("layers.1.attention.q.weight")
    'layers.1.attention'
    """
    return name.rpartition(".")[0].rpartition(".")[0]


def _index_parameters(flow: Flow, rules: Rules) -> dict[str, int]:
    """Return canonical name -> class of the parameters that no op produced."""
    names = flow.list_column("parameter")
    canonical_names = rules.resolve_parameters(name for name in names if name)
    parameters = {}
    for value in np.flatnonzero(flow.producers < 0).tolist():
        name = names[value]
        if name in canonical_names:
            parameters[canonical_names[name]] = value
    return parameters


def _get_shape(flow: Flow, value: int) -> tuple[int, ...] | None:
    tensor = int(flow.list_column("tensor")[value])
    shape: tuple[int, ...] | None = flow.tensors["shape"].iat[tensor]
    return shape


def _build_finding(
    kind: Kind,
    name: str,
    title: str,
    metrics: Mapping[str, float],
    evidence: str,
    alignment: Alignment,
    values: tuple[int, int],
    causes: tuple[Cause, ...] = (),
) -> Finding:
    """Return a finding without a rank; ``values`` are the classes of both sides."""
    value_t, value_r = values
    return Finding(
        rank=0,
        kind=kind,
        phase=FORWARD,
        scope=name.rpartition(".")[0],
        title=title,
        target_ops=_name_first_consumer(alignment.target, value_t),
        reference_ops=_name_first_consumer(alignment.reference, value_r),
        slots=(),
        metrics=metrics,
        tolerance=0.0,
        confidence=_CONFIDENCE,
        evidence=(evidence,),
        causes=causes,
    )


def _name_first_consumer(flow: Flow, value: int) -> tuple[str, ...]:
    """Return the name of the first op that reads a value, none if no op does or it is unknown."""
    if value < 0:
        return ()
    return tuple(str(flow.trace.ops["name"].iat[op]) for op in flow.consumers[value][:1])
