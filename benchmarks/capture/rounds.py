"""Rounds of one case: statistics, narrow, the narrowed dump, explain."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cut
import dumps
import faults
import formats
import recordings
import truth
from click.testing import CliRunner

import dumpdiff
from dumpdiff.cli import main as cli
from dumpdiff.model.errors import DumpError
from dumpdiff.model.finding import Finding
from dumpdiff.model.result import Result

MAX_ROUNDS = 3
_ANSWERS = (0, 1, 3)  #: exit codes of commands that answered


@dataclass(frozen=True)
class Outcome:
    """What the rounds of one case came to."""

    case: str
    held_out: bool
    void: str  #: why there is nothing to find
    is_found: bool  #: the first finding of the statistics names an op of the fault
    is_kept: bool  #: the last first finding names it, too, or an op of the first round's finding
    rounds: int  #: rounds until the first cause
    cause: str  #: the right cause
    right_causes: tuple[str, ...]  #: it, and those that are as right
    causes: tuple[str, ...]  #: the first cause of each round, '' if there was none
    shares: tuple[float, ...]  #: bytes of each narrowed pair of dumps by the bytes of everything
    whole_cause: str  #: the first cause with whole tensors of everything
    text: str  #: of the finding, or why there is none

    @property
    def is_right(self) -> bool:
        """Return whether the last round gives the right cause."""
        return bool(self.causes) and self.causes[-1] in self.right_causes

    @property
    def is_right_with_everything(self) -> bool:
        """Return whether whole tensors of everything give the right cause."""
        return self.whole_cause in self.right_causes


def play_case(case: faults.Case, work: Path, folder: Path) -> Outcome:
    """Play the rounds of one case in ``folder``, which is removed first and at the end.

    Every command that ``narrow`` prints is run. Raises RuntimeError if one fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = [recordings.get_path(recording, work) for recording in recordings.list_recordings(case)]
    n_bytes = sum(map(cut.count_bytes, paths))
    root = _find_root(case, work)
    saved = folder / "first"
    result = dumpdiff.align(*formats.make_pair(formats.FORMS["statistics"], *paths), output=saved)
    is_found = is_kept = _names_root(result, case, root)
    first_findings = result.findings[:1]
    whole_cause = _name_cause(dumpdiff.align(*paths))
    causes: list[str] = []
    shares: list[float] = []
    while result.findings and len(causes) < MAX_ROUNDS and not any(causes):
        next_folder = folder / f"next{len(causes) + 1}"
        try:
            plan = dumpdiff.narrow(saved, next_folder)
        except DumpError:  # everything that explaining the finding reads is recorded
            break
        n_cut = 0
        for side, path in zip((plan.target, plan.reference), paths, strict=True):
            n_cut += cut.cut_recording(path, side.ops, next_folder / side.side)
        shares.append(n_cut / n_bytes)
        for command in plan.commands:
            run_command(command)
        saved = next_folder.with_name(f"{next_folder.name}_result")
        result = dumpdiff.load(saved)
        is_kept = _names_root(result, case, root) or _share_ops(first_findings, result.findings[:1])
        causes.append(_name_cause(result))
    return Outcome(
        case.name,
        case.held_out,
        explain_void(root, case, paths[1]),
        is_found,
        is_kept,
        len(causes),
        case.cause,
        tuple(sorted(case.right_causes)),
        tuple(causes),
        tuple(shares),
        whole_cause,
        result.findings[0].title if result.findings else "; ".join(result.notes[:1]),
    )


def run_command(command: str) -> None:
    """Run a printed command in this process. Raises RuntimeError if it fails."""
    outcome = CliRunner().invoke(cli, shlex.split(command)[1:])
    if outcome.exit_code not in _ANSWERS:
        raise RuntimeError(f"{command}: exit code {outcome.exit_code}\n{outcome.output}")


def _find_root(case: faults.Case, work: Path) -> truth.Truth:
    """Return where the fault first shows, in the recordings of the side that has it."""
    recording = recordings.list_recordings(case)[0 if case.side == recordings.MINDSPORE else 1]
    paths = [recordings.get_path(item, work) for item in (recording.clean(), recording)]
    return truth.find_truth(*(dumps.load(path) for path in paths))


def explain_void(root: truth.Truth, case: faults.Case, reference: Path) -> str:
    """Return why there is nothing to find, '' if there is something."""
    if not root.ops:
        return "nothing that was recorded changes"
    return "harmless" if root.effect < truth.ROUNDING else ""


def _names_root(result: Result, case: faults.Case, root: truth.Truth) -> bool:
    """Return whether the first finding names an op of the fault."""
    if not result.findings:
        return False
    first = result.findings[0]
    ops = first.target_ops if case.side == recordings.MINDSPORE else first.reference_ops
    return not root.ops.isdisjoint(ops)


def _share_ops(findings: Sequence[Finding], others: Sequence[Finding]) -> bool:
    """Return whether two findings name an op of one side together; False if one is missing."""
    return any(
        not set(finding.target_ops + finding.reference_ops).isdisjoint(
            other.target_ops + other.reference_ops
        )
        for finding in findings
        for other in others
    )


def _name_cause(result: Result) -> str:
    """Return the first cause of the first finding, '' if it has none."""
    causes = [finding.causes for finding in result.findings[:1]]
    return causes[0][0].name if causes and causes[0] else ""
