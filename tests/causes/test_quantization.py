"""Fake quantization: the quantizer is read from the values, recorded or not."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.causes.quantizer_fit import fit_quantizer
from dumpdiff.causes.region import Region
from dumpdiff.model.arrays import AnyArray

from .fault_cases import explain_fault_case, make_fault_case
from .test_composites import explain_region, make_region

RNG = np.random.default_rng(3)
X = RNG.standard_normal((24, 32)).astype(np.float32).astype(np.float64)
ROW_SCALES = np.abs(X).max(axis=1, keepdims=True) / 127
WEIGHT = RNG.standard_normal((32, 32)) / 6


def quantize(
    x: AnyArray,
    scale: float | AnyArray = 0.02,
    zero_point: int = 100,
    low: int = 0,
    high: int = 255,
    rounding: np.ufunc = np.rint,
) -> AnyArray:
    steps = np.clip(rounding(x / scale) + zero_point, low, high)
    return (steps - zero_point) * scale


def quantize_rows(scales: AnyArray, **options: object) -> AnyArray:
    return quantize(X, scales, 0, -127, 127, **options)  # type: ignore[arg-type]


def explain(faulty: AnyArray, faithful: AnyArray) -> tuple[str, str]:
    """Return (cause, sentence without place and residual)."""
    causes = explain_fault_case(make_fault_case(faulty, faithful, {"x": X}, scope="act"))
    text = causes[0].text.removeprefix("act behaves as ").partition("; residual")[0]
    return causes[0].name, text


def test_quantizer_is_read_from_its_values() -> None:
    quantizer = fit_quantizer(X, quantize(X))
    assert quantizer is not None
    assert float(quantizer.scale) == pytest.approx(0.02, rel=1e-9)
    assert (quantizer.low, quantizer.high, quantizer.rounding) == (-100, 155, "round")
    assert fit_quantizer(X, np.tanh(X)) is None


def test_scale_of_each_row_is_read_from_its_values() -> None:
    quantizer = fit_quantizer(X, quantize_rows(ROW_SCALES))
    assert quantizer is not None
    assert quantizer.axis == 0
    np.testing.assert_allclose(quantizer.scale, ROW_SCALES, rtol=1e-6)


@pytest.mark.parametrize(
    ("faulty", "cause", "said"),
    [
        (quantize(X, zero_point=101), "zero-point", "a zero point shifted by 1"),
        (quantize(X, 0.0202), "quantization-scale", "a quantization scale 1.01 times the other"),
        (
            quantize(X, rounding=np.floor),
            "rounding-mode",
            "steps rounded down (floor); the reference has steps rounded to the nearest step",
        ),
        (
            X,
            "quantization-missing",
            "values that are not quantized; the reference quantizes them (scale 0.02, 256 levels, "
            "from -100 to 155 steps)",
        ),
    ],
)
def test_activation(faulty: AnyArray, cause: str, said: str) -> None:
    assert explain(faulty, quantize(X)) == (cause, said)


def test_half_of_the_levels() -> None:
    faulty, faithful = quantize(X, 0.01, 128), quantize(X, 0.01, 64, 0, 127)
    assert explain(faulty, faithful) == (
        "quantization-range",
        "256 levels, from -128 to 127 steps; the reference has 128 levels, from -64 to 63 steps",
    )


def test_one_scale_for_all_rows() -> None:
    assert explain(quantize_rows(ROW_SCALES.max()), quantize_rows(ROW_SCALES)) == (
        "quantization-scale",
        "one scale for the whole tensor; the reference has one scale per row (axis 0)",
    )


def make_quantized_layer() -> Region:
    """Return the region of a quantizer that is written out, and a linear layer."""
    return make_region(
        [
            ("div", [("x", X), ("scale", 0.02)]),
            ("round", [("last", 0)]),
            ("maximum", [("last", 0), ("low", -100.0)]),
            ("minimum", [("last", 0), ("high", 155.0)]),
            ("mul", [("last", 0), ("scale", 0.02)]),
            ("matmul", [("last", 0), ("w.weight", WEIGHT)]),
        ]
    )


@pytest.mark.parametrize(
    ("faulty", "cause", "said"),
    [
        (X, "quantization-missing", "values that are not quantized"),
        (quantize(X, zero_point=101), "zero-point", "a zero point shifted by 1"),
        (quantize(X, rounding=np.floor), "rounding-mode", "steps rounded down (floor)"),
    ],
)
def test_quantizer_before_a_linear_layer(faulty: AnyArray, cause: str, said: str) -> None:
    found_cause, text = explain_region(make_quantized_layer(), faulty @ WEIGHT.T)
    assert found_cause == cause
    assert text.startswith(said)


def test_quantized_steps_that_are_not_clipped() -> None:
    steps = np.rint(X / 0.02)
    region = make_region(
        [("minimum", [("x", steps), ("high", 127.0)]), ("mul", [("last", 0), ("s", 0.02)])]
    )
    assert explain_region(region, steps * 0.02) == (
        "quantization-range",
        f"quantized steps that are not clipped ({steps.min():g} ... {steps.max():g}); "
        f"the reference clips them to {steps.min():g} ... 127",
    )


def test_scales_of_rows_used_for_columns() -> None:
    square = X[:, :24]
    region = make_region([("div", [("x", square), ("s", ROW_SCALES)]), ("round", [("last", 0)])])
    assert explain_region(region, np.rint(square / ROW_SCALES.T)) == (
        "quantization-axis",
        "the numbers of div_0 (div) along axis 1; the reference has them along axis 0",
    )
