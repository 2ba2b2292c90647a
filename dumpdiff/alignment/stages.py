"""The stages of an alignment in order, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..graph import Flow, Gradients
from ..model.arrays import Ints
from ..rulebook import Rules
from . import anchors, mapping_evidence
from .excluded_pairs import separate_circles, separate_copies
from .fused_groups import FusedGroup, find_fused_groups
from .given_values import pair_given_values
from .gradient_shares import separate_shares
from .joint_dataflow import JointDataflow, join_dataflows
from .later_results import pair_later_results
from .lineage import pair_by_lineage
from .losses import pair_mistakable_losses
from .matches import Matching, NewWeight
from .noise import find_agreeing_classes
from .norm_results import pair_norm_results
from .partial_sums import separate_partial_sums
from .roles import pair_by_role, separate_other_gradients
from .sides import PreparedSide, prepare_side
from .slot_pairs import SlotPair, find_slot_pairs
from .structure import pair_by_structure, pair_idle_ops
from .training_step import (
    collect_new_weights,
    infer_more_gradients,
    pair_by_gradient,
    pair_by_update,
    pair_remaining_gradients,
    pair_step_counts,
)
from .values import Fingerprints
from .weight_products import pair_weight_products


@dataclass(frozen=True)
class Alignment:
    """Which class is which, which op is which, and with what confidence."""

    target: Flow
    reference: Flow
    target_kinds: tuple[str, ...]  #: canonical operator kind of each op
    reference_kinds: tuple[str, ...]
    sides: tuple[PreparedSide, PreparedSide]  #: target and reference as they were prepared
    classes: pd.DataFrame  #: target, reference (class ids), evidence, confidence; one row per pair
    ops: pd.DataFrame  #: target, reference (op ids); one row per pair of ops
    tolerance: float  #: distance of statistics within which values agree
    #: unpaired classes that correspond as a fused tensor and its parts
    groups: tuple[FusedGroup, ...]
    new_weights: tuple[NewWeight, ...] = ()
    states: tuple[int, ...] = ()  #: target classes of paired optimizer states
    gradients: tuple[Gradients, Gradients] | None = None  #: of the target and of the reference
    #: values of corresponding slots that are not each other's partners
    slot_pairs: tuple[SlotPair, ...] = ()

    @cached_property
    def partners(self) -> dict[int, int]:
        """Target class -> its partner among the reference's classes."""
        pairs = zip(
            self.classes["target"].tolist(), self.classes["reference"].tolist(), strict=True
        )
        return dict(pairs)

    @cached_property
    def partner_columns(self) -> tuple[Ints, Ints]:
        """(classes,) of the target and of the reference: the partner of each, -1 if it has none."""
        values = self.classes["target"].to_numpy(), self.classes["reference"].to_numpy()
        columns = []
        for flow, own, others in zip(
            (self.target, self.reference), values, values[::-1], strict=True
        ):
            column = np.full(len(flow.classes), -1)
            column[own] = others
            columns.append(column)
        return columns[0], columns[1]

    @cached_property
    def op_partners(self) -> dict[int, int]:
        """Target op -> its partner among the reference's ops."""
        pairs = zip(self.ops["target"].tolist(), self.ops["reference"].tolist(), strict=True)
        return dict(pairs)

    @cached_property
    def joint_dataflow(self) -> JointDataflow:
        """Both dataflow graphs as one."""
        return join_dataflows(self.sides, self.classes, self.slot_pairs, self.groups)

    @cached_property
    def fingerprints(self) -> tuple[Fingerprints, Fingerprints]:
        """Statistics of both sides' classes, as arrays."""
        return (
            Fingerprints.from_table(self.target.classes),
            Fingerprints.from_table(self.reference.classes),
        )


def align(target: Flow, reference: Flow, rules: Rules) -> Alignment:
    """Pair the value classes and ops of two dataflows, see :func:`align_sides`."""
    prepared_target = prepare_side(target, rules, is_target=True)
    return align_sides(prepared_target, prepare_side(reference, rules, is_target=False), rules)


def align_sides(target: PreparedSide, reference: PreparedSide, rules: Rules) -> Alignment:
    """Pair the value classes and ops of two sides.

    First come anchors: losses that a value would pair with a term of the other side's loss, values
    that only one class of each side has, and parameters of equal name.
    Then structure, then values with several candidates that their paired neighbors decide, and
    later results of what structure paired but differs, then roles learned from all of these.
    Gradients follow their values and updates follow their parameters, before and after the roles.
    Names of a mapping file are used after the anchors where values agree, and after the roles where
    they do not.
    """
    gradients_t, gradients_r = target.gradients, reference.gradients
    updates_t, updates_r = target.updates, reference.updates
    tolerance, candidates = find_agreeing_classes(target.flow, reference.flow)
    matching = Matching(target.flow, reference.flow, target.kinds, reference.kinds, tolerance)
    if updates_t and updates_r:
        matching.reserved_t = collect_new_weights(updates_t)
        matching.reserved_r = collect_new_weights(updates_r)
        matching.updated_t = target.updated_weights
        matching.updated_r = reference.updated_weights
    pair_mistakable_losses(matching)
    candidates = anchors.pair_by_value(matching, candidates)
    anchors.pair_by_checksum(matching)
    anchors.pair_by_parameter_name(matching, rules)
    mapping_evidence.pair_by_mapping(matching, rules, diverged=False)
    pair_by_structure(matching)
    while anchors.pair_by_support(matching, candidates):
        pair_by_structure(matching)
    if pair_later_results(matching):
        pair_by_structure(matching)
    target, reference = infer_more_gradients(matching, target, reference)
    gradients_t, gradients_r = target.gradients, reference.gradients
    if pair_by_gradient(matching, gradients_t, gradients_r):
        pair_by_structure(matching)
    if pair_by_update(matching, updates_t, updates_r) | pair_step_counts(matching):
        pair_by_structure(matching)
    if pair_weight_products(matching) | pair_norm_results(matching):
        pair_by_structure(matching)
    for _ in pair_by_role(matching):
        pair_by_structure(matching)
    if mapping_evidence.pair_by_mapping(matching, rules, diverged=True):
        pair_by_structure(matching)
    if pair_by_gradient(matching, gradients_t, gradients_r):
        pair_by_structure(matching)
    runs_diverged = anchors.has_diverged(matching)
    while runs_diverged and pair_by_lineage(matching):
        pair_by_structure(matching)
    while anchors.pair_by_near_value(matching, runs_diverged) or anchors.pair_by_scaled_value(
        matching
    ):
        pair_by_structure(matching)
    pair_remaining_gradients(matching, gradients_t, gradients_r)
    anchors.pair_by_last_value(matching)
    anchors.pair_twins(matching)
    anchors.pair_losses(matching)
    if pair_given_values(matching):
        pair_by_structure(matching)
    pair_idle_ops(matching)
    _separate_contradicted_pairs(matching, gradients_t, gradients_r)
    groups = find_fused_groups(
        matching, rules, (updates_t, updates_r), (gradients_t.by_value, gradients_r.by_value)
    )
    return _build_alignment(matching, groups, target, reference)


def _separate_contradicted_pairs(
    matching: Matching, gradients_t: Gradients, gradients_r: Gradients
) -> None:
    """Unpair what other pairs contradict."""
    separate_partial_sums(matching)
    separate_circles(matching)
    separate_copies(matching)
    separate_other_gradients(matching)
    separate_shares(matching, gradients_t, gradients_r)


def _build_alignment(
    matching: Matching,
    groups: tuple[FusedGroup, ...],
    target: PreparedSide,
    reference: PreparedSide,
) -> Alignment:
    gradients = target.gradients, reference.gradients
    paired_classes = np.flatnonzero(matching.classes_t >= 0)
    paired_list = paired_classes.tolist()
    evidence = pd.Series([matching.evidence[t] for t in paired_list], dtype=object)
    levels = np.array([matching.confidence[t] for t in paired_list], dtype=float)
    classes = pd.DataFrame(
        {
            "target": paired_classes,
            "reference": matching.classes_t[paired_classes],
            "evidence": evidence,
            "confidence": levels,
        }
    )
    paired_ops = np.flatnonzero(matching.ops_t >= 0)
    ops = pd.DataFrame({"target": paired_ops, "reference": matching.ops_t[paired_ops]})
    return Alignment(
        target.flow,
        reference.flow,
        tuple(target.kinds),
        tuple(reference.kinds),
        (target, reference),
        classes,
        ops,
        matching.tolerance,
        groups,
        tuple(matching.new_weights),
        tuple(matching.states),
        gradients,
        find_slot_pairs(matching, gradients),
    )
