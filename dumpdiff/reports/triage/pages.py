"""A triage as a folder of pages: its own page, and one of each stage, with links to them."""

from __future__ import annotations

from pathlib import Path

from ...diagnosis.evidence import Evidence
from ...diagnosis.outcome import TriageResult
from ...diagnosis.stages import PHASES
from ...model.errors import DumpError
from ...model.output_files import is_replaceable, open_output_file, write_output_file
from ..language import translate, use_chosen_language
from ..page.renderer import Page, link_to_triage, render
from ..weights import html as weights_html
from .html import build_drawings, build_page
from .markdown import to_markdown
from .page_files import PAGE_FILES, STAGE_PAGES, TRIAGE_PAGE
from .sections import Section, build_sections

_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "stage.js")
#: Bars, rows of a table and lines of a list; the JSON has all of them. A browser still shows so
#: many at once.
_MAX_ITEMS = 5000


def write(triaged: TriageResult, folder: Path) -> None:
    """Write the pages into a folder, which is created if absent.

    Pages of an earlier triage are replaced; those that this one does not have are removed.
    Raises DumpError that names the file if one cannot be written.
    """
    markdown = to_markdown(triaged)
    pages = {stage.name: STAGE_PAGES[stage.name] for stage in triaged.evidence.stages}
    _prepare_folder(folder, keep={TRIAGE_PAGE, *pages.values()})
    written_files = set()
    for section in build_sections(triaged.evidence):
        file = folder / pages[section.stage.name]
        if file not in written_files:
            with link_to_triage(TRIAGE_PAGE):
                _write_stage(triaged.evidence, section, file)
        written_files.add(file)
    with use_chosen_language():
        page = render(build_page(triaged, markdown, pages))
    write_output_file(folder / TRIAGE_PAGE, page)


def _prepare_folder(folder: Path, keep: set[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PAGE_FILES:
            if name not in keep and is_replaceable(folder / name):
                (folder / name).unlink()
    except OSError as error:
        raise DumpError(f"{folder}: cannot be made ({error.strerror})") from error


def _write_stage(evidence: Evidence, section: Section, file: Path) -> None:
    """Write the page of a stage: the one of its own command where that has one."""
    name = section.stage.name
    if name in PHASES and evidence.dumps is not None:
        with open_output_file(file) as stream:
            evidence.dumps.result.write("html", stream)
    elif name == "weights" and evidence.weights is not None:
        with open_output_file(file) as stream:
            weights_html.write(evidence.weights, stream)
    else:
        with use_chosen_language():
            page = render(_build_stage_page(evidence, section))
        write_output_file(file, page)


def _build_stage_page(evidence: Evidence, section: Section) -> Page:
    return Page(
        title=f"{translate(section.stage.name)}: {translate(section.stage.verdict)}",
        template="stage.html",
        context={
            "section": section,
            "drawings": build_drawings(evidence, _MAX_ITEMS, _MAX_ITEMS),
        },
        tables={},
        styles=("page.css", "comparison.css", "triage.css"),
        scripts=_SCRIPTS,
    )
