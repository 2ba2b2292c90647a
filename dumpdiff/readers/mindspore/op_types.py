"""What MindSpore's op types and scopes say about an op: its phase, its module path, and which of its tensors lie."""

from __future__ import annotations

import re
from functools import lru_cache

from ...model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER

COMMUNICATIONS = frozenset({
    "AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AlltoAllV", "AllToAllv", "AllToAll", "Send", "Receive",
    "Broadcast", "Reduce", "CollectiveScatter", "CollectiveGather", "Barrier", "BatchISendIRecv", "MuxSend",
    "MuxReceive", "NeighborExchange", "NeighborExchangeV2", "AllGatherMatmul", "MatmulReduceScatter",
    "AlltoAllAllGatherBatchMatMul", "_MirrorOperator", "_MirrorMiniStepOperator", "_MirrorMicroStepOperator",
    "_VirtualDiv", "_AllSwap", "_HostAllGather", "_HostReduceScatter",
})  # fmt: skip
_OPTIMIZER = re.compile(
    r"(Fused|Sparse|Cast|Cached)*(Apply[A-Z]\w*|Adam\w*|Lamb\w*|LARSUpdate|LarsV2Update|SGD|Momentum\w*|Adafactor|WeightScaleApplyMomentum)$"
)
_ASSIGN = frozenset({"Assign", "AssignAdd", "AssignSub"})
_OPTIMIZER_SCOPE = re.compile(r"(?:^|[/_])(?:\w*optim\w*-\w+|optimizer)(?:[/_]|$)", re.IGNORECASE)
_OPTIMIZER_STATE = re.compile(
    r"(?:moment[12v]?|moments|adam_[mv]|exp_avg(?:_sq)?|accum|stat|v_state|m_state)[._]|beta[12]_power$|global_step$"
)
#: How many leading inputs an optimizer op updates in place: the parameter and its states.
_UPDATED = {
    "Adam": 3,
    "AdamW": 3,
    "AdamWeightDecay": 3,
    "FusedAdam": 3,
    "FusedAdamWeightDecay": 3,
    "ApplyMomentum": 2,
    "Momentum": 2,
}
_SGD = frozenset({0, 3, 5})  #: SGD(parameters, gradient, learning_rate, accum, momentum, stat)
_BACKWARD_KIND = re.compile(r"(?:Grad|GradExt|GradV\d|Backward|DenseBackward)$")
_EXPANDED_BACKWARD = re.compile(r"Expand[/_]_\w*?(?:Grad|Backward)")


def is_optimizer(kind: str, scope: str = "", reads: tuple[str, ...] = ()) -> bool:
    """By its type, by a scope such as ``optimizer-AdamWeightDecay``, or by the optimizer state among what it reads."""
    if _OPTIMIZER.match(kind) or ("optim" in scope.lower() and _OPTIMIZER_SCOPE.search(scope)):
        return True
    return any(_OPTIMIZER_STATE.search(parameter) for parameter in reads)


@lru_cache(maxsize=1 << 12)
def is_in_place(kind: str) -> bool:
    """Whether the op updates its inputs, so that its recorded outputs are stale memory."""
    return kind in _ASSIGN or _OPTIMIZER.match(kind) is not None


@lru_cache(maxsize=1 << 12)
def find_updated_inputs(kind: str) -> frozenset[int] | None:
    """Slots whose recorded value is that after the update; None if that may be any that is no gradient."""
    if kind in _ASSIGN or kind.startswith("Inplace"):
        return frozenset({0})
    if kind == "SGD":
        return _SGD
    if kind in _UPDATED:
        return frozenset(range(_UPDATED[kind]))
    return None if _OPTIMIZER.match(kind) else frozenset()


def classify_phase(kind: str, name: str, optimizer: bool, after_backward: bool = False) -> str:
    """The phase of an op; ``after_backward`` says whether it reads, however indirectly, what a backward op wrote.

    Needed because expanded ops (``Expand/_SumExt/ReduceSum-op3``) do not say for whom they were expanded.
    """
    if kind in COMMUNICATIONS:
        return COMMUNICATION
    if optimizer:
        return OPTIMIZER
    if is_recomputed(name):
        return FORWARD
    return BACKWARD if after_backward or is_backward(kind, name) else FORWARD


def is_backward(kind: str, name: str) -> bool:
    """By name and type alone."""
    if name.startswith(("Gradients/", "Gradients_")) or "/Grad_" in name or "_Grad_" in name:
        return True
    return _BACKWARD_KIND.search(kind) is not None or _EXPANDED_BACKWARD.match(name) is not None


def is_recomputed(name: str) -> bool:
    """A forward op that the backward pass runs again."""
    return name.startswith(("recompute_Default", "Recompute_Default"))


def extract_scope(name: str) -> str:
    """The module path in a full name; a hint only, for ops called through shared functions carry the first caller's.

    >>> scope("Gradients/Default/n-Net/fc-Dense/Grad_MatMul/MatMul-op3"), scope("Expand/_SiLU/Mul-op0")
    ('n-Net/fc-Dense', '')
    """
    parts = name.split("/")[:-1]
    if parts[:1] == ["Expand"]:
        return ""
    while parts and parts[0] in {"Default", "Gradients", "recompute_Default", "Recompute_Default"}:
        del parts[0]
    return "/".join(part for part in parts if not part.startswith("Grad_"))
