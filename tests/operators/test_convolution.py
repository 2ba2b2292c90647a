"""Convolutions, resampling and grouped norms against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.operators import compute_interpretations

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(3)


def find_interpretation(kind: str, inputs: list[object], expected: np.ndarray) -> str:
    """Return the name of the first interpretation that gives the expected output."""
    for name, output in compute_interpretations(kind, inputs, output_shape=expected.shape):
        if np.allclose(output, expected, atol=1e-12):
            return name
    return ""


@pytest.mark.parametrize(("channels", "groups", "options", "name"), [
    (4, 1, {"padding": 1}, "stride 1, padding 1, dilation 1"),
    (4, 2, {"stride": 2, "padding": 1}, "stride 2, padding 1, dilation 1"),
    (4, 4, {"padding": 2, "dilation": 2}, "stride 1, padding 2, dilation 2"),
])  # fmt: skip
def test_a_convolution_is_recognized_by_its_output(
    channels: int, groups: int, options: dict[str, int], name: str
) -> None:
    x, weight = (
        RNG.standard_normal((2, channels, 9, 9)),
        RNG.standard_normal((8, channels // groups, 3, 3)),
    )
    bias = RNG.standard_normal(8)
    expected = torch.nn.functional.conv2d(
        *map(torch.tensor, (x, weight, bias)), groups=groups, **options
    ).numpy()
    assert find_interpretation("convolution", [x, weight, bias], expected) == name


def test_a_causal_convolution_is_padded_on_the_left() -> None:
    x, weight = RNG.standard_normal((2, 6, 10)), RNG.standard_normal((6, 1, 4))
    padded = np.pad(x, ((0, 0), (0, 0), (3, 0)))
    expected = torch.nn.functional.conv1d(*map(torch.tensor, (padded, weight)), groups=6).numpy()
    name = find_interpretation("convolution", [x, weight], expected)
    assert name == "stride 1, padding (3, 0), dilation 1"


@pytest.mark.parametrize(("mode", "options", "name"), [
    ("nearest", {}, "nearest"),
    ("bilinear", {"align_corners": False}, "bilinear"),
    ("bilinear", {"align_corners": True}, "bilinear with aligned corners"),
])  # fmt: skip
def test_resampling_is_recognized(mode: str, options: dict[str, bool], name: str) -> None:
    x = RNG.standard_normal((2, 3, 4, 5))
    expected = torch.nn.functional.interpolate(torch.tensor(x), size=(8, 10), mode=mode, **options)
    assert find_interpretation("upsample", [x], expected.numpy()) == name


def test_the_groups_of_a_norm_are_recognized() -> None:
    x, weight, bias = (
        RNG.standard_normal((2, 8, 5, 5)),
        RNG.standard_normal(8),
        RNG.standard_normal(8),
    )
    expected = torch.nn.functional.group_norm(
        torch.tensor(x), 4, torch.tensor(weight), torch.tensor(bias)
    ).numpy()
    assert find_interpretation("group_norm", [x, weight, bias], expected) == "4 groups"


def test_padding_whose_end_no_window_reads_is_equal_on_both_ends() -> None:
    x, weight = RNG.standard_normal((1, 2, 8, 8)), RNG.standard_normal((2, 2, 3, 3))
    expected = torch.nn.functional.conv2d(
        torch.tensor(x), torch.tensor(weight), stride=2, padding=1
    ).numpy()
    name = find_interpretation("convolution", [x, weight], expected)
    assert name == "stride 2, padding 1, dilation 1"
