"""What the values of ranks make up together, and its statistics."""

import numpy as np

from dumpdiff.graph.statistics import compute_statistics
from dumpdiff.sharding.relation import add_parts, combine_statistics, join_parts


def measure(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (1, ranks, 4) statistics and (1, ranks) sizes."""
    statistics = [compute_statistics(part)[:4] for part in parts]
    return np.array([statistics]), np.array([[part.size for part in parts]])


def test_equal_values_are_one_part() -> None:
    assert join_parts((0, 0)).is_replicated
    assert join_parts((0, 1, 0, 1)).parts == ((0,), (1,))


def test_sums_of_tensor_parallel_ranks_in_data_parallel_groups() -> None:
    relation = add_parts((0, 1, 2, 3), (0, 0, 2, 2))
    assert relation is not None
    assert relation.parts == ((0, 1), (2, 3))


def test_equal_summands_are_taken_once() -> None:
    """Gradients of a replicated weight are the same on the tensor-parallel ranks."""
    relation = add_parts((0, 0, 2, 2), (0, 1, 0, 1))
    assert relation is not None
    assert relation.parts == ((0, 2),)


def test_one_value_is_no_sum() -> None:
    assert add_parts((0, 0), (0, 0)) is None


def test_statistics_of_a_concatenation() -> None:
    whole = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    statistics, sizes = measure([whole[:4], whole[4:]])
    combined, combined_sizes = combine_statistics(statistics, sizes, join_parts((0, 1)))
    assert combined_sizes.tolist() == [24]
    assert np.allclose(combined[0], compute_statistics(whole)[:4], rtol=1e-6)


def test_statistics_do_not_tell_the_extremes_of_a_sum() -> None:
    first, second = np.array([1.0, -2.0]), np.array([3.0, 5.0])
    relation = add_parts((0, 1), (0, 0))
    assert relation is not None
    combined, sizes = combine_statistics(*measure([first, second]), relation)
    assert sizes.tolist() == [2]
    assert combined[0, 2] == 3.5
    assert np.isnan(combined[0, [0, 1, 3]]).all()


def test_single_numbers_are_added_up() -> None:
    relation = add_parts((0, 1), (0, 0), 0.5)
    assert relation is not None
    combined, _ = combine_statistics(*measure([np.array([4.0]), np.array([2.0])]), relation)
    assert combined[0].tolist() == [3.0, 3.0, 3.0, 3.0]
