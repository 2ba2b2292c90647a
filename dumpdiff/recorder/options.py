"""What is recorded, as the user chose it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import __version__
from ..model.errors import DumpError
from ..model.output_files import check_output_folder
from .recording import Recording
from .request import RecordRequest

#: Environment variables with the number of this process, as launchers set them.
_RANK_VARIABLES = ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK")


@dataclass(frozen=True)
class RecordOptions:
    """What is recorded, and where to."""

    folder: Path
    has_whole_tensors: bool = False  #: also whole tensors, not only statistics and sketches
    steps: Collection[int] | None = None  #: None: all
    ranks: Collection[int] | None = None
    modules: Sequence[str] = ()  #: names of modules, with all in them; all if empty
    requested_tensors: Collection[int] = ()  #: numbers of tensors that are also written whole

    def check_folder(self) -> None:
        """Raise DumpError if the folder cannot be made, or holds a recording of this rank."""
        check_output_folder(self.folder, [])
        for manifest in self.folder.glob(f"step*/rank{get_rank()}/manifest.json"):
            raise DumpError(f"{manifest}: is a recording already; give another folder")

    @property
    def is_chosen_rank(self) -> bool:
        """Whether this process is recorded."""
        return self.ranks is None or get_rank() in self.ranks

    def is_chosen_step(self, step: int) -> bool:
        """Return whether a step is recorded."""
        return self.steps is None or step in self.steps

    def is_chosen_module(self, name: str) -> bool:
        """Return whether a module is recorded: it, or one that it is in, was chosen."""
        if not self.modules:
            return True
        return any(f"{name}.".startswith(f"{chosen}.") for chosen in self.modules)

    def narrow(self, request: RecordRequest) -> RecordOptions:
        """Return options that record what was asked for."""
        return replace(
            self,
            steps=(request.step,),
            ranks=(request.rank,),
            requested_tensors=request.tensors,
        )

    def is_whole_tensor(self, number: int) -> bool:
        """Return whether the tensor of this number is also written whole."""
        return self.has_whole_tensors or number in self.requested_tensors

    def has_chosen_step_after(self, step: int) -> bool:
        """Return whether a step that comes later is recorded."""
        return self.steps is None or any(chosen > step for chosen in self.steps)

    def start_recording(self, framework: str, step: int) -> Recording:
        """Return the empty recording of one step."""
        details = {"recorder": f"dumpdiff {__version__}"}
        return Recording(self.folder, framework, step, get_rank(), details)


def get_rank() -> int:
    """Return the number of this process in a run of several, else 0."""
    for name in _RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0
