"""The verbs of a result that write it. ``Result`` and ``RunResult`` share them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

from .errors import DumpError
from .output_files import write_output_file


class Backend(Protocol):
    """Writes results; a result itself is plain data and cannot."""

    def write(self, result: Any, output: str, stream: IO[bytes]) -> None:
        """Write ``result`` as ``output``: html, markdown, junit, json, brief or csv.

        Raises DumpError if the output needs dumps that are no longer where they were.
        """

    def save(self, result: Any, folder: Path) -> None:
        """Write everything that later reports need into ``folder``."""


BackendT = TypeVar("BackendT", bound=Backend)


class Reportable(Generic[BackendT]):
    """What can be written as each of ``reports.outputs.OUTPUTS``, by its backend."""

    backend: BackendT | None

    def to_json(self, file: str | Path | None = None, *, brief: bool = False) -> str:
        """Return the result as JSON, and write it to a given ``file``.

        The schema is docs/result.schema.json, of several ranks or steps docs/run.schema.json. With
        ``brief`` it has at most 8 kB and follows docs/brief.schema.json.
        """
        return self.render("brief" if brief else "json", file)

    def to_csv(self, file: str | Path | None = None) -> str:
        """Return one row per pair of tensors as CSV, and write it to a given ``file``."""
        return self.render("csv", file)

    def to_markdown(self, file: str | Path | None = None) -> str:
        """Return the answer for an issue or merge request, and write it to a given ``file``."""
        return self.render("markdown", file)

    def to_junit(self, file: str | Path | None = None) -> str:
        """Return JUnit XML, with a suite for each rank, and write it to a given ``file``."""
        return self.render("junit", file)

    def to_html(self, file: str | Path | None = None) -> str:
        """Return the report with drawings as one HTML page, and write it to a given ``file``."""
        return self.render("html", file)

    def save(self, folder: str | Path) -> Path:
        """Write the complete result into ``folder`` (made if absent) and return it.

        ``dumpdiff.load(folder)`` and ``dumpdiff report folder`` make every report from it, also
        without the dumps.
        """
        self._require_backend().save(self, Path(folder))
        return Path(folder)

    def write(self, output: str, stream: IO[bytes]) -> None:
        """Write the result to a binary stream as json, csv, html, markdown or junit."""
        self._require_backend().write(self, output, stream)

    def render(self, output: str, file: str | Path | None = None) -> str:
        """Return the result as json, csv, html, markdown or junit; write it to a given ``file``."""
        stream = io.BytesIO()
        self.write(output, stream)
        if file is not None:
            write_output_file(Path(file), stream.getvalue())
        return stream.getvalue().decode("utf-8")

    def _require_backend(self) -> BackendT:
        if self.backend is None:
            raise DumpError("this result was not made by dumpdiff.align or dumpdiff.load")
        return self.backend
