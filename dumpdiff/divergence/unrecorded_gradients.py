"""Parameters of which only the other side has a gradient: frozen, detached, or a lost record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..alignment import Alignment
from ..graph import find_returned_gradients

#: Parameters that a sentence names.
_MAX_NAMES = 3


def describe_unrecorded_gradients(alignment: Alignment) -> list[str]:
    """Return a sentence for each side that lacks gradients of parameters.

    Only a dump that names the gradients of parameters can lack one. The partner of the parameter
    has a gradient, so that it is trained on the other side.
    """
    sentences = []
    trained_values_of_sides = [_find_trained_values(alignment, position) for position in (0, 1)]
    for side, other_side, position in (("target", "reference", 0), ("reference", "target", 1)):
        flow = (alignment.target, alignment.reference)[position]
        if not any(flow.list_column("gradient_of")):
            continue
        names = flow.parameter_values
        trained_values = trained_values_of_sides[position]
        trained_partners = trained_values_of_sides[1 - position]
        partners = _map_partners(alignment, position)
        missing_names = []
        for name, value in names.items():
            is_trained = value in trained_values
            if not is_trained and not trained_partners.isdisjoint(partners.get(value, ())):
                missing_names.append(name)
        if missing_names:
            count = f"{len(missing_names)} of {len(names)} parameters"
            shown_names = ", ".join(missing_names[:_MAX_NAMES])
            n_more = len(missing_names) - _MAX_NAMES
            if n_more > 0:
                shown_names += f" and {n_more} more"
            sentences.append(
                f"the {side} has no gradient of {count} that the {other_side} has one of: "
                f"{shown_names}; frozen, detached, or not recorded"
            )
    return sentences


def _find_trained_values(alignment: Alignment, position: int) -> frozenset[int]:
    """Return the classes of the parameters of one side that have a gradient.

    Tied weights are one class: the gradient of one of their names is that of all.
    """
    flow = (alignment.target, alignment.reference)[position]
    named_gradients = set(flow.tensors["gradient_of"].tolist()) - {""}
    values = {value for name, value in flow.parameter_values.items() if name in named_gradients}
    values |= find_returned_gradients(flow).keys()
    if not named_gradients and alignment.gradients is not None:
        values |= alignment.gradients[position].by_value.keys()
    return frozenset(values)


def _map_partners(alignment: Alignment, position: int) -> dict[int, set[int]]:
    """Return class of one side -> its partners, which are several for a fused parameter."""
    partners: defaultdict[int, set[int]] = defaultdict(set)
    for value, partner in _iterate_partners(alignment):
        own, other = (value, partner) if position == 0 else (partner, value)
        partners[own].add(other)
    return partners


def _iterate_partners(alignment: Alignment) -> Iterator[tuple[int, int]]:
    """Yield (target class, reference class) of pairs, and of the parts of fused tensors."""
    yield from alignment.partners.items()
    for group in alignment.groups:
        for value in group.target:
            for partner in group.reference:
                yield value, partner
