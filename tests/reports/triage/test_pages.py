"""A triage as a folder of pages that link to each other, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.diagnosis.case import Case
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.reports.formats.blocks import TableBlock
from dumpdiff.reports.triage import pages
from dumpdiff.reports.triage.page_files import PAGE_FILES
from dumpdiff.reports.triage.sections import build_sections

from ..browser import Browser


@pytest.fixture(scope="module")
def folder(triaged: TriageResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "triage"
    pages.write(triaged, folder)
    return folder


def list_links(page: Path) -> set[str]:
    return set(re.findall(r'href="(\w+\.html)"', page.read_text(encoding="utf-8")))


def test_every_stage_has_a_page_and_every_link_leads_to_one(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == set(PAGE_FILES)
    assert list_links(folder / "triage.html") == names - {"triage.html"}
    for name in names - {"triage.html"}:
        assert list_links(folder / name) == {"triage.html"}


def test_the_headline_links_to_the_page_of_the_stage_that_shows_it(
    browser: Browser, folder: Path
) -> None:
    browser.open((folder / "triage.html").read_bytes())
    link = browser.find("h1 a")
    assert link.text == "The forward pass differs"
    assert link.get_attribute("href").endswith("/alignment.html")


def test_a_stage_without_input_has_no_page_and_no_link(
    weights_only: TriageResult, triaged: TriageResult, tmp_path: Path
) -> None:
    pages.write(triaged, tmp_path)
    (tmp_path / "logs.html").write_text("written by a person")
    pages.write(weights_only, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"triage.html", "weights.html", "logs.html"}
    assert (tmp_path / "logs.html").read_text() == "written by a person"
    assert list_links(tmp_path / "triage.html") == {"weights.html"}


def test_a_page_shows_its_stage_completely(
    browser: Browser, folder: Path, triaged: TriageResult
) -> None:
    (settings,) = (
        section for section in build_sections(triaged.evidence) if section.stage.name == "settings"
    )
    n_rows = sum(len(block.rows) for block in settings.blocks if isinstance(block, TableBlock))
    browser.open((folder / "settings.html").read_bytes())
    assert browser.find(".verdict").text.startswith("SETTINGS")
    assert len(browser.read_texts("#evidence .rows tbody tr")) == n_rows
    browser.open((folder / "logs.html").read_bytes())
    assert browser.find(".curves polyline.target").rect["width"] > 100


#: The report of two dumps is examined in tests/reports/alignment/html.
_OTHER_PAGES = [name for name in PAGE_FILES if name != "alignment.html"]


@pytest.mark.parametrize("name", _OTHER_PAGES)
def test_no_rule_of_accessibility_is_broken(browser: Browser, folder: Path, name: str) -> None:
    for width, dark in ((1440, False), (400, True)):
        browser.open((folder / name).read_bytes(), width=width, dark=dark)
        assert browser.find_accessibility_problems() == []


def test_equal_triages_give_equal_pages(
    folder: Path, triaged: TriageResult, tmp_path: Path
) -> None:
    pages.write(triaged, tmp_path)
    for name in PAGE_FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_redacted_pages_name_no_folder(case: Case, folder: Path, tmp_path: Path) -> None:
    dumpdiff.triage(case, pages=tmp_path / "redacted", redact=True)
    secret = str(Path(case.target.weights).parent)
    assert any(secret in path.read_text() for path in folder.iterdir())
    for name in PAGE_FILES:
        text = (tmp_path / "redacted" / name).read_text(encoding="utf-8")
        assert secret not in text, name
        assert str(Path(case.reference.dump).parent) not in text, name
