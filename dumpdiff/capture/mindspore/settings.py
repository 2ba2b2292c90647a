"""A configuration as MindSpore takes it: sound values only, defaults and forced values put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .target import Target

OVERFLOW, EXCEPTION = 3, 4  #: values of op_debug_mode
KERNELS, MARKED_CELLS = 1, 2  #: values of dump_mode


@dataclass(frozen=True)
class Settings:
    """What the rules look at. A field whose value is unsound is reported once, and left out here."""

    target: Target
    common: Mapping[str, Any]
    e2e: Mapping[str, Any] | None  #: None: the file has no such section
    run_is_local: bool  #: the training will run on this machine
    invalid_names: frozenset[str] = frozenset()  #: names of the fields left out
    names: tuple[str, ...] | None = (
        None  #: full names of the network's operators and parameters, if known
    )

    @property
    def is_synchronous(self) -> bool:
        """Whether the program itself writes the dump, which MindSpore calls end to end."""
        if not self.target.on_ascend:
            return True
        return self.e2e is not None and (
            self.target.version >= (2, 4) or self.e2e.get("enable") is True
        )

    @property
    def saves_statistics(self) -> bool:
        """Whether statistics are to be saved."""
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
        return OVERFLOW if mode in (1, 2) else mode

    @property
    def dump_mode(self) -> int:
        """0, :data:`KERNELS` or :data:`MARKED_CELLS`, as the file says it."""
        return int(self.common.get("dump_mode", 0))

    @property
    def computes_on_device(self) -> bool:
        """Whether the file asks for statistics to be computed on the device."""
        return self.e2e is not None and self.e2e.get("stat_calc_mode") == "device"

    @property
    def saves_samples(self) -> bool:
        """Whether the file asks for the head and the tail of tensors only."""
        return self.e2e is not None and self.e2e.get("sample_mode") == 1
