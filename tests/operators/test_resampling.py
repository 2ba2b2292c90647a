"""Interpolation gives what PyTorch gives, whose options the readings are."""

import numpy as np
import pytest

from dumpdiff.operators.call import make_call
from dumpdiff.operators.resampling import compute_resampling

torch = pytest.importorskip("torch")

SHAPE = (2, 3, 7, 9)
#: name of a reading -> options of ``torch.nn.functional.interpolate``
WAYS = {
    "nearest": {"mode": "nearest"},
    "nearest of the centers": {"mode": "nearest-exact"},
    "bilinear": {"mode": "bilinear"},
    "bilinear with aligned corners": {"mode": "bilinear", "align_corners": True},
    "bilinear with antialiasing": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "bicubic with aligned corners": {"mode": "bicubic", "align_corners": True},
    "bicubic with antialiasing": {"mode": "bicubic", "antialias": True},
}


@pytest.mark.parametrize("size", [(13, 20), (4, 5), (14, 18)])
@pytest.mark.parametrize("name", WAYS)
def test_a_reading_is_the_interpolation_of_its_name(name, size):
    x = np.random.default_rng(0).standard_normal(SHAPE)
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=size, **WAYS[name])
    call = make_call("upsample", [x], {}, output_shape=tuple(expected.shape))
    np.testing.assert_allclose(dict(compute_resampling(call))[name], expected, atol=1e-12)


def test_asymmetric_pixels_begin_at_the_first_one():
    x = np.arange(4.0).reshape(1, 1, 1, 4)
    call = make_call("upsample", [x], {}, output_shape=(1, 1, 1, 8))
    resized = dict(compute_resampling(call))["bilinear with asymmetric pixels"]
    np.testing.assert_allclose(resized.reshape(-1), [0, 0.5, 1, 1.5, 2, 2.5, 3, 3])
