"""Images at the places of a grid, next to PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.operators.call import make_call
from dumpdiff.operators.grid_sampling import compute_grid_sample, sample_grid


@pytest.mark.parametrize("has_aligned_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_images_are_read_as_pytorch_reads_them(
    mode: str, padding: str, has_aligned_corners: bool
) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    images = random.standard_normal((2, 3, 5, 7))
    grid = random.uniform(-2.5, 2.5, (2, 4, 6, 2))
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(images),
        torch.from_numpy(grid),
        mode=mode,
        padding_mode=padding,
        align_corners=has_aligned_corners,
    )
    result = sample_grid(
        images,
        grid,
        padding,
        has_aligned_corners=has_aligned_corners,
        is_nearest=mode == "nearest",
    )
    np.testing.assert_allclose(result, expected.numpy(), atol=1e-12)


def test_every_way_has_a_name_and_other_shapes_have_none() -> None:
    images, grid = np.ones((1, 2, 3, 4)), np.zeros((1, 5, 5, 2))
    ways = [name for name, _ in compute_grid_sample(make_call("grid_sample", (images, grid)))]
    assert len(set(ways)) == 12
    assert "bilinear, border with aligned corners" in ways
    assert not list(compute_grid_sample(make_call("grid_sample", (images[0], grid))))
