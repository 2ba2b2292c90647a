"""Faults that can be put into any PyTorch model: into the middle one of the modules that allow it.

Each function changes a model or its batch, and returns the place. StopIteration or IndexError: the
model has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = dict[str, Any]
Module = tuple[str, Any]  # its path, and a module whose attributes differ by its class

_EPSILONS = ("eps", "variance_epsilon")
_ACTIVATIONS = ("act", "act_fn", "activation_fn", "intermediate_act_fn", "activation", "gelu_impl")
_SCALES = ("scaling", "scale", "attn_scale", "inv_norm_factor")
_QUERY_WORDS = ("q_proj", "query", ".q", "wq")
_HEADS = 4


@dataclass(frozen=True)
class Fault:
    causes: tuple[str, ...]  #: names of causes that say what it is
    apply: Callable[[nn.Module, Batch], str]


def _choose(modules: list[Module]) -> Module:
    return modules[len(modules) // 2]


def _list_modules(model: nn.Module, is_chosen: Callable[[Any], bool]) -> list[Module]:
    return [(name, module) for name, module in model.named_modules() if is_chosen(module)]


def _list_norms(model: nn.Module) -> list[Module]:
    return _list_modules(
        model,
        lambda module: "norm" in type(module).__name__.lower()
        and any(hasattr(module, name) for name in _EPSILONS),
    )


def _list_linears(model: nn.Module) -> list[Module]:
    linears = _list_modules(model, lambda module: type(module).__name__ in ("Linear", "Conv1D"))
    return [item for item in linears if "head" not in item[0] and "classif" not in item[0]]


def _list_kernels(model: nn.Module) -> list[Module]:
    kernels = _list_modules(model, lambda module: isinstance(module, nn.Conv2d))
    return [(name, module) for name, module in kernels if module.kernel_size[0] > 1]


def _iterate_attributes(
    model: nn.Module, names: tuple[str, ...], is_chosen: Callable[[Any], bool]
) -> Iterator[tuple[str, Any, str]]:
    for path, module in model.named_modules():
        for name in names:
            if is_chosen(getattr(module, name, None)):
                yield path, module, name


def _change_output(function: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batch], str]:
    """Return a fault that changes what a linear layer gives."""

    def apply(model: nn.Module, batch: Batch) -> str:
        path, module = _choose(_list_linears(model))
        module.register_forward_hook(lambda module, inputs, output: function(output))
        return path

    return apply


def set_epsilon(model: nn.Module, batch: Batch) -> str:
    path, norm = _choose(_list_norms(model))
    setattr(norm, next(name for name in _EPSILONS if hasattr(norm, name)), 1e-2)
    return path


def skip_norm(model: nn.Module, batch: Batch) -> str:
    path, norm = _choose(_list_norms(model))
    norm.forward = lambda x, *others, **options: x
    return path


def double_norm(model: nn.Module, batch: Batch) -> str:
    path, norm = _choose(_list_norms(model))
    forward = norm.forward
    norm.forward = lambda x, *others: forward(forward(x, *others), *others)
    return path


def _zero_bias(modules: list[Module]) -> str:
    biased = [item for item in modules if getattr(item[1], "bias", None) is not None]
    path, module = _choose(biased)
    module.bias.data.zero_()
    return path


def change_activation(model: nn.Module, batch: Batch) -> str:
    found = list(_iterate_attributes(model, _ACTIVATIONS, callable))
    path, module, name = found[len(found) // 2]
    old_name = type(getattr(module, name)).__name__.lower()
    if "relu" in old_name or "silu" in old_name:
        setattr(module, name, nn.GELU())
    elif "gelu" in old_name and "new" not in old_name and "tanh" not in old_name:
        setattr(module, name, nn.GELU(approximate="tanh"))
    else:
        setattr(module, name, nn.ReLU())
    return path


def square_scale(model: nn.Module, batch: Batch) -> str:
    found = list(_iterate_attributes(model, _SCALES, lambda value: isinstance(value, float)))
    path, module, name = found[len(found) // 2]
    scale = getattr(module, name)
    setattr(module, name, 0.5 if scale == 1 else scale**2)
    return path


def transpose_weight(model: nn.Module, batch: Batch) -> str:
    linears = _list_linears(model)
    path, linear = _choose([item for item in linears if len(set(item[1].weight.shape)) == 1])
    linear.weight.data = linear.weight.data.t().clone()
    return path


def take_other_weight(model: nn.Module, batch: Batch) -> str:
    linears = _list_linears(model)
    path, linear = _choose(linears)
    shape = linear.weight.shape
    others = [other for _, other in linears if other is not linear and other.weight.shape == shape]
    linear.weight.data = others[-1].weight.data.clone()
    return path


def reverse_heads(model: nn.Module, batch: Batch) -> str:
    linears = _list_linears(model)
    path, linear = _choose([item for item in linears if any(w in item[0] for w in _QUERY_WORDS)])
    weight = linear.weight.data
    heads = weight.reshape(_HEADS, -1, weight.shape[1])
    linear.weight.data = heads.flip(0).reshape(weight.shape).contiguous()
    return path


def cast_product(model: nn.Module, batch: Batch) -> str:
    linears = _list_linears(model)
    path, linear = _choose([item for item in linears if isinstance(item[1], nn.Linear)])

    def multiply(x: Tensor) -> Tensor:
        bias = None if linear.bias is None else linear.bias.bfloat16()
        return F.linear(x.bfloat16(), linear.weight.bfloat16(), bias).float()

    linear.forward = multiply
    return path


def scale_embedding(model: nn.Module, batch: Batch) -> str:
    path, table = _list_modules(model, lambda module: isinstance(module, nn.Embedding))[0]
    factor = table.weight.shape[1] ** 0.5
    table.register_forward_hook(lambda module, inputs, output: output * factor)
    return path


def leave_dropout_on(model: nn.Module, batch: Batch) -> str:
    path, dropout = _choose(_list_modules(model, lambda module: isinstance(module, nn.Dropout)))
    dropout.p = 0.1
    return path


def change_rotary_base(model: nn.Module, batch: Batch) -> str:
    path, rotary = _list_modules(model, lambda module: hasattr(module, "inv_freq"))[0]
    n_pairs = len(rotary.inv_freq)
    rotary.inv_freq = 500_000.0 ** (-torch.arange(n_pairs).float() / n_pairs)
    return path


def pad_by_reflection(model: nn.Module, batch: Batch) -> str:
    kernels = _list_kernels(model)
    path, kernel = _choose([item for item in kernels if item[1].padding not in ((0, 0), "same")])
    kernel.padding_mode = "reflect"
    kernel._reversed_padding_repeated_twice = [n for n in kernel.padding[::-1] for _ in range(2)]
    return path


def flip_kernel(model: nn.Module, batch: Batch) -> str:
    path, kernel = _choose(_list_kernels(model))
    kernel.weight.data = kernel.weight.data.flip(-1, -2)
    return path


def change_momentum(model: nn.Module, batch: Batch) -> str:
    path, norm = _choose(_list_modules(model, lambda module: isinstance(module, nn.BatchNorm2d)))
    norm.momentum = 0.9
    return path


def hide_last_tokens(model: nn.Module, batch: Batch) -> str:
    batch["attention_mask"] = torch.ones_like(_get(batch, "input_ids"))
    batch["attention_mask"][0, -3:] = 0
    return "batch"


def shift_labels(model: nn.Module, batch: Batch) -> str:
    labels = _get(batch, "labels")
    batch["labels"] = labels.roll(1, -1)
    return "batch"


def change_token(model: nn.Module, batch: Batch) -> str:
    tokens = _get(batch, "input_ids")
    tokens[0, 3] = tokens[0, 3] % 50 + 5
    return "batch"


def _get(batch: Batch, name: str) -> Tensor:
    if name not in batch or batch[name].dim() != 2 or batch[name].is_floating_point():
        raise IndexError(f"the batch has no {name} of sequences")
    tokens: Tensor = batch[name]
    return tokens


FAULTS: Mapping[str, Fault] = {
    "epsilon": Fault(("epsilon",), set_epsilon),
    "activation": Fault(("activation-kind", "gelu-variant"), change_activation),
    "scale": Fault(("scale", "constant-factor"), square_scale),
    "transposed": Fault(("weight-transposed",), transpose_weight),
    "other-weight": Fault(("weight-swapped",), take_other_weight),
    "detached": Fault(("gradient-stopped",), _change_output(lambda x: x.detach())),
    "half": Fault(
        ("scale", "constant-factor", "residual-scale"), _change_output(lambda x: 0.5 * x)
    ),
    "bias": Fault(("zeroed", "bias-missing"), lambda model, _: _zero_bias(_list_linears(model))),
    "bfloat16": Fault(("low-precision",), cast_product),
    "norm-bias": Fault(("zeroed", "bias-missing"), lambda model, _: _zero_bias(_list_norms(model))),
    "norm-skipped": Fault(("norm-missing",), skip_norm),
    "dropout": Fault(("dropout",), leave_dropout_on),
    "rotary-base": Fault(("rope-theta",), change_rotary_base),
    "labels": Fault(("label-shift", "batch"), shift_labels),
    "kernel": Fault(("kernel-flipped",), flip_kernel),
    "heads": Fault(("heads-permuted",), reverse_heads),
    "padding": Fault(("padding-mode",), pad_by_reflection),
    "norm-twice": Fault(("norm-missing",), double_norm),
    "half-gradient": Fault(
        ("gradient-scaled",), _change_output(lambda x: 0.5 * x + (0.5 * x).detach())
    ),
    "embedding-scale": Fault(("scale", "constant-factor", "residual-scale"), scale_embedding),
    "clamped": Fault(("clamp",), _change_output(lambda x: x.clamp(-1, 1))),
    "mask": Fault(("mask-missing", "mask-kind"), hide_last_tokens),
    "float16": Fault(("low-precision",), _change_output(lambda x: x.half().float())),
    "momentum": Fault(("norm-momentum",), change_momentum),
    "token": Fault(("batch",), change_token),
}
