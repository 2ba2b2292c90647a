"""The part of an earlier comparison's JSON that is needed to repeat it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DumpError, NoFindingsError
from .input_files import read_input_text

#: The major version of the schema that is read: docs/result.schema.json.
SCHEMA_MAJOR = "2"

#: Bytes of a JSON file that is read at all; a result of a 20,000-call pair has some ten million.
_MAX_BYTES = 1 << 30

#: What a document raises that is no result: keys, types and numbers are not as written.
_WRONG_CONTENT = (
    ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError
)  # fmt: skip


@dataclass(frozen=True)
class SavedResult:
    """Which two dumps were compared, in which part, and the identities of the findings."""

    file: str
    target: str
    reference: str
    step: int | None
    rank: int | None
    graph: int | None
    baseline: str | None
    #: checkpoints that named the parameters of a side
    weights_target: str | None
    weights_reference: str | None
    min_coverage: float
    #: further rule files
    rules: tuple[str, ...]
    #: ids of the findings, by rank
    finding_ids: tuple[str, ...]
    #: every file of both dumps was read and checked
    verify: bool = False
    #: folders of ``dumpdiff narrow`` whose dumps completed the two
    narrowed: tuple[str, ...] = ()
    verdict: str = ""
    #: the first note: why the comparison is inconclusive
    first_note: str = ""

    def find_id(self, finding: int | str) -> str:
        """Return the id of the finding of this rank (1 is the first) or id.

        Raises DumpError if there is none, NoFindingsError if the result has no finding at all.
        """
        if not self.finding_ids:
            raise NoFindingsError(f"{self.file}: {self._describe_nothing()}", self.verdict)
        if str(finding) in self.finding_ids:
            return str(finding)
        if str(finding).isdecimal() and 0 < int(finding) <= len(self.finding_ids):
            return self.finding_ids[int(finding) - 1]
        raise DumpError(f"{self.file}: has no finding {finding}; it has {len(self.finding_ids)}")

    def _describe_nothing(self) -> str:
        """Return why there is nothing to explain, and what to do."""
        if self.verdict == "aligned":
            return "no findings, everything that was compared agrees: there is nothing to explain"
        reason = f" ({self.first_note})" if self.first_note else ""
        return (
            f"no findings, and the comparison is {self.verdict}{reason}: dump on both sides what "
            "'dumpdiff align -v' lists as not compared, and align again"
        )


def read_saved_result(file: Path) -> SavedResult:
    """Read a result. Raises DumpError if the file is not a result of this major schema version."""
    expected = f"{file}: expected a result of dumpdiff align --json"
    try:
        document = json.loads(read_input_text(file, _MAX_BYTES))
        major = str(document["schema_version"]).partition(".")[0]
        if major != SCHEMA_MAJOR:
            raise DumpError(
                f"{expected} of schema version {SCHEMA_MAJOR}, found {document['schema_version']}: "
                "run dumpdiff align again"
            )
        return _parse(document, str(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DumpError(f"{expected} or align -o FOLDER, found no such file") from error
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except _WRONG_CONTENT as error:
        raise DumpError(f"{expected}, found something else") from error


def _parse(document: Any, file: str) -> SavedResult:
    target, reference = document["target"], document["reference"]
    baseline = document.get("baseline")
    graph = target["graph"] if target["graph"] is not None else reference["graph"]
    return SavedResult(
        file=file,
        target=str(target["path"]),
        reference=str(reference["path"]),
        step=_get_common_number(target, reference, "step"),
        rank=_get_common_number(target, reference, "rank"),
        graph=graph,
        baseline=None if baseline is None else str(baseline["source"]["path"]),
        weights_target=_get_checkpoint(target),
        weights_reference=_get_checkpoint(reference),
        min_coverage=float(document["details"]["min_coverage"]),
        rules=tuple(str(rule_file) for rule_file in document["details"].get("rules", ())),
        finding_ids=tuple(str(finding["id"]) for finding in document["findings"]),
        verify=bool(document["details"].get("verify", False)),
        narrowed=tuple(str(folder) for folder in document["details"].get("narrowed", ())),
        verdict=str(document["verdict"]),
        first_note=str(next(iter(document.get("notes", ())), "")),
    )


def _get_checkpoint(side: Any) -> str | None:
    """Return the checkpoint that named the parameters of a side, None if there was none."""
    path = side["details"].get("weights")
    return None if path is None else str(path)


def _get_common_number(target: Any, reference: Any, name: str) -> int | None:
    """Return a number that both sides share, else None: then the paths already name the parts."""
    return target[name] if target[name] == reference[name] else None
