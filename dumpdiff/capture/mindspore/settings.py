"""A configuration as MindSpore interprets it: valid values, defaults and forced values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .target import Target

OVERFLOW, EXCEPTION = 3, 4  #: values of op_debug_mode
KERNELS, MARKED_CELLS = 1, 2  #: values of dump_mode


@dataclass(frozen=True)
class Settings:
    """The input of the rules. A field with an invalid value is not in it; it was reported."""

    target: Target
    common: Mapping[str, Any]
    e2e: Mapping[str, Any] | None  #: None: the file has no such section
    run_is_local: (
        bool  #: the training runs on this machine, so that its folders and environment count
    )
    invalid_names: frozenset[str] = frozenset()  #: fields that were left out
    #: full names of the network's operators and parameters, if known
    names: tuple[str, ...] | None = None

    @property
    def is_synchronous(self) -> bool:
        """Whether the program itself writes the dump; MindSpore calls this end to end."""
        if not self.target.on_ascend:
            return True
        if self.e2e is None:
            return False
        return self.target.version >= (2, 4) or self.e2e.get("enable") is True

    @property
    def saves_statistics(self) -> bool:
        """Whether statistics are saved."""
        return self.saved_data != "tensor"

    @property
    def saved_data(self) -> str:
        """'tensor', 'statistic' or 'full'."""
        return str(self.common.get("saved_data", "tensor"))

    @property
    def op_debug_mode(self) -> int:
        """0, or from 2.3 on :data:`OVERFLOW` (1 and 2 mean it too) or :data:`EXCEPTION`."""
        mode = int(self.common.get("op_debug_mode", 0))
        if self.target.version < (2, 3):
            return 0 if self.is_synchronous else mode
        if mode in (1, 2):
            return OVERFLOW
        return mode

    @property
    def dump_mode(self) -> int:
        """0, :data:`KERNELS` or :data:`MARKED_CELLS`, as written in the file."""
        return int(self.common.get("dump_mode", 0))

    @property
    def computes_on_device(self) -> bool:
        """Whether the file requests statistics that the device computes."""
        return self.e2e is not None and self.e2e.get("stat_calc_mode") == "device"

    @property
    def saves_samples(self) -> bool:
        """Whether the file requests only the head and the tail of tensors."""
        return self.e2e is not None and self.e2e.get("sample_mode") == 1
