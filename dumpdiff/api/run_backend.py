"""What the result of a run can do besides holding data: its tasks' results are on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from ..model.finding import Finding
from ..model.result import Result
from ..model.run_result import RunFinding, RunResult, TaskResult
from ..reports import outputs
from .run_folder import copy_tasks, write_run


@dataclass(frozen=True)
class RunFolder:
    """The backend of a run whose tasks' results are in a folder."""

    folder: Path
    #: loads the complete result of a task from its folder
    load_single: Callable[[Path], Result]
    #: deletes the folder when the result is no longer used; None if the folder is the user's
    temporary: TemporaryDirectory[str] | None = None

    def write(self, result: RunResult, output: str, stream: IO[bytes]) -> None:
        """Write the result as html, markdown, junit, json or csv."""
        outputs.write(result, output, stream)

    def save(self, result: RunResult, folder: Path) -> None:
        """Write the results of the run and of all its tasks into a folder."""
        copy_tasks(result, self.folder, folder)
        write_run(result, folder)

    def load_task(self, result: RunResult, task: TaskResult) -> Result:
        """Return the complete result of a task."""
        return self.load_single(self.folder / task.folder)

    def explain(self, result: RunResult, finding: RunFinding) -> Finding:
        """Return a finding with its causes; the dumps of its task are read again."""
        if finding.finding.causes or finding.finding.unexplained:
            return finding.finding
        for task in result.tasks:
            if task.folder == finding.task:
                return self.load_task(result, task).finding(finding.id).explain()
        return finding.finding

    def close(self) -> None:
        """Delete the folder if nobody asked for it."""
        if self.temporary is not None:
            self.temporary.cleanup()
