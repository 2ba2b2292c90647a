"""Gradients that one side multiplies before it takes their norm: an average left out, a sum twice.

Clipping by the norm cancels such a factor, so that every value after it agrees. The norm itself,
which is logged and decides whether there is clipping at all, is off by the factor.

Also gradients of single weights that one side multiplies where the backward pass ends: nothing that
was recorded depends on the product, so that no difference shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Floats
from ..model.finding import Cause, Finding
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from ..model.verdict import AGREEING, RECONVERGED
from .cancellation import SCALING_KINDS
from .joint_graph import JointGraph
from .locations import MAX_NAMED_OPS
from .states import States

#: Kinds of the op before the sum, where a norm is written out.
_SQUARE_KINDS = frozenset({"square", "pow"})
#: Factors between a gradient and its norm that are followed: loss scale, data parallelism, tokens.
_MAX_FACTORS = 4
#: Of values that differ by no more than what a later op undoes.
_UNDIVERGED_STATES = (AGREEING, RECONVERGED)
#: Relative difference of two factors that is more than the rounding of statistics: no factor that
#: somebody forgets is so near 1.
_MIN_DIFFERENCE = 1e-3
#: The factor is a ratio of recorded norms of gradients that agree before it.
_CONFIDENCE = 0.9


@dataclass(frozen=True)
class _NormedGradient:
    """The gradient of one weight as it enters the norm, by class of both sides."""

    target: int
    reference: int
    factor: float  #: norm of the target's over that of the reference's


def insert_gradient_scales(
    findings: Sequence[Finding], graph: JointGraph, states: States
) -> tuple[Finding, ...]:
    """Return the findings with one more if gradients are scaled differently before their norm.

    And one more if the gradients of some weights are scaled where the backward pass ends. They come
    before the findings of the optimizer, which follow from them.
    """
    scale_findings = [
        finding
        for finding in (_find_final_scale(graph, states), _find_gradient_scale(graph, states))
        if finding is not None
    ]
    if not scale_findings:
        return tuple(findings)
    earlier = [finding for finding in findings if finding.phase != OPTIMIZER]
    later = [finding for finding in findings if finding.phase == OPTIMIZER]
    ordered_findings = [*earlier, *scale_findings, *later]
    return tuple(replace(finding, rank=rank) for rank, finding in enumerate(ordered_findings, 1))


def _find_gradient_scale(graph: JointGraph, states: States) -> Finding | None:
    """Return the finding of the most frequent factor, None if all gradients are scaled alike."""
    gradients = _collect_normed_gradients(graph, states)
    scaled_gradients = [g for g in gradients if abs(g.factor - 1) > _MIN_DIFFERENCE]
    if not scaled_gradients:
        return None
    rounded_factors = Counter(float(f"{gradient.factor:.3g}") for gradient in scaled_gradients)
    factor = rounded_factors.most_common(1)[0][0]
    alignment = graph.comparison.alignment
    names_t = _name_producers(
        alignment.target, alignment.target_kinds, [g.target for g in scaled_gradients]
    )
    names_r = _name_producers(
        alignment.reference, alignment.reference_kinds, [g.reference for g in scaled_gradients]
    )
    n_scaled = len(scaled_gradients)
    title = (
        f"the gradients of {n_scaled} of {len(gradients)} parameters are {factor:g} times the "
        f"reference's where their norm is taken: {names_t[0]} vs {names_r[0]}"
    )
    cause_text = f"the gradients are {factor:g} times the reference's before clipping"
    evidence = ("the gradients agree where the backward pass ends", "ratio of recorded norms")
    return _build_finding(OPTIMIZER, title, (names_t, names_r), factor, evidence, cause_text)


def _find_final_scale(graph: JointGraph, states: States) -> Finding | None:
    """Return the finding of gradients that one side multiplies last, None if there are none.

    Where most gradients of a side are, it averages over ranks or undoes a loss scale.
    """
    gradient_nodes = _list_agreeing_weight_gradients(graph, states)
    scaled_values: list[tuple[int, int, float]] = []  # (node of the gradient, side, factor)
    for number, side in enumerate(graph.sides):
        scaled_of_side = []
        for node in gradient_nodes:
            gradient = int(side.classes[node])
            scaled_value = _find_final_multiple(side.flow, side.kinds, gradient)
            if scaled_value < 0:
                continue
            factor = float(side.flow.norms[scaled_value] / max(side.flow.norms[gradient], 1e-300))
            if np.isfinite(factor) and abs(factor - 1) > _MIN_DIFFERENCE:
                scaled_of_side.append((node, number, factor if number == 0 else 1 / factor))
        if 2 * len(scaled_of_side) <= len(gradient_nodes):
            scaled_values += scaled_of_side
    if not scaled_values:
        return None
    node, scaled_side, factor = scaled_values[0]
    target_ops = _name_ends(graph, 0, [(n, side) for n, side, _ in scaled_values])
    reference_ops = _name_ends(graph, 1, [(n, side) for n, side, _ in scaled_values])
    side_name = ("target", "reference")[scaled_side]
    title = (
        f"the {side_name} multiplies the gradients of {len(scaled_values)} of "
        f"{len(gradient_nodes)} weights after the backward pass, where they agree: the first is "
        f"{factor:.3g} times the reference's: {target_ops[0]} vs {reference_ops[0]}"
    )
    cause_text = f"the gradient is {factor:.3g} times the reference's"
    evidence = (
        "the gradients agree before they are multiplied",
        "ratio of recorded norms; no recorded value depends on the product",
    )
    ops = (target_ops, reference_ops)
    return _build_finding(BACKWARD, title, ops, factor, evidence, cause_text)


def _build_finding(
    phase: str,
    title: str,
    ops: tuple[tuple[str, ...], tuple[str, ...]],
    factor: float,
    evidence: tuple[str, ...],
    cause_text: str,
) -> Finding:
    """Return the finding of gradients that are ``factor`` times the reference's."""
    return Finding(
        rank=0,
        kind="introduced",
        phase=phase,
        scope="",
        title=title,
        target_ops=ops[0][:MAX_NAMED_OPS],
        reference_ops=ops[1][:MAX_NAMED_OPS],
        slots=(("output.0", "output.0"),),
        metrics={"error": abs(factor - 1), "norm_ratio": factor},
        tolerance=_MIN_DIFFERENCE,
        confidence=_CONFIDENCE,
        evidence=evidence,
        causes=(Cause("gradient-scaled", cause_text, 0.0, {"factor": factor}),),
    )


def _list_agreeing_weight_gradients(graph: JointGraph, states: States) -> list[int]:
    """Return the nodes of the gradients of parameters that agree, in order."""
    alignment = graph.comparison.alignment
    if alignment.gradients is None:
        return []
    is_gradient = np.zeros(graph.n_nodes, dtype=bool)
    for side, gradients in zip(graph.sides, alignment.gradients, strict=True):
        names = side.flow.list_column("parameter")
        values = [gradient for value, gradient in gradients.by_value.items() if names[value]]
        is_gradient[side.nodes[values]] = True
    nodes = np.flatnonzero(is_gradient[: len(graph.comparison.pairs)])
    agreeing_nodes: list[int] = nodes[states.state[nodes] == AGREEING].tolist()
    return agreeing_nodes


def _find_final_multiple(flow: Flow, kinds: Sequence[str], gradient: int) -> int:
    """Return the multiple of a gradient that nothing is computed from, -1 if there is none.

    The gradient itself must have no other use.
    """
    consumers = [op for op in flow.consumers[gradient] if flow.writes[op]]
    if len(consumers) != 1 or flow.phases[consumers[0]] != BACKWARD:
        return -1
    op = consumers[0]
    tensors = [read for read in flow.operands[op] if flow.sizes[read] > 1]
    results = flow.writes[op]
    if kinds[op] not in SCALING_KINDS or tensors != [gradient] or len(results) != 1:
        return -1
    is_used = any(flow.writes[user] for user in flow.consumers[results[0]])
    return -1 if is_used or flow.sizes[results[0]] != flow.sizes[gradient] else results[0]


def _name_ends(
    graph: JointGraph, side: int, scaled_nodes: list[tuple[int, int]]
) -> tuple[str, ...]:
    """Return the names of one side's ops that give the gradients last."""
    own = graph.sides[side]
    values = []
    for node, scaled_side in scaled_nodes:
        gradient = int(own.classes[node])
        is_scaled = scaled_side == side
        values.append(
            _find_final_multiple(own.flow, own.kinds, gradient) if is_scaled else gradient
        )
    return _name_producers(own.flow, own.kinds, values)


def _collect_normed_gradients(graph: JointGraph, states: States) -> list[_NormedGradient]:
    """Return the gradients of paired weights that agree after the backward pass and have a norm."""
    alignment = graph.comparison.alignment
    if alignment.gradients is None:
        return []
    if not any(
        _flag_values_of_update(flow).any() for flow in (alignment.target, alignment.reference)
    ):
        return []
    op_partners = _list_op_partners(graph)
    normed_gradients = []
    for pairs in _iterate_gradient_pairs(graph, states):
        for value_t, value_r in pairs:
            normed_gradient = _follow_to_norm(graph, op_partners, value_t, value_r)
            has_agreed = states.state[graph.target_nodes[value_t]] == AGREEING
            if normed_gradient is not None and (has_agreed or _is_scaled(graph, normed_gradient)):
                normed_gradients.append(normed_gradient)
                break
    if not normed_gradients:
        normed_gradients = _collect_reduced_gradients(graph, op_partners, states)
    positions_t, positions_r = alignment.target.positions, alignment.reference.positions
    return sorted(
        normed_gradients, key=lambda g: float(positions_t[g.target] + positions_r[g.reference])
    )


def _iterate_gradient_pairs(graph: JointGraph, states: States) -> Iterator[list[tuple[int, int]]]:
    """Yield for each weight the pairs that are its gradient where the backward pass ends.

    The gradient of either side is paired with a value of the other: a side that has only summands
    of it there has their sum over ranks. A pair agrees, or whatever differs is undone later.
    """
    alignment = graph.comparison.alignment
    assert alignment.gradients is not None
    gradients_t, gradients_r = (gradients.by_value for gradients in alignment.gradients)
    partners = alignment.partners
    targets = {value_r: value_t for value_t, value_r in partners.items()}
    may_have_norm_t, may_have_norm_r = (
        _flag_values_of_update(flow) for flow in (alignment.target, alignment.reference)
    )
    for weight_t, weight_r in partners.items():
        gradient_t, gradient_r = gradients_t.get(weight_t, -1), gradients_r.get(weight_r, -1)
        if gradient_t < 0 and gradient_r < 0:
            continue
        pairs = {
            (gradient_t, partners.get(gradient_t, -1)),
            (targets.get(gradient_r, -1), gradient_r),
        }
        pairs_of_state: dict[str, list[tuple[int, int]]] = {}
        for value_t, value_r in sorted(pairs):
            is_pair = value_t >= 0 and value_r >= 0
            if is_pair and (may_have_norm_t[value_t] or may_have_norm_r[value_r]):
                state = states.state[graph.target_nodes[value_t]]
                pairs_of_state.setdefault(state, []).append((value_t, value_r))
        yield [pair for state in _UNDIVERGED_STATES for pair in pairs_of_state.get(state, ())]


def _flag_values_of_update(flow: Flow) -> Flags:
    """Return (classes,) whether an op reads a value that is of neither forward nor backward pass.

    The norm of no other value is taken, nor that of its multiples.
    """
    phases = flow.trace.ops["phase"].to_numpy()
    ops = np.flatnonzero((phases != FORWARD) & (phases != BACKWARD))
    flags = np.zeros(len(flow.classes), dtype=bool)
    flags[flow.list_reads(ops)[0]] = True
    return flags


def _is_scaled(graph: JointGraph, gradient: _NormedGradient) -> bool:
    """Return whether all statistics of one gradient are those of the other times the factor."""
    alignment = graph.comparison.alignment
    numbers_t = _read_statistics(alignment.target, gradient.target)
    numbers_r = _read_statistics(alignment.reference, gradient.reference)
    return _is_multiple(numbers_t, numbers_r, gradient.factor)


def _is_multiple(numbers: Floats, others: Floats, factor: float) -> bool:
    """Return whether max, min and mean are those of the other value times the factor.

    What one side did not record is not compared; the two extremes must be.
    """
    differences = np.abs(numbers - factor * others)
    limit = _MIN_DIFFERENCE * factor * np.abs(others[:2]).max()
    is_multiple = (differences <= limit) | np.isnan(differences)
    return bool(is_multiple.all() and np.isfinite(differences[:2]).all())


def _list_op_partners(graph: JointGraph) -> tuple[dict[int, int], dict[int, int]]:
    """Return op -> paired op, from the target and from the reference."""
    ops = graph.comparison.alignment.ops
    targets, references = ops["target"].tolist(), ops["reference"].tolist()
    return dict(zip(targets, references, strict=True)), dict(zip(references, targets, strict=True))


def _collect_reduced_gradients(
    graph: JointGraph, op_partners: tuple[dict[int, int], dict[int, int]], states: States
) -> list[_NormedGradient]:
    """Return what paired collectives of the update give, and a norm is taken of.

    This is where the way from a gradient to its norm is not recorded: a division in place before
    the sum over ranks.
    """
    alignment = graph.comparison.alignment
    target, reference = alignment.target, alignment.reference
    normed_gradients = {}
    for op_t, op_r in op_partners[0].items():
        if target.phases[op_t] != COMMUNICATION or reference.phases[op_r] != COMMUNICATION:
            continue
        for value_t, value_r in zip(target.writes[op_t], reference.writes[op_r], strict=False):
            state = states.state[graph.target_nodes[value_t]]
            if alignment.partners.get(value_t) != value_r or state not in _UNDIVERGED_STATES:
                continue
            normed_gradient = _follow_to_norm(graph, op_partners, value_t, value_r)
            if normed_gradient is not None:
                normed_gradients[normed_gradient.target] = normed_gradient
    return list(normed_gradients.values())


def _follow_to_norm(
    graph: JointGraph,
    op_partners: tuple[dict[int, int], dict[int, int]],
    value_t: int,
    value_r: int,
) -> _NormedGradient | None:
    """Return what the norm is taken of, where it is a multiple of a pair of gradients.

    If one side's way to its norm is not recorded (a division in place), it is what the op reads
    that is paired with the other side's.
    """
    alignment = graph.comparison.alignment
    target, reference = alignment.target, alignment.reference
    normed_t = find_normed_gradient(target, alignment.target_kinds, value_t)
    normed_r = find_normed_gradient(reference, alignment.reference_kinds, value_r)
    if normed_t < 0 <= normed_r:
        normed_t = _find_unrecorded_multiple(reference, normed_r, op_partners[1], target)
    elif normed_r < 0 <= normed_t:
        normed_r = _find_unrecorded_multiple(target, normed_t, op_partners[0], reference)
    if normed_t < 0 or normed_r < 0:
        return None
    factor = target.norms[normed_t] / max(reference.norms[normed_r], 1e-300)
    if not np.isfinite(factor) or factor <= 0:
        return None
    return _NormedGradient(normed_t, normed_r, float(factor))


def _find_unrecorded_multiple(
    flow: Flow, value: int, op_partners: Mapping[int, int], other: Flow
) -> int:
    """Return what the op paired with the norm of a value reads, -1 if it is no multiple of it.

    Only a value that no recorded op computes is returned.
    """
    numbers = _read_statistics(flow, value)
    for op in flow.consumers[value]:
        if flow.phases[op] in (FORWARD, BACKWARD) or op not in op_partners:
            continue
        for read in dict.fromkeys(other.reads[op_partners[op]]):
            if other.producers[read] >= 0 or other.sizes[read] != flow.sizes[value]:
                continue
            factor = other.norms[read] / max(flow.norms[value], 1e-300)
            if _is_multiple(_read_statistics(other, read), numbers, factor):
                return int(read)
    return -1


def _read_statistics(flow: Flow, value: int) -> Floats:
    """Return max, min and mean of a value."""
    row = flow.tensors.iloc[int(flow.classes["tensor"].iat[value])]
    return np.array([row["max"], row["min"], row["mean"]], dtype=float)


def find_normed_gradient(flow: Flow, kinds: Sequence[str], gradient: int) -> int:
    """Return the gradient that the norm is taken of, after factors; -1 if there is no norm."""
    value = gradient
    for _ in range(_MAX_FACTORS):
        if _has_norm(flow, kinds, value):
            return value
        scaled_values = _list_scaled_values(flow, kinds, value)
        if not scaled_values:
            return -1
        value = scaled_values[0]
    return -1


def _has_norm(flow: Flow, kinds: Sequence[str], value: int) -> bool:
    """Return whether an op computes one number from the value, directly or from its squares."""
    if flow.sizes[value] == 1:
        return False
    for op in flow.consumers[value]:
        if flow.phases[op] in (FORWARD, BACKWARD):
            continue
        results = list(flow.writes[op])
        is_square = kinds[op] in _SQUARE_KINDS or (
            kinds[op] == "mul" and flow.reads[op] == (value,)
        )
        if is_square:
            results = [number for square in results for number in _list_results(flow, square)]
        if results and all(flow.sizes[result] == 1 for result in results):
            return True
    return False


def _list_results(flow: Flow, value: int) -> list[int]:
    """Return what is computed from a value directly."""
    return [result for op in flow.consumers[value] for result in flow.writes[op]]


def _list_scaled_values(flow: Flow, kinds: Sequence[str], value: int) -> list[int]:
    """Return the multiples of a value, or its sums over ranks, that ops of the update compute."""
    scaled_values = []
    for op in flow.consumers[value]:
        is_scaling = flow.phases[op] == OPTIMIZER and kinds[op] in SCALING_KINDS
        if not is_scaling and flow.phases[op] != COMMUNICATION:
            continue
        tensors = [read for read in flow.reads[op] if flow.sizes[read] > 1]
        results = [result for result in flow.writes[op] if flow.sizes[result] == flow.sizes[value]]
        if tensors == [value] and len(results) == 1:
            scaled_values += results
    return scaled_values


def _name_producers(flow: Flow, kinds: Sequence[str], values: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the ops that gave the values their size.

    That is an op that scales or adds up over ranks and gives back what it reads (a division by 1, a
    reduction of merged ranks), else the producer, else the first consumer.
    """
    names = flow.trace.ops["name"]
    ops = []
    for value in values:
        idle_ops = [op for op in flow.consumers[value] if not flow.writes[op]]
        dividing_ops = [op for op in idle_ops if kinds[op] in SCALING_KINDS]
        reducing_ops = [op for op in idle_ops if flow.phases[op] == COMMUNICATION]
        producer = int(flow.producers[value])
        producers = [producer] if producer >= 0 else []
        ops.append([*dividing_ops, *reducing_ops, *producers, *flow.consumers[value]][0])
    return tuple(str(names.iat[op]) for op in ops)
