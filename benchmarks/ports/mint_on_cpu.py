"""Operators of ``ops`` in the place of those of ``mint`` that have no kernel on CPU.

The models of mindone use ``mint``. ``substitute`` must be called before they are imported, because
some import functions by name. Cells keep their parameters and get another ``construct``.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.graph._parse import standard_method
from mindspore.ops.operations import _inner_ops

F = mint.nn.functional


def stack(tensors, dim=0):
    return ops.stack(tensors, dim)


def zeros_like(input, *, dtype=None):
    return ops.zeros_like(input, dtype=dtype)


def ones_like(input, *, dtype=None):
    return ops.ones_like(input, dtype=dtype)


def arange(start=0, end=None, step=1, *, dtype=None):
    return ops.arange(start, end, step, dtype=dtype)


def linspace(start, end, steps, *, dtype=None):
    return ops.linspace(start, end, steps)


def full(size, fill_value, *, dtype=None):
    if dtype is None:
        dtype = ms.float32 if isinstance(fill_value, float) else ms.int64
    return ops.fill(dtype, tuple(size), fill_value)


def full_like(input, fill_value, *, dtype=None):
    return ops.fill(input.dtype if dtype is None else dtype, input.shape, fill_value)


def repeat_interleave(input, repeats, dim=None, *, output_size=None):
    return ops.repeat_interleave(input, repeats, dim)


def broadcast_to(input, size):
    return ops.broadcast_to(input, tuple(size))


def expand(input, size):
    return ops.broadcast_to(input, size)


def exclusive_or(x, y):
    return x != y


def clone(input):
    return input.copy()


def index_select(input, dim, index):
    return ops.index_select(input, dim, index)


def roll(input, shifts, dims=None):
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    for shift, dim in zip(shifts, dims, strict=True):
        size = input.shape[dim]
        cut = (size - shift) % size
        if cut:
            input = ops.concat((input.narrow(dim, cut, size - cut), input.narrow(dim, 0, cut)), dim)
    return input


def topk(input, k, dim=-1, largest=True, sorted=True):
    return ops.topk(input, k, dim, largest, sorted)


def sort(input, *, dim=-1, descending=False, stable=False):
    return ops.sort(input, dim, descending)


def argsort(input, dim=-1, descending=False, stable=False):
    return ops.sort(input, dim, descending)[1]


def argmax(input, dim=None, keepdim=False):
    return ops.argmax(input, dim, keepdim)


def cumsum(input, dim, dtype=None):
    return ops.cumsum(input, dim, dtype)


def tril(input, diagonal=0):
    return ops.tril(input, diagonal)


def power(input, exponent):
    return ops.pow(input, exponent)


def outer(input, vec2):
    return ops.mul(input.expand_dims(-1), vec2)


def logsumexp(input, dim, keepdim=False):
    return ops.logsumexp(input, dim, keepdim)


def standard_deviation(input, dim=None, *, correction=1, keepdim=False):
    return ops.std(input, dim, correction, keepdim)


def variance(input, dim=None, *, correction=1, keepdim=False):
    return ops.var(input, dim, correction, keepdim)


def baddbmm(input, batch1, batch2, beta=1, alpha=1):
    return ops.baddbmm(input, batch1, batch2, beta, alpha)


def addmm(input, mat1, mat2, beta=1, alpha=1):
    return ops.add(beta * input, alpha * ops.matmul(mat1, mat2))


def norm(input, p=2, dim=None, keepdim=False, *, dtype=None):
    return ops.sqrt(ops.square(input).sum(dim, keepdims=keepdim))


def normalize(input, p=2.0, dim=1, eps=1e-12):
    return input / ops.clamp(norm(input, p, dim, True), eps)


def one_hot(tensor, num_classes=-1):
    on, off = Tensor(1, ms.int32), Tensor(0, ms.int32)
    return ops.one_hot(tensor, num_classes, on, off).astype(ms.int64)


def pad(input, pad, mode="constant", value=None):
    if mode == "constant":
        return ops.pad(input, tuple(pad), mode, 0 if value is None else value)
    return ops.pad(input, tuple(pad), mode)


def dropout(input, p=0.5, training=True, inplace=False):
    return ops.dropout(input, p, training) if p > 0 else input


def embedding(input, weight, padding_idx=None):
    return ops.gather(weight, input, 0)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    shape = tuple(normalized_shape)
    if weight is None:
        weight = ops.ones(shape, input.dtype)
    if bias is None:
        bias = ops.zeros(shape, input.dtype)
    axis = input.ndim - len(shape)
    return ops.LayerNorm(axis, axis, eps)(input, weight, bias)[0]


def batch_norm(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    return ops.BatchNorm(training, eps, momentum)(input, weight, bias, running_mean, running_var)[0]


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if isinstance(padding, str):
        mode, pads = padding, 0
    else:
        height, width = _pair(padding)
        mode, pads = "pad", (height, height, width, width)
    kernel, stride, dilation = weight.shape[2:], _pair(stride), _pair(dilation)
    convolve = ops.Conv2D(weight.shape[0], kernel, 1, mode, pads, stride, dilation, groups)
    output = convolve(input, weight)
    return output if bias is None else ops.bias_add(output, bias)


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    stride, dilation = (1, _pair(stride)[0]), (1, _pair(dilation)[0])
    pads = padding if isinstance(padding, str) else (0, _pair(padding)[0])
    image, kernel = input.expand_dims(2), weight.expand_dims(2)
    return conv2d(image, kernel, bias, stride, pads, dilation, groups).squeeze(2)


def interpolate(
    input,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
):
    if size is None:
        size = tuple(int(n * scale_factor) for n in input.shape[2:])
    if isinstance(size, int):
        size = (size,) * (input.ndim - 2)
    if mode == "nearest":
        return ops.interpolate(input, tuple(size), mode=mode)
    return ops.interpolate(input, tuple(size), mode=mode, align_corners=bool(align_corners))


def adaptive_avg_pool1d(input, output_size):
    return ops.adaptive_avg_pool1d(input, output_size)


def adaptive_avg_pool2d(input, output_size):
    return ops.adaptive_avg_pool2d(input, output_size)


def max_pool2d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    *,
    ceil_mode=False,
    return_indices=False,
):
    return ops.max_pool2d(input, kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def avg_pool2d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    stride = kernel_size if stride is None else stride
    return ops.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def gelu(input, *, approximate="none"):
    return ops.gelu(input, approximate)


def leaky_relu(input, negative_slope=0.01):
    return ops.leaky_relu(input, negative_slope)


def elu(input, alpha=1.0, inplace=False):
    return ops.elu(input, alpha)


def relu6(input, inplace=False):
    return ops.relu6(input)


def mish(input):
    return ops.mish(input)


def softplus(input, beta=1, threshold=20):
    return ops.softplus(input, beta, threshold)


def logsigmoid(input):
    return ops.logsigmoid(input)


def log_softmax(input, dim=None, dtype=None):
    return ops.log_softmax(input if dtype is None else input.astype(dtype), dim)


def cross_entropy(
    input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    labels = target.astype(ms.int32) if target.dtype == ms.int64 else target
    return ops.cross_entropy(input, labels, weight, ignore_index, reduction, label_smoothing)


def mse_loss(input, target, reduction="mean"):
    return ops.mse_loss(input, target, reduction)


def l1_loss(input, target, reduction="mean"):
    return ops.l1_loss(input, target, reduction)


def smooth_l1_loss(input, target, reduction="mean", beta=1.0):
    return ops.smooth_l1_loss(input, target, beta, reduction)


def binary_cross_entropy_with_logits(input, target, weight=None, reduction="mean", pos_weight=None):
    weight = ops.ones_like(input) if weight is None else weight
    pos_weight = ops.ones_like(input) if pos_weight is None else pos_weight
    target = target.astype(input.dtype)  # a graph compiles this for labels of classes, too
    return ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def _pair(value):
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def construct_layer_norm(self, input):
    return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def construct_embedding(self, input):
    return ops.gather(self.weight, input, 0)


def construct_dropout(self, input):
    if self.p == 0 or not self.training:
        return input
    return ops.dropout(input, self.p, True)


def construct_gelu(self, input):
    return ops.gelu(input, self.approximate)


def construct_relu6(self, input):
    return ops.relu6(input)


def construct_log_softmax(self, input):
    return ops.log_softmax(input, self.dim)


def construct_conv1d(self, input):
    stride, padding = self.stride, self.padding
    return conv1d(input, self.weight, self.bias, stride, padding, self.dilation, self.groups)


def construct_conv2d(self, input):
    stride, padding = self.stride, self.padding
    return conv2d(input, self.weight, self.bias, stride, padding, self.dilation, self.groups)


def construct_batch_norm(self, input):
    return ops.BatchNorm(self.training, self.eps, self.momentum)(
        input, self.weight, self.bias, self.running_mean, self.running_var
    )[0]


def construct_batch_norm_1d(self, input):
    if input.ndim == 2:
        return construct_batch_norm(self, input)
    return construct_batch_norm(self, input.expand_dims(-1)).squeeze(-1)


def construct_group_norm(self, input):
    return ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def construct_adaptive_avg_pool(self, input):
    if input.ndim == 4:
        return ops.adaptive_avg_pool2d(input, self.output_size)
    return ops.adaptive_avg_pool1d(input, self.output_size)


def construct_max_pool(self, input):
    kernel, stride, padding = self.kernel_size, self.stride, self.padding
    return ops.max_pool2d(input, kernel, stride, padding, self.dilation, False, self.ceil_mode)


def construct_avg_pool(self, input):
    kernel, stride, padding = self.kernel_size, self.stride, self.padding
    return avg_pool2d(input, kernel, stride, padding, self.ceil_mode, self.count_include_pad)


def construct_cross_entropy(self, logits, labels):
    smoothing = self.label_smoothing
    return cross_entropy(logits, labels, self.weight, self.ignore_index, self.reduction, smoothing)


def construct_mse(self, input, target):
    return ops.mse_loss(input, target, self.reduction)


def initialize_binary_cross_entropy(self, weight=None, reduction="mean", pos_weight=None):
    nn.Cell.__init__(self)
    self.weight, self.reduction, self.pos_weight = weight, reduction, pos_weight


def construct_binary_cross_entropy(self, input, target):
    return binary_cross_entropy_with_logits(
        input, target, self.weight, self.reduction, self.pos_weight
    )


FUNCTIONS = {
    mint: {
        "addmm": addmm,
        "arange": arange,
        "argmax": argmax,
        "argsort": argsort,
        "baddbmm": baddbmm,
        "broadcast_to": broadcast_to,
        "clone": clone,
        "cumsum": cumsum,
        "einsum": ops.einsum,
        "full": full,
        "full_like": full_like,
        "index_select": index_select,
        "linspace": linspace,
        "logsumexp": logsumexp,
        "norm": norm,
        "ones_like": ones_like,
        "outer": outer,
        "pow": power,
        "repeat_interleave": repeat_interleave,
        "roll": roll,
        "sort": sort,
        "stack": stack,
        "std": standard_deviation,
        "topk": topk,
        "tril": tril,
        "var": variance,
        "zeros_like": zeros_like,
    },
    mint.linalg: {"norm": norm, "vector_norm": norm},
    standard_method: {"expand": expand},  # of a graph
    _inner_ops: {"bit_xor": exclusive_or},  # of conditions, in a graph
    Tensor: {"clone": clone},
    F: {
        "adaptive_avg_pool1d": adaptive_avg_pool1d,
        "adaptive_avg_pool2d": adaptive_avg_pool2d,
        "avg_pool2d": avg_pool2d,
        "batch_norm": batch_norm,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
        "conv1d": conv1d,
        "conv2d": conv2d,
        "cross_entropy": cross_entropy,
        "dropout": dropout,
        "elu": elu,
        "embedding": embedding,
        "gelu": gelu,
        "interpolate": interpolate,
        "l1_loss": l1_loss,
        "layer_norm": layer_norm,
        "leaky_relu": leaky_relu,
        "log_softmax": log_softmax,
        "logsigmoid": logsigmoid,
        "max_pool2d": max_pool2d,
        "mish": mish,
        "mse_loss": mse_loss,
        "normalize": normalize,
        "one_hot": one_hot,
        "pad": pad,
        "relu6": relu6,
        "smooth_l1_loss": smooth_l1_loss,
        "softplus": softplus,
    },
}
CELLS = {
    "AdaptiveAvgPool1d": construct_adaptive_avg_pool,
    "AdaptiveAvgPool2d": construct_adaptive_avg_pool,
    "AvgPool2d": construct_avg_pool,
    "BCEWithLogitsLoss": construct_binary_cross_entropy,
    "BatchNorm1d": construct_batch_norm_1d,
    "BatchNorm2d": construct_batch_norm,
    "Conv1d": construct_conv1d,
    "Conv2d": construct_conv2d,
    "CrossEntropyLoss": construct_cross_entropy,
    "Dropout": construct_dropout,
    "Embedding": construct_embedding,
    "GELU": construct_gelu,
    "GroupNorm": construct_group_norm,
    "LayerNorm": construct_layer_norm,
    "LogSoftmax": construct_log_softmax,
    "MSELoss": construct_mse,
    "MaxPool2d": construct_max_pool,
    "ReLU6": construct_relu6,
}


def substitute() -> None:
    for module, functions in FUNCTIONS.items():
        for name, function in functions.items():
            setattr(module, name, function)
    for name, construct in CELLS.items():
        getattr(mint.nn, name).construct = construct
    mint.nn.BCEWithLogitsLoss.__init__ = initialize_binary_cross_entropy
