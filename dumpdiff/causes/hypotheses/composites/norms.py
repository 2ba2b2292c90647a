"""Another norm: over other axes or groups, without its mean, or without its weight and bias."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ....model.arrays import AnyArray, Floats
from ...fault_case import FaultCase, compute_residual
from ...region import Region, Step, StepInput
from .change import Change, list_floating_inputs
from .fitted_numbers import fit_output

#: Numbers of groups that are tried, at most.
_MAX_GROUP_COUNTS = 12
_LARGEST_EPS, _DEFAULT_EPS = 0.5, 1e-5
#: Share of the recorded epsilon below which a fitted one is none.
_ZERO_EPS = 1e-3
#: Tolerances within which a norm gives a recorded output.
_TOLERANCES = 4
#: Fewest rows that show that a value is a norm of another, and relative L2 that is rounding.
_MIN_NORM_ROWS, _EQUAL_DISTANCE = 8, 1e-3
_KINDS = {"group_norm", "instance_norm", "batch_norm", "layer_norm", "rms_norm"}
_GROUPED_KINDS = {"group norm", "instance norm"}
#: Norms of the vector of each token or pixel: an RMS norm may take their place.
_ONE_AXIS_NAMES = {"layer norm", "channel norm"}


@dataclass(frozen=True)
class _Form:
    """Over which elements of (batch, channels, ...) a norm takes its mean and variance."""

    name: str  #: group norm, layer norm, ...
    text: str  #: with its number of groups or its axes
    n_groups: int = 0  #: of the channels, for each image; 0 if ``axes`` are given
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class _Norm:
    """The norm that a step computes; weight and bias are ready to broadcast."""

    form: _Form
    x: AnyArray
    weight: AnyArray
    bias: AnyArray
    eps: float

    def compute(
        self,
        form: _Form,
        *,
        is_centered: bool = True,
        is_biased: bool = True,
        weight: AnyArray | None = None,
        bias: AnyArray | None = None,
    ) -> Floats:
        """Return the output over other elements; without mean, with n - 1, other weight or bias."""
        rows = self.x.reshape(self.x.shape[0], form.n_groups, -1) if form.n_groups else self.x
        axes = (-1,) if form.n_groups else form.axes
        centered = rows - rows.mean(axis=axes, keepdims=True) if is_centered else rows
        variance = np.mean(centered * centered, axis=axes, keepdims=True)
        if not is_biased:
            n_elements = rows.size // variance.size
            variance = variance * n_elements / max(n_elements - 1, 1)
        normalized = (centered / np.sqrt(variance + self.eps)).reshape(self.x.shape)
        used_weight = self.weight if weight is None else weight
        result: Floats = normalized * used_weight + (self.bias if bias is None else bias)
        return result


def list_norms(case: FaultCase, region: Region) -> Iterator[Change]:
    """Normalize over other elements, without the mean, or without weight or bias."""
    for number, step in enumerate(region.steps):
        norm = _read_norm(step, _TOLERANCES * case.tolerance)
        if norm is None:
            continue
        own = f"has {norm.form.text}"
        for form in _list_forms(norm.x.shape):
            if form == norm.form:
                continue
            is_grouped = {form.name, norm.form.name} <= _GROUPED_KINDS
            cause = "norm-groups" if is_grouped else "norm-kind"
            yield Change(number, norm.compute(form), cause, form.text, own)
        zero, one = np.zeros(()), np.ones(())
        for form in _list_forms(norm.x.shape):
            if form == norm.form or form.name not in _ONE_AXIS_NAMES:
                continue
            text = f"RMS norm over axis {form.axes[0]}"
            output = norm.compute(form, is_centered=False)
            yield Change(number, output, "norm-kind", text, own)
            output = norm.compute(form, is_centered=False, bias=zero)
            yield Change(number, output, "norm-kind", f"{text}, without bias", own)
        for weight, bias, cause, text in (
            (one, zero, "affine-missing", f"{norm.form.text} without weight and bias"),
            (one, None, "affine-missing", f"{norm.form.text} without its weight"),
            (None, zero, "bias-missing", f"{norm.form.text} without its bias"),
        ):
            yield Change(number, norm.compute(norm.form, weight=weight, bias=bias), cause, text)
        rms_text = f"{norm.form.text} without its mean (RMS norm)"
        output = norm.compute(norm.form, is_centered=False)
        yield Change(number, output, "norm-kind", rms_text, "subtracts the mean")
        output = norm.compute(norm.form, is_biased=False)
        text = f"{norm.form.text} with the unbiased variance (n - 1)"
        yield Change(number, output, "biased-variance", text, "divides by n")


def list_epsilons(case: FaultCase, region: Region) -> Iterator[Change]:
    """Give a norm the best epsilon, 0 included, also if it records none."""
    for number, step in enumerate(region.steps):
        if step.kind not in _KINDS:
            continue
        compute = partial(_compute_with_eps, step)
        recorded = _read_eps(step)
        fitted = fit_output(case, region, number, compute, recorded)
        if fitted is None or fitted >= _LARGEST_EPS:
            continue
        eps = fitted if fitted > _ZERO_EPS * recorded else 0.0
        text, contrast = f"epsilon = {eps:.2g}", f"uses {recorded:.2g}"
        yield Change(number, compute(eps), "epsilon", text, contrast, {"epsilon": eps})


def _compute_with_eps(step: Step, eps: float) -> AnyArray:
    """Return a step's output with another epsilon; the recorded one if it does not fit."""
    keywords = {**step.keywords, "eps": np.asarray(eps)}
    output = replace(step, keywords=keywords).compute(step.list_arrays())
    return step.output if output is None else output


def _read_norm(step: Step, max_distance: float) -> _Norm | None:
    """Return the norm that gives the recorded output of a step; None if none does."""
    tensors = [step_input.array for _, step_input in list_floating_inputs(step)]
    if step.kind not in _KINDS or not tensors:
        return None
    x = tensors[0]
    if x.ndim < 2 or x.shape != step.output.shape:
        return None
    eps = _read_eps(step)
    for form in _list_forms(x.shape):
        n_channels = x.shape[-1] if form.axes == (x.ndim - 1,) else x.shape[1]
        vectors = [tensor for tensor in tensors[1:] if tensor.shape == (n_channels,)]
        # weight and bias, and for PyTorch's batch norm the running statistics before them
        for weight, bias in zip(vectors[::2], vectors[1::2], strict=False):
            norm = _Norm(form, x, _spread(weight, x, form), _spread(bias, x, form), eps)
            if compute_residual(norm.compute(form), step.output) <= max_distance:
                return norm
        if not vectors:
            norm = _Norm(form, x, np.ones(()), np.zeros(()), eps)
            if compute_residual(norm.compute(form), step.output) <= max_distance:
                return norm
    return None


def _spread(vector: AnyArray, x: AnyArray, form: _Form) -> AnyArray:
    """Return a vector of the last axis or of the channels, ready to multiply."""
    if form.axes == (x.ndim - 1,) or (form.name == "whole norm" and len(vector) == x.shape[-1]):
        return vector
    return vector.reshape(-1, *[1] * (x.ndim - 2))


def _read_eps(step: Step) -> float:
    keywords: Mapping[str, AnyArray] = step.keywords
    for name in ("eps", "epsilon"):
        if name in keywords:
            return float(keywords[name].reshape(-1)[0])
    numbers = [float(item.array) for item in step.inputs if not item.array.ndim]
    return min((n for n in numbers if 0 < n < _LARGEST_EPS), default=_DEFAULT_EPS)


def _list_forms(shape: tuple[int, ...]) -> list[_Form]:
    """Return the norms of a tensor (batch, channels, ...) or (..., size)."""
    last_axis = len(shape) - 1
    layer = _Form("layer norm", f"layer norm over axis {last_axis}", axes=(last_axis,))
    counts = [n for n in range(1, shape[1]) if shape[1] % n == 0][:_MAX_GROUP_COUNTS]
    groups = [_Form("group norm", f"group norm with {n} groups", n_groups=n) for n in counts]
    whole = _Form("whole norm", "a norm over all axes", axes=tuple(range(len(shape))))
    if len(shape) < 3:
        return [layer, _Form("batch norm", "batch norm over axis 0", axes=(0,)), *groups[1:], whole]
    image_axes = tuple(range(2, len(shape)))
    return [
        _Form("instance norm", f"instance norm ({shape[1]} groups)", n_groups=shape[1]),
        _Form("batch norm", "batch norm (over batch and pixels)", axes=(0, *image_axes)),
        _Form("channel norm", "layer norm over the channels of each pixel", axes=(1,)),
        layer,
        *groups,
        whole,
    ]


def is_norm_of(step_input: StepInput, array: AnyArray) -> bool:
    """Return whether an input is a norm of an array over its last axis, times a weight or plus one.

    Each column is fitted as a multiple of the normalized array plus a number.
    """
    output = step_input.array
    if not step_input.producer_kind or array.shape != output.shape:
        return False
    width = array.shape[-1] if array.ndim > 1 else 0
    if not width or array.size // width < _MIN_NORM_ROWS:
        return False
    rows, expected = array.reshape(-1, width), output.reshape(-1, width)
    for center in (0.0, rows.mean(axis=1, keepdims=True)):
        centered = rows - center
        with np.errstate(all="ignore"):
            normalized = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True))
        columns = normalized - normalized.mean(axis=0)
        with np.errstate(all="ignore"):
            slopes = (columns * expected).sum(axis=0) / (columns**2).sum(axis=0)
        fitted = expected.mean(axis=0) + slopes * columns
        if compute_residual(fitted, expected) <= _EQUAL_DISTANCE:
            return True
    return False
