"""What both sides compute, where no single change explains it: the ops of the two regions compared.

Each side's own ops, run on what both sides have, give its own value. So the cause is in the ops:
one side has others, or has them in another order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....model.trace import FORWARD
from ...fault_case import FaultCase, compute_residual, have_same_elements
from ...hypothesis import Candidate
from ...region import Region, Step
from .activations import ACTIVATION_KINDS
from .numbers_in_steps import list_numbers
from .recorded_differences import SAME_VALUE_DISTANCE, have_same_numbers, list_entering

#: Ops per side beyond which a difference of kinds says little.
_MAX_OPS = 24
#: Kinds that compute nothing, and kinds that other forms of one formula have or lack.
_PLAIN_KINDS = {
    "cast", "reshape", "transpose", "contiguous", "expand", "squeeze", "unsqueeze", "expand_dims",
    "slice", "split", "unbind", "flatten", "tile", "stack", "detach", "clone", "neg",
}  # fmt: skip
#: Ops that take parts, and join them.
_PART_KINDS = {"concat", "gather_rows", "slice", "split"}
#: A difference is a sum with a sign, which may be anywhere.
_SAME_KINDS: Mapping[str, str] = {"sub": "add", "sub_scalar": "add_scalar"}
#: Kind -> kinds of the ops that it is written with, apart from numbers.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "mse_loss": ("sub", "square", "mean"),
    "l1_loss": ("sub", "abs", "mean"),
    "logsigmoid": ("sigmoid", "log"),
    "log_softmax": ("softmax", "log"),
    "silu": ("sigmoid", "mul"),
    "rsqrt": ("sqrt",),
    "normalize": ("square", "sum", "sqrt", "div"),
    "addmm": ("matmul",),
}
#: Functions of predictions and labels.
_LOSS_FUNCTIONS = {
    "bce_loss", "cross_entropy", "nll_loss", "smooth_l1_loss", "huber_loss", "kl_div", "softplus",
}  # fmt: skip
#: Kinds of ops that a loss is written with where it is another one than a fused loss.
_MAX_LOSS_OPS = 4
_NORM_KINDS = {
    "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize",
}  # fmt: skip
_AVERAGING_KINDS = {"mean", "sum", "max", "min", "avg_pool", "max_pool", "logsumexp", "div"}
_RUNNING_KINDS = {"cumsum", "cumprod", "cummax", "cummin"}
_ELEMENT_KINDS = {*ACTIVATION_KINDS, "exp", "log", "abs", "sqrt", "square", "softplus", "erf"}
_BROADCASTING_KINDS = {"add", "sub", "mul", "div", "maximum", "minimum"}
_SUM_KINDS = {"add", "add_scalar"}
#: Axes of the probabilities of an attention: batch, heads, queries and keys.
_ATTENTION_AXES = 4


@dataclass(frozen=True)
class _Op:
    """An op of a formula."""

    kind: str
    name: str
    shape: tuple[int, ...]
    settings: str  #: what the record does not say of it, as far as it follows from the numbers

    def __str__(self) -> str:
        """Return what it does."""
        if not self.settings:
            return f"{self.kind} ({self.name}) to {list(self.shape)}"
        return f"{self.kind} with {self.settings} ({self.name}) to {list(self.shape)}"


@dataclass(frozen=True)
class _Formula:
    """The ops of a region in execution order, and which of them read which."""

    ops: tuple[_Op, ...]
    #: (kind, kind of an op that reads it, perhaps through ops that compute nothing)
    edges: Counter[tuple[str, str]]
    has_norm: bool  #: one of the ops is a norm as a whole

    def __str__(self) -> str:
        """Return the kinds of the ops in execution order."""
        return ", ".join(op.kind for op in self.ops)

    @property
    def kinds(self) -> Counter[str]:
        """How often each kind occurs."""
        return Counter(_SAME_KINDS.get(op.kind, op.kind) for op in self.ops)


def suggest_other_formula(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that one side has other ops than the other one, or has them in another order.

    Both sides' ops must give their own values, and be few.
    """
    if case.phase != FORWARD or case.is_source or case.is_discrete:
        return
    region, own_region = case.faulty_region, case.region
    if region is None or own_region is None:
        return
    if region.unchanged is None or own_region.unchanged is None:
        return
    predicted = region.unchanged.reshape(case.faulty.shape)
    exchange = _find_exchanged_axes(region, own_region)
    if exchange is not None:
        name, first, second = exchange
        text = (
            f"{name} with its axes of {first} and {second} elements exchanged, as those of what it "
            "is computed with are not"
        )
        contrast = "has them in the other order"
        yield Candidate(
            predicted, text, contrast, unchanged=own_region.unchanged, cause="axes-swapped"
        )
        return
    n_heads, n_own_heads = _count_heads(region), _count_heads(own_region)
    if n_heads != n_own_heads and min(n_heads, n_own_heads) > 0:
        text, contrast = f"attention with {n_heads} heads", f"has {n_own_heads} heads"
        yield Candidate(predicted, text, contrast, unchanged=own_region.unchanged, cause="argument")
        return
    formula, own_formula = _write_formula(region), _write_formula(own_region)
    if max(len(formula.ops), len(own_formula.ops)) > _MAX_OPS:
        return
    cause, texts = _describe_other_shape(case, formula, own_formula)
    if not cause:
        cause = _name_difference(case, formula, own_formula)
        texts = f"the ops {formula}", f"{own_formula}"
    n_others = _count_entering(region, own_region) + _count_entering(own_region, region)
    if cause and (not n_others or cause == "missing-term"):
        yield Candidate(
            predicted,
            texts[0],
            f"has {texts[1]}",
            unchanged=own_region.unchanged,
            cause=cause,
        )


def _count_heads(region: Region) -> int:
    """Return the number of heads of the attention in a region, 0 if there is none, or several.

    The probabilities, and the queries of a fused attention, are (batch, heads, queries, ...).
    """
    counts: set[int] = set()
    for step in region.steps:
        array = step.output if step.kind == "softmax" else None
        if step.kind == "attention" and step.inputs:
            array = step.inputs[0].array
        if array is not None and array.ndim == _ATTENTION_AXES:
            counts.add(array.shape[1])
    return counts.pop() if len(counts) == 1 else 0


def _find_exchanged_axes(region: Region, own_region: Region) -> tuple[str, int, int] | None:
    """Return (name, lengths of two axes) of a tensor that a region reads with these exchanged.

    The first axes are batch and steps, as one axis of rows or as two. None if there is none.
    """
    for item in list_entering(region):
        for own in list_entering(own_region):
            n_rows = item.array.size // item.array.shape[-1]
            is_same = own.value >= 0 and have_same_elements(item.array, own.array)
            if not is_same or own.array.shape[-1] != item.array.shape[-1]:
                continue
            if compute_residual(item.array, own.array) <= SAME_VALUE_DISTANCE:
                continue
            for length in range(2, n_rows // 2 + 1):
                if n_rows % length:
                    continue
                rows = own.array.reshape(length, n_rows // length, -1).swapaxes(0, 1)
                if compute_residual(rows, item.array) <= SAME_VALUE_DISTANCE:
                    return item.name, length, n_rows // length
    return None


def _count_entering(region: Region, other_region: Region) -> int:
    """Return how many agreeing tensors enter a region, but not the other one."""
    others = list_entering(other_region)
    return sum(
        not any(have_same_numbers(item.array, other.array) for other in others)
        for item in list_entering(region)
        if item.agrees
    )


def _describe_other_shape(
    case: FaultCase, formula: _Formula, own_formula: _Formula
) -> tuple[str, tuple[str, str]]:
    """Return (cause, op of either side) if one op gives another shape; ('', ...) if none does.

    The first of equal ops: later ones may undo it.
    """
    if [op.kind for op in formula.ops] != [op.kind for op in own_formula.ops]:
        return "", ("", "")
    for op, own in zip(formula.ops, own_formula.ops, strict=True):
        if math.prod(op.shape) != math.prod(own.shape):
            texts = (f"{op}", f"{own}")
            if op.kind not in _BROADCASTING_KINDS:
                return "argument", texts
            return "loss-reduction" if case.is_of_loss else "axes-swapped", texts
    return "", ("", "")


def _write_formula(region: Region) -> _Formula:
    ops: list[_Op] = []
    last_kinds: dict[int, str] = {}  # value -> kind of the op that computed it
    edges: Counter[tuple[str, str]] = Counter()
    for step in region.steps:
        kinds = _list_kinds(step)
        compared_kinds = [_SAME_KINDS.get(kind, kind) for kind in kinds]
        sources = [last_kinds[item.value] for item in step.inputs if item.value in last_kinds]
        if not kinds:
            last_kinds[step.value] = sources[0] if sources else ""
            continue
        edges.update((source, compared_kinds[0]) for source in sources if source)
        edges.update(pairwise(compared_kinds))
        ops += [_Op(kind, step.name, step.output.shape, step.interpretation) for kind in kinds]
        last_kinds[step.value] = compared_kinds[-1]
    has_norm = any(step.kind in _NORM_KINDS for step in region.steps)
    return _Formula(tuple(ops), edges, has_norm)


def _list_kinds(step: Step) -> Sequence[str]:
    """Return the kinds of the ops that a step is written with; none if it computes nothing."""
    if step.kind in _PLAIN_KINDS:
        return ()
    if step.kind == "add" and _adds_bias(step):
        return ()
    numbers = [number for _, number in list_numbers(step)]
    if numbers and step.kind in ("add", "sub"):
        return (f"{step.kind}_scalar",) if any(numbers) else ()
    if numbers and step.kind in ("mul", "div"):
        return ()
    return _PARTS.get(step.kind, (step.kind,))


def _adds_bias(step: Step) -> bool:
    """Return whether a step adds a vector of weights to a product, which a layer does itself."""
    return any(item.is_parameter and item.array.ndim == 1 for item in step.inputs)


def _norms_joined_parts(formula: _Formula, own_formula: _Formula, kinds: set[str]) -> bool:
    """Return whether one side applies the other's norm to parts, which it joins."""
    norms = kinds & _NORM_KINDS
    if "concat" not in kinds or len(norms) != 1 or not kinds - norms <= _PART_KINDS:
        return False
    return all(each.kinds.keys() >= norms for each in (formula, own_formula))


def _name_difference(case: FaultCase, formula: _Formula, own_formula: _Formula) -> str:
    """Return the cause of what two formulas differ in; '' if it has no name."""
    surplus, own_surplus = formula.kinds - own_formula.kinds, own_formula.kinds - formula.kinds
    kinds = {*surplus, *own_surplus}
    is_exchange = bool(surplus and own_surplus)
    is_of_norm = bool(kinds & _NORM_KINDS) or formula.has_norm != own_formula.has_norm
    is_running = bool(kinds & _RUNNING_KINDS) and kinds <= _RUNNING_KINDS | _AVERAGING_KINDS
    # one op of one side and many ops of the other one may be the same loss
    are_of_losses = all(
        each.keys() & _LOSS_FUNCTIONS or len(each) <= _MAX_LOSS_OPS
        for each in (surplus, own_surplus)
    )
    names = {
        "layer-order": not kinds and formula.edges != own_formula.edges,
        "loss-kind": case.is_of_loss and bool(kinds & _LOSS_FUNCTIONS) and are_of_losses,
        "loss-reduction": case.is_of_loss and kinds <= _AVERAGING_KINDS,
        "pooling": kinds <= _AVERAGING_KINDS,
        "norm-groups": _norms_joined_parts(formula, own_formula, kinds),
        "norm-kind": is_exchange and is_of_norm,
        "norm-missing": bool(kinds & _NORM_KINDS),
        "activation-kind": is_exchange and kinds - {"add_scalar"} <= _ELEMENT_KINDS,
        "missing-term": not is_exchange and kinds <= _SUM_KINDS,
        "missing-step": is_running or (not is_exchange and kinds <= _ELEMENT_KINDS),
    }
    if not kinds and not names["layer-order"]:
        return ""
    return next((name for name, is_right in names.items() if is_right), "")
