"""Pooling of windows, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dumpdiff.operators.pooling import (
    PoolingSettings,
    bound_maximum_gradient,
    list_pooling_settings,
    pool,
)

X = np.random.default_rng(2).standard_normal((2, 3, 9, 9))


@pytest.mark.parametrize("settings", [PoolingSettings(3, 2, (1, 1)), PoolingSettings(2, 2, (0, 0))])
def test_the_maximum_of_windows_is_that_of_pytorch(settings: PoolingSettings) -> None:
    expected = F.max_pool2d(
        torch.from_numpy(X), settings.window, settings.stride, settings.padding[0]
    ).numpy()
    assert np.array_equal(pool(X, "max_pool", settings), expected)
    assert settings in list(list_pooling_settings(X.shape, expected.shape))


@pytest.mark.parametrize("counts_padding", [True, False])
def test_the_mean_of_windows_counts_padding_or_not(counts_padding: bool) -> None:
    expected = F.avg_pool2d(torch.from_numpy(X), 3, 2, 1, count_include_pad=counts_padding).numpy()
    mean = pool(X, "avg_pool", PoolingSettings(3, 2, (1, 1), counts_padding))
    assert np.abs(mean - expected).max() < 1e-14


@pytest.mark.parametrize("counts_padding", [True, False])
def test_windows_may_go_beyond_the_end(counts_padding: bool) -> None:
    x = X[..., :8, :8]
    tensor = torch.from_numpy(x)
    largest = F.max_pool2d(tensor, 3, 2, 0, ceil_mode=True).numpy()
    settings = PoolingSettings(3, 2, (0, 1), counts_padding)
    listed = list(list_pooling_settings(x.shape, largest.shape))
    assert settings in listed
    assert PoolingSettings(3, 2, (1, 1)) in listed
    assert np.array_equal(pool(x, "max_pool", settings), largest)


def test_padding_that_no_window_reads_is_left_out() -> None:
    first = next(list_pooling_settings((1, 1, 8, 8), (1, 1, 4, 4)))
    assert first == PoolingSettings(2, 2, (0, 0))
    for settings in list_pooling_settings((1, 1, 8, 8), (1, 1, 3, 3)):
        before, after = settings.padding
        assert before == after or settings.stride * 2 + settings.window == 8 + before + after


def test_the_gradient_of_a_maximum_is_within_its_bounds() -> None:
    images = np.maximum(X, 0)  # many windows have several largest elements
    x = torch.tensor(images, requires_grad=True)
    y = F.max_pool2d(x, 3, 2, 1)
    gradient = np.random.default_rng(4).standard_normal(y.shape)
    y.backward(torch.from_numpy(gradient))
    assert x.grad is not None
    low, high = bound_maximum_gradient(images, gradient, PoolingSettings(3, 2, (1, 1)), 1e-9)
    assert (low <= x.grad.numpy() + 1e-12).all()
    assert (x.grad.numpy() <= high + 1e-12).all()
    is_certain = low == high
    assert 0.3 < is_certain.mean() < 1
    assert np.abs(low - x.grad.numpy())[is_certain].max() < 1e-12


def test_images_as_volumes_of_one_layer_are_images() -> None:
    volumes = X[:, :, None]
    settings = PoolingSettings(3, 3, (0, 0))
    assert settings in list(list_pooling_settings(volumes.shape, (2, 3, 1, 3, 3)))
    assert np.array_equal(pool(volumes, "max_pool", settings), pool(X, "max_pool", settings))


def test_settings_have_words() -> None:
    assert str(PoolingSettings(3, 2, (1, 1), counts_padding=False)) == (
        "windows of 3, stride 2, padding 1 that is not counted"
    )
    assert str(PoolingSettings(3, 2, (0, 1))) == "windows of 3, stride 2, padding (0, 1)"
