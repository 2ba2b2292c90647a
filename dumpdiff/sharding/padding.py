"""Rows and columns that only one run has, because its vocabulary is padded to a round number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph.statistics import compute_statistics
from ..model.arrays import AnyArray, Ints
from ..model.dtypes import get_unit_roundoff
from .assemblies import NARROW, load_parts
from .other_run import OtherRun
from .relation import Relation
from .sibling_tensors import Siblings
from .slices import (
    ELEMENT_ERRORS,
    Assembly,
    find_assembly,
    iterate_candidates,
    keep_slices,
    measure_equal_share,
)

#: Share of the slices of a parameter that have to be those of the other run before what follows
#: them counts as padding. One wrong shard of two leaves half of them.
_MIN_EQUAL_SHARE = 0.5


@dataclass(frozen=True)
class Padding:
    """A length of an axis, and how many of the first slices the other run has, too."""

    length: int
    kept: int
    is_proved: bool  #: the slices that are kept equal those of the other run

    @property
    def words(self) -> str:
        """Return ``96 slices in the place of 92``."""
        return f"{self.length:,} slices in the place of {self.kept:,}"


@dataclass(frozen=True)
class PaddedRows:
    """The rows of sibling tensors that have an axis with padding."""

    assemblies: Mapping[int, Assembly]  #: how the parts are joined, without the padding
    paddings: Mapping[int, Padding]  #: of all of them, also if only statistics are known


def find_padded_rows(
    siblings: Siblings,
    other: OtherRun,
    relations: Sequence[Relation | None],
    matches: Ints,
    known_assemblies: Mapping[int, Assembly],
) -> PaddedRows:
    """Return the rows that are padded, but for those whose value the other run has.

    A parameter tells which length is padded: its first slices are a parameter of the other run,
    which ends there. Its gradients are padded, too, and every value that has this length on one
    axis, if the other run has values of its shape without the padding. If it also has some with it,
    or the shards can be joined in several ways, the value has to be one of the other run.
    """
    open_rows = [
        (row, relation)
        for row, relation in enumerate(relations)
        if relation is not None and matches[row] < 0 and row not in known_assemblies
    ]
    padded_parameters = _find_padded_parameters(siblings, other, open_rows)
    paddings = _select_paddings(padded_parameters)
    assemblies: dict[int, Assembly] = {}
    padding_of: dict[int, Padding] = {}
    if not paddings:
        return PaddedRows(assemblies, padding_of)
    names = _list_parameter_names(siblings)
    for row, relation in open_rows:
        shapes = _list_part_shapes(siblings, row, relation)
        if shapes is None or not any(shapes):
            continue
        axis_of_name = padded_parameters.get(names[row])
        for padding in paddings:
            candidates = _list_candidates(shapes, padding, other)
            if axis_of_name is not None:
                axis = axis_of_name.axis
                named = Assembly(axis, kept=(axis, padding.kept))
                candidates = [named] if named in candidates else []
            elif len(candidates) != 1 or _has_padded_shape(candidates[0], shapes, other):
                candidates = _list_proved(candidates, siblings, row, relation, other)
            if len(candidates) == 1:
                padding_of[row] = padding
                if padding.is_proved:
                    assemblies[row] = candidates[0]
    return PaddedRows(assemblies, padding_of)


def format_paddings(padded_rows: PaddedRows) -> list[str]:
    """Return a sentence for each padding, that of statistics says what was not compared."""
    notes = []
    for padding in sorted(set(padded_rows.paddings.values()), key=lambda item: item.length):
        count = sum(padding == row_padding for row_padding in padded_rows.paddings.values())
        if padding.is_proved:
            text = f"the last {padding.length - padding.kept:,} are taken for padding and left out"
        else:
            text = "statistics include the padding: dump whole tensors to compare the rest"
        notes.append(f"{count:,} values have {padding.words}, as a padded vocabulary; {text}")
    return notes


@dataclass(frozen=True)
class _PaddedParameter:
    padding: Padding
    axis: int


def _find_padded_parameters(
    siblings: Siblings, other: OtherRun, open_rows: Sequence[tuple[int, Relation]]
) -> dict[str, _PaddedParameter]:
    """Return name -> padding of the parameters that are longer than in the other run."""
    names = siblings.collect_base("parameter").tolist()
    padded_parameters: dict[str, _PaddedParameter] = {}
    for row, relation in open_rows:
        name = names[row]
        if not name or name in padded_parameters or relation.is_sum:
            continue
        padded_parameter = _find_padding(siblings, other, row, relation)
        if padded_parameter is not None:
            padded_parameters[name] = padded_parameter
    return padded_parameters


def _select_paddings(padded_parameters: Mapping[str, _PaddedParameter]) -> list[Padding]:
    """Return the paddings of parameters; those that are proved, of equal lengths."""
    paddings = {parameter.padding for parameter in padded_parameters.values()}
    proved_lengths = {padding.length for padding in paddings if padding.is_proved}
    selected = [
        padding for padding in paddings if padding.is_proved or padding.length not in proved_lengths
    ]
    return sorted(selected, key=lambda padding: (padding.length, padding.kept))


def _list_parameter_names(siblings: Siblings) -> list[str]:
    """Return (tensors,) the parameter that each row is, or is a gradient or a new value of."""
    names = [""] * len(siblings.rows)
    for column in ("parameter", "gradient_of", "update_of"):
        for row, name in enumerate(siblings.collect_base(column).tolist()):
            names[row] = names[row] or str(name or "")
    return names


def _find_padding(
    siblings: Siblings, other: OtherRun, row: int, relation: Relation
) -> _PaddedParameter | None:
    """Return what pads a parameter, None if no parameter of the other run is its beginning."""
    shapes = _list_part_shapes(siblings, row, relation)
    if shapes is None:
        return None
    name = siblings.collect_base("parameter")[row]
    for entry, whole_shape in other.whole_parameters.items():
        axis = _find_longer_axis(shapes, whole_shape)
        if axis is None:
            continue
        kept = whole_shape[axis]
        padding = Padding(sum(shape[axis] for shape in shapes), kept, is_proved=False)
        parts, whole = load_parts(siblings, row, relation), other.load(entry)
        if parts is None or whole is None:
            if other.get_parameter_name(entry) == name:
                return _PaddedParameter(padding, axis)
            continue
        if _has_equal_slices(whole, axis):
            continue
        first_slices = keep_slices(np.concatenate(parts, axis=axis), axis, kept)
        is_narrow = _is_narrow(siblings, row)
        share = measure_equal_share(first_slices, whole, axis, is_narrow=is_narrow)
        if share >= _MIN_EQUAL_SHARE:
            return _PaddedParameter(replace(padding, is_proved=True), axis)
    return None


def _has_equal_slices(array: AnyArray, axis: int) -> bool:
    """Return whether all slices along an axis are equal, as in a bias of zeros: they prove nothing.

    A bias of zeros begins with every shorter one.
    """
    slices = np.moveaxis(array, axis, 0)
    return bool((slices == slices[:1]).all())


def _is_narrow(siblings: Siblings, row: int) -> bool:
    rank = int(siblings.bases[row])
    dtype = siblings.flows[rank].tensors["dtype"].iat[int(siblings.rows[row, rank])]
    return get_unit_roundoff(dtype) > NARROW


def _find_longer_axis(
    part_shapes: Sequence[tuple[int, ...]], whole_shape: tuple[int, ...]
) -> int | None:
    """Return the only axis on which parts are, concatenated, longer than a whole tensor."""
    if any(len(shape) != len(whole_shape) for shape in part_shapes):
        return None
    for axis, length in enumerate(whole_shape):
        rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in part_shapes}
        is_equal_rest = rests == {(*whole_shape[:axis], *whole_shape[axis + 1 :])}
        if is_equal_rest and sum(shape[axis] for shape in part_shapes) > length:
            return axis
    return None


def _list_part_shapes(
    siblings: Siblings, row: int, relation: Relation
) -> list[tuple[int, ...]] | None:
    """Return the shape of each part, None if one is unknown."""
    shapes = []
    for part in relation.parts:
        tensor = int(siblings.rows[row, part[0]])
        shape = siblings.flows[part[0]].tensors["shape"].iat[tensor] if tensor >= 0 else None
        if shape is None:
            return None
        shapes.append(shape)
    return shapes


def _list_candidates(
    shapes: Sequence[tuple[int, ...]], padding: Padding, other: OtherRun
) -> list[Assembly]:
    """Return the ways to join parts to a tensor that has, without the padding, a known shape.

    A shape that the other run has counts more than one whose axes it has in another order.
    """
    empty = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
    same_candidates, permuted_candidates = [], []
    for whole in iterate_candidates(empty):
        shape = whole.join(empty).shape
        padded_axes = [axis for axis, length in enumerate(shape) if length == padding.length]
        if len(padded_axes) != 1 or (len(shapes) == 1 and whole.axis != padded_axes[0]):
            continue  # one part is the whole, whatever the axis
        candidate = replace(whole, kept=(padded_axes[0], padding.kept))
        kept_shape = candidate.join(empty).shape
        if kept_shape in other.shapes:
            same_candidates.append(candidate)
        elif tuple(sorted(kept_shape)) in other.sorted_shapes:
            permuted_candidates.append(candidate)
    return same_candidates or permuted_candidates


def _has_padded_shape(
    candidate: Assembly, shapes: Sequence[tuple[int, ...]], other: OtherRun
) -> bool:
    """Return whether the other run has values of the shape with the padding."""
    empty = [np.broadcast_to(np.int8(0), shape) for shape in shapes]
    padded_shape = replace(candidate, kept=None).join(empty).shape
    return tuple(sorted(padded_shape)) in other.sorted_shapes


def _list_proved(
    candidates: Sequence[Assembly],
    siblings: Siblings,
    row: int,
    relation: Relation,
    other: OtherRun,
) -> list[Assembly]:
    """Return the ways to join parts that give, without the padding, a value of the other run."""
    parts = load_parts(siblings, row, relation) if candidates else None
    if parts is None:
        return []
    is_narrow = _is_narrow(siblings, row)
    parts = [part * relation.factor for part in parts]
    proved = []
    for candidate in candidates:
        kept = candidate.join(parts)
        statistics = np.array(compute_statistics(kept)[:4])
        entry = other.find_whole(statistics, kept.size, ELEMENT_ERRORS[is_narrow])
        whole = None if entry < 0 else other.load(entry)
        if whole is None:
            continue
        assembly = find_assembly([kept], whole, is_narrow=is_narrow)
        if assembly is not None and assembly.order is None:
            proved.append(candidate)
    return proved
