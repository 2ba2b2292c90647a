"""The Chinese page in a real browser: what is shown is Chinese, what is selected is not."""

from __future__ import annotations

import pytest

from dumpdiff.model.result import Result
from dumpdiff.reports.language import VARIABLE

from ...browser import Browser
from .conftest import write_page


@pytest.fixture
def chinese_page(demo: Result, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv(VARIABLE, "zh")
    return write_page(demo)


def test_tables_and_tree_are_chinese_and_addresses_are_not(
    browser: Browser, demo: Result, chinese_page: bytes
) -> None:
    browser.open(chinese_page, "#sort=row&state=agreeing")
    n_agreeing = (demo.pairs["state"] == "agreeing").sum()
    assert browser.run("document.documentElement.lang") == "zh"
    assert browser.find("#pairs-count").text == f"{n_agreeing} / {len(demo.pairs)}"
    assert browser.find("#pairs-table td.state").text == "一致"
    assert browser.read_texts("#pairs-table th.phase") == ["阶段"]
    assert browser.find("#model-tree summary bdi").text == "前向"
    assert "首个偏差点" in browser.find("h1").text
    browser.find("#model-tree a.leaf:has(.introduced)").click()
    assert "引入" in browser.find("#pair h2").text
    assert browser.hash.startswith("#sort=row&state=agreeing&pair=")


def test_copied_markdown_is_english(browser: Browser, chinese_page: bytes) -> None:
    browser.open(chinese_page)
    assert "First divergence" in browser.run("report.data.markdown")
    assert "偏差" not in browser.run("report.data.markdown")


@pytest.mark.parametrize(("width", "dark"), [(1440, True), (400, False)])
def test_no_rule_of_accessibility_is_broken_in_chinese(
    browser: Browser, chinese_page: bytes, width: int, dark: bool
) -> None:
    browser.open(chinese_page, width=width, dark=dark)
    assert browser.find_accessibility_problems() == []
    assert browser.run("document.documentElement.scrollWidth") <= width
