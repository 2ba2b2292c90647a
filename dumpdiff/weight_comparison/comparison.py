"""Two checkpoints, compared: opened, put together, paired, laid out, measured, and what is wrong named."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..checkpoints import Checkpoint
from ..model.verdict import Verdict
from ..rulebook import Rules
from . import casts, value_pairs
from .block_scales import dequantize_weights
from .groups import Group, Member, group_by_name, is_state, get_layer_path
from .layout import GroupComparison, ShapeMismatch, compare_group
from .mistakes import ParameterIndex, name_mistake
from .parameter_rows import ParameterRows
from .result import RELATIONS, CheckpointSummary, Mistake, Pair, WeightsResult
from .row_permutation import SAME, RowLayout
from .shards import join_shards
from .sums import find_sums
from .unpaired import UnpairedParameters, explain_unpaired
from .whole_model import WholeModel
from .zero_centered_norms import is_norm

Progress = Callable[[str, float], None]

#: After so many bytes read, the memory of mapped files is given back.
_RELEASE = 64 << 20
#: Share of the elements of both sides that must have been compared for 'same'.
MIN_COVERAGE = 0.9
_LAYER = re.compile(r"\.(\d+)\.")  #: the first number of a name
#: Kind of order -> the mistake that it is where the family reads another.
_MISPLACED = {
    "rope": "rope",
    "shifted": "rows-shifted",
    "blocks": "blocks-permuted",
    "centred": "offset",
}
_MOST = (
    0.6  #: share of the exchanged layers that must be off by one number, for that to be the reason
)


@np.errstate(all="ignore")  # what is not finite is looked for, wherever it counts
def compare(
    target: Checkpoint, reference: Checkpoint, rules: Rules, progress: Progress | None = None
) -> WeightsResult:
    """Are they the same weights? Reads every element of both once or twice, a few megabytes at a time.

    Raises DumpError if a file turns out to be cut short.
    """
    sides = dequantize_weights(join_shards(target, rules)), dequantize_weights(join_shards(reference, rules))
    meter = _Meter(sides, progress)
    found, left_t, left_r = group_by_name(*sides)
    more, left_t, left_r = value_pairs.pair_by_value(left_t, left_r, meter.read)
    sums = find_sums([*found, *more], left_t, left_r, meter.read)
    laid: list[GroupComparison] = []
    pairs = list(sums.pairs)
    for group in sums.groups:
        one = compare_group(group, *sides, meter.read)
        if isinstance(one, ShapeMismatch):
            pairs.append(_misfit(group, one.reason))
        else:
            laid.append(one)
    laid = _voted(laid)
    parts = [(one, number, part) for one in laid for part, number in _parts(one)]
    known = ParameterIndex.of([*(part for _, _, part in parts), *map(_alone, sums.reference)])
    pairs += [_pair(one, part, number, known) for one, number, part in parts]
    rest = explain_unpaired(sides, sums.target, sums.reference)
    return _result(
        sides, tuple(pairs), laid, replace(rest, accounted=rest.accounted + sums.elements)
    )


class _Meter:
    """Counts what is read, tells the progress, and gives memory back from time to time."""

    def __init__(self, sides: tuple[WholeModel, WholeModel], progress: Progress | None) -> None:
        self._sides, self._progress = sides, progress
        self._all = max(1, sum(side.checkpoint.size for side in sides))
        self._read = self._held = 0

    def read(self, count: int) -> None:
        """``count`` bytes were read."""
        self._read += count
        self._held += count
        if self._held > _RELEASE:
            self._held = 0
            for side in self._sides:
                side.release()
        if self._progress is not None:
            self._progress("comparing", min(1.0, self._read / self._all))


def _voted(laid: list[GroupComparison]) -> list[GroupComparison]:
    """Where nobody knows which layout is right, the one that all layers have is; one of several is not.

    Norms are stored in one way in all of a model.
    """
    unknown: dict[str, list[GroupComparison]] = defaultdict(list)
    for one in laid:
        if is_norm(one.group.path):
            unknown["norms"].append(one)
        elif one.right is None:
            unknown[re.sub(r"\d+", "#", one.group.path)].append(one)
    right = {
        id(one)
        for group in unknown.values()
        if len({x.layout.key for x in group}) == 1
        for one in group
    }
    return [replace(one, right=id(one) in right) if one.right is None else one for one in laid]


def _parts(laid: GroupComparison) -> Iterable[tuple[ParameterRows, int]]:
    """The parts of a group, with the rows that each has in the order that was expected; and their number."""
    group = laid.group
    start = 0
    for number, member in enumerate(group.parts):
        rows = member.matrix.shape[0]
        if group.fused == "target" or not group.fused:
            mine = np.flatnonzero((laid.expected >= start) & (laid.expected < start + rows))
            theirs = laid.expected[mine]
            sorted_rows = np.argsort(theirs, kind="stable")
            mine, theirs = mine[sorted_rows], theirs[sorted_rows]
        else:
            mine = np.arange(start, start + rows)
            theirs = laid.expected[mine]
        one_t = group.target[0 if group.fused == "target" else number]
        one_r = group.reference[0 if group.fused == "reference" else number]
        yield (
            ParameterRows(member.path, one_t.label, one_r.label, laid.target, laid.reference, mine, theirs),
            number,
        )
        start += rows


def _alone(member: Member) -> ParameterRows:
    rows = np.arange(member.matrix.shape[0])
    return ParameterRows(member.path, member.label, member.label, member.matrix, member.matrix, rows, rows)


def _pair(laid: GroupComparison, part: ParameterRows, number: int, known: ParameterIndex) -> Pair:
    """One part, judged."""
    found, rows = laid.distance, part.target_rows
    lost = laid.order[rows] < 0
    wrong = np.flatnonzero(
        lost if found.rounding is not None else np.isin(rows, found.wrong_rows) | lost
    )
    gap = float(np.sqrt((found.gap[rows] ** 2).sum()))
    norm = float(np.sqrt((found.norm[rows] ** 2).sum()))
    relation = found.classify(rows)
    mistake = None
    misplaced = None if laid.right else _misplaced(laid, number)
    moved = np.count_nonzero(laid.order[rows] != laid.expected[rows]) - np.count_nonzero(lost)
    if misplaced is not None and moved >= len(wrong):
        relation, mistake = "different", misplaced
    elif len(wrong):
        relation, mistake = "different", name_mistake(part, wrong, known)
    elif relation == "different":
        mistake = name_mistake(part, np.flatnonzero(found.unequal[rows]), known)
    rounding = ""
    if relation == "rounded" and found.rounding is not None:
        dtype, way, on_target = found.rounding
        twice = casts.is_detour(dtype, part.target.precision, part.reference.precision)
        rounding = f"{'target' if on_target else 'reference'} rounded to {dtype}, {way}"
        if way != casts.NEAREST or (twice and part.target.dtype in casts.NARROW_DTYPES):
            mistake = Mistake("rounding", rounding + (" on the way" if twice else ""))
    return Pair(
        path=part.path,
        whole=laid.group.path if laid.group.fused else "",
        target=part.target_name,
        reference=part.reference_name,
        evidence=laid.group.evidence,
        shape=part.shape,
        dtypes=_dtypes(laid, number),
        relation=relation,
        layout=_layout(laid, number),
        rounding=rounding,
        error=0.0 if gap == 0 else gap / norm if norm > 0 else float("inf"),
        largest=found.largest,
        unequal=int(found.unequal[rows].sum()),
        elements=part.shape[0] * part.shape[1],
        mistake=mistake,
    )


def _misplaced(laid: GroupComparison, number: int) -> Mistake | None:
    """The rows are all there, in an order that the family does not read; None if that is so of another part alone."""
    inside: RowLayout = laid.layout
    own = inside.part_orders[number] if number < len(inside.part_orders) else inside.part_arrangement
    if own.kind != "same":
        return Mistake(_MISPLACED.get(own.kind, "rows-permuted"), own.description)
    if laid.turns_right and len(inside.part_orders) > 1:
        return None
    module = laid.group.path.split(".")[-2] if "." in laid.group.path else laid.group.path
    kind = (
        "qkv-order"
        if module == "qkv"
        else "gate-up-order"
        if module == "gate_up_proj"
        else "part-order"
    )
    return Mistake(kind, f"{module} holds {inside.part_arrangement.description}")


def _members(laid: GroupComparison, number: int) -> tuple[Member, Member]:
    """What holds a part on either side."""
    target, reference = laid.group.target, laid.group.reference
    return target[min(number, len(target) - 1)], reference[min(number, len(reference) - 1)]


def _dtypes(laid: GroupComparison, number: int) -> tuple[str, str]:
    """What the elements are stored as."""
    target, reference = _members(laid, number)
    return target.matrix.precision, reference.matrix.precision


def _layout(laid: GroupComparison, number: int) -> str:
    """In words, where it is not as it stands."""
    said = []
    if laid.layout.part_arrangement.kind != "same":
        said.append(laid.layout.part_arrangement.description)
    if number < len(laid.layout.part_orders) and laid.layout.part_orders[number].kind != "same":
        said.append(laid.layout.part_orders[number].description)
    target, reference = _members(laid, number)
    turned = laid.target.shape != laid.reference.shape and not laid.padding
    if target.transposed != reference.transposed or turned:
        said.append("transposed")
    return ", ".join(said)


def _misfit(group: Group, reason: str) -> Pair:
    one, other = group.target[0], group.reference[0]
    return Pair(
        group.path, one.label, other.label, group.evidence, one.matrix.shape, (one.matrix.dtype, other.matrix.dtype),
        "different", elements=one.matrix.size, mistake=Mistake("shape", f"has another shape: {reason}"),
    )  # fmt: skip


def _result(
    sides: tuple[WholeModel, WholeModel], pairs: tuple[Pair, ...], laid: list[GroupComparison], rest: UnpairedParameters
) -> WeightsResult:
    pairs = (*pairs, *rest.pairs)
    compared = sum(pair.elements for pair in pairs)
    weights = [
        sum(
            t.size
            for name, t in side.tensors.items()
            if not is_state(side.rules.resolve_parameter(name) or name, t)
        )
        for side in sides
    ]
    padding = sum(abs(one.padding) * one.target.shape[1] for one in laid)
    coverage = min(1.0, (compared + padding + rest.accounted) / max(1, *weights))
    right = [pair for pair in pairs if pair.mistake is None]
    worst = max((RELATIONS.index(pair.relation) for pair in right), default=0)
    verdict: Verdict = "agree"
    if any(pair.mistake for pair in pairs) or rest.missing or rest.unknown:
        verdict = "differ"
    if (not right and not any(pair.mistake for pair in pairs)) or (
        verdict == "agree" and coverage < MIN_COVERAGE
    ):
        verdict = "inconclusive"
    return WeightsResult(
        target=_checked(sides[0]),
        reference=_checked(sides[1]),
        verdict=verdict,
        relation=RELATIONS[worst],
        pairs=tuple(sorted(pairs, key=lambda pair: _natural(pair.path))),
        missing=rest.missing,
        unknown=rest.unknown,
        notes=(*_read(sides), *_notes(laid), *_by_value(pairs), *rest.notes),
        coverage=coverage,
        layer_shift=_layer_shift(pairs),
        problems=(*sides[0].problems, *sides[1].problems),
    )


def _checked(side: WholeModel) -> CheckpointSummary:
    checkpoint = side.checkpoint
    return CheckpointSummary(
        str(checkpoint.path), checkpoint.format, side.family, len(side.tensors), checkpoint.size
    )


def _read(sides: tuple[WholeModel, WholeModel]) -> Iterator[str]:
    """How either side was read."""
    for role, side in zip(("target", "reference"), sides, strict=True):
        yield from (f"{role}: {note}" for note in side.notes)


def _notes(laid: list[GroupComparison]) -> Iterable[str]:
    """Layouts that differ and are right, once for all layers; padding."""
    said: Counter[str] = Counter()
    for one in laid:
        kind = one.layout.part_arrangement.kind
        inside = one.layout.part_orders[0] if one.layout.part_orders else SAME
        if one.right and inside.kind == "centred":
            said[f"norms: {inside.description}"] += 1
        if one.right and kind not in ("same", "concatenated"):
            module = re.sub(r"\d+", "*", one.group.path)
            said[f"{module}: {one.group.fused or 'target'} holds {one.layout.part_arrangement.description}"] += 1
        if one.padding:
            more = "target" if one.padding > 0 else "reference"
            said[
                f"{one.group.path}: the {more} has {abs(one.padding)} rows more (padding of the vocabulary)"
            ] += 1
    return [f"{text}" + (f" ({count} times)" if count > 1 else "") for text, count in said.items()]


def _by_value(pairs: Iterable[Pair]) -> Iterator[str]:
    """What was paired although names do not pair it; by how much layers are numbered apart."""
    sums = sum(pair.evidence == "sum" for pair in pairs)
    if sums:
        yield f"{sums} parameters are the sum of others of the other side, found by their values"
    found = [pair for pair in pairs if pair.evidence == "value"]
    if found:
        yield f"{len(found)} parameters are paired by their values, where names do not pair them"
    shifts = Counter(
        int(theirs[1]) - int(ours[1])
        for pair in found
        if (ours := _LAYER.search(pair.target)) and (theirs := _LAYER.search(pair.reference))
    )
    for shift, count in shifts.items():
        if shift:
            yield f"{count} of them are {abs(shift)} layers {'further' if shift > 0 else 'before'} in the reference"


def _layer_shift(pairs: Iterable[Pair]) -> int | None:
    """By how much the target's layers are off, where all that hold another layer's weights are by the same."""
    shifts: Counter[int] = Counter()
    for pair in pairs:
        holds = pair.mistake.holds if pair.mistake is not None else ""
        if not holds or not get_layer_path(holds) or not get_layer_path(pair.path):
            continue
        own, other = get_layer_path(pair.path), get_layer_path(holds)
        if pair.path.removeprefix(own) == holds.removeprefix(other):
            shifts[int(other.rpartition(".")[2]) - int(own.rpartition(".")[2])] += 1
    most, count = shifts.most_common(1)[0] if shifts else (0, 0)
    return (
        most if count > 2 and count >= _MOST * sum(shifts.values()) else None
    )  # the last layer may hold anything


def _natural(path: str) -> list[tuple[int, str]]:
    return [
        (int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", path)
    ]
