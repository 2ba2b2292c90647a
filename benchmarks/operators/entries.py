# ruff: noqa: E501 -- a table of expressions
"""Operators and layers as both frameworks usually write them, and other ways to write the same.

An expression reads ``x``, ``y``, ``z`` (linear layers of the input, in the shape of ``INPUTS``), the
whole numbers ``i``, the mask ``m`` and the weights of the entry; what is in braces is a layer.
Statements before the expression are separated by ``;``. Every expression of an entry gives the same
numbers. An expression that gives one number is the loss.

Left out is what really differs on the CPU of MindSpore 2.10: the gradient of ``ops.selu``, that of
the target of ``ops.kl_div``, and bicubic resizing, which has another coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Shapes of inputs, whose last axis the linear layers keep.
INPUTS: Mapping[str, tuple[int, ...]] = {
    "rows": (24, 16),
    "sequence": (3, 6, 16),
    "signal": (2, 4, 16),
    "image": (2, 4, 8, 8),
    "volume": (2, 2, 4, 4, 4),
}


@dataclass(frozen=True)
class Entry:
    input: str
    pytorch: tuple[str, ...]
    mindspore: tuple[str, ...]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _pair(pytorch: str, mindspore: str, kind: str = "rows", **weights: tuple[int, ...]) -> Entry:
    """Return an entry; forms of one framework are separated by ``|||``."""
    return Entry(kind, _split(pytorch), _split(mindspore), weights)


def _split(forms: str) -> tuple[str, ...]:
    return tuple(form.strip() for form in forms.split("|||"))


def _same(expression: str, kind: str = "rows", **weights: tuple[int, ...]) -> Entry:
    """Return an entry whose only difference is the name of the library: ``L`` and ``FN``."""
    pytorch = expression.replace("L.", "torch.").replace("FN.", "F.")
    mindspore = expression.replace("L.", "ops.").replace("FN.", "ops.")
    return Entry(kind, _split(pytorch), _split(mindspore), weights)


_SIGMOID = "1 / (1 + L.exp(-x))"
_HEADS = "; ".join(f"{n} = {n}.reshape(3, 6, 4, 4).transpose(1, 2)" for n in "xyz")
_HEADS_MS = _HEADS.replace("transpose(1, 2)", "swapaxes(1, 2)")
_SCORES = "s = (x @ y.transpose(-1, -2)) / 2"
_SCORES_MS = "s = ops.matmul(x, y.swapaxes(-1, -2)) / 2"

ACTIVATIONS = {
    "relu": _pair("F.relu(x) ||| x.clamp(min=0)", "ops.relu(x) ||| ops.maximum(x, 0)"),
    "relu6": _pair("F.relu6(x) ||| x.clamp(0, 6)", "ops.relu6(x) ||| ops.clamp(x, 0, 6)"),
    "leaky_relu": _pair(
        "F.leaky_relu(x, 0.2) ||| torch.where(x > 0, x, 0.2 * x)",
        "ops.leaky_relu(x, 0.2) ||| ops.maximum(x, 0.2 * x)",
    ),
    "elu": _pair(
        "F.elu(x) ||| torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)",
        "ops.elu(x) ||| ops.where(x > 0, x, ops.expm1(ops.minimum(x, 0)))",
    ),
    "celu": _pair(
        "F.celu(x, 1.5) ||| x.clamp(min=0) + (1.5 * torch.expm1(x / 1.5)).clamp(max=0)",
        "ops.celu(x, 1.5)",
    ),
    "gelu": _pair(
        "F.gelu(x) ||| 0.5 * x * (1 + torch.erf(x / 2**0.5))",
        "ops.gelu(x, approximate='none') ||| x * (1 + ops.erf(x * 0.7071067811865476)) / 2",
    ),
    "gelu_tanh": _pair(
        "F.gelu(x, approximate='tanh')"
        " ||| 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))",
        "ops.gelu(x, approximate='tanh')"
        " ||| 0.5 * x * (1 + ops.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x)))",
    ),
    "quick_gelu": _same("x * L.sigmoid(1.702 * x)"),
    "silu": _pair("F.silu(x) ||| x * torch.sigmoid(x)", "ops.silu(x) ||| x / (1 + ops.exp(-x))"),
    "mish": _pair("F.mish(x) ||| x * torch.tanh(F.softplus(x))",
                  "ops.mish(x) ||| x * ops.tanh(ops.log(1 + ops.exp(x)))"),
    "hardswish": _pair("F.hardswish(x) ||| x * F.relu6(x + 3) / 6",
                       "ops.hardswish(x) ||| x * ops.relu6(x + 3) / 6"),
    "hardsigmoid": _pair("F.hardsigmoid(x) ||| F.relu6(x + 3) / 6",
                         "ops.hardsigmoid(x) ||| ops.clamp(x / 6 + 0.5, 0, 1)"),
    "hardtanh": _pair("F.hardtanh(x) ||| x.clamp(-1, 1)", "ops.hardtanh(x) ||| ops.clamp(x, -1, 1)"),
    "softplus": _pair("F.softplus(x) ||| torch.log(1 + torch.exp(x)) ||| torch.log1p(torch.exp(x))",
                      "ops.softplus(x) ||| ops.log(1 + ops.exp(x)) ||| ops.log1p(ops.exp(x))"),
    "softplus_beta": _pair("F.softplus(x, beta=2)", "ops.softplus(x, beta=2)"),
    "softsign": _pair("F.softsign(x) ||| x / (1 + x.abs())", "ops.softsign(x) ||| x / (1 + ops.abs(x))"),
    "logsigmoid": _pair("F.logsigmoid(x) ||| -F.softplus(-x)",
                        "ops.logsigmoid(x) ||| ops.log(ops.sigmoid(x))"),
    "sigmoid": _same(f"L.sigmoid(x) ||| {_SIGMOID}"),
    "tanh": _same("L.tanh(x) ||| 2 * L.sigmoid(2 * x) - 1"),
    "tanhshrink": _pair("F.tanhshrink(x) ||| x - torch.tanh(x)", "ops.tanhshrink(x)"),
    "softshrink": _same("FN.softshrink(x, 0.3)"),
    "hardshrink": _same("FN.hardshrink(x, 0.3)"),
    "threshold": _pair("F.threshold(x, 0.1, -0.5)", "ops.threshold(x, 0.1, -0.5)"),
    "glu": _pair("F.glu(torch.cat([x, y], -1)) ||| x * torch.sigmoid(y)",
                 "ops.glu(ops.cat([x, y], -1)) ||| x * ops.sigmoid(y)"),
    "swiglu": _pair("F.silu(x) * y", "ops.silu(x) * y ||| x * ops.sigmoid(x) * y"),
    "prelu": _pair("F.prelu(x, a)", "ops.prelu(x, a) ||| ops.maximum(x, 0) + a * ops.minimum(x, 0)",
                   a=(16,)),
    "rrelu": _pair("F.rrelu(x, 0.25, 0.25)", "ops.leaky_relu(x, 0.25)"),
    "softmax": _pair(
        "F.softmax(x, -1) ||| torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)",
        "ops.softmax(x, -1) ||| e = ops.exp(x - x.max(-1, keepdims=True)); e / e.sum(-1, keepdims=True)",
    ),
    "softmax_axis": _pair("F.softmax(x, 1)", "ops.softmax(x, 1)", "image"),
    "softmin": _pair("F.softmin(x, -1)", "ops.softmin(x, -1) ||| ops.softmax(-x, -1)"),
    "log_softmax": _pair(
        "F.log_softmax(x, -1) ||| x - torch.logsumexp(x, -1, keepdim=True)",
        "ops.log_softmax(x, -1) ||| ops.log(ops.softmax(x, -1))",
    ),
    "temperature": _pair("F.softmax(x / 0.5, -1)", "ops.softmax(2 * x, -1)"),
}  # fmt: skip

POINTWISE = {
    "exp": _same("L.exp(x) ||| 1 / L.exp(-x)"),
    "exp2": _pair("torch.exp2(x)", "ops.exp(x * 0.6931471805599453) ||| ops.pow(2.0, x)"),
    "expm1": _same("L.expm1(x) ||| L.exp(x) - 1"),
    "log": _same("L.log(L.abs(x) + 0.1)"),
    "log_near_one": _same("L.log(1 + 0.1 * L.sigmoid(x))"),
    "log1p": _same("L.log1p(L.abs(x)) ||| L.log(1 + L.abs(x))"),
    "log2": _pair("torch.log2(x.abs() + 0.1)",
                  "ops.log2(ops.abs(x) + 0.1) ||| ops.log(ops.abs(x) + 0.1) / 0.6931471805599453"),
    "log10": _same("L.log10(L.abs(x) + 0.1)"),
    "sqrt": _same("L.sqrt(L.abs(x) + 0.1) ||| L.pow(L.abs(x) + 0.1, 0.5)"),
    "rsqrt": _same("L.rsqrt(x * x + 0.1) ||| 1 / L.sqrt(x * x + 0.1) ||| L.pow(x * x + 0.1, -0.5)"),
    "reciprocal": _same("L.reciprocal(L.abs(x) + 0.5) ||| 1 / (L.abs(x) + 0.5)"),
    "pow_int": _same("L.pow(x, 3) ||| x * x * x"),
    "square": _same("L.square(x) ||| x * x ||| x**2"),
    "pow_float": _same("L.pow(L.abs(x) + 0.1, 1.7) ||| L.exp(1.7 * L.log(L.abs(x) + 0.1))"),
    "pow_tensor": _same("L.pow(L.abs(x) + 0.5, y)"),
    "sin_cos": _same("L.sin(3 * x) * L.cos(3 * y)"),
    "tan": _pair("torch.tan(torch.tanh(x))", "ops.tan(ops.tanh(x))"
                 " ||| ops.sin(ops.tanh(x)) / ops.cos(ops.tanh(x))"),
    "asin_acos": _same("L.asin(0.9 * L.sigmoid(x)) + L.acos(0.9 * L.sigmoid(y))"),
    "atan": _same("L.atan(x)"),
    "atan2": _same("L.atan2(x, y)"),
    "sinh_cosh": _same("L.sinh(x) + L.cosh(y)"),
    "asinh_acosh": _same("L.asinh(x) + L.acosh(1.5 + L.abs(y))"),
    "atanh": _same("L.atanh(0.9 * L.tanh(x))"),
    "erf": _same("L.erf(x) ||| 1 - L.erfc(x)"),
    "erfinv": _same("L.erfinv(0.9 * L.erf(x))"),
    "logaddexp": _pair("torch.logaddexp(x, y)",
                       "ops.logaddexp(x, y) ||| ops.maximum(x, y) + ops.log(1 + ops.exp(-ops.abs(x - y)))"),
    "xlogy": _same("L.xlogy(x, L.abs(y) + 0.1) ||| x * L.log(L.abs(y) + 0.1)"),
    "clamp": _same("L.clamp(x, -0.5, 0.8) ||| "
                   "L.minimum(L.maximum(x, 0 * x - 0.5), 0 * x + 0.8)"),
    "abs": _same("L.abs(x) ||| x * L.sign(x)"),
    "sign": _same("y * L.sign(x)"),
    "round_floor": _same("y + L.round(4 * x) / 4 + L.floor(y)"),
    "fake_quant": _pair("x + (torch.round(x * 8) / 8 - x).detach()",
                        "x + ops.stop_gradient(ops.round(x * 8) / 8 - x)"),
    "frac": _same("x - L.trunc(x) ||| L.frac(x)"),
    "lerp": _pair("torch.lerp(x, y, 0.3) ||| x + 0.3 * (y - x)",
                  "ops.lerp(x, y, 0.3) ||| 0.7 * x + 0.3 * y"),
    "addcmul": _pair("torch.addcmul(x, y, z, value=0.5) ||| x + 0.5 * y * z",
                     "ops.addcmul(x, y, z, value=0.5) ||| x + 0.5 * (y * z)"),
    "addcdiv": _pair("torch.addcdiv(x, y, z.abs() + 1, value=0.5)",
                     "ops.addcdiv(x, y, ops.abs(z) + 1, ms.Tensor(0.5)) ||| x + 0.5 * y / (ops.abs(z) + 1)"),
    "hypot": _pair("torch.hypot(x, y) ||| torch.sqrt(x * x + y * y)",
                   "ops.hypot(x, y) ||| ops.sqrt(ops.square(x) + ops.square(y))"),
    "where": _pair("torch.where(x > y, x, 0.5 * y)", "ops.where(x > y, x, 0.5 * y)"
                   " ||| g = (x > y).astype(ms.float32); g * x + (1 - g) * 0.5 * y"),
    "conditions": _pair(
        "p = i > 4; v = i < 9; n = p.sum(); ((x * x)[v].sum() + (y * y)[p].sum()) / n",
        "p = (i > 4).astype(ms.float32); v = (i < 9).astype(ms.float32);"
        " (ops.square(x).sum(-1) * v).sum() / p.sum() + (ops.square(y).sum(-1) * p).sum() / p.sum()"),
    "masked_fill": _pair("x.masked_fill(m, 0.0) ||| torch.where(m, 0.0, x)",
                         "ops.masked_fill(x, m, 0.0) ||| x * (1 - m.astype(ms.float32))"),
    "maximum": _same("L.maximum(x, y) - 2 * L.minimum(x, y) ||| "
                     "L.where(x > y, x, y) - 2 * L.where(x > y, y, x)"),
    "fmod": _pair("torch.fmod(x, 0.7) ||| x - 0.7 * torch.trunc(x / 0.7)", "ops.fmod(x, 0.7)"),
    "remainder": _pair("torch.remainder(x, 0.7) ||| x - 0.7 * torch.floor(x / 0.7)",
                       "ops.remainder(x, 0.7) ||| ops.floor_mod(x, 0.7)"),
    "div": _same("x / (L.abs(y) + 1) ||| x * L.reciprocal(L.abs(y) + 1)"),
    "nan_to_num": _pair("torch.nan_to_num(x)", "ops.nan_to_num(x, 0.0)"),
    "outer_sum": _pair("x[:, :, None] + y[:, None, :]", "ops.unsqueeze(x, 2) + ops.unsqueeze(y, 1)"),
    "difference": _same("L.abs(x - y) ||| L.abs(y - x)"),
    "square_difference": _same("L.square(x - y) ||| L.square(y - x)"),
}  # fmt: skip

REDUCTIONS = {
    "sum": _pair("x * x.sum(-1, keepdim=True)", "x * x.sum(-1, keepdims=True)"
                 " ||| x * ops.matmul(x, ops.ones((16, 1), ms.float32))"),
    "sum_axes": _pair("x * y.sum((1, 3), keepdim=True)",
                      "x * y.sum((1, 3), keepdims=True) ||| x * y.sum(3, keepdims=True).sum(1, keepdims=True)",
                      "image"),
    "mean": _pair("x - x.mean(-1, keepdim=True)", "x - x.mean(-1, keep_dims=True)"
                  " ||| x - x.sum(-1, keepdims=True) / 16"),
    "mean_axes": _pair("x * (1 + x.mean((2, 3), keepdim=True))",
                       "x * (1 + ops.mean(x, (2, 3), True))", "image"),
    "var": _pair("x * x.var(-1, keepdim=True)",
                 "x * ops.var(x, -1, 1, True) ||| "
                 "d = x - x.mean(-1, keep_dims=True); x * (d * d).sum(-1, keepdims=True) / 15"),
    "var_moments": _pair("x * x.var(-1, unbiased=False, keepdim=True)",
                         "x * (ops.square(x).mean(-1, keep_dims=True) - ops.square(x.mean(-1, keep_dims=True)))"),
    "std": _pair("x / (0.1 + x.std(-1, keepdim=True))", "x / (0.1 + ops.std(x, -1, 1, True))"),
    "norm": _pair("x / (0.1 + x.norm(dim=-1, keepdim=True))",
                  "x / (0.1 + ops.norm(x, dim=-1, keepdim=True))"
                  " ||| x / (0.1 + ops.sqrt(ops.square(x).sum(-1, keepdims=True)))"),
    "norm_one": _pair("x / (1 + x.norm(p=1, dim=-1, keepdim=True))",
                      "x / (1 + ops.abs(x).sum(-1, keepdims=True))"),
    "norm_three": _pair("x / (1 + x.norm(p=3, dim=-1, keepdim=True))",
                        "x / (1 + ops.pow(ops.pow(ops.abs(x), 3).sum(-1, keepdims=True), 1 / 3))"),
    "logsumexp": _pair("x * torch.logsumexp(y, -1, keepdim=True)",
                       "x * ops.logsumexp(y, -1, True) ||| x * ops.log(ops.exp(y).sum(-1, keepdims=True))"),
    "cumsum": _pair("torch.cumsum(x, -1)", "ops.cumsum(x, -1)"
                    " ||| ops.matmul(x, ops.triu(ops.ones((16, 16), ms.float32)))"),
    "cumprod": _pair("torch.cumprod(1 + 0.1 * x, -1)",
                     "ops.cumprod(1 + 0.1 * x, -1)"),
    "amax": _pair("x - x.amax(-1, keepdim=True)", "x - x.max(-1, keepdims=True)"
                  " ||| x - ops.amax(x, -1, True)"),
    "max_index": _pair("x * y.max(-1, keepdim=True).values",
                       "x * ops.max(y, -1, True)[0] ||| x * ops.topk(y, 1, -1)[0]"),
    "argmax": _pair("x + F.one_hot(x.argmax(-1), 16).float()",
                    "x + ops.one_hot(ops.argmax(x, -1), 16, ms.Tensor(1.0), ms.Tensor(0.0))"),
    "topk": _pair("torch.topk(x, 5, -1).values", "ops.topk(x, 5, -1)[0]"
                  " ||| ops.sort(x, -1, True)[0][:, :5]"),
    "sort": _pair("torch.sort(x, -1).values * y", "ops.sort(x, -1)[0] * y"),
    "median": _pair("x * x.median(-1, keepdim=True).values", "x * ops.median(x, -1, True)[0]"
                    " ||| x * ops.sort(x, -1)[0][:, 7:8]"),
    "prod": _pair("x * (1 + 0.1 * x).prod(-1, keepdim=True)", "x * ops.prod(1 + 0.1 * x, -1, True)"),
    "min": _pair("x - x.amin(1, keepdim=True)", "x - ops.amin(x, 1, True) ||| x + (-x).max(1, keepdims=True)",
                 "image"),
    "pairwise": _pair("torch.cdist(x, y, compute_mode='donot_use_mm_for_euclid_dist')",
                      "ops.cdist(x, y) ||| "
                      "ops.sqrt(ops.square(ops.unsqueeze(x, 1) - ops.unsqueeze(y, 0)).sum(-1))"),
}  # fmt: skip

NORMS = {
    "batch_norm1d": _pair("{nn.BatchNorm1d(16)}(x)", "{nn.BatchNorm1d(16, momentum=0.9)}(x)"),
    "batch_norm2d": _pair("{nn.BatchNorm2d(4)}(x)", "{nn.BatchNorm2d(4, momentum=0.9)}(x)", "image"),
    "batch_norm_eval": _pair(
        "{nn.BatchNorm2d(4).eval()}(x)",
        "{nn.BatchNorm2d(4, use_batch_statistics=False)}(x)", "image"),
    "layer_norm": _pair(
        "{nn.LayerNorm(16)}(x)",
        "{nn.LayerNorm((16,), epsilon=1e-5)}(x)"),
    "layer_norm_written": _pair(
        "F.layer_norm(x, (16,), a, b, 1e-6)",
        "d = x - x.mean(-1, keep_dims=True);"
        "d * ops.rsqrt(ops.square(d).mean(-1, keep_dims=True) + 1e-6) * a + b",
        a=(16,), b=(16,)),
    "layer_norm_axes": _pair("{nn.LayerNorm((8, 8))}(x)",
                             "{nn.LayerNorm((8, 8), begin_norm_axis=2, begin_params_axis=2, epsilon=1e-5)}(x)",
                             "image"),
    "group_norm": _pair("{nn.GroupNorm(2, 4)}(x)", "{nn.GroupNorm(2, 4)}(x)", "image"),
    "group_norm_written": _pair(
        "F.group_norm(x, 2, a, b)",
        "g = x.reshape(2, 2, 128); d = g - g.mean(2, keep_dims=True);"
        "n = (d / ops.sqrt((d * d).mean(2, keep_dims=True) + 1e-5)).reshape(2, 4, 8, 8);"
        "n * a.reshape(1, 4, 1, 1) + b.reshape(1, 4, 1, 1)",
        "image", a=(4,), b=(4,)),
    "instance_norm": _pair(
        "F.instance_norm(x)",
        "d = x - x.mean((2, 3), keep_dims=True);"
        "d / ops.sqrt(ops.square(d).mean((2, 3), keep_dims=True) + 1e-5)", "image"),
    "rms_norm": _pair(
        "F.rms_norm(x, (16,), a, 1e-6) ||| x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * a",
        "a * (x / ops.sqrt(ops.square(x).mean(-1, keep_dims=True) + 1e-6))",
        a=(16,)),
    "local_response_norm": _pair("F.local_response_norm(x, 3)", "ops.lrn(x, 1, 1.0, 1e-4 / 3, 0.75)", "image"),
    "weight_norm": _pair(
        "F.linear(x, torch._weight_norm(b, a, 0))",
        "ops.matmul(x, (a * b / ops.norm(b, dim=1, keepdim=True)).swapaxes(0, 1))",
        a=(16, 1), b=(16, 16)),
    "normalize": _pair("F.normalize(x, dim=-1)", "{ops.L2Normalize(-1, 1e-12)}(x)"
                       " ||| x / ops.clamp(ops.norm(x, dim=-1, keepdim=True), 1e-12)"
                       " ||| x * ops.rsqrt(ops.square(x).sum(-1, keepdims=True) + 1e-12)"),
    "cosine_similarity": _pair("x * F.cosine_similarity(x, y, -1)[:, None]",
                               "x * ops.unsqueeze(ops.cosine_similarity(x, y, -1), 1)"
                               " ||| d = (x * y).sum(-1, keepdims=True);"
                               "x * d / (ops.norm(x, dim=-1, keepdim=True) * ops.norm(y, dim=-1, keepdim=True))"),
}  # fmt: skip

CONVOLUTIONS = {
    "conv1d": _pair("{nn.Conv1d(4, 6, 3, padding=1)}(x)",
                    "{nn.Conv1d(4, 6, 3, pad_mode='pad', padding=1, has_bias=True)}(x)", "signal"),
    "conv1d_causal": _pair("F.conv1d(F.pad(x, (2, 0)), k)",
                           "ops.conv1d(ops.pad(x, (2, 0)), k)", "signal", k=(6, 4, 3)),
    "conv1d_dilated": _pair("F.conv1d(x, k, padding=2, dilation=2)",
                            "ops.conv1d(x, k, pad_mode='pad', padding=2, dilation=2)", "signal", k=(6, 4, 3)),
    "conv1d_depthwise": _pair("F.conv1d(x, k, padding=1, groups=4)",
                              "ops.conv1d(x, k, pad_mode='pad', padding=1, groups=4)"
                              " ||| p = ops.pad(x, (1, 1)); p[:, :, :16] * k[:, :, 0] + p[:, :, 1:17] * k[:, :, 1]"
                              " + p[:, :, 2:] * k[:, :, 2]", "signal", k=(4, 1, 3)),
    "conv2d": _pair("{nn.Conv2d(4, 6, 3, padding=1)}(x)",
                    "{nn.Conv2d(4, 6, 3, pad_mode='pad', padding=1, has_bias=True)}(x)"
                    " ||| {nn.Conv2d(4, 6, 3, pad_mode='same', has_bias=True)}(x)", "image"),
    "conv2d_stride": _pair("F.conv2d(x, k, stride=2)", "ops.conv2d(x, k, stride=2)", "image", k=(6, 4, 3, 3)),
    "conv2d_groups": _pair("F.conv2d(x, k, padding=1, groups=2)",
                           "ops.conv2d(x, k, pad_mode='pad', padding=1, groups=2)", "image", k=(6, 2, 3, 3)),
    "conv2d_dilated": _pair("F.conv2d(x, k, dilation=2)", "ops.conv2d(x, k, dilation=2)", "image", k=(6, 4, 3, 3)),
    "conv2d_patches": _pair("F.conv2d(x, k, stride=4)",
                            "p = x.reshape(2, 4, 2, 4, 2, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 4, 64);"
                            "ops.matmul(p, k.reshape(6, 64).swapaxes(0, 1)).swapaxes(1, 2).reshape(2, 6, 2, 2)",
                            "image", k=(6, 4, 4, 4)),
    "conv2d_point": _pair("F.conv2d(x, k)",
                          "ops.conv2d(x, k) ||| ops.matmul(k.reshape(6, 4), x.reshape(2, 4, 64)).reshape(2, 6, 8, 8)",
                          "image", k=(6, 4, 1, 1)),
    "conv2d_circular": _pair("F.conv2d(F.pad(x, (1, 1, 1, 1), mode='circular'), k)",
                             "ops.conv2d(ops.pad(x, (1, 1, 1, 1), mode='circular'), k)"
                             " ||| p = ops.cat([x[:, :, -1:], x, x[:, :, :1]], 2);"
                             "ops.conv2d(ops.cat([p[:, :, :, -1:], p, p[:, :, :, :1]], 3), k)",
                             "image", k=(6, 4, 3, 3)),
    "conv3d": _pair("F.conv3d(x, k, padding=1)", "ops.conv3d(x, k, pad_mode='pad', padding=1)", "volume",
                    k=(3, 2, 3, 3, 3)),
    "conv_transpose1d": _pair("F.conv_transpose1d(x, k, stride=2)",
                              "{ops.Conv2DTranspose(4, (1, 2), stride=(1, 2), pad_mode='valid')}("
                              "ops.unsqueeze(x, 2), k.reshape(4, 6, 1, 2), (2, 6, 1, 32)).reshape(2, 6, 32)",
                              "signal", k=(4, 6, 2)),
    "conv_transpose2d": _pair("{nn.ConvTranspose2d(4, 6, 2, stride=2)}(x)",
                              "{nn.Conv2dTranspose(4, 6, 2, stride=2, pad_mode='valid', has_bias=True)}(x)", "image"),
    "conv_transpose_pad": _pair("{nn.ConvTranspose2d(4, 6, 3, padding=1)}(x)",
                                "{nn.Conv2dTranspose(4, 6, 3, pad_mode='pad', padding=1, has_bias=True)}(x)", "image"),
    "unfold": _pair("F.unfold(x, 3, padding=1)", "ops.unfold(x, 3, padding=1)", "image"),
    "fold": _pair("F.fold(F.unfold(x, 2, stride=1), (8, 8), 2)",
                  "ops.fold(ops.unfold(x, 2), ms.Tensor([8, 8], ms.int32), 2)", "image"),
    "linear_conv": _pair("F.linear(x, a, b)",
                         "ops.matmul(x, a.swapaxes(0, 1)) + b ||| ops.dense(x, a, b)",
                         a=(12, 16), b=(12,)),
    "bilinear": _pair("F.bilinear(x, y, a)",
                      "ops.bidense(x, y, a) ||| ops.matmul(ops.matmul(x, a.transpose(1, 0, 2).reshape(16, 64))"
                      ".reshape(24, 4, 16), ops.unsqueeze(y, 2)).reshape(24, 4)", a=(4, 16, 16)),
}  # fmt: skip

POOLING = {
    "max_pool1d": _pair("F.max_pool1d(x, 2)", "{nn.MaxPool1d(2, 2)}(x) ||| x.reshape(2, 4, 8, 2).max(3)", "signal"),
    "max_pool2d": _pair("F.max_pool2d(x, 2)", "ops.max_pool2d(x, 2) ||| {nn.MaxPool2d(2, 2)}(x)"
                        " ||| x.reshape(2, 4, 4, 2, 4, 2).max((3, 5))", "image"),
    "max_pool2d_overlap": _pair("F.max_pool2d(x, 3, 2, 1)", "ops.max_pool2d(x, 3, 2, 1)"
                                " ||| {nn.MaxPool2d(3, 2, pad_mode='pad', padding=1)}(x)", "image"),
    "avg_pool1d": _pair("F.avg_pool1d(x, 2)", "{nn.AvgPool1d(2, 2)}(x)", "signal"),
    "avg_pool2d": _pair("F.avg_pool2d(x, 2)", "ops.avg_pool2d(x, 2, 2) ||| {nn.AvgPool2d(2, 2)}(x)"
                        " ||| x.reshape(2, 4, 4, 2, 4, 2).mean((3, 5))", "image"),
    "avg_pool2d_pad": _pair("F.avg_pool2d(x, 3, 2, 1)",
                            "{nn.AvgPool2d(3, 2, pad_mode='pad', padding=1)}(x)"
                            " ||| ops.avg_pool2d(ops.pad(x, (1, 1, 1, 1)), 3, 2)", "image"),
    "adaptive_avg": _pair("F.adaptive_avg_pool2d(x, 1)", "ops.adaptive_avg_pool2d(x, 1)"
                          " ||| x.mean((2, 3), keep_dims=True)", "image"),
    "adaptive_avg_3": _pair("F.adaptive_avg_pool2d(x, 3)", "ops.adaptive_avg_pool2d(x, 3)", "image"),
    "adaptive_max": _pair("F.adaptive_max_pool2d(x, 2)", "ops.adaptive_max_pool2d(x, 2)"
                          " ||| x.reshape(2, 4, 2, 4, 2, 4).max((3, 5))", "image"),
    "lp_pool": _pair("F.lp_pool2d(x, 2, 2)", "ops.sqrt(4 * ops.avg_pool2d(ops.square(x), 2, 2))", "image"),
    "max_over_time": _pair("x.max(1).values", "x.max(1) ||| ops.max(x, 1)[0]", "sequence"),
    "masked_mean": _pair("w = m.float(); (x * w).sum(1) / w.sum(1).clamp(min=1)",
                         "w = m.astype(ms.float32); (x * w).sum(1) / ops.clamp(w.sum(1), 1)", "sequence"),
    "nearest": _pair("F.interpolate(x, scale_factor=2)", "ops.interpolate(x, scale_factor=2.0, recompute_scale_factor=True)"
                     " ||| ops.repeat_interleave(ops.repeat_interleave(x, 2, 2), 2, 3)", "image"),
    "bilinear_resize": _pair("F.interpolate(x, (12, 12), mode='bilinear')",
                             "ops.interpolate(x, (12, 12), mode='bilinear')", "image"),
    "bilinear_corners": _pair("F.interpolate(x, (12, 12), mode='bilinear', align_corners=True)",
                              "ops.interpolate(x, (12, 12), mode='bilinear', align_corners=True)", "image"),
    "linear_resize": _pair("F.interpolate(x, 32, mode='linear')", "ops.interpolate(x, 32, mode='linear')", "signal"),
    "pixel_shuffle": _pair("F.pixel_shuffle(x, 2)", "ops.pixel_shuffle(x, 2)"
                           " ||| x.reshape(2, 1, 2, 2, 8, 8).transpose(0, 1, 4, 2, 5, 3).reshape(2, 1, 16, 16)", "image"),
    "grid_sample": _pair("F.grid_sample(x, torch.tanh(y.reshape(2, 8, 16, 2)), align_corners=False)",
                         "ops.grid_sample(x, ops.tanh(y.reshape(2, 8, 16, 2)), align_corners=False)", "image"),
}  # fmt: skip

INDEXING = {
    "embedding": _pair("x + F.embedding(i, a)", "x + ops.gather(a, i, 0)"
                       " ||| x + ops.matmul(ops.one_hot(i, 16, ms.Tensor(1.0), ms.Tensor(0.0)), a)", a=(16, 16)),
    "gather": _pair("x * x.gather(1, i[:, None])", "x * ops.gather_elements(x, 1, ops.unsqueeze(i, 1))"
                    " ||| x * ops.gather_d(x, 1, ops.unsqueeze(i, 1))"
                    " ||| x * (x * ops.one_hot(i, 16, ms.Tensor(1.0), ms.Tensor(0.0))).sum(1, keepdims=True)"),
    "index_select": _pair("torch.index_select(x, 1, i[:8])", "ops.index_select(x, 1, i[:8])"
                          " ||| ops.gather(x, i[:8], 1)"),
    "rows_by_index": _pair("x[i] * y", "ops.gather(x, i, 0) * y ||| x[i] * y"),
    "scatter_add": _pair("torch.zeros(16, 16).index_add(0, i, x)",
                         "ops.tensor_scatter_add(ops.zeros((16, 16), ms.float32), ops.unsqueeze(i, 1), x)"
                         " ||| {ops.UnsortedSegmentSum()}(x, i, 16)"),
    "index_add": _pair("y[:16].index_add(0, i, x)", "ops.tensor_scatter_add(y[:16], ops.unsqueeze(i, 1), x)"),
    "take_along": _pair("torch.take_along_dim(x, x.argsort(1), 1)",
                        "ops.gather_elements(x, 1, ops.argsort(x, 1)) ||| ops.sort(x, 1)[0]"),
    "roll": _pair("x.roll(2, 1)", "ops.cat([x[:, -2:], x[:, :-2]], 1)", "sequence"),
    "flip": _pair("x.flip(1)", "ops.flip(x, (1,))", "sequence"),
    "tril": _pair("x @ torch.tril(a)", "ops.matmul(x, ops.tril(a))"
                  " ||| ops.matmul(x, a * ops.tril(ops.ones((16, 16), ms.float32)))", a=(16, 16)),
    "pad_constant": _pair("F.pad(x, (1, 2))", "ops.pad(x, (1, 2))"
                          " ||| ops.cat([ops.zeros((2, 4, 1), ms.float32), x, ops.zeros((2, 4, 2), ms.float32)], 2)",
                          "signal"),
    "pad_reflect": _pair("F.pad(x, (1, 2), mode='reflect')", "ops.pad(x, (1, 2), mode='reflect')", "signal"),
    "pad_replicate": _pair("F.pad(x, (1, 2), mode='replicate')", "ops.pad(x, (1, 2), mode='replicate')", "signal"),
    "pad_value": _pair("F.pad(x, (1, 2), value=0.5)", "ops.pad(x, (1, 2), value=0.5)", "signal"),
    "repeat_interleave": _pair("x.repeat_interleave(2, 1)", "ops.repeat_interleave(x, 2, 1)", "sequence"),
    "tile": _pair("x.repeat(1, 2, 1)", "ops.tile(x, (1, 2, 1)) ||| ops.cat([x, x], 1)", "sequence"),
    "chunk": _pair("a, b = x.chunk(2, -1); a * b", "a, b = ops.split(x, 8, -1); a * b ||| x[..., :8] * x[..., 8:]"),
    "stack": _pair("torch.stack([x, y], 1)", "ops.stack([x, y], 1)"),
    "cat": _pair("torch.cat([x, y], -1)", "ops.cat([x, y], -1)"),
    "einsum": _pair("torch.einsum('bic,bjc->bij', x, y)", "ops.matmul(x, y.swapaxes(1, 2))", "sequence"),
    "bmm": _pair("torch.bmm(x, y.transpose(1, 2))", "ops.bmm(x, y.swapaxes(1, 2))"
                 " ||| {ops.BatchMatMul(transpose_b=True)}(x, y)"
                 " ||| (ops.unsqueeze(x, 2) * ops.unsqueeze(y, 1)).sum(-1)", "sequence"),
    "baddbmm": _pair("torch.baddbmm(z[:, :, :6], x, y.transpose(1, 2), alpha=0.5)",
                     "z[:, :, :6] + 0.5 * ops.bmm(x, y.swapaxes(1, 2))"
                     " ||| ops.baddbmm(z[:, :, :6], x, y.swapaxes(1, 2), alpha=0.5)", "sequence"),
    "outer": _pair("torch.einsum('bi,bj->bij', x, y)", "ops.unsqueeze(x, 2) * ops.unsqueeze(y, 1)"),
    "masked_select": _pair("x * x[m].mean()", "x * (ops.where(m, x, 0.0).sum() / m.astype(ms.float32).sum())"),
    "diagonal": _pair("x * torch.diagonal(a)", "x * ops.diagonal(a) ||| x * (a * ops.eye(16, 16, ms.float32)).sum(0)",
                      a=(16, 16)),
    "patches": _pair("x.unfold(2, 4, 2)", "ops.stack([x[:, :, k:k + 4] for k in range(0, 13, 2)], 2)", "signal"),
    "slice_step": _pair("x[:, ::2] + x[:, 1::2]", "p = x.reshape(3, 3, 2, 16); p[:, :, 0] + p[:, :, 1]", "sequence"),
}  # fmt: skip

ATTENTION = {
    "sdpa": _pair(
        f"{_HEADS}; F.scaled_dot_product_attention(x, y, z).transpose(1, 2).reshape(3, 6, 16)"
        f" ||| {_HEADS}; {_SCORES}; (F.softmax(s, -1) @ z).transpose(1, 2).reshape(3, 6, 16)",
        f"{_HEADS_MS}; {_SCORES_MS}; ops.matmul(ops.softmax(s, -1), z).swapaxes(1, 2).reshape(3, 6, 16)",
        "sequence"),
    "sdpa_causal": _pair(
        f"{_HEADS}; F.scaled_dot_product_attention(x, y, z, is_causal=True).transpose(1, 2).reshape(3, 6, 16)",
        f"{_HEADS_MS}; {_SCORES_MS}; s = s + ops.triu(ops.full((6, 6), -10000.0, dtype=ms.float32), 1);"
        "ops.matmul(ops.softmax(s, -1), z).swapaxes(1, 2).reshape(3, 6, 16) ||| "
        f"{_HEADS_MS}; {_SCORES_MS}; c = ops.triu(ops.ones((6, 6), ms.float32), 1).astype(ms.bool_);"
        "ops.matmul(ops.softmax(ops.masked_fill(s, c, -1e9), -1), z).swapaxes(1, 2).reshape(3, 6, 16)",
        "sequence"),
    "sdpa_mask": _pair(
        f"{_HEADS}; c = torch.where(torch.arange(6) < 4, 0.0, -1e9);"
        "F.scaled_dot_product_attention(x, y, z, attn_mask=c.expand(6, 6)).transpose(1, 2).reshape(3, 6, 16)",
        f"{_HEADS_MS}; {_SCORES_MS}; s = s + ops.where(ops.arange(6) < 4, 0.0, -1e9).astype(ms.float32);"
        "ops.matmul(ops.softmax(s, -1), z).swapaxes(1, 2).reshape(3, 6, 16)", "sequence"),
    "sdpa_grouped": _pair(
        "q = x.reshape(3, 6, 4, 4).transpose(1, 2); k = y[..., :8].reshape(3, 6, 2, 4).transpose(1, 2);"
        "v = z[..., :8].reshape(3, 6, 2, 4).transpose(1, 2);"
        "F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).reshape(3, 6, 16)",
        "q = x.reshape(3, 6, 4, 4).swapaxes(1, 2);"
        "k = ops.repeat_interleave(y[..., :8].reshape(3, 6, 2, 4).swapaxes(1, 2), 2, 1);"
        "v = ops.repeat_interleave(z[..., :8].reshape(3, 6, 2, 4).swapaxes(1, 2), 2, 1);"
        "ops.matmul(ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) * 0.5, -1), v).swapaxes(1, 2).reshape(3, 6, 16)",
        "sequence"),
    "multihead": _pair(
        "{nn.MultiheadAttention(16, 4, batch_first=True)}(x, y, z)[0]",
        "{nn.MultiheadAttention(16, 4, batch_first=True)}(x, y, z)[0]", "sequence"),
    "linear_attention": _pair(
        "(F.elu(x) + 1) @ ((F.elu(y) + 1).transpose(1, 2) @ z)",
        "ops.matmul(ops.elu(x) + 1, ops.matmul((ops.elu(y) + 1).swapaxes(1, 2), z))", "sequence"),
    "rotary": _pair(
        "c = torch.cos(torch.arange(6.0))[:, None]; s = torch.sin(torch.arange(6.0))[:, None];"
        "x * c + torch.cat([-x[..., 8:], x[..., :8]], -1) * s",
        "c = ops.unsqueeze(ops.cos(ops.arange(6).astype(ms.float32)), 1);"
        "s = ops.unsqueeze(ops.sin(ops.arange(6).astype(ms.float32)), 1);"
        "a = x[..., :8]; b = x[..., 8:]; ops.cat([a * c - b * s, b * c + a * s], -1)", "sequence"),
}  # fmt: skip

RECURRENCES = {
    "rnn": _pair("{nn.RNN(16, 8, batch_first=True)}(x)[0]",
                 "{nn.RNN(16, 8, batch_first=True)}(x)[0]", "sequence"),
    "gru": _pair("{nn.GRU(16, 8, batch_first=True)}(x)[0]", "{nn.GRU(16, 8, batch_first=True)}(x)[0]", "sequence"),
    "lstm": _pair("{nn.LSTM(16, 8, batch_first=True)}(x)[0]", "{nn.LSTM(16, 8, batch_first=True)}(x)[0]",
                  "sequence"),
    "rnn_cell": _pair("{nn.RNNCell(16, 16)}(x, y)", "{nn.RNNCell(16, 16)}(x, y)"),
    "gru_cell": _pair("{nn.GRUCell(16, 16)}(x, y)", "{nn.GRUCell(16, 16)}(x, y)"),
    "lstm_cell": _pair("{nn.LSTMCell(16, 16)}(x, (y, z))[0]", "{nn.LSTMCell(16, 16)}(x, (y, z))[0]"),
    "scan": _pair(
        "h = torch.zeros(3, 16); o = []\nfor t in range(6):\n"
        "    h = torch.sigmoid(y[:, t]) * h + x[:, t]; o.append(h)\ntorch.stack(o, 1)",
        "h = ops.zeros((3, 16), ms.float32); o = []\nfor t in range(6):\n"
        "    h = ops.sigmoid(y[:, t]) * h + x[:, t]; o.append(h)\nops.stack(o, 1)", "sequence"),
}  # fmt: skip

LOSSES = {
    "cross_entropy": _pair(
        "F.cross_entropy(x, i) ||| -F.log_softmax(x, -1).gather(1, i[:, None]).mean()",
        "ops.cross_entropy(x, i)"
        " ||| -(ops.one_hot(i, 16, ms.Tensor(1.0), ms.Tensor(0.0)) * ops.log_softmax(x, -1)).sum(-1).mean()"
        " ||| {nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction='mean')}(x, i)"),
    "cross_entropy_smooth": _pair(
        "F.cross_entropy(x, i, label_smoothing=0.1)",
        "ops.cross_entropy(x, i, label_smoothing=0.1)"
        " ||| l = ops.log_softmax(x, -1); -(0.9 * ops.gather_elements(l, 1, ops.unsqueeze(i, 1)).mean() + 0.1 * l.mean())"),
    "cross_entropy_weight": _pair(
        "F.cross_entropy(x, i, torch.arange(1.0, 17.0))",
        "ops.cross_entropy(x, i, ops.arange(1, 17).astype(ms.float32))"),
    "cross_entropy_ignore": _pair(
        "F.cross_entropy(x, i, ignore_index=3)",
        "ops.cross_entropy(x, i, ignore_index=3) ||| w = (i != 3).astype(ms.float32);"
        "-(ops.gather_elements(ops.log_softmax(x, -1), 1, ops.unsqueeze(i, 1)).reshape(24) * w).sum() / w.sum()"),
    "cross_entropy_soft": _pair(
        "F.cross_entropy(x, F.softmax(y, -1))", "ops.cross_entropy(x, ops.softmax(y, -1))"),
    "cross_entropy_sum": _pair("F.cross_entropy(x, i, reduction='sum')", "ops.cross_entropy(x, i, reduction='sum')"),
    "nll": _pair("F.nll_loss(F.log_softmax(x, -1), i)", "ops.nll_loss(ops.log_softmax(x, -1), i)"),
    "bce": _pair("F.binary_cross_entropy(torch.sigmoid(x), m.float())",
                 "ops.binary_cross_entropy(ops.sigmoid(x), m.astype(ms.float32))"
                 " ||| p = ops.sigmoid(x); t = m.astype(ms.float32);"
                 "-(t * ops.log(p) + (1 - t) * ops.log(1 - p)).mean()"),
    "bce_logits": _pair(
        "F.binary_cross_entropy_with_logits(x, m.float())",
        "ops.binary_cross_entropy_with_logits(x, m.astype(ms.float32), ops.ones_like(x), ops.ones_like(x))"
        " ||| t = m.astype(ms.float32); (ops.relu(x) - x * t + ops.log(1 + ops.exp(-ops.abs(x)))).mean()"),
    "bce_logits_weight": _pair(
        "F.binary_cross_entropy_with_logits(x, m.float(), pos_weight=torch.full((16,), 3.0))",
        "ops.binary_cross_entropy_with_logits(x, m.astype(ms.float32), ops.ones_like(x), 3 * ops.ones(16, ms.float32))"),
    "mse": _pair("F.mse_loss(x, y) ||| ((x - y)**2).mean()",
                 "ops.mse_loss(x, y) ||| {nn.MSELoss()}(x, y) ||| ops.square(x - y).mean()"),
    "l1": _pair("F.l1_loss(x, y)", "ops.l1_loss(x, y) ||| ops.abs(x - y).mean()"),
    "smooth_l1": _pair("F.smooth_l1_loss(x, y, beta=0.5)", "ops.smooth_l1_loss(x, y, beta=0.5, reduction='mean')"
                       " ||| d = ops.abs(x - y); ops.where(d < 0.5, d * d, d - 0.25).mean()"),
    "huber": _pair("F.huber_loss(x, y, delta=0.5)", "ops.huber_loss(x, y, delta=0.5)"),
    "kl_div": _pair("F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1).detach(), reduction='batchmean')",
                    "ops.kl_div(ops.log_softmax(x, -1), ops.stop_gradient(ops.softmax(y, -1)), 'batchmean') ||| "
                    "p = ops.stop_gradient(ops.softmax(y, -1)); (p * (ops.log(p) - ops.log_softmax(x, -1))).sum() / 24"),
    "cosine_embedding": _pair(
        "F.cosine_embedding_loss(x, y, 1 - 2 * (i % 2), margin=0.1)",
        "ops.cosine_embedding_loss(x, y, (1 - 2 * (i % 2)).astype(ms.float32), margin=0.1)"),
    "margin_ranking": _pair("F.margin_ranking_loss(x, y, 2 * m.float() - 1, 0.3)",
                            "ops.margin_ranking_loss(x, y, 2 * m.astype(ms.float32) - 1, 0.3)"
                            " ||| ops.relu(0.3 - (2 * m.astype(ms.float32) - 1) * (x - y)).mean()"),
    "triplet": _pair(
        "F.triplet_margin_loss(x, y, z)",
        "a = ops.sqrt(ops.square(x - y + 1e-6).sum(-1));"
        "b = ops.sqrt(ops.square(x - z + 1e-6).sum(-1)); ops.relu(a - b + 1).mean()"),
    "poisson_nll": _pair("F.poisson_nll_loss(x, i[:, None].float())",
                         "(ops.exp(x) - ops.unsqueeze(i, 1).astype(ms.float32) * x).mean()"),
    "gaussian_nll": _pair("F.gaussian_nll_loss(x, y, torch.exp(z))",
                          "ops.gaussian_nll_loss(x, y, ops.exp(z)) ||| "
                          "(0.5 * (z + ops.square(x - y) / ops.exp(z))).mean()"),
    "hinge": _pair("F.hinge_embedding_loss(x, 2 * m.float() - 1)",
                   "ops.hinge_embedding_loss(x, 2 * m.astype(ms.float32) - 1)"),
    "soft_margin": _pair("F.soft_margin_loss(x, 2 * m.float() - 1)",
                         "ops.softplus(-x * (2 * m.astype(ms.float32) - 1)).mean()"),
    "multilabel": _pair("F.multilabel_soft_margin_loss(x, m.float())",
                        "t = m.astype(ms.float32); -(t * ops.log(ops.sigmoid(x)) + (1 - t) * ops.log(ops.sigmoid(-x))).mean()"),
    "ctc": _pair(
        "F.ctc_loss(F.log_softmax(x, -1).transpose(0, 1), 1 + i[:, :2] % 9 + torch.arange(2),"
        " torch.full((3,), 6), torch.full((3,), 2), reduction='sum')",
        "ops.ctc_loss(ops.log_softmax(x, -1).swapaxes(0, 1), (1 + i[:, :2] % 9 + ops.arange(2)).astype(ms.int32),"
        " ms.Tensor([6, 6, 6], ms.int32), ms.Tensor([2, 2, 2], ms.int32), reduction='sum')[0]", "sequence"),
    "focal": _pair(
        "c = F.cross_entropy(x, i, reduction='none'); ((1 - torch.exp(-c))**2 * c).mean()",
        "c = ops.cross_entropy(x, i, reduction='none'); (ops.pow(1 - ops.exp(-c), 2) * c).mean()"),
    "contrastive": _pair(
        "F.cross_entropy(F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T / 0.1, torch.arange(24))",
        "a = x / ops.norm(x, dim=-1, keepdim=True); b = y / ops.norm(y, dim=-1, keepdim=True);"
        "ops.cross_entropy(ops.matmul(a, b.swapaxes(0, 1)) / 0.1, ops.arange(24).astype(ms.int32))"),
}  # fmt: skip

PROGRAMS = {
    "float16": _pair("(x.half() @ a.half()).float()",
                     "ops.matmul(x.astype(ms.float16), a.astype(ms.float16)).astype(ms.float32)", a=(16, 16)),
    "bfloat16": _pair("F.gelu(F.linear(x.bfloat16(), a.bfloat16()).float())",
                      "ops.gelu(ops.matmul(x.astype(ms.bfloat16), a.swapaxes(0, 1).astype(ms.bfloat16))"
                      ".astype(ms.float32), approximate='none')", a=(16, 16)),
    "detach": _pair("x * y.detach() + y", "x * ops.stop_gradient(y) + y"),
    "straight_through": _pair("y + (F.one_hot(x.argmax(-1), 16) - F.softmax(x, -1)).detach() + F.softmax(x, -1)",
                              "p = ops.softmax(x, -1); y + p + ops.stop_gradient("
                              "ops.one_hot(ops.argmax(x, -1), 16, ms.Tensor(1.0), ms.Tensor(0.0)) - p)"),
    "checkpoint": _pair("torch.utils.checkpoint.checkpoint(lambda v: F.silu(v) * v, x, use_reentrant=False)",
                        "ops.silu(x) * x"),
    "residual": _pair("x + F.gelu(y) + (x + F.gelu(y)) * z", "h = x + ops.gelu(y, approximate='none'); h + h * z"),
    "gated_sum": _pair("g = torch.sigmoid(z); g * x + (1 - g) * y", "g = ops.sigmoid(z); y + g * (x - y)"),
}  # fmt: skip

ENTRIES: Mapping[str, Entry] = {
    **ACTIVATIONS,
    **POINTWISE,
    **REDUCTIONS,
    **NORMS,
    **CONVOLUTIONS,
    **POOLING,
    **INDEXING,
    **ATTENTION,
    **RECURRENCES,
    **LOSSES,
    **PROGRAMS,
}
