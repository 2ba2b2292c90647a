"""Pooling of windows, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dumpdiff.operators.pooling import PoolingSettings, list_pooling_settings, pool

X = np.random.default_rng(2).standard_normal((2, 3, 9, 9))


@pytest.mark.parametrize("settings", [PoolingSettings(3, 2, 1), PoolingSettings(2, 2, 0)])
def test_the_maximum_of_windows_is_that_of_pytorch(settings: PoolingSettings) -> None:
    expected = F.max_pool2d(
        torch.from_numpy(X), settings.window, settings.stride, settings.padding
    ).numpy()
    assert np.array_equal(pool(X, "max_pool", settings), expected)
    assert settings in list(list_pooling_settings(X.shape, expected.shape))


@pytest.mark.parametrize("counts_padding", [True, False])
def test_the_mean_of_windows_counts_padding_or_not(counts_padding: bool) -> None:
    expected = F.avg_pool2d(torch.from_numpy(X), 3, 2, 1, count_include_pad=counts_padding).numpy()
    mean = pool(X, "avg_pool", PoolingSettings(3, 2, 1, counts_padding))
    assert np.abs(mean - expected).max() < 1e-14


def test_images_as_volumes_of_one_layer_are_images() -> None:
    volumes = X[:, :, None]
    settings = PoolingSettings(3, 3, 0)
    assert settings in list(list_pooling_settings(volumes.shape, (2, 3, 1, 3, 3)))
    assert np.array_equal(pool(volumes, "max_pool", settings), pool(X, "max_pool", settings))


def test_settings_have_words() -> None:
    assert str(PoolingSettings(3, 2, 1, counts_padding=False)) == (
        "windows of 3, stride 2, padding 1 that is not counted"
    )
