"""Tensors of PyTorch by their memory: measured once, with the numbers that each would have."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.model.sketches import N_STATISTICS, measure_array
from dumpdiff.recorder.recording import Recording

torch = pytest.importorskip("torch")

from dumpdiff.recorder.pytorch.tensors import TensorIndex, to_array  # noqa: E402


@pytest.fixture
def index(tmp_path: Path) -> TensorIndex:
    return TensorIndex(Recording(tmp_path, "pytorch", 0, 0, {}), lambda _: False)


def test_every_view_has_the_numbers_that_it_would_have_alone(index: TensorIndex) -> None:
    memory = torch.arange(6000.0).reshape(3, 40, 50)
    views = [
        memory,
        memory.view(120, 50),
        memory.permute(1, 0, 2),
        memory[1],
        memory[1].view(2000),
        memory[1].t(),
        memory[1:],
        memory[:, :20],
        memory[1].view(torch.int32),
        memory[1].view(torch.int32).t(),
        memory[2].t(),
        memory[2],
        memory[2].t().unsqueeze(0),
        memory[0].expand(4, 40, 50),
    ]
    added = {index.add(view): view for view in views}
    assert len(added) == len(views)
    numbers = index.recording.measurements.finish()
    for number, view in added.items():
        expected = measure_array(view.numpy())[: len(numbers[number])]
        assert numbers[number] == pytest.approx(expected, rel=1e-6)
    assert sum(len(values) == N_STATISTICS for values in numbers.values()) == 4


def test_memory_that_an_operator_wrote_to_is_measured_again(index: TensorIndex) -> None:
    memory = torch.zeros(4, 5)
    old_numbers = [index.add(memory), index.add(memory[1:])]
    memory[1].fill_(3)
    index.forget(memory[1])
    new_numbers = [index.add(memory), index.add(memory[1:])]
    assert not {*old_numbers} & {*new_numbers}
    numbers = index.recording.measurements.finish()
    assert [numbers[number][0] for number in old_numbers] == [0, 0]
    assert [numbers[number][0] for number in new_numbers] == [3, 3]


def test_measured_tensors_are_not_kept_alive(index: TensorIndex) -> None:
    for size in (10, 100_000):
        tensor = torch.ones(size)
        index.add(tensor)
        reference = weakref.ref(tensor)
        is_freed = weakref.ref(tensor.untyped_storage())
        del tensor
        gc.collect()
        assert reference() is None
        assert is_freed() is None
    numbers = index.recording.measurements.finish()
    assert np.array([values[0] for values in numbers.values()]).tolist() == [1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(8)[3:],
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.ones(3, requires_grad=True),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.float16),
    ],
)
def test_to_read_a_tensor_leaves_its_memory_as_it_was(tensor: torch.Tensor) -> None:
    assert to_array(tensor).tolist() == tensor.tolist()
    assert tensor.untyped_storage().resizable()  # as FSDP needs it
