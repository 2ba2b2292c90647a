"""The verification of one dump: everything that it says about itself, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.stage import Stage
from ..model.trace import Problem, Source, Trace
from ..model.verdict import Verdict
from ..rulebook import Rules
from .contradictions import Check, Contradiction
from .files import FileChecks
from .trace_checks import run_all_checks

#: Contradictions and problems that a stage quotes.
_MAX_EVIDENCE = 5


@dataclass(frozen=True)
class Verification:
    """What was checked in a dump, and what contradicts itself."""

    source: Source
    ops: int
    tensors: int
    files_read: int
    files_total: int
    checks: tuple[Check, ...]
    problems: tuple[Problem, ...]  #: met while reading
    missing: tuple[str, ...]  #: what could not be checked, and why
    notes: tuple[str, ...] = ()  #: which parts of the dump were not read

    @property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """All contradictions, by check."""
        return tuple(item for check in self.checks for item in check.contradictions)

    @property
    def damage(self) -> tuple[Problem, ...]:
        """The problems of reading that concern the values: lost, damaged or mixed records."""
        return tuple(problem for problem in self.problems if problem.weakens)

    @property
    def verdict(self) -> Verdict:
        """'differ' if a record contradicts another, 'inconclusive' if no file could be checked."""
        if self.contradictions or self.damage:
            return "differ"
        return "inconclusive" if self.missing else "agree"

    @property
    def headline(self) -> str:
        """One line for a person, without the verdict."""
        clauses = []
        n_records = len({item.tensor for item in self.contradictions})
        if n_records:
            records = "record contradicts" if n_records == 1 else "records contradict"
            clauses.append(f"{n_records:,} {records} another record or its file")
        n_damaged = sum(problem.count for problem in self.damage)
        if n_damaged:
            worst = max(self.damage, key=lambda problem: problem.count)
            clauses.append(f"{n_damaged:,} records damaged or lost: {worst.message}")
        if not clauses:
            n_checked = sum(check.checked for check in self.checks)
            clauses.append(f"no contradiction in {n_checked:,} checks")
        clauses.append(f"{self.files_read:,} of {self.files_total:,} files read")
        if self.verdict == "inconclusive":
            clauses.append(self.missing[0])
        return "; ".join(clauses)

    def to_stage(self) -> Stage:
        """Return the outcome in the form of all stages."""
        evidence = [item.message for item in self.contradictions[:_MAX_EVIDENCE]]
        evidence += [str(problem) for problem in self.damage[:_MAX_EVIDENCE]]
        return Stage("verify", self.verdict, self.headline, tuple(evidence), self.missing)


def verify_trace(
    trace: Trace, rules: Rules, progress: Callable[[float], None] | None = None
) -> Verification:
    """Open every file of a trace, and check all records against the files and each other.

    ``rules`` say which operator an op is, so that its outputs can be computed again.
    """
    file_checks = FileChecks(trace)
    record_checks = run_all_checks(file_checks, trace, rules, progress)
    checks = (*file_checks.list_checks(), *record_checks)
    return Verification(
        source=trace.source,
        ops=len(trace.ops),
        tensors=len(trace.tensors),
        files_read=file_checks.n_read,
        files_total=file_checks.n_files,
        checks=checks,
        problems=trace.problems,
        missing=_list_missing(trace, checks),
    )


def _list_missing(trace: Trace, checks: tuple[Check, ...]) -> tuple[str, ...]:
    """Return why the values themselves could not be checked; empty if they were."""
    has_files = (trace.tensors["file"] != "").any()
    if has_files:
        is_checked = any(check.checked for check in checks[1:])
        return () if is_checked else ("the files have neither statistics nor a graph to check",)
    has_numbers = trace.tensors[["max", "norm"]].notna().any(axis=None)
    if has_numbers:
        return (
            "the dump has no whole tensors: whether its statistics are those of the tensors "
            "cannot be checked",
        )
    return ("the dump has only checksums: nothing in it can be recomputed",)
