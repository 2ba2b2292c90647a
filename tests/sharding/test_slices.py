"""Along which axis, and in which order, shards are the whole tensor."""

import numpy as np
import pytest

from dumpdiff.sharding.slices import Assembly, find_assembly

WHOLE = np.random.default_rng(0).standard_normal((8, 3, 12)).astype(np.float32)


@pytest.mark.parametrize(("axis", "n_shards"), [(0, 2), (2, 2), (2, 4)])
def test_contiguous_shards(axis: int, n_shards: int) -> None:
    shards = np.split(WHOLE, n_shards, axis)
    assert find_assembly(shards, WHOLE, is_narrow=False) == Assembly(axis)


def test_gate_and_up_of_each_rank_are_blocks() -> None:
    gate, up = np.split(WHOLE, 2, axis=2)
    shards = [
        np.concatenate([np.split(gate, 2, 2)[rank], np.split(up, 2, 2)[rank]], axis=2)
        for rank in range(2)
    ]
    assembly = find_assembly(shards, WHOLE, is_narrow=False)
    assert assembly is not None
    assert assembly.axis == 2
    assert assembly.order == (0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11)
    assert np.array_equal(assembly.join(shards), WHOLE)


def test_zigzag_of_context_parallel_ranks() -> None:
    """Rank 0 has the first and the last quarter of the sequence."""
    quarters = np.split(WHOLE, 4, axis=0)
    shards = [
        np.concatenate([quarters[0], quarters[3]]),
        np.concatenate([quarters[1], quarters[2]]),
    ]
    assembly = find_assembly(shards, WHOLE, is_narrow=False)
    assert assembly is not None
    assert assembly.order == (0, 1, 4, 5, 6, 7, 2, 3)


def test_grid_of_tensor_and_data_parallel_ranks() -> None:
    """Ranks 0 and 1 have the shards of the first slice of the batch."""
    slices = np.split(WHOLE, 2, axis=0)
    shards = [shard for batch in slices for shard in np.split(batch, 2, axis=2)]
    assembly = find_assembly(shards, WHOLE, is_narrow=False)
    assert assembly is not None
    assert np.array_equal(assembly.join(shards), WHOLE)


def test_axes_of_the_whole_tensor_may_be_permuted() -> None:
    shards = np.split(WHOLE, 2, axis=2)
    assembly = find_assembly(shards, WHOLE.transpose(1, 0, 2), is_narrow=False)
    assert assembly == Assembly(2)


def test_square_shards_of_a_transposed_weight() -> None:
    """Reshaped, the whole has the shape of shards joined on the wrong axis."""
    weight = np.random.default_rng(1).standard_normal((12, 3)).astype(np.float32)
    shards = [shard.T for shard in np.split(weight, 4, axis=0)]
    assert find_assembly(shards, weight.T, is_narrow=False) == Assembly(1)


def test_other_numbers_are_no_shards() -> None:
    shards = np.split(WHOLE, 2, axis=2)
    shards[1] = shards[1] * 1.05
    assert find_assembly(shards, WHOLE, is_narrow=False) is None
