"""Properties of MindSpore ops by type and name: phase, module path, and stale tensors."""

from __future__ import annotations

import re
from functools import lru_cache

from ...model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER

COMMUNICATIONS = frozenset({
    "AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AlltoAllV", "AllToAllv", "AllToAll",
    "Send", "Receive", "Broadcast", "Reduce", "CollectiveScatter", "CollectiveGather", "Barrier",
    "BatchISendIRecv", "MuxSend", "MuxReceive", "NeighborExchange", "NeighborExchangeV2",
    "AllGatherMatmul", "MatmulReduceScatter", "AlltoAllAllGatherBatchMatMul", "_MirrorOperator",
    "_MirrorMiniStepOperator", "_MirrorMicroStepOperator", "_VirtualDiv", "_AllSwap",
    "_HostAllGather", "_HostReduceScatter",
})  # fmt: skip
_OPTIMIZER = re.compile(
    r"(Fused|Sparse|Cast|Cached)*(Apply[A-Z]\w*|Adam\w*|Lamb\w*|LARSUpdate|LarsV2Update|SGD"
    r"|Momentum\w*|Adafactor|WeightScaleApplyMomentum)$"
)
_ASSIGN = frozenset({"Assign", "AssignAdd", "AssignSub"})
#: Not optimal transport, nor a scope of Optimum.
_OPTIMIZER_SCOPE = re.compile(
    r"(?:^|[/_])(?:\w*optim(?!al|um)\w*-\w+|optimizer)(?:[/_]|$)", re.IGNORECASE
)
_OPTIMIZER_STATE = re.compile(
    r"(?:^|\.)(?:moment[12v]?|moments|adam_[mv]|exp_avg(?:_sq)?|accum|stat|v_state|m_state)[._]"
    r"|beta[12]_power$|global_step$"
)
#: Number of leading inputs that an optimizer op updates in place: the parameter and its states.
_UPDATED_INPUTS = {
    "Adam": 3,
    "AdamW": 3,
    "AdamWeightDecay": 3,
    "FusedAdam": 3,
    "FusedAdamWeightDecay": 3,
    "ApplyMomentum": 2,
    "Momentum": 2,
}
#: Batch norms, and their running mean and variance, which are updated in training.
_BATCH_NORMS = frozenset({"BatchNorm", "BatchNormExt"})
_RUNNING_STATISTICS = frozenset({3, 4})
#: Outputs of a batch norm that its CPU kernel never writes: what was in their memory is dumped.
#: Measured with MindSpore 2.10: zeros, ones, or values of another op.
_UNWRITTEN_OUTPUTS = frozenset({1, 2})
#: Updated inputs of SGD(parameters, gradient, learning_rate, accum, momentum, stat).
_SGD_UPDATED_INPUTS = frozenset({0, 3, 5})
_BACKWARD_KIND = re.compile(r"(?:Grad|GradExt|GradV\d|Backward|DenseBackward)$")
_EXPANDED_BACKWARD = re.compile(r"Expand[/_]_\w*?(?:Grad|Backward)")
_ROOT_SCOPES = {"Default", "Gradients", "recompute_Default", "Recompute_Default"}


def is_optimizer(kind: str, scope: str = "", parameters: tuple[str, ...] = ()) -> bool:
    """Whether an op belongs to the optimizer.

    Judged by its type, by a scope such as ``optimizer-AdamWeightDecay``, or by an optimizer state
    among the parameters that it reads.
    """
    if _OPTIMIZER.match(kind):
        return True
    # the plain search for "optim" is faster than the pattern, and nearly always decides
    if "optim" in scope.lower() and _OPTIMIZER_SCOPE.search(scope):
        return True
    return any(_OPTIMIZER_STATE.search(parameter) for parameter in parameters)


def is_assignment(kind: str) -> bool:
    """Whether the op writes a value, a sum or a difference to a parameter."""
    return kind in _ASSIGN


@lru_cache(maxsize=1 << 12)
def is_in_place(kind: str) -> bool:
    """Whether the op updates its inputs, so that its recorded outputs are stale memory."""
    return kind in _ASSIGN or _OPTIMIZER.match(kind) is not None


@lru_cache(maxsize=1 << 12)
def find_updated_inputs(kind: str) -> frozenset[int] | None:
    """Return the input slots whose recorded value is the one after the update.

    None if any input except a gradient may be updated.
    """
    if kind in _ASSIGN or kind.startswith("Inplace"):
        return frozenset({0})
    if kind == "SGD":
        return _SGD_UPDATED_INPUTS
    if kind in _UPDATED_INPUTS:
        return frozenset(range(_UPDATED_INPUTS[kind]))
    if _OPTIMIZER.match(kind):
        return None
    return frozenset()


def find_running_statistics(kind: str) -> frozenset[int]:
    """Return the input slots of the running statistics that a batch norm updates in training."""
    return _RUNNING_STATISTICS if kind in _BATCH_NORMS else frozenset()


def find_unwritten_outputs(kind: str, device: str) -> frozenset[int]:
    """Return the output slots that the kernel of a device leaves as they were."""
    is_affected = kind == "BatchNorm" and device.upper() == "CPU"
    return _UNWRITTEN_OUTPUTS if is_affected else frozenset()


def is_view(kind: str) -> bool:
    """Return whether the result of an op is in the memory of its first input."""
    return kind.endswith("View")


def dumps_start_of_views(device: str) -> bool:
    """Return whether a view is dumped as the first numbers of its memory, whatever it shows.

    Measured on CPU with MindSpore 2.10: both halves of a chunk have the same file, also where an op
    reads them. Splits, narrowed and selected parts are dumped like this, too.
    """
    return device.upper() == "CPU"


def classify_phase(kind: str, name: str, in_optimizer: bool, follows_backward: bool = False) -> str:
    """Return the phase of an op.

    ``follows_backward`` says whether the op reads, directly or not, the output of a backward op. It
    is needed because the name of an expanded op (``Expand/_SumExt/ReduceSum-op3``) does not tell
    its phase.
    """
    if kind in COMMUNICATIONS:
        return COMMUNICATION
    if in_optimizer:
        return OPTIMIZER
    if is_recomputed(name):
        return FORWARD
    if follows_backward or is_backward(kind, name):
        return BACKWARD
    return FORWARD


def is_backward(kind: str, name: str) -> bool:
    """Return whether the name or the type shows that the op belongs to the backward pass."""
    if name.startswith(("Gradients/", "Gradients_")):
        return True
    if "/Grad_" in name or "_Grad_" in name:
        return True
    if _BACKWARD_KIND.search(kind):
        return True
    return _EXPANDED_BACKWARD.match(name) is not None


def is_recomputed(name: str) -> bool:
    """Whether it is a forward op that the backward pass runs again."""
    return name.startswith(("recompute_Default", "Recompute_Default"))


def may_tell_phase(name: str) -> bool:
    """Whether the name of an op may change the phase that its type gives; fast."""
    if "Grad" in name or "Backward" in name or "ecompute" in name:
        return True
    return "optim" in name.lower()


def extract_scope(name: str) -> str:
    """Return the module path in a full name.

    It is only a hint: ops in a shared function have the path of its first caller.

    >>> extract_scope("Gradients/Default/n-Net/fc-Dense/Grad_MatMul/MatMul-op3")
    'n-Net/fc-Dense'
    >>> extract_scope("Expand/_SiLU/Mul-op0")
    ''
    """
    segments = name.split("/")[:-1]
    if segments[:1] == ["Expand"]:
        return ""
    while segments and segments[0] in _ROOT_SCOPES:
        del segments[0]
    modules = [segment for segment in segments if not segment.startswith("Grad_")]
    return "/".join(modules)
