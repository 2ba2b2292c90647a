"""Numbers for the tensors of a step: the same memory with the same content is one tensor.

A tensor is known by its storage, the place in it, and how often operators wrote to the storage. So
what an operator reads is the tensor that an earlier operator wrote, and is measured once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model.arrays import AnyArray
from ...model.dtypes import normalize_dtype
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
    #: (offset, elements, dtype) -> the first tensor with each element of that memory once: its
    #: number, and whether they are in the order of the memory
    dense_views: dict[tuple[int, int, torch.dtype], dict[bool, int]] = field(default_factory=dict)


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
        memory = tensor.untyped_storage()
        key, place = memory._cdata, get_place(tensor)
        storage = self._storages.get(key)
        if storage is not None:
            known_number = storage.views.get(place)
            if known_number is not None:
                return known_number
        else:
            from torch.multiprocessing.reductions import StorageWeakRef

            make_reference: Any = StorageWeakRef
            storage = self._storages[key] = _Storage(make_reference(memory))
        dtype = normalize_dtype(str(tensor.dtype))
        number = self.recording.add_tensor(dtype, tuple(tensor.shape))
        storage.views[place] = number
        name = self.parameters.get((key, *place), "")
        if name:
            self.recording.tensors[number]["parameter"] = name
        if tensor.numel() and memory.nbytes():  # FSDP frees the memory of tensors that live on
            self._measure(number, tensor, storage)
        return number

    def forget(self, tensor: torch.Tensor) -> None:
        """Note that an operator wrote to the memory of a tensor: its content is new."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            storage.views.clear()
            storage.dense_views.clear()

    def fetch(self) -> None:
        """Copy what was measured on an accelerator."""
        if self._pending:
            import torch

            lengths = [len(values) for values in self._pending.values()]
            fetched = torch.cat(list(self._pending.values())).cpu().numpy()
            pieces = np.split(fetched, np.cumsum(lengths)[:-1])
            self.recording.measurements.numbers.update(zip(self._pending, pieces, strict=True))
            self._pending.clear()

    def _measure(self, number: int, tensor: torch.Tensor, storage: _Storage) -> None:
        """Measure a tensor, unless its memory was measured as another view of it.

        A view in another order has the statistics of the memory, but another sketch.
        """
        in_order = tensor.is_contiguous()
        dense_views: dict[bool, int] = {}
        if in_order or _is_dense(tensor):
            memory = (int(tensor.storage_offset()), tensor.numel(), tensor.dtype)
            dense_views = storage.dense_views.setdefault(memory, dense_views)
        measurements = self.recording.measurements
        if in_order and True in dense_views:
            measurements.copy(dense_views[True], number, has_sketch=True)
        elif dense_views and not in_order:
            measurements.copy(next(iter(dense_views.values())), number, has_sketch=False)
        elif tensor.device.type == "cpu":
            measurements.add(number, to_array(tensor))
        else:
            self._pending[number] = measure_on_device(tensor)
        dense_views.setdefault(in_order, number)
        if self.is_whole_tensor(number):
            self.recording.write_array(number, to_array(tensor))


def get_place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the place of a tensor in its storage."""
    return (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def to_array(tensor: torch.Tensor) -> AnyArray:
    """Return the elements of a tensor as an array, float32 where NumPy has no such dtype.

    The array may be the memory of the tensor: use it while the tensor lives. ``Tensor.numpy`` of
    the user's tensor would forbid its memory to be resized, as FSDP does.
    """
    user_tensor = tensor.detach()
    dtype = str(tensor.dtype).removeprefix("torch.")
    own_tensor = user_tensor.float() if dtype.startswith(_NARROW_DTYPES) else user_tensor
    own_tensor = own_tensor.cpu().resolve_conj().resolve_neg().contiguous()
    address = own_tensor.data_ptr()
    if own_tensor is not user_tensor or not address:
        array: AnyArray = own_tensor.numpy()
        return array
    memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(address)
    elements: AnyArray = np.frombuffer(memoryview(memory), dtype)
    return elements.reshape(tensor.shape)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has each element of a piece of memory once, in whatever order."""
    expected_stride = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent == 1:
            continue
        if stride != expected_stride:
            return False
        expected_stride *= extent
    return True
