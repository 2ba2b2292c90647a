"""Parameters that one side does not train and the other does.

Without a gradient they are frozen or detached, or a record was lost; with one, they are no
parameters of the optimizer, or its update leaves them as they were.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..alignment import Alignment
from ..comparison.new_weights import measure_change
from ..graph import Flow, find_returned_gradients, is_used_by_update
from ..graph.module_paths import find_common_path
from ..model.dtypes import get_unit_roundoff
from ..model.finding import Cause, Finding
from ..model.formatting import format_names
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from .locations import MAX_NAMED_OPS

#: Parameters that a sentence names.
_MAX_NAMES = 3
#: The update says so itself: what it leaves out was not lost by the recorder.
_CONFIDENCE = 0.9
#: Change of a weight, in unit roundoffs, that is more than rounding.
_MIN_CHANGE = 100
#: Norm of a gradient, as a share of the median of all, that is more than rounding errors.
_MIN_GRADIENT_SHARE = 1e-4
#: Norms of gradients that are nothing but rounding errors differ by more.
_MAX_NORM_ERROR = 0.05
_SIDES = ("target", "reference")


@dataclass(frozen=True)
class UnrecordedGradients:
    """The parameters of one side without a gradient, or an update, that the other side has."""

    position: int  #: of the side: 0 the target, 1 the reference
    names: tuple[str, ...]  #: of parameters whose gradient may only be missing in the record
    #: of those that the side's update leaves out, too, while it reads others: they are not trained
    untrained_names: tuple[str, ...]
    skipped_names: tuple[str, ...]  #: of those with a gradient that the side's update leaves out
    unchanged_names: tuple[str, ...]  #: of those that are the same after the side's update
    n_parameters: int  #: of the side


def find_unrecorded_gradients(alignment: Alignment) -> tuple[UnrecordedGradients, ...]:
    """Return the parameters of each side that only the other side trains.

    Only a dump that names the gradients of parameters can lack one. The partner of the parameter
    has a gradient, so that it is trained on the other side.
    """
    sides = []
    trained_values_of_sides = [
        _find_trained_values(alignment, position) for position in range(len(_SIDES))
    ]
    partners_of_sides = [
        _PartnerIndex.from_alignment(alignment, position) for position in range(len(_SIDES))
    ]
    for position in range(len(_SIDES)):
        flow, other_flow = _get_flow(alignment, position), _get_flow(alignment, 1 - position)
        names_gradients = any(flow.list_column("gradient_of"))
        parameters = flow.parameter_values
        trained_values = trained_values_of_sides[position]
        trained_partners = trained_values_of_sides[1 - position]
        partners = partners_of_sides[position]
        has_updates = OPTIMIZER in flow.phases
        has_updates = has_updates and any(map(flow.is_read_by_update, parameters.values()))
        unrecorded: list[str] = []
        untrained: list[str] = []
        skipped: list[str] = []
        unchanged: list[str] = []
        for name, value in parameters.items():
            partners_of_value = partners.get(value)
            if trained_partners.isdisjoint(partners_of_value):
                continue
            is_left_out = has_updates and not flow.is_read_by_update(value)
            is_left_out &= any(map(other_flow.is_read_by_update, partners_of_value))
            if value not in trained_values and names_gradients:
                if is_left_out or not _has_equal_terms(alignment, position, value, partners):
                    (untrained if is_left_out else unrecorded).append(name)
            elif is_left_out and _is_skipped(alignment, position, value, partners_of_value):
                skipped.append(name)
            elif _is_unchanged(alignment, position, value, partners_of_sides):
                unchanged.append(name)
        if unrecorded or untrained or skipped or unchanged:
            sides.append(
                UnrecordedGradients(
                    position,
                    tuple(unrecorded),
                    tuple(untrained),
                    tuple(skipped),
                    tuple(unchanged),
                    len(parameters),
                )
            )
    return tuple(sides)


def _has_equal_terms(
    alignment: Alignment, position: int, value: int, partners: _PartnerIndex
) -> bool:
    """Return whether gradients flow back to a parameter through the same ops of both sides.

    The other side has its whole gradient, and the terms of it. A parameter that is frozen or
    detached has none, or fewer.
    """
    if alignment.gradients is None:
        return False
    own_edges, other_edges = (
        alignment.gradients[side].by_edge for side in (position, 1 - position)
    )
    own_terms = {term for (_, operand, _), term in own_edges.items() if operand == value}
    other_terms = {
        term for (_, operand, _), term in other_edges.items() if operand in partners.get(value)
    }
    own_partners = {partner for term in own_terms for partner in partners.get(term)}
    return bool(own_terms) and own_partners == other_terms


def _is_skipped(alignment: Alignment, position: int, value: int, partners: set[int]) -> bool:
    """Return whether only the other side's update uses the gradient of a parameter."""
    if alignment.gradients is None:
        return False
    own_gradients, other_gradients = (
        alignment.gradients[side].by_value for side in (position, 1 - position)
    )
    other_flow = _get_flow(alignment, 1 - position)
    return (
        value in own_gradients
        and not is_used_by_update(_get_flow(alignment, position), own_gradients[value])
        and any(
            is_used_by_update(other_flow, other_gradients[partner])
            for partner in partners & other_gradients.keys()
        )
    )


def _is_unchanged(
    alignment: Alignment, position: int, value: int, partners: Sequence[_PartnerIndex]
) -> bool:
    """Return whether the update of only this side leaves a parameter as it was.

    Both sides have the same gradient of it, which is not 0, and what the other update changes is
    more than rounding. A fused parameter changes with any of its parts.
    """
    own_updates, other_updates = (
        alignment.sides[side].updates for side in (position, 1 - position)
    )
    if value not in own_updates or not own_updates[value].is_unchanged:
        return False
    other_prints = alignment.fingerprints[1 - position]
    flow, other_flow = _get_flow(alignment, position), _get_flow(alignment, 1 - position)
    dtypes = other_flow.classes["dtype"]
    return any(
        other_updates[partner].new_weight >= 0
        and flow.sizes[value] == other_flow.sizes[partner]
        and measure_change(other_prints, other_updates[partner].new_weight, partner)
        > _MIN_CHANGE * get_unit_roundoff(dtypes.iat[partner])
        and (
            _has_equal_gradient(alignment, position, value, partners[position])
            or _has_equal_gradient(alignment, 1 - position, partner, partners[1 - position])
        )
        for partner in partners[position].get(value) & other_updates.keys()
    )


def _has_equal_gradient(
    alignment: Alignment, position: int, value: int, partners: _PartnerIndex
) -> bool:
    """Return whether the gradient of a parameter is more than noise, and has a partner of its norm.

    That of the bias of keys is nothing but noise.
    """
    prints, other_prints = (alignment.fingerprints[side] for side in (position, 1 - position))
    gradients = alignment.sides[position].gradients.by_value
    parameters = _get_flow(alignment, position).parameter_values.values()
    norms = prints.norm[[gradients[other] for other in parameters if other in gradients]]
    gradient = gradients.get(value, -1)
    if gradient < 0 or not prints.norm[gradient] > _MIN_GRADIENT_SHARE * np.nanmedian(norms):
        return False
    return any(
        math.isclose(prints.norm[gradient], other_prints.norm[partner], rel_tol=_MAX_NORM_ERROR)
        for partner in partners.get(gradient)
    )


def describe_unrecorded_gradients(sides: Sequence[UnrecordedGradients]) -> list[str]:
    """Return a sentence for each side whose record may lack gradients of parameters."""
    return [
        f"the {_SIDES[side.position]} has no gradient of {len(side.names)} of "
        f"{side.n_parameters} parameters that the {_SIDES[1 - side.position]} has one of: "
        f"{format_names(side.names, _MAX_NAMES)}; frozen, detached, or not recorded"
        for side in sides
        if side.names
    ]


def insert_untrained_parameters(
    findings: Sequence[Finding], alignment: Alignment, sides: Sequence[UnrecordedGradients]
) -> tuple[Finding, ...]:
    """Return the findings with one more for each side that does not train parameters.

    It comes before what else differs in the backward pass: gradients that do not flow back there
    are missing before it, too. If only the optimizer leaves parameters out, it comes before what
    else differs in the optimizer.
    """
    untrained = [_describe_untrained(alignment, side) for side in sides if side.untrained_names]
    skipped = [_describe_skipped(alignment, side) for side in sides if side.skipped_names]
    skipped += [_describe_unchanged(alignment, side) for side in sides if side.unchanged_names]
    if not untrained and not skipped:
        return tuple(findings)
    first_findings = [f for f in findings if f.phase == FORWARD and f.kind != "isolated"]
    middle_findings = [f for f in findings if f.phase == BACKWARD and f.kind != "isolated"]
    later_findings = [f for f in findings if f not in first_findings and f not in middle_findings]
    ordered_findings = [
        *first_findings,
        *untrained,
        *middle_findings,
        *skipped,
        *later_findings,
    ]
    return tuple(replace(finding, rank=rank) for rank, finding in enumerate(ordered_findings, 1))


def _describe_untrained(alignment: Alignment, side: UnrecordedGradients) -> Finding:
    """Return the finding of the parameters without gradient that a side does not train."""
    names, own, other = side.untrained_names, _SIDES[side.position], _SIDES[1 - side.position]
    first_names = format_names(names, _MAX_NAMES)
    subject = f"{len(names)} of {side.n_parameters} parameters: {first_names}"
    return replace(
        _build_finding(alignment, side.position, names, (FORWARD, FORWARD)),
        phase=BACKWARD,
        title=f"the {own} does not train {subject}; the {other} does",
        evidence=(
            f"the {own} recorded no gradient of them, and its optimizer does not read them, "
            "although it reads others",
            f"the {other} recorded their gradients and their update",
        ),
        causes=(
            Cause(
                "gradient-stopped",
                f"no gradient reaches {first_names} in the {own}: detached or frozen; "
                f"the {other} updates them",
                0.0,
            ),
        ),
    )


def _describe_skipped(alignment: Alignment, side: UnrecordedGradients) -> Finding:
    """Return the finding of the parameters with a gradient that a side's update leaves out."""
    names, own, other = side.skipped_names, _SIDES[side.position], _SIDES[1 - side.position]
    first_names = format_names(names, _MAX_NAMES)
    subject = f"{len(names)} of {side.n_parameters} parameters: {first_names}"
    return replace(
        _build_finding(alignment, side.position, names, (FORWARD, OPTIMIZER)),
        title=f"the optimizer of the {own} does not update {subject}; that of the {other} does",
        evidence=(
            f"the optimizer of the {own} reads neither them nor their gradients, "
            "although it reads others",
            "both sides recorded their gradients",
        ),
        causes=(
            Cause(
                "update-missing",
                f"{first_names}: no parameter of the optimizer in the {own}; "
                f"the {other} updates them",
                0.0,
            ),
        ),
    )


def _describe_unchanged(alignment: Alignment, side: UnrecordedGradients) -> Finding:
    """Return the finding of the parameters that a side's update leaves as they were."""
    names, own, other = side.unchanged_names, _SIDES[side.position], _SIDES[1 - side.position]
    first_names = format_names(names, _MAX_NAMES)
    return replace(
        _build_finding(alignment, side.position, names, (OPTIMIZER, OPTIMIZER)),
        title=f"the optimizer of the {own} does not change {len(names)} of {side.n_parameters} "
        f"parameters: {first_names}; that of the {other} does",
        evidence=(
            f"in the {own} they are recorded after the update, with the values from before it",
            f"in the {other} their values after the update are others",
        ),
        causes=(
            Cause(
                "update-missing",
                f"{first_names}: the update of the {own} is 0, as with a learning rate of 0; "
                f"the {other} changes them",
                0.0,
            ),
        ),
    )


def _build_finding(
    alignment: Alignment, position: int, names: Sequence[str], phases: tuple[str, str]
) -> Finding:
    """Return a finding of parameters of a side, at the ops that read them or write them.

    ``phases`` are those of the ops of this side and of the other.
    """
    flow = _get_flow(alignment, position)
    partners = _PartnerIndex.from_alignment(alignment, position)
    values = [flow.parameter_values[name] for name in names]
    partner_values = sorted(set().union(*(partners.get(value) for value in values)))
    ops = (
        _name_users(flow, values, phases[0]),
        _name_users(_get_flow(alignment, 1 - position), partner_values, phases[1]),
    )
    return Finding(
        rank=0,
        kind="missing",
        phase=OPTIMIZER,
        scope=find_common_path([name.rpartition(".")[0] for name in names]),
        title="",
        target_ops=ops[position],
        reference_ops=ops[1 - position],
        slots=(),
        metrics={},
        tolerance=0.0,
        confidence=_CONFIDENCE,
        evidence=(),
        side="unknown",
    )


def _name_users(flow: Flow, values: Sequence[int], phase: str) -> tuple[str, ...]:
    """Return the names of the ops of a phase that read some values or write them, in order."""
    users = {op for value in values for op in flow.consumers[value]}
    users |= {int(flow.producers[value]) for value in values} - {-1}
    users_of_phase = [op for op in sorted(users) if flow.phases[op] == phase]
    names = flow.trace.ops["name"]
    return tuple(str(names.iat[op]) for op in users_of_phase[:MAX_NAMED_OPS])


def _get_flow(alignment: Alignment, position: int) -> Flow:
    return (alignment.target, alignment.reference)[position]


def _find_trained_values(alignment: Alignment, position: int) -> frozenset[int]:
    """Return the classes of the parameters of one side that have a gradient.

    Tied weights are one class: the gradient of one of their names is that of all. A gradient that
    two parameters share, as both biases of an LSTM do, has the name of one of them, but the updates
    of both read it.
    """
    flow = _get_flow(alignment, position)
    named_gradients = set(flow.tensors["gradient_of"].unique()) - {""}
    values = {value for name, value in flow.parameter_values.items() if name in named_gradients}
    values |= find_returned_gradients(flow).keys()
    if OPTIMIZER in flow.phases:
        values |= {value for value in flow.parameter_values.values() if _moves_along(flow, value)}
    if not named_gradients and alignment.gradients is not None:
        values |= alignment.gradients[position].by_value.keys()
    return frozenset(values)


def _moves_along(flow: Flow, parameter: int) -> bool:
    """Return whether an op of the update reads a parameter with a computed tensor of its size."""
    return any(
        value != parameter
        and flow.sizes[value] == flow.sizes[parameter]
        and flow.producers[value] >= 0
        for op in flow.consumers[parameter]
        if flow.phases[op] == OPTIMIZER
        for value in flow.reads[op]
    )


@dataclass(frozen=True)
class _PartnerIndex:
    """The partners of the values of one side, which are several for a fused parameter."""

    by_value: Mapping[int, int]
    by_part: Mapping[int, set[int]]  #: of the parts of fused tensors

    @staticmethod
    def from_alignment(alignment: Alignment, position: int) -> _PartnerIndex:
        """Return the index of the side at this position."""
        by_value = alignment.partners
        if position == 1:
            by_value = {partner: value for value, partner in by_value.items()}
        by_part: defaultdict[int, set[int]] = defaultdict(set)
        for group in alignment.groups:
            own, others = group.target, group.reference
            if position == 1:
                own, others = others, own
            for value in own:
                by_part[value].update(others)
        return _PartnerIndex(by_value, by_part)

    def get(self, value: int) -> set[int]:
        """Return the partners of a value, which may be none."""
        partners = set(self.by_part.get(value, ()))
        if value in self.by_value:
            partners.add(self.by_value[value])
        return partners
