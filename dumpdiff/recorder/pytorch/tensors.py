"""Numbers for the tensors of a step: the same memory with the same content is one tensor.

A tensor is known by its storage, the place in it, and how often operators wrote to the storage. So
what an operator reads is the tensor that an earlier operator wrote, and is measured once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.arrays import AnyArray
from ...model.dtypes import normalize_dtype
from ...model.sketches import N_STATISTICS, measure_array
from ..recording import Recording
from .device_numbers import measure_on_device

if TYPE_CHECKING:
    import torch

#: Dtypes that NumPy lacks, and that float32 holds exactly.
_NARROW_DTYPES = ("bfloat16", "float8")


@dataclass
class _Storage:
    """The memory of tensors, with what was recorded of it since it was last written to."""

    reference: Any  #: keeps the storage's address from being used again, not its memory
    views: dict[tuple[Any, ...], int] = field(default_factory=dict)
    #: (dtype, whether in the order of the memory) -> a tensor with each of its elements once
    wholes: dict[tuple[torch.dtype, bool], int] = field(default_factory=dict)


@dataclass
class TensorIndex:
    """The tensors of a recording by the memory that they are in."""

    recording: Recording
    is_whole_tensor: Callable[[int], bool]  #: whether the tensor of a number is also written whole
    #: (storage, place) -> name of the parameter that lies there
    parameters: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _storages: dict[int, _Storage] = field(default_factory=dict)
    #: measured on an accelerator and not yet copied from it
    _pending: dict[int, torch.Tensor] = field(default_factory=dict)

    def find(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor that was added, -1 if its content is new."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        return -1 if storage is None else storage.views.get(get_place(tensor), -1)

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor; measure and add it if its content is new."""
        number = self.find(tensor)
        if number >= 0:
            return number
        key = tensor.untyped_storage()._cdata
        storage = self._storages.get(key)
        if storage is None:
            from torch.multiprocessing.reductions import StorageWeakRef

            make_reference: Any = StorageWeakRef
            storage = self._storages[key] = _Storage(make_reference(tensor.untyped_storage()))
        dtype = normalize_dtype(str(tensor.dtype))
        number = self.recording.add_tensor(dtype, tuple(tensor.shape))
        place = get_place(tensor)
        storage.views[place] = number
        name = self.parameters.get((key, *place), "")
        if name:
            self.recording.tensors[number]["parameter"] = name
        if tensor.numel():
            self._measure(number, tensor, storage)
        return number

    def forget(self, tensor: torch.Tensor) -> None:
        """Note that an operator wrote to the memory of a tensor: its content is new."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            storage.views.clear()
            storage.wholes.clear()

    def fetch(self) -> None:
        """Copy what was measured on an accelerator."""
        if self._pending:
            import torch

            lengths = [len(values) for values in self._pending.values()]
            fetched = torch.cat(list(self._pending.values())).cpu().numpy()
            pieces = np.split(fetched, np.cumsum(lengths)[:-1])
            self.recording.numbers.update(zip(self._pending, pieces, strict=True))
            self._pending.clear()

    def _measure(self, number: int, tensor: torch.Tensor, storage: _Storage) -> None:
        is_whole = _covers_storage(tensor)
        order = (tensor.dtype, tensor.is_contiguous())
        source = storage.wholes.get(order, -1)
        if is_whole and source >= 0 and order[1]:
            self._copy_numbers(source, number, None)
        elif is_whole and storage.wholes and not order[1]:
            self._copy_numbers(next(iter(storage.wholes.values())), number, N_STATISTICS)
        elif tensor.device.type == "cpu":
            self.recording.numbers[number] = _measure_on_cpu(tensor)
        else:
            self._pending[number] = measure_on_device(tensor)
        if is_whole:
            storage.wholes.setdefault(order, number)
        if self.is_whole_tensor(number):
            self.recording.write_array(number, to_array(tensor))

    def _copy_numbers(self, source: int, number: int, count: int | None) -> None:
        """Give a tensor the numbers of one with the same elements; of another order, statistics."""
        if source in self._pending:
            self._pending[number] = self._pending[source][:count]
        else:
            self.recording.numbers[number] = self.recording.numbers[source][:count]


def get_place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the place of a tensor in its storage."""
    return (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def to_array(tensor: torch.Tensor) -> AnyArray:
    """Return the elements of a tensor as an array, float32 where NumPy has no such dtype."""
    tensor = tensor.detach()
    if str(tensor.dtype).removeprefix("torch.").startswith(_NARROW_DTYPES):
        tensor = tensor.float()
    array: AnyArray = tensor.cpu().resolve_conj().resolve_neg().numpy()
    return array


def _measure_on_cpu(tensor: torch.Tensor) -> AnyArray:
    array = to_array(tensor)
    if array.dtype.kind == "c":  # only magnitudes are compared
        return measure_array(np.abs(array))[:N_STATISTICS]
    return measure_array(array)


def _covers_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has each element of its storage once, in whatever order."""
    if tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes():
        return False
    extents = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected_stride = 1
    for stride, extent in extents:
        if extent == 1:
            continue
        if stride != expected_stride:
            return False
        expected_stride *= extent
    return expected_stride == math.prod(tensor.shape)
