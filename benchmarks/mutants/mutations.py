"""Changes of single calls of PyTorch, as a port to another framework gets them wrong.

A mutation is a function of the original function and of the arguments of the call. It returns the
changed result, or None where it would change nothing or does not apply. What it calls is recorded
like the calls of the network itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: (original function, positional arguments, keyword arguments) -> changed result, or None.
Change = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]

#: Owner of functions, by the name that mutations use.
OWNERS: Mapping[str, Any] = {"F": F, "torch": torch, "Tensor": Tensor}
_OTHER_EPSILON = 1e-2


@dataclass(frozen=True)
class Mutation:
    """A change of one call of some functions, and the causes that explain it rightly."""

    name: str
    functions: tuple[str, ...]  #: ``owner.name``
    causes: tuple[str, ...]
    change: Change


MUTATIONS: list[Mutation] = []


def _mutate(functions: str, causes: str) -> Callable[[Change], Change]:
    """Add a change to ``MUTATIONS``; both lists are divided by spaces."""

    def add(change: Change) -> Change:
        name = change.__name__
        MUTATIONS.append(Mutation(name, tuple(functions.split()), tuple(causes.split()), change))
        return change

    return add


def _are_addable(a: Any, b: Any) -> bool:
    return _is_floating(a) and _is_floating(b) and a.shape == b.shape


def _is_floating(a: Any) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


class _DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@_mutate("F.softmax torch.softmax Tensor.softmax F.log_softmax", "softmax-axis")
def take_other_axis(function, args, keywords):
    x, *rest = args
    axis = (rest[0] if rest else keywords["dim"]) % x.dim()
    if x.dim() < 2:
        return None
    other = (axis - 1) % x.dim()
    return function(x, other) if rest else function(x, **{**keywords, "dim": other})


@_mutate("F.layer_norm F.group_norm F.batch_norm F.rms_norm F.instance_norm", "epsilon")
def take_other_epsilon(function, args, keywords):
    positions = [position for position, arg in enumerate(args) if isinstance(arg, float)]
    if positions:  # the epsilon comes after the momentum
        position = positions[-1]
        return function(*args[:position], _OTHER_EPSILON, *args[position + 1 :], **keywords)
    return function(*args, **{**keywords, "eps": _OTHER_EPSILON})


@_mutate("F.layer_norm F.group_norm F.batch_norm F.rms_norm", "norm-missing missing-step")
def omit_norm(function, args, keywords):
    return args[0]


@_mutate("F.group_norm", "norm-groups")
def halve_groups(function, args, keywords):
    if len(args) < 2 or args[1] % 2:
        return None
    return function(args[0], args[1] // 2, *args[2:], **keywords)


@_mutate("F.gelu", "gelu-variant activation-kind")
def take_other_gelu(function, args, keywords):
    is_exact = keywords.get("approximate", "none") == "none"
    return function(args[0], approximate="tanh" if is_exact else "none")


@_mutate("F.gelu F.silu F.relu torch.relu Tensor.relu F.leaky_relu F.softplus", "activation-kind")
def take_other_activation(function, args, keywords):
    return F.gelu(args[0]) if "silu" in function.__name__ else F.silu(args[0])


@_mutate("F.gelu F.silu F.relu torch.relu torch.tanh Tensor.tanh torch.sigmoid Tensor.sigmoid",
         "missing-step activation-kind")  # fmt: skip
def omit_activation(function, args, keywords):
    return args[0]


@_mutate("torch.sigmoid Tensor.sigmoid", "activation-kind")
def harden_sigmoid(function, args, keywords):
    return F.hardsigmoid(args[0])


@_mutate("F.linear F.conv2d F.conv1d", "bias-missing")
def omit_bias(function, args, keywords):
    if len(args) > 2 and args[2] is not None:
        return function(*args[:2], None, *args[3:], **keywords)
    if keywords.get("bias") is not None:
        return function(*args, **{**keywords, "bias": None})
    return None


@_mutate("F.linear F.conv2d torch.matmul Tensor.__matmul__ torch.bmm", "low-precision")
def compute_in_bfloat16(function, args, keywords):
    narrow = [arg.bfloat16() if _is_floating(arg) else arg for arg in args]
    return function(*narrow, **keywords).float()


@_mutate("F.linear F.conv2d F.layer_norm F.gelu F.silu Tensor.reshape Tensor.transpose",
         "gradient-stopped")  # fmt: skip
def detach_input(function, args, keywords):
    if not _is_floating(args[0]) or not args[0].requires_grad:
        return None
    return function(args[0].detach(), *args[1:], **keywords)


@_mutate("F.linear Tensor.__add__", "gradient-scaled")
def double_gradient(function, args, keywords):
    if not _is_floating(args[0]) or not args[0].requires_grad:
        return None
    return function(_DoubledGradient.apply(args[0]), *args[1:], **keywords)


@_mutate("F.linear", "weight-transposed")
def transpose_weight(function, args, keywords):
    if args[1].shape[0] != args[1].shape[1]:
        return None
    return function(args[0], args[1].t(), *args[2:], **keywords)


@_mutate("F.linear F.conv2d", "constant-factor scale weight-scaled")
def scale_input(function, args, keywords):
    return function(args[0] * 1.5, *args[1:], **keywords)


@_mutate("F.conv2d F.conv1d", "kernel-flipped")
def flip_kernel(function, args, keywords):
    if args[1].shape[-1] == 1:
        return None
    return function(args[0], args[1].flip(-1), *args[2:], **keywords)


@_mutate("F.scaled_dot_product_attention", "scale")
def take_other_scale(function, args, keywords):
    scale = keywords.get("scale") or args[0].shape[-1] ** -0.5
    return function(*args, **{**keywords, "scale": scale * 2**0.5})


@_mutate("F.scaled_dot_product_attention", "causal-shift mask-missing mask-kind")
def take_other_mask(function, args, keywords):
    if keywords.get("attn_mask") is not None:
        return function(*args, **{**keywords, "attn_mask": None})
    if len(args) > 3:
        return function(*args[:3], None, *args[4:], **keywords)
    return function(*args, **{**keywords, "is_causal": not keywords.get("is_causal", False)})


@_mutate("Tensor.__add__ torch.add", "skip-missing missing-term residual-order missing-step")
def omit_second_term(function, args, keywords):
    return args[0] if _are_addable(*args[:2]) else None


@_mutate("Tensor.__add__ torch.add", "skip-missing missing-term residual-order missing-step")
def omit_first_term(function, args, keywords):
    return args[1] if _are_addable(*args[:2]) else None


@_mutate("Tensor.__add__", "residual-scale constant-factor")
def double_second_term(function, args, keywords):
    return function(args[0], args[1] * 2.0) if _are_addable(*args[:2]) else None


@_mutate("Tensor.__add__", "residual-scale constant-factor")
def subtract_second_term(function, args, keywords):
    return args[0] - args[1] if _are_addable(*args[:2]) else None


@_mutate("Tensor.__add__ Tensor.__mul__", "gradient-stopped")
def detach_second_operand(function, args, keywords):
    if not _are_addable(*args[:2]) or not args[1].requires_grad:
        return None
    return function(args[0], args[1].detach())


@_mutate("Tensor.__mul__ Tensor.__truediv__ torch.mul", "constant-factor scale missing-step")
def take_root_of_number(function, args, keywords):
    number = args[1]
    if not isinstance(number, int | float) or not _is_floating(args[0]) or number in (0, 1):
        return None
    return function(args[0], number**0.5 if number > 0 else number * 2)


@_mutate("Tensor.__mul__ torch.mul Tensor.__truediv__",
         "missing-step missing-term constant-factor norm-missing")  # fmt: skip
def omit_factor(function, args, keywords):
    if not _is_floating(args[0]) or not _is_floating(args[1]):
        return None
    is_broadcast = torch.broadcast_shapes(args[0].shape, args[1].shape) != args[0].shape
    return None if is_broadcast else args[0]


@_mutate("torch.cat torch.stack", "input-order row-shift split-order channel-order")
def swap_parts(function, args, keywords):
    parts = args[0]
    if len(parts) != 2 or not _are_addable(*parts):
        return None
    return function((parts[1], parts[0]), *args[1:], **keywords)


@_mutate("Tensor.chunk torch.chunk Tensor.split torch.split Tensor.unbind",
         "split-order input-order gate-up-swapped")  # fmt: skip
def swap_results(function, args, keywords):
    parts = list(function(*args, **keywords))
    if len(parts) < 2 or parts[0].shape != parts[1].shape:
        return None
    return (parts[1], parts[0], *parts[2:])


@_mutate("Tensor.mean torch.mean", "pooling loss-reduction constant-factor residual-scale")
def sum_for_mean(function, args, keywords):
    return torch.sum(*args, **keywords)


@_mutate("F.cross_entropy F.mse_loss F.l1_loss F.nll_loss F.kl_div",
         "loss-reduction constant-factor")  # fmt: skip
def take_other_reduction(function, args, keywords):
    reduction = keywords.get("reduction", "mean")
    if reduction == "none":
        return None
    return function(*args, **{**keywords, "reduction": "sum" if reduction == "mean" else "mean"})


@_mutate("F.cross_entropy", "label-smoothing")
def take_other_smoothing(function, args, keywords):
    smoothing = 0.0 if keywords.get("label_smoothing") else 0.1
    return function(*args, **{**keywords, "label_smoothing": smoothing})


@_mutate("Tensor.masked_fill torch.masked_fill", "mask-fill")
def fill_with_small_number(function, args, keywords):
    return function(args[0], args[1], -1.0)


@_mutate("Tensor.masked_fill torch.masked_fill", "mask-shifted causal-shift")
def shift_mask(function, args, keywords):
    return function(args[0], args[1].roll(1, -1), args[2])


@_mutate("Tensor.masked_fill torch.masked_fill", "mask-missing missing-step")
def omit_mask(function, args, keywords):
    return args[0]


@_mutate("F.interpolate", "resize-mode align-corners")
def take_other_mode(function, args, keywords):
    if args[0].dim() != 4:
        return None
    is_nearest = keywords.get("mode", "nearest") == "nearest"
    others = {name: value for name, value in keywords.items() if name != "align_corners"}
    return function(*args, **{**others, "mode": "bilinear" if is_nearest else "nearest"})


@_mutate("F.pad", "padding-mode causal-shift row-shift")
def pad_other_side(function, args, keywords):
    widths = list(args[1])
    if len(widths) < 2 or widths[0] == widths[1] or not _is_floating(args[0]):
        return None
    return function(args[0], (widths[1], widths[0], *widths[2:]), *args[2:], **keywords)


@_mutate("F.embedding", "row-shift position-offset input-source label-shift")
def shift_indices(function, args, keywords):
    if args[0].dim() < 1 or args[0].shape[-1] < 2:
        return None
    return function(args[0].roll(1, -1), *args[1:], **keywords)


@_mutate("torch.roll Tensor.roll", "row-shift channel-order")
def roll_other_way(function, args, keywords):
    shifts = args[1] if len(args) > 1 else keywords["shifts"]
    negative = -shifts if isinstance(shifts, int) else tuple(-shift for shift in shifts)
    others = {name: value for name, value in keywords.items() if name != "shifts"}
    return function(args[0], negative, *args[2:], **others)


@_mutate("torch.clamp Tensor.clamp", "clamp missing-step argument")
def omit_clamp(function, args, keywords):
    return args[0]


@_mutate("Tensor.transpose torch.transpose Tensor.permute", "axes-swapped")
def keep_axes(function, args, keywords):
    is_square = _is_floating(args[0]) and function(*args, **keywords).shape == args[0].shape
    return args[0] if is_square else None


def list_mutations(functions: Sequence[str]) -> list[tuple[str, Mutation]]:
    """Return (function, mutation) of all changes that some functions can have."""
    return [
        (function, mutation)
        for function in functions
        for mutation in MUTATIONS
        if function in mutation.functions
    ]
