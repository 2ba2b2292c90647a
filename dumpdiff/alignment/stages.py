"""The stages of an alignment, in order, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..graph import Flow, gradients
from ..rulebook import Rules
from . import anchors, mapping_evidence, roles, structure, training_step
from .fused_groups import Group, groups
from .matches import Matching
from .noise import matching_tolerance
from .values import Fingerprints


@dataclass(frozen=True)
class Alignment:
    """Which class is which, which op is which, and how sure that is."""

    target: Flow
    reference: Flow
    kinds_t: tuple[str, ...]  #: canonical operator kind of each op
    kinds_r: tuple[str, ...]
    classes: pd.DataFrame  #: target, reference (class ids), evidence, confidence; one row per pair
    ops: pd.DataFrame  #: target, reference (op ids); one row per pair of makers
    tolerance: float  #: distance of statistics within which values were taken to agree
    groups: tuple[
        Group, ...
    ]  #: classes beyond those pairs that correspond as a fused tensor and its parts

    @cached_property
    def fingerprints(self) -> tuple[Fingerprints, Fingerprints]:
        """Statistics of both sides' classes, as arrays."""
        return Fingerprints.of(self.target.classes), Fingerprints.of(self.reference.classes)


def align(target: Flow, reference: Flow, rules: Rules) -> Alignment:
    """Pair the value classes and ops of two sides.

    Anchors first (values that only one class of each side has, parameters of one name), then structure, then
    values that had several candidates and whose neighbours now tell them apart, then roles learned from all this.
    Gradients follow the values that they belong to, and updates their parameters, before and after that.
    What a mapping file names comes behind the anchors where values agree, and behind the roles where they do not.
    """
    kinds_t = mapping_evidence.kinds_of(target, rules, target=True)
    kinds_r = mapping_evidence.kinds_of(reference, rules, target=False)
    matching = Matching(target, reference, kinds_t, kinds_r, matching_tolerance(target, reference))
    found = anchors.by_value(matching)
    anchors.by_checksum(matching)
    anchors.by_parameter_name(matching, rules)
    mapping_evidence.by_name(matching, rules, parted=False)
    structure.close(matching)
    while anchors.by_supported_value(matching, found):
        structure.close(matching)
    mirrored = gradients(target, kinds_t), gradients(reference, kinds_r)
    if training_step.by_gradient(matching, *mirrored):
        structure.close(matching)
    if training_step.by_update(matching, *mirrored):
        structure.close(matching)
    for _ in roles.transfer(matching):
        structure.close(matching)
    if mapping_evidence.by_name(matching, rules, parted=True):
        structure.close(matching)
    if training_step.by_gradient(matching, *mirrored):
        structure.close(matching)
    parted = anchors.parted(matching)
    while anchors.by_near_value(matching, parted) or anchors.by_scaled_value(matching):
        structure.close(matching)
    anchors.by_last_value(matching)
    anchors.by_being_the_loss(matching)
    structure.pair_idle_ops(matching)
    return _frozen(matching, groups(matching, rules))


def _frozen(matching: Matching, fused: tuple[Group, ...]) -> Alignment:
    paired = np.flatnonzero(matching.classes_t >= 0)
    classes = pd.DataFrame(
        {
            "target": paired,
            "reference": matching.classes_t[paired],
            "evidence": pd.Series([matching.why[t] for t in paired.tolist()], dtype=object),
            "confidence": np.array([matching.confidence[t] for t in paired.tolist()], dtype=float),
        }
    )
    done = np.flatnonzero(matching.ops_t >= 0)
    ops = pd.DataFrame({"target": done, "reference": matching.ops_t[done]})
    return Alignment(
        matching.target,
        matching.reference,
        tuple(matching.kinds_t),
        tuple(matching.kinds_r),
        classes,
        ops,
        matching.tolerance,
        fused,
    )
