"""What a result can do besides holding data: the backends that the library gives to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ..comparison import Comparison
from ..model.finding import Finding
from ..model.result import Result
from ..model.run_result import RunResult
from ..reports import outputs
from ..reports.redaction import redact_result
from .progress import Progress, report_progress
from .result_folder import save_folder


@dataclass(frozen=True)
class OpenDumps:
    """The backend of a result whose dumps are open."""

    comparison: Comparison
    progress: Progress | None = None

    def explain_ranks(
        self, findings: tuple[Finding, ...], ranks: Collection[int]
    ) -> tuple[Finding, ...]:
        """Return all findings; those of the given ranks with their causes."""
        selected_findings = [finding for finding in findings if finding.rank in ranks]
        explained_findings = self._explain(selected_findings)
        explained_by_rank = {finding.rank: finding for finding in explained_findings}
        complete_findings = []
        for finding in findings:
            explained_finding = explained_by_rank.get(finding.rank, finding)
            complete_findings.append(replace(explained_finding, explainer=self.explain))
        return tuple(complete_findings)

    def explain(self, finding: Finding) -> Finding:
        """Return the finding with its causes."""
        (explained,) = self._explain([finding])
        return explained

    def write(self, result: Result, output: str, stream: IO[bytes]) -> None:
        """Write the result as html, markdown, junit, json or csv."""
        outputs.write(self.add_drawings(result) if output == "html" else result, output, stream)

    def save(self, result: Result, folder: Path) -> None:
        """Write the complete result into a folder."""
        save_folder(self.add_drawings(result), folder)

    def add_drawings(self, result: Result) -> Result:
        """Return the result with the data of its drawings."""
        if result.finding_contexts or not result.findings:
            return result
        from ..figures import collect_finding_contexts

        report_progress(self.progress, "drawing", 0.0)
        contexts = collect_finding_contexts(self.comparison, result)
        return replace(result, finding_contexts=contexts)

    def _explain(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        if not findings:
            return ()
        from ..causes import explain  # most comparisons end in agreement and need none of it

        return explain(self.comparison, findings)


def redact(result: Result | RunResult) -> Result | RunResult:
    """Return a result whose reports have no paths, user names and host names."""
    if isinstance(result.backend, OpenDumps) and isinstance(result, Result):
        result = result.backend.add_drawings(result)  # of the dumps, whose names are not hidden
    if isinstance(result, Result):  # lines of source code have no names that could be hidden
        contexts = tuple(replace(context, sources=()) for context in result.finding_contexts)
        result = replace(result, finding_contexts=contexts)
    redacted = redact_result(result)
    if isinstance(redacted, Result):
        return replace(redacted, backend=SavedDrawings())
    return redacted


class SavedDrawings:
    """The backend of a result that was loaded: it holds everything that reports need."""

    def write(self, result: Result, output: str, stream: IO[bytes]) -> None:
        """Write the result as html, markdown, junit, json or csv."""
        outputs.write(result, output, stream)

    def save(self, result: Result, folder: Path) -> None:
        """Write the complete result into a folder."""
        save_folder(result, folder)
