"""Explain a finding without whole tensors: by what statistics and recorded arguments prove.

Four numbers of a tensor prove little. A cause is given only if a recorded dtype, a tensor of one
repeated number, a scalar argument or an exact factor proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..graph import Flow
from ..model.dtypes import get_unit_roundoff, is_floating
from ..model.finding import Cause, Finding
from ..model.trace import FORWARD, OPTIMIZER
from .cause_search import format_cause_text
from .comparison_index import ComparisonIndex, ValuePair
from .hypotheses.factors import choose_factor_cause, describe_factor
from .hypotheses.norms import describe_offset, is_offset
from .hypotheses.optimizers import describe_decay
from .scaling_search import find_scalings
from .scalings import describe_scalings, select_scalings
from .statistics_factor import StatisticsFactor, find_statistics_factor
from .surroundings import collect_consumer_kinds, is_of_loss
from .update_steps import has_equal_step

_STATISTICS = ("max", "min", "mean", "norm")
_SIDE_NAMES = ("target", "reference")
_NORM_KINDS = {
    "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "add_rms_norm",
    "add_layer_norm",
}  # fmt: skip
#: Kinds of activations whose names say what they compute. Gelu has several forms.
_ACTIVATION_KINDS = {
    "silu", "gelu", "relu", "relu6", "sigmoid", "tanh", "softplus", "mish", "hardswish", "elu",
    "leaky_relu",
}  # fmt: skip
#: Largest epsilon, and of a batch norm, whose other number is a momentum.
_MAX_EPS, _MAX_BATCH_NORM_EPS = 0.5, 0.05
#: The shift of a mean by an added number is known to this share of the number.
_MAX_SHIFT_ERROR = 0.05
#: A value of the optimizer that changes by a smaller share is a decayed weight, not clipped.
_MIN_CLIP_CHANGE = 1e-2
#: Smallest number by which a decay multiplies a weight.
_MIN_DECAY_FACTOR = 0.5


def explain_by_statistics(
    index: ComparisonIndex, finding: Finding, value_pair: ValuePair
) -> tuple[str, Cause] | None:
    """Return (faulty side, cause) that statistics and arguments prove; None if they prove none."""
    pair = _read_pair(index, value_pair)
    for find_cause in (
        _find_narrow_dtype,
        _find_filling,
        _find_other_argument,
        _find_other_group_count,
        _find_other_activation,
        _find_factor,
    ):
        explanation = find_cause(index, finding, pair)
        if explanation is not None:
            return explanation
    return None


@dataclass(frozen=True)
class _StatisticsPair:
    """The statistics of both sides."""

    value_pair: ValuePair
    dtypes: tuple[str, str]
    sizes: tuple[int, int]
    statistics: tuple[dict[str, float], dict[str, float]]

    def list_numbers(self, side: int) -> list[float]:
        """Return maximum, minimum, mean and norm."""
        return list(self.statistics[side].values())


def _read_pair(index: ComparisonIndex, value_pair: ValuePair) -> _StatisticsPair:
    dtypes, sizes, statistics = [], [], []
    for flow, tensor in zip(index.flows, value_pair.tensors, strict=True):
        row = flow.tensors.iloc[tensor]
        dtypes.append(str(row["dtype"]))
        sizes.append(int(row["size"]))
        statistics.append({name: float(row[name]) for name in _STATISTICS})
    return _StatisticsPair(
        value_pair,
        (dtypes[0], dtypes[1]),
        (sizes[0], sizes[1]),
        (statistics[0], statistics[1]),
    )


def _find_narrow_dtype(
    _index: ComparisonIndex, finding: Finding, pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find a value that one side holds in a narrower dtype; the dtype itself is the finding."""
    if finding.kind != "dtype" or not all(is_floating(dtype) for dtype in pair.dtypes):
        return None
    roundoffs = [get_unit_roundoff(dtype) for dtype in pair.dtypes]
    if roundoffs[0] == roundoffs[1]:
        return None
    faulty = int(np.argmax(roundoffs))
    return _SIDE_NAMES[faulty], _make_cause(
        finding,
        "low-precision",
        faulty,
        f"computed in {pair.dtypes[faulty]}",
        f"has {pair.dtypes[1 - faulty]}",
    )


def _find_filling(
    index: ComparisonIndex, finding: Finding, pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find a tensor of one repeated number on one side: zeros, or a parameter never loaded."""
    if min(pair.sizes) < 2:
        return None
    fillings = [_read_filling(numbers) for numbers in pair.statistics]
    if (fillings[0] is None) == (fillings[1] is None):
        return None
    faulty = 0 if fillings[0] is not None else 1
    filling = fillings[faulty]
    if finding.is_given:
        description = f"filled with {filling:g}, as if never loaded"
        return _SIDE_NAMES[faulty], _make_cause(finding, "zeroed", faulty, description)
    if filling != 0:
        return None
    if finding.phase == FORWARD and not _makes_zeros(
        index.flows[faulty], pair.value_pair.classes[faulty]
    ):
        return None
    name = "zeroed" if finding.phase == FORWARD else "gradient-stopped"
    cause = _make_cause(finding, name, faulty, "all zeros, by its statistics")
    return _SIDE_NAMES[faulty], cause


def _makes_zeros(flow: Flow, value: int) -> bool:
    """Return whether a recorded op wrote zeros and read none: they do not come from before it."""
    producer = int(flow.producers[value])
    if producer < 0:
        return False
    rows = flow.tensors.iloc[flow.get_tensor_ids(producer)]
    is_zero = (rows["slot_kind"] != "output") & (rows["size"] > 1)
    is_zero &= (rows["max"] == 0) & (rows["min"] == 0)
    return not is_zero.any()


def _read_filling(statistics: dict[str, float]) -> float | None:
    """Return the number that all elements are; None if they differ or are unknown."""
    low, high = statistics["min"], statistics["max"]
    if np.isfinite(low) and low == high:
        return low + 0.0  # -0 becomes 0
    return None


def _find_other_argument(
    index: ComparisonIndex, finding: Finding, pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find the one scalar argument in which the ops of the finding differ."""
    rows = _select_scalars(index, finding)
    if len(rows) != 1:
        return None
    kind = index.kinds[0][int(rows["target_op"].iat[0])]
    target, reference = float(rows["target"].iat[0]), float(rows["reference"].iat[0])
    if finding.phase == OPTIMIZER:
        if kind != "mul" or not _MIN_DECAY_FACTOR < min(target, reference) <= 1:
            return None
        name, description, contrast = describe_decay(
            target, reference, has_equal_step(index, pair.value_pair.classes)
        )
        return "target", _make_cause(finding, name, 0, description, contrast)
    is_epsilon = min(target, reference) >= 0 and max(target, reference) <= _MAX_EPS
    if kind == "batch_norm" and max(target, reference) > _MAX_BATCH_NORM_EPS:
        return None
    if not is_epsilon or not _has_effect_of_epsilon(pair, kind, target, reference):
        return None
    name, description, contrast = "epsilon", f"epsilon = {target:.2g}", f"uses {reference:.2g}"
    parameters = {"epsilon": target}
    if kind == "add" and is_offset(target, reference):
        name, (description, contrast) = "constant-offset", describe_offset(target, reference)
        parameters = {"offset": target - reference}
    return "target", _make_cause(finding, name, 0, description, contrast, parameters)


def _find_other_group_count(
    index: ComparisonIndex, finding: Finding, _pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find two group norms of agreeing inputs whose recorded numbers of groups differ."""
    if finding.kind != "introduced" or finding.phase != FORWARD:
        return None
    counts = []
    for side, names in enumerate((finding.target_ops, finding.reference_ops)):
        ops = _find_ops(index, side, names)
        if len(ops) != 1 or index.kinds[side][ops[0]] != "group_norm":
            return None
        counts.append(_read_group_count(index.flows[side], ops[0]))
    if not all(counts) or counts[0] == counts[1]:
        return None
    description, contrast = (f"group_norm with {count:g} groups" for count in counts)
    cause = _make_cause(finding, "norm-groups", 0, description, f"has {contrast}")
    return "target", cause


def _read_group_count(flow: Flow, op: int) -> float:
    """Return the only whole number that a group norm takes; 0 if it takes none or several."""
    rows = flow.tensors.iloc[flow.get_tensor_ids(op)]
    is_count = rows["constant"] & (rows["size"] <= 1) & ~rows["dtype"].map(is_floating).astype(bool)
    is_count &= rows["max"] >= 1
    counts = rows.loc[is_count & (rows["dtype"] != "bool"), "max"].tolist()
    return float(counts[0]) if len(counts) == 1 else 0.0


def _select_scalars(index: ComparisonIndex, finding: Finding) -> pd.DataFrame:
    """Return the scalar arguments that differ between ops of the finding."""
    scalars = index.comparison.scalars
    target_ops = _find_ops(index, 0, finding.target_ops)
    reference_ops = _find_ops(index, 1, finding.reference_ops)
    is_here = scalars["target_op"].isin(target_ops) & scalars["reference_op"].isin(reference_ops)
    return scalars[is_here]


def _find_ops(index: ComparisonIndex, side: int, names: Sequence[str]) -> list[int]:
    numbers = index.ops_by_name[side]
    return [numbers[name] for name in names if name in numbers]


def _has_effect_of_epsilon(
    pair: _StatisticsPair, kind: str, target: float, reference: float
) -> bool:
    """Return whether the statistics differ as the two epsilons make them differ.

    An addition shifts mean, maximum and minimum by the difference; a norm with a larger epsilon has
    a smaller output.
    """
    target_statistics, reference_statistics = pair.statistics
    if kind == "add":
        shift = target - reference
        shifts = [target_statistics[name] - reference_statistics[name] for name in ("max", "min")]
        return all(abs(value - shift) <= _MAX_SHIFT_ERROR * abs(shift) for value in shifts)
    if kind in _NORM_KINDS:
        growth = target_statistics["norm"] - reference_statistics["norm"]
        return bool(growth * (target - reference) < 0)
    return False


def _find_other_activation(
    index: ComparisonIndex, finding: Finding, _pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find a pair of different activations whose inputs agree."""
    if finding.kind not in ("introduced", "region") or finding.phase != FORWARD:
        return None
    kinds = []
    for side, names in enumerate((finding.target_ops, finding.reference_ops)):
        kinds.append(_name_activation(index, side, _find_ops(index, side, names)))
    if not all(kinds) or kinds[0] == kinds[1]:
        return None
    cause = _make_cause(finding, "activation-kind", 0, kinds[0], f"has {kinds[1]}")
    return "target", cause


def _name_activation(index: ComparisonIndex, side: int, ops: Sequence[int]) -> str:
    """Return the activation that the ops of a finding compute; '' if it is not known.

    The product of x and its sigmoid is silu, as MindSpore writes it.
    """
    kinds = [index.kinds[side][op] for op in ops]
    if len(kinds) == 1 and kinds[0] in _ACTIVATION_KINDS:
        return kinds[0]
    if kinds != ["sigmoid", "mul"]:
        return ""
    flow = index.flows[side]
    gate_inputs, factors = set(flow.reads[ops[0]]), set(flow.reads[ops[1]])
    return "silu" if factors == gate_inputs | set(flow.writes[ops[0]]) else ""


def _find_factor(
    index: ComparisonIndex, finding: Finding, pair: _StatisticsPair
) -> tuple[str, Cause] | None:
    """Find one factor that maps all statistics of the reference to those of the target."""
    statistics_factor = find_statistics_factor(
        pair.list_numbers(0), pair.list_numbers(1), finding.tolerance, max(pair.sizes)
    )
    if statistics_factor is None:
        return None
    change = abs(statistics_factor.factor - 1)
    if finding.phase == OPTIMIZER and change < _MIN_CLIP_CHANGE:
        return None
    return "target", _describe_factor(index, finding, pair.value_pair, statistics_factor)


def _describe_factor(
    index: ComparisonIndex,
    finding: Finding,
    value_pair: ValuePair,
    statistics_factor: StatisticsFactor,
) -> Cause:
    """Return the cause that all statistics of the target are a multiple of the reference's."""
    factor = statistics_factor.factor
    if finding.is_given:
        name, recorded = "weight-scaled", ""
    else:
        values = value_pair.classes
        consumer_kinds = collect_consumer_kinds(index, 0, values[0])
        consumer_kinds |= collect_consumer_kinds(index, 1, values[1])
        is_single = int(index.flows[0].sizes[values[0]]) == 1
        is_loss = is_single or is_of_loss(index, finding, values)
        name = choose_factor_cause(finding, consumer_kinds, is_loss)
        target, reference = (find_scalings(index, side, values[side]) for side in (0, 1))
        recorded = describe_scalings(select_scalings(target), select_scalings(reference), factor)
    description = f"{describe_factor(name, factor, 'reference')}, by its statistics"
    text = format_cause_text(finding, "target", description, recorded, statistics_factor.residual)
    return Cause(name, text, statistics_factor.residual, {"factor": factor})


def _make_cause(
    finding: Finding,
    name: str,
    faulty: int,
    description: str,
    contrast: str = "",
    parameters: dict[str, float] | None = None,
) -> Cause:
    """Return a cause that the records prove; it leaves nothing unexplained."""
    faulty_side, faithful_side = _SIDE_NAMES[faulty], _SIDE_NAMES[1 - faulty]
    full_description = description
    if contrast:
        full_description = f"{description}; the {faithful_side} {contrast}"
    text = format_cause_text(finding, faulty_side, full_description, "", 0.0)
    return Cause(name, text, 0.0, parameters or {})
