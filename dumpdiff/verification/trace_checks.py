"""All checks of one trace while somebody else works with it: of its records, and of files read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..model.trace import Problem, Trace
from ..rulebook import Rules
from .completeness import check_completeness
from .contradictions import Check, Contradiction, to_problems
from .files import FileChecks, check_file_sizes
from .outputs import OutputChecks
from .records import check_records, flag_changed_inputs


@dataclass(frozen=True)
class TraceChecks:
    """The checks of one trace. Those of files are made as the files are read."""

    trace: Trace  #: its files are checked when they are read
    records: tuple[Check, ...]
    files: FileChecks

    def list_problems(self, known_problems: tuple[Problem, ...] = ()) -> tuple[Problem, ...]:
        """Return the contradictions found so far as problems.

        A file that is the subject of one of ``known_problems`` is not reported as unreadable again.
        """
        known_files = {problem.file for problem in known_problems}
        contradictions: list[Contradiction] = []
        for item in self.files.contradictions:
            if item.kind == "file" and item.file in known_files:
                continue
            contradictions.append(item)
            known_files.add(item.file)
        for check in self.records:
            contradictions += [
                item
                for item in check.contradictions
                if item.kind != "file" or item.file not in known_files
            ]
        return to_problems(contradictions, "records")


@dataclass(frozen=True)
class FileCounts:
    """How many files there are, and how many of them were read."""

    n_files: int
    n_read: int


@dataclass(frozen=True)
class JoinedChecks:
    """The checks of all ranks of a run that were merged to one trace."""

    ranks: tuple[TraceChecks, ...]
    names: tuple[str, ...]  #: of the ranks

    @property
    def files(self) -> FileCounts:
        """The files of all ranks."""
        files = [checks.files for checks in self.ranks]
        return FileCounts(sum(item.n_files for item in files), sum(item.n_read for item in files))

    def list_problems(self, known_problems: tuple[Problem, ...] = ()) -> tuple[Problem, ...]:
        """Return the contradictions found so far as problems, with the rank in front."""
        if len(self.ranks) == 1:
            return self.ranks[0].list_problems(known_problems)
        problems: list[Problem] = []
        for name, checks in zip(self.names, self.ranks, strict=True):
            prefix = f"{name}: "
            own_problems = tuple(
                replace(problem, file=problem.file.removeprefix(prefix))
                for problem in known_problems
                if problem.file.startswith(prefix)
            )
            problems += [
                replace(problem, file=f"{prefix}{problem.file}")
                for problem in checks.list_problems(own_problems)
            ]
        return tuple(problems)


def attach_checks(trace: Trace, rules: Rules) -> TraceChecks:
    """Check the records of a trace, and return it with checks of the files that are read."""
    return replace(attach_file_checks(trace), records=check_trace(trace, rules))


def attach_file_checks(trace: Trace) -> TraceChecks:
    """Return a trace with checks of the files that are read, and none of its records."""
    files = FileChecks(trace)
    return TraceChecks(files.attach(), (), files)


def check_trace(trace: Trace, rules: Rules) -> tuple[Check, ...]:
    """Check the records of a trace, and the lengths of its files."""
    return (*check_records(trace, rules), *check_completeness(trace), check_file_sizes(trace))


def attach_all_checks(
    trace: Trace, rules: Rules, progress: Callable[[float], None] | None = None
) -> TraceChecks:
    """Check the records and all files of a trace now."""
    files = FileChecks(trace)
    return TraceChecks(files.attach(), run_all_checks(files, trace, rules, progress), files)


def run_all_checks(
    files: FileChecks, trace: Trace, rules: Rules, progress: Callable[[float], None] | None
) -> tuple[Check, ...]:
    """Read all files once, and return the checks of records and of outputs computed again."""
    outputs = OutputChecks(trace, rules)
    read_trace = files.read_all(progress, outputs.check_op)
    record_checks = (*check_records(read_trace, rules), *check_completeness(read_trace))
    output_check = outputs.build_check(
        (*files.list_checks(), *record_checks), flag_changed_inputs(read_trace)
    )
    return (*record_checks, output_check)
