"""Notes on a comparison of weights: differing layouts, padding, pairs by value, shifted layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .groups import get_layer_path
from .layout import GroupComparison
from .result import Pair
from .row_permutation import SAME
from .whole_model import WholeModel

_LAYER = re.compile(r"\.(\d+)\.")  #: the first number of a name
#: A layer shift is reported if at least this share, and this number, of the parameters that hold
#: those of another layer are shifted by the same number. The last layer may hold any weights.
_MIN_SHIFT_SHARE = 0.6
_MIN_SHIFTED = 3


def list_notes(
    models: tuple[WholeModel, WholeModel],
    comparisons: Iterable[GroupComparison],
    pairs: Iterable[Pair],
) -> Iterator[str]:
    """Yield doubts, how both sides were read, which layouts differ, and what values paired."""
    comparisons = list(comparisons)
    yield from _list_doubts(comparisons)
    for side, model in zip(("target", "reference"), models, strict=True):
        for note in model.notes:
            yield f"{side}: {note}"
    yield from _list_layout_notes(comparisons)
    yield from _list_value_notes(list(pairs))


def _list_doubts(comparisons: Iterable[GroupComparison]) -> Iterator[str]:
    """Yield why equal rows are no proof, once for all layers."""
    paths = [comparison.group.path for comparison in comparisons if comparison.is_order_unknown]
    for module in dict.fromkeys(re.sub(r"\d+", "*", path) for path in paths):
        yield (
            f"the two families keep the rows of {module} in other orders, which only the number of"
            " heads tells: give checkpoints with config.json or arguments"
        )


def _list_layout_notes(comparisons: Iterable[GroupComparison]) -> Iterator[str]:
    """Yield layouts that differ but are correct, once for all layers, and padding."""
    counts: Counter[str] = Counter()
    for comparison in comparisons:
        path, layout = comparison.group.path, comparison.layout
        arrangement = layout.component_arrangement
        first_order = layout.component_orders[0] if layout.component_orders else SAME
        if comparison.is_correct and first_order.kind == "zero-centered":
            counts[f"norms: {first_order.description}"] += 1
        if comparison.is_correct and arrangement.kind not in ("same", "concatenated"):
            module = re.sub(r"\d+", "*", path)
            side = comparison.group.fused or "target"
            counts[f"{module}: {side} holds {arrangement.description}"] += 1
        if comparison.padding:
            side = "target" if comparison.padding > 0 else "reference"
            n_rows = abs(comparison.padding)
            counts[f"{path}: the {side} has {n_rows} rows more (padding of the vocabulary)"] += 1
    for note, count in counts.items():
        yield f"{note} ({count} times)" if count > 1 else note


def _list_value_notes(pairs: list[Pair]) -> Iterator[str]:
    """Yield how many parameters were paired without names, and the shift of their layers."""
    n_sums = sum(pair.evidence == "sum" for pair in pairs)
    if n_sums:
        yield f"{n_sums} parameters are the sum of others of the other side, found by their values"
    value_pairs = [pair for pair in pairs if pair.evidence == "value"]
    if value_pairs:
        yield (
            f"{len(value_pairs)} parameters are paired by their values,"
            " where names do not pair them"
        )
    shifts: Counter[int] = Counter()
    for pair in value_pairs:
        target_layer, reference_layer = _LAYER.search(pair.target), _LAYER.search(pair.reference)
        if target_layer is not None and reference_layer is not None:
            shifts[int(reference_layer[1]) - int(target_layer[1])] += 1
    for shift, count in shifts.items():
        if shift:
            direction = "further" if shift > 0 else "before"
            yield f"{count} of them are {abs(shift)} layers {direction} in the reference"


def find_layer_shift(pairs: Iterable[Pair]) -> int | None:
    """Return by how many layers most swapped parameters are shifted; None if they are not."""
    shifts: Counter[int] = Counter()
    for pair in pairs:
        held_path = pair.mistake.actual_parameter if pair.mistake is not None else ""
        layer, held_layer = get_layer_path(pair.path), get_layer_path(held_path)
        if not layer or not held_layer:
            continue
        if pair.path.removeprefix(layer) == held_path.removeprefix(held_layer):
            shifts[_get_number(held_layer) - _get_number(layer)] += 1
    if not shifts:
        return None
    shift, count = shifts.most_common(1)[0]
    if count < _MIN_SHIFTED or count < _MIN_SHIFT_SHARE * sum(shifts.values()):
        return None
    return shift


def _get_number(layer: str) -> int:
    return int(layer.rpartition(".")[2])
