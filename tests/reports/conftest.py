"""Reports in a real browser; a test fails if its page logs an error or fetches anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from .browser import Browser

SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--no-proxy-server",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.fail(
            "the report is tested in Chromium: as root, apt-get install chromium chromium-driver"
        )
    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(programs[1])))
    driver.get("about:blank")  # the browser's own first page is not tested
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome, tmp_path: Path) -> Iterator[Browser]:
    """A browser that fails the test if the page logged an error or fetched anything."""
    browser = Browser(chromium, tmp_path)
    browser.take_errors(), browser.take_requests()
    yield browser
    assert browser.take_errors() == []
    assert browser.take_requests() == []
