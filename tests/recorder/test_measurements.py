"""Measurements: tensors that are measured together, or not again, have the numbers of their own."""

from __future__ import annotations

import numpy as np

from dumpdiff.model.sketches import CELLS, N_STATISTICS, measure_array
from dumpdiff.recorder.measurements import Measurements

SIZES = (1, 7, 64, 65, 256, 1000, CELLS, CELLS + 1)


def test_tensors_that_are_measured_together_have_the_numbers_that_each_has_alone() -> None:
    random = np.random.default_rng(0)
    arrays = [
        (10 * random.standard_normal(size)).astype(dtype)
        for dtype in (np.float32, np.float64, np.float16, np.int64, np.bool_)
        for size in SIZES * 3
    ]
    measurements = Measurements()
    for number, array in enumerate(arrays):
        measurements.add(number, array)
    numbers = measurements.finish()
    for number, array in enumerate(arrays):
        assert numbers[number].tolist() == measure_array(array).tolist()


def test_memory_that_is_written_to_afterwards_does_not_change_what_was_measured() -> None:
    array = np.ones(10, dtype=np.float32)
    measurements = Measurements()
    measurements.add(0, array)
    array[:] = 5
    assert measurements.finish()[0][0] == 1


def test_a_copy_has_the_numbers_of_its_source_and_without_its_order_the_statistics_alone() -> None:
    array = np.arange(6, dtype=np.float32)
    measurements = Measurements()
    measurements.add(0, array)
    measurements.copy(0, 1, has_sketch=True)
    measurements.copy(1, 2, has_sketch=False)
    numbers = measurements.finish()
    assert numbers[1].tolist() == measure_array(array).tolist()
    assert numbers[2].tolist() == measure_array(array)[:N_STATISTICS].tolist()


def test_nan_in_one_tensor_does_not_show_in_another_of_its_size() -> None:
    measurements = Measurements()
    measurements.add(0, np.array([1.0, np.nan, 2.0]))
    measurements.add(1, np.array([1.0, 3.0, 2.0]))
    numbers = measurements.finish()
    assert np.isnan(numbers[0][:N_STATISTICS]).all()
    assert np.isfinite(numbers[0][N_STATISTICS:]).all()
    assert numbers[1].tolist() == measure_array(np.array([1.0, 3.0, 2.0])).tolist()
