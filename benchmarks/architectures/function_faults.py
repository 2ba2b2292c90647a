"""Faults of functions that models of transformers share, of losses, gradients and batches.

They have the form of model_faults.FAULTS: a function changes a model or its batch and returns the
place. StopIteration, IndexError or AttributeError: the model has nothing of the kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import model_faults
import torch
import torch.nn.functional as F
from model_faults import (
    Batch,
    Fault,
    _choose,
    _get,
    _list_kernels,
    _list_linears,
    _list_modules,
    _list_norms,
)
from torch import Tensor, nn

_ATTENTION, _ROTATION = "eager_attention_forward", "apply_rotary_pos_emb"
_SLOPE = 0.02


def _replace_function(name: str, build: Callable[[Any], Any]) -> Callable[[nn.Module, Batch], str]:
    """Return a fault that replaces a function of the file of the model."""

    def apply(model: nn.Module, batch: Batch) -> str:
        file = sys.modules[type(model).__module__]
        setattr(file, name, build(getattr(file, name)))
        return name

    return apply


def _change_attention(change: Callable[..., dict[str, Any]]) -> Callable[[nn.Module, Batch], str]:
    """Return a fault that changes what attention gets: query, key, value, mask, scaling."""

    def build(attend: Any) -> Any:
        def forward(module, query, key, value, attention_mask, *others, **options):
            inputs = {"query": query, "key": key, "value": value, "mask": attention_mask}
            inputs |= change(**inputs)
            return attend(module, *inputs.values(), *others, **options)

        return forward

    return _replace_function(_ATTENTION, build)


def _soften(attend: Any) -> Any:
    def forward(module, query, key, value, attention_mask, *others, scaling=None, **options):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(
            module, query, key, value, attention_mask, *others, scaling=scale / 2, **options
        )

    return forward


def _slope_scores(query: Tensor, mask: Tensor | None, **_: Any) -> dict[str, Any]:
    positions = torch.arange(query.shape[2])
    slopes = -_SLOPE * (positions[:, None] - positions[None]).abs().to(query.dtype)
    return {"mask": slopes if mask is None else mask + slopes}


def _shift_mask(mask: Tensor | None, **_: Any) -> dict[str, Any]:
    if mask is None:
        raise IndexError("no mask")
    return {"mask": torch.cat([mask[..., 1:, :], mask[..., -1:, :]], -2)}


def _remove_mask(mask: Tensor | None, **_: Any) -> dict[str, Any]:
    if mask is None:
        raise IndexError("no mask")
    return {"mask": torch.zeros_like(mask)}


def _normalize_queries(query: Tensor, **_: Any) -> dict[str, Any]:
    return {"query": F.normalize(query, dim=-1) * query.shape[-1] ** 0.5}


def _exchange_keys(key: Tensor, value: Tensor, **_: Any) -> dict[str, Any]:
    return {"key": value, "value": key}


def _rotate_queries_only(rotate: Any) -> Any:
    def forward(q, k, *others, **options):
        return rotate(q, k, *others, **options)[0], k

    return forward


def _rotate_backwards(rotate: Any) -> Any:
    return lambda q, k, cos, sin, *others, **options: rotate(q, k, cos, -sin, *others, **options)


def _rotate_later(rotate: Any) -> Any:
    def forward(q, k, cos, sin, *others, **options):
        return rotate(q, k, cos.roll(1, -2), sin.roll(1, -2), *others, **options)

    return forward


def _interleave(_: Any) -> Any:
    def rotate_half(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    return rotate_half


def _tile(_: Any) -> Any:
    def repeat_kv(hidden_states, n_rep):
        return hidden_states.repeat(1, n_rep, 1, 1)

    return repeat_kv


def exchange_layers(model: nn.Module, batch: Batch) -> str:
    lists = _list_modules(model, lambda module: isinstance(module, nn.ModuleList))
    path, layers = next(
        item for item in lists if len({type(layer) for layer in item[1]}) == 1 and len(item[1]) > 1
    )
    layers[0], layers[1] = layers[1], layers[0]
    return path


def skip_layer(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(
        [item for item in _list_linears(model) if len(set(item[1].weight.shape)) == 1]
    )
    linear.forward = lambda x: x
    return path


def perturb_weight(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(_list_linears(model))
    weight = linear.weight.data
    weight += 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return path


def round_weight(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(_list_linears(model))
    linear.weight.data = linear.weight.data.bfloat16().float()
    return path


def permute_rows(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(_list_linears(model))
    linear.weight.data = torch.cat(linear.weight.data.chunk(2)[::-1]).contiguous()
    return path


def negate_weight(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(_list_linears(model))
    linear.weight.data.neg_()
    return path


def double_bias(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose([item for item in _list_linears(model) if item[1].bias is not None])
    linear.register_forward_hook(lambda module, inputs, output: output + module.bias)
    return path


def _change_gradient(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Batch], str]:
    def apply(model: nn.Module, batch: Batch) -> str:
        path, linear = _choose(_list_linears(model))

        def hook(module, inputs, output):
            output.register_hook(change)

        linear.register_forward_hook(hook)
        return path

    return apply


def detach_weight(model: nn.Module, batch: Batch) -> str:
    path, linear = _choose(
        [item for item in _list_linears(model) if isinstance(item[1], nn.Linear)]
    )
    linear.forward = lambda x: F.linear(x, linear.weight.detach(), linear.bias)
    return path


def _change_norm(
    normalize: Callable[[nn.Module, Tensor], Tensor],
) -> Callable[[nn.Module, Batch], str]:
    """Return a fault of a layer norm that has a bias."""

    def apply(model: nn.Module, batch: Batch) -> str:
        norms = [
            item
            for item in _list_norms(model)
            if "LayerNorm" in type(item[1]).__name__ and getattr(item[1], "bias", None) is not None
        ]
        path, norm = _choose(norms)
        norm.forward = lambda x, *others: normalize(norm, x)
        return path

    return apply


def _get_epsilon(norm: nn.Module) -> float:
    return next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))


def _finish(norm: nn.Module, x: Tensor) -> Tensor:
    bias = getattr(norm, "bias", None)
    return x * norm.weight if bias is None else x * norm.weight + bias


def _divide_by_unbiased_deviation(norm: nn.Module, x: Tensor) -> Tensor:
    return _finish(norm, (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))


def _divide_by_root_mean_square(norm: nn.Module, x: Tensor) -> Tensor:
    return _finish(norm, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _get_epsilon(norm)))


def _normalize_over_tokens(norm: nn.Module, x: Tensor) -> Tensor:
    return _finish(
        norm,
        (x - x.mean(1, keepdim=True))
        * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + _get_epsilon(norm)),
    )


def _divide_by_l1(norm: nn.Module, x: Tensor) -> Tensor:
    return _finish(norm, x / x.abs().mean(-1, keepdim=True))


def pad_table(model: nn.Module, batch: Batch) -> str:
    path, table = _list_modules(model, lambda module: isinstance(module, nn.Embedding))[0]
    table.padding_idx = int(_get(batch, "input_ids")[0, 0])
    return path


def _reduce_loss(reduce: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Batch], str]:
    """Return a fault of the loss of tokens: logits and labels, shifted if the model does so."""

    def apply(model: nn.Module, batch: Batch) -> str:
        if "ForCausalLM" not in type(model).__name__:
            raise IndexError("no loss function of its own")

        def compute(logits, labels, vocab_size, **_: Any):
            logits = logits.float()
            labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
            return reduce(logits.view(-1, vocab_size), labels.view(-1))

        model.loss_function = compute
        return "loss"

    return apply


def _add_z_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels) + 1e-2 * logits.logsumexp(-1).square().mean()


def _compute_focal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    losses = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).sum() / (labels >= 0).sum()


def do_not_shift(model: nn.Module, batch: Batch) -> str:
    if "ForCausalLM" not in type(model).__name__:
        raise IndexError("no loss function of its own")
    model.loss_function = lambda logits, labels, vocab_size, **_: F.cross_entropy(
        logits.float().view(-1, vocab_size), labels.view(-1)
    )
    return "loss"


def swap_colors(model: nn.Module, batch: Batch) -> str:
    if "pixel_values" not in batch:
        raise IndexError("no images")
    batch["pixel_values"] = batch["pixel_values"].flip(1)
    return "batch"


def scale_images(model: nn.Module, batch: Batch) -> str:
    if "pixel_values" not in batch:
        raise IndexError("no images")
    batch["pixel_values"] = batch["pixel_values"] / 255
    return "batch"


def shift_positions(model: nn.Module, batch: Batch) -> str:
    tokens = _get(batch, "input_ids")
    batch["position_ids"] = torch.arange(1, tokens.shape[1] + 1).expand_as(tokens)
    return "batch"


def mix_kernel(model: nn.Module, batch: Batch) -> str:
    path, kernel = _choose(_list_kernels(model))
    kernel.weight.data = kernel.weight.data.transpose(-1, -2).contiguous()
    return path


_PRODUCT = ("scale", "constant-factor", "residual-scale")

FAULTS: Mapping[str, Fault] = {
    "scores-halved": Fault(_PRODUCT, _replace_function(_ATTENTION, _soften)),
    "alibi": Fault(("relative-bias",), _change_attention(_slope_scores)),
    "mask-shifted": Fault(
        ("mask-shifted", "mask-kind", "relative-bias"), _change_attention(_shift_mask)
    ),
    "mask-removed": Fault(("mask-missing",), _change_attention(_remove_mask)),
    "queries-normed": Fault(("norm-missing", "norm-kind"), _change_attention(_normalize_queries)),
    "keys-values": Fault(("input-order", "input-source"), _change_attention(_exchange_keys)),
    "keys-unrotated": Fault(
        ("rope-missing", "input-source"), _replace_function(_ROTATION, _rotate_queries_only)
    ),
    "rotated-back": Fault(("rope-direction",), _replace_function(_ROTATION, _rotate_backwards)),
    "rotated-later": Fault(
        ("position-offset", "row-shift"), _replace_function(_ROTATION, _rotate_later)
    ),
    "interleaved": Fault(("rope-layout",), _replace_function("rotate_half", _interleave)),
    "heads-tiled": Fault(("heads-permuted", "input-source"), _replace_function("repeat_kv", _tile)),
    "layers-exchanged": Fault(("layer-order", "weight-swapped"), exchange_layers),
    "linear-skipped": Fault(("missing-step",), skip_layer),
    "weight-noise": Fault(("weight-rows", "weight"), perturb_weight),
    "weight-rounded": Fault(("low-precision",), round_weight),
    "rows-permuted": Fault(
        ("heads-permuted", "row-shift", "weight-rows", "split-order"), permute_rows
    ),
    "weight-negated": Fault(("weight-scaled",), negate_weight),
    "bias-twice": Fault(("bias-doubled",), double_bias),
    "gradient-clipped": Fault(("clip", "clamp"), _change_gradient(lambda g: g.clamp(-1e-4, 1e-4))),
    "gradient-doubled": Fault(("gradient-scaled",), _change_gradient(lambda g: 2 * g)),
    "gradient-rounded": Fault(("low-precision",), _change_gradient(lambda g: g.bfloat16().float())),
    "weight-detached": Fault(("gradient-stopped", "update-missing"), detach_weight),
    "unbiased": Fault(("biased-variance",), _change_norm(_divide_by_unbiased_deviation)),
    "root-mean-square": Fault(("norm-kind",), _change_norm(_divide_by_root_mean_square)),
    "norm-of-tokens": Fault(("norm-kind", "reduction-axis"), _change_norm(_normalize_over_tokens)),
    "norm-l1": Fault(("norm-kind", "norm-order"), _change_norm(_divide_by_l1)),
    "padded-row": Fault(("gradient-stopped",), pad_table),
    "smoothing": Fault(
        ("label-smoothing",), _reduce_loss(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1))
    ),
    "loss-sum": Fault(
        ("loss-reduction",), _reduce_loss(lambda x, y: F.cross_entropy(x, y, reduction="sum"))
    ),
    "temperature": Fault(_PRODUCT, _reduce_loss(lambda x, y: F.cross_entropy(x / 2, y))),
    "z-loss": Fault(("z-loss",), _reduce_loss(_add_z_loss)),
    "focal": Fault(("loss-kind", "loss-weight", "missing-term"), _reduce_loss(_compute_focal_loss)),
    "unshifted": Fault(("label-shift", "batch"), do_not_shift),
    "colors": Fault(("channel-order",), swap_colors),
    "image-scale": Fault(("batch", "constant-factor", "scale"), scale_images),
    "positions": Fault(("position-offset", "batch"), shift_positions),
    "kernel-turned": Fault(("kernel-axes",), mix_kernel),
}

#: Those of all kinds.
ALL_FAULTS = {**model_faults.FAULTS, **FAULTS}
