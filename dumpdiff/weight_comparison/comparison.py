"""Compare two checkpoints: join shards, pair parameters, match layouts, and name mistakes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..checkpoints import Checkpoint
from ..checkpoints.memory_map import RELEASE_AFTER
from ..model.arrays import Ints
from ..model.verdict import Verdict
from ..rulebook import Rules
from . import casts
from .block_scales import dequantize_weights
from .distance import Distance
from .groups import Group, Member, group_by_name, is_state
from .layout import GroupComparison, ShapeMismatch, compare_group
from .mistakes import name_mistake, name_small_change
from .notes import find_layer_shift, list_notes
from .parameter_index import ParameterIndex
from .parameter_rows import ParameterRows
from .result import (
    MIN_COVERAGE,
    RELATIONS,
    CheckpointSummary,
    Mistake,
    Pair,
    Relation,
    WeightsResult,
)
from .shards import join_shards
from .sums import find_sums
from .transposition import judge_transposed
from .unpaired import UnpairedParameters, explain_unpaired
from .value_pairs import pair_by_value
from .whole_model import WholeModel
from .zero_centered_norms import is_norm

Progress = Callable[[str, float], None]

#: A cast through a third dtype must explain more than this share of the elements that differ.
_MIN_DETOUR_SHARE = 0.5
#: Kind of row order -> the mistake that it is if the family reads another order.
_ORDER_MISTAKES = {
    "rope": "rope",
    "shifted": "rows-shifted",
    "blocks": "blocks-permuted",
    "zero-centered": "offset",
    "transposed": "transposed",
}
#: Module of a fused weight -> the mistake that its components are in another arrangement.
_ARRANGEMENT_MISTAKES = {"qkv": "qkv-order", "gate_up_proj": "gate-up-order"}


@np.errstate(all="ignore")  # non-finite values are checked explicitly
def compare(
    target: Checkpoint, reference: Checkpoint, rules: Rules, progress: Progress | None = None
) -> WeightsResult:
    """Compare the weights of two checkpoints.

    Every element of both is read once or twice, a few megabytes at a time. Raises DumpError if a
    file is truncated.
    """
    models = (
        dequantize_weights(join_shards(target, rules)),
        dequantize_weights(join_shards(reference, rules)),
    )
    meter = _ReadMeter(models, progress)
    name_groups, target_members, reference_members = group_by_name(*models)
    value_groups, target_members, reference_members = pair_by_value(
        target_members, reference_members, meter.add_bytes
    )
    sums = find_sums(
        [*name_groups, *value_groups], target_members, reference_members, meter.add_bytes
    )
    comparisons: list[GroupComparison] = []
    pairs = list(sums.pairs)
    for group in sums.groups:
        comparison = compare_group(group, *models, meter.add_bytes)
        if isinstance(comparison, ShapeMismatch):
            pairs.append(_build_mismatch_pair(group, comparison.reason))
        else:
            comparisons.append(comparison)
    comparisons = judge_transposed(_resolve_unknown_layouts(comparisons), *models)
    comparisons = _reject_lone_detours(comparisons)
    components = [
        (comparison, number, parameter)
        for comparison in comparisons
        for number, parameter in enumerate(_split_components(comparison))
    ]
    parameters = [parameter for _, _, parameter in components]
    parameters += [_build_whole_parameter(member) for member in sums.reference]
    index = ParameterIndex.from_parameters(parameters)
    for comparison, number, parameter in components:
        pairs.append(_build_pair(comparison, number, parameter, index))
    unpaired = explain_unpaired(models, sums.target, sums.reference)
    explained_elements = unpaired.explained_elements + sums.elements
    unpaired = replace(unpaired, explained_elements=explained_elements)
    return _build_result(models, (*pairs, *unpaired.pairs), comparisons, unpaired)


class _ReadMeter:
    """Counts the bytes read, reports progress, and releases memory regularly."""

    def __init__(self, models: tuple[WholeModel, WholeModel], progress: Progress | None) -> None:
        self._models, self._progress = models, progress
        self._total = max(1, sum(model.checkpoint.size for model in models))
        self._n_read = self._n_unreleased = 0

    def add_bytes(self, count: int) -> None:
        """Add ``count`` bytes that were read."""
        self._n_read += count
        self._n_unreleased += count
        if self._n_unreleased > RELEASE_AFTER:
            self._n_unreleased = 0
            for model in self._models:
                model.release()
        if self._progress is not None:
            self._progress("comparing", min(1.0, self._n_read / self._total))


def _resolve_unknown_layouts(comparisons: list[GroupComparison]) -> list[GroupComparison]:
    """Decide about layouts of which no family says whether they are correct.

    They are if all layers have the same layout. Norms are decided together, because a model stores
    all of them in one way.
    """
    similar_comparisons: dict[str, list[GroupComparison]] = defaultdict(list)
    for comparison in comparisons:
        path = comparison.group.path
        if is_norm(path):
            similar_comparisons["norms"].append(comparison)
        elif comparison.is_correct is None:
            similar_comparisons[re.sub(r"\d+", "#", path)].append(comparison)
    uniform_ids: set[int] = set()
    for similar in similar_comparisons.values():
        if len({comparison.layout.key for comparison in similar}) == 1:
            uniform_ids.update(map(id, similar))
    decided_comparisons = []
    for comparison in comparisons:
        if comparison.is_correct is None:
            is_correct = id(comparison) in uniform_ids
            decided_comparisons.append(
                replace(comparison, is_correct=is_correct, is_arrangement_correct=is_correct)
            )
        else:
            decided_comparisons.append(comparison)
    return decided_comparisons


def _reject_lone_detours(comparisons: list[GroupComparison]) -> list[GroupComparison]:
    """Remove casts through a third dtype that explain only a minority of the model.

    A cast is done to a whole model. A few weights can look cast by chance: norms of ones, changed
    by less than the spacing of bfloat16 at one.
    """
    n_unequal = 0
    n_explained: Counter[tuple[str, str, bool] | None] = Counter()
    for comparison in comparisons:
        if _has_equal_dtypes(comparison):
            count = int(comparison.distance.unequal.sum())
            n_unequal += count
            n_explained[comparison.distance.rounding] += count
    checked_comparisons = []
    for comparison in comparisons:
        distance = comparison.distance
        is_lone = n_explained[distance.rounding] <= _MIN_DETOUR_SHARE * n_unequal
        if is_lone and _has_equal_dtypes(comparison):
            distance = replace(distance, rounding=None)
        checked_comparisons.append(replace(comparison, distance=distance))
    return checked_comparisons


def _has_equal_dtypes(comparison: GroupComparison) -> bool:
    return comparison.target.precision == comparison.reference.precision


def _split_components(comparison: GroupComparison) -> Iterator[ParameterRows]:
    """Yield the components of a group, each with its rows in the expected order."""
    group, expected = comparison.group, comparison.expected
    start = 0
    for number, member in enumerate(group.components):
        stop = start + member.matrix.shape[0]
        if group.fused == "reference":
            target_rows = np.arange(start, stop)
            reference_rows = expected[target_rows]
        else:
            target_rows = np.flatnonzero((expected >= start) & (expected < stop))
            target_rows = target_rows[np.argsort(expected[target_rows], kind="stable")]
            reference_rows = expected[target_rows]
        target_member, reference_member = _get_members(comparison, number)
        yield ParameterRows(
            path=member.path,
            target_name=target_member.label,
            reference_name=reference_member.label,
            target=comparison.target,
            reference=comparison.reference,
            target_rows=target_rows,
            reference_rows=reference_rows,
        )
        start = stop


def _get_members(comparison: GroupComparison, number: int) -> tuple[Member, Member]:
    """Return the members of both sides that hold a component."""
    target, reference = comparison.group.target, comparison.group.reference
    return target[min(number, len(target) - 1)], reference[min(number, len(reference) - 1)]


def _build_whole_parameter(member: Member) -> ParameterRows:
    """Return a member of the reference without a counterpart, to be found in other places."""
    rows = np.arange(member.matrix.shape[0])
    return ParameterRows(
        member.path, member.label, member.label, member.matrix, member.matrix, rows, rows
    )


def _build_pair(
    comparison: GroupComparison, number: int, parameter: ParameterRows, index: ParameterIndex
) -> Pair:
    """Return the result for one component of a group."""
    distance, rows = comparison.distance, parameter.target_rows
    relation, mistake = _judge_rows(comparison, number, parameter, index)
    rounding = ""
    if relation == "rounded" and distance.rounding is not None:
        dtype, method, on_target = distance.rounding
        rounding = f"{'target' if on_target else 'reference'} rounded to {dtype}, {method}"
        is_detour = casts.is_detour(
            dtype, parameter.target.precision, parameter.reference.precision
        )
        is_repeated = is_detour and parameter.target.dtype in casts.NARROW_DTYPES
        if method != casts.NEAREST or is_repeated:
            detour = " on the way" if is_detour else ""
            mistake = Mistake("rounding", rounding + detour)
    target_member, reference_member = _get_members(comparison, number)
    return Pair(
        path=parameter.path,
        fused_parameter=comparison.group.path if comparison.group.fused else "",
        target=parameter.target_name,
        reference=parameter.reference_name,
        evidence=comparison.group.evidence,
        shape=parameter.shape,
        dtypes=(target_member.matrix.precision, reference_member.matrix.precision),
        relation=relation,
        layout=_describe_layout(comparison, number),
        rounding=rounding,
        error=_compute_error(distance, rows),
        max_absolute=distance.largest,
        differing_elements=int(distance.unequal[rows].sum()),
        elements=parameter.shape[0] * parameter.shape[1],
        mistake=mistake,
    )


def _judge_rows(
    comparison: GroupComparison, number: int, parameter: ParameterRows, index: ParameterIndex
) -> tuple[Relation, Mistake | None]:
    """Return the relation of the rows of a component, and the mistake in them."""
    distance, rows = comparison.distance, parameter.target_rows
    is_new = comparison.order[rows] < 0
    is_wrong = is_new
    if distance.rounding is None:
        is_wrong = np.isin(rows, distance.wrong_rows) | is_new
    wrong_rows = np.flatnonzero(is_wrong)
    is_displaced = comparison.order[rows] != comparison.expected[rows]
    n_moved = np.count_nonzero(is_displaced) - np.count_nonzero(is_new)
    layout_mistake = None if comparison.is_correct else _name_layout_mistake(comparison, number)
    if layout_mistake is not None and n_moved >= len(wrong_rows):
        return "different", layout_mistake
    if len(wrong_rows):
        if distance.classify(rows[~is_wrong]) == "different":  # the rows are not what is wrong
            wrong_rows = np.flatnonzero(distance.unequal[rows])
        return "different", name_mistake(parameter, wrong_rows, index)
    relation = distance.classify(rows)
    if relation == "different":
        unequal_rows = np.flatnonzero(distance.unequal[rows])
        return relation, name_mistake(parameter, unequal_rows, index)
    if not parameter.allows(relation):
        return "different", name_small_change(parameter, index)
    return relation, None


def _compute_error(distance: Distance, rows: Ints) -> float:
    """Return the L2 norm of the difference over that of the reference, in some rows."""
    gap = float(np.sqrt((distance.gap[rows] ** 2).sum()))
    norm = float(np.sqrt((distance.norm[rows] ** 2).sum()))
    if gap == 0:
        return 0.0
    return gap / norm if norm > 0 else float("inf")


def _name_layout_mistake(comparison: GroupComparison, number: int) -> Mistake | None:
    """Return the mistake that rows are in an order that the family does not read.

    Returns None if only another component of the group is in a wrong order.
    """
    layout = comparison.layout
    order = layout.component_arrangement
    if number < len(layout.component_orders):
        order = layout.component_orders[number]
    if order.kind != "same":
        return Mistake(_ORDER_MISTAKES.get(order.kind, "rows-permuted"), order.description)
    is_arrangement_wrong = comparison.is_arrangement_correct is False  # None: unknown
    if not is_arrangement_wrong and len(layout.component_orders) > 1:
        return None
    module_names = comparison.group.path.split(".")
    module = module_names[-2] if len(module_names) > 1 else comparison.group.path
    kind = _ARRANGEMENT_MISTAKES.get(module, "part-order")
    return Mistake(kind, f"{module} holds {layout.component_arrangement.description}")


def _describe_layout(comparison: GroupComparison, number: int) -> str:
    """Describe how the rows of a component are arranged, if not as in the reference."""
    layout = comparison.layout
    orders = layout.component_arrangement, *layout.component_orders[number : number + 1]
    descriptions = [order.description for order in orders if order.kind != "same"]
    target_member, reference_member = _get_members(comparison, number)
    has_other_shape = comparison.target.shape != comparison.reference.shape
    is_turned = has_other_shape and not comparison.padding
    if is_turned or target_member.transposed != reference_member.transposed:
        descriptions.append("transposed")
    return ", ".join(descriptions)


def _build_mismatch_pair(group: Group, reason: str) -> Pair:
    target, reference = group.target[0], group.reference[0]
    return Pair(
        path=group.path,
        target=target.label,
        reference=reference.label,
        evidence=group.evidence,
        shape=target.matrix.shape,
        dtypes=(target.matrix.dtype, reference.matrix.dtype),
        relation="different",
        elements=target.matrix.size,
        mistake=Mistake("shape", f"has another shape: {reason}"),
    )


def _build_result(
    models: tuple[WholeModel, WholeModel],
    pairs: tuple[Pair, ...],
    comparisons: list[GroupComparison],
    unpaired: UnpairedParameters,
) -> WeightsResult:
    n_compared = sum(pair.elements for pair in pairs)
    n_padding = sum(
        abs(comparison.padding) * comparison.target.shape[1] for comparison in comparisons
    )
    n_covered = n_compared + n_padding + unpaired.explained_elements
    n_elements = max(1, *map(_count_weight_elements, models))
    coverage = min(1.0, n_covered / n_elements)
    correct_pairs = [pair for pair in pairs if pair.mistake is None]
    has_mistakes = len(correct_pairs) < len(pairs)
    verdict: Verdict = "agree"
    if has_mistakes or unpaired.missing or unpaired.unknown:
        verdict = "differ"
    is_order_unknown = any(comparison.is_order_unknown for comparison in comparisons)
    is_unproven = coverage < MIN_COVERAGE or is_order_unknown
    if not pairs or (verdict == "agree" and is_unproven):
        verdict = "inconclusive"
    worst_relation = max((RELATIONS.index(pair.relation) for pair in correct_pairs), default=0)
    return WeightsResult(
        target=_summarize_checkpoint(models[0]),
        reference=_summarize_checkpoint(models[1]),
        verdict=verdict,
        relation=RELATIONS[worst_relation],
        pairs=tuple(sorted(pairs, key=lambda pair: _split_numbers(pair.path))),
        missing=unpaired.missing,
        unknown=unpaired.unknown,
        notes=(*list_notes(models, comparisons, pairs), *unpaired.notes),
        coverage=coverage,
        layer_shift=find_layer_shift(pairs),
        problems=(*models[0].problems, *models[1].problems),
    )


def _count_weight_elements(model: WholeModel) -> int:
    """Return the number of elements of a model, without optimizer states and counters."""
    return sum(
        tensor.size
        for name, tensor in model.tensors.items()
        if not is_state(model.resolve_name(name), tensor)
    )


def _summarize_checkpoint(model: WholeModel) -> CheckpointSummary:
    checkpoint = model.checkpoint
    return CheckpointSummary(
        path=str(checkpoint.path),
        format=checkpoint.format,
        family=model.naming.family,
        tensors=len(model.tensors),
        bytes=checkpoint.size,
    )


def _split_numbers(path: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers in a path by value."""
    pieces = re.split(r"(\d+)", path)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]
