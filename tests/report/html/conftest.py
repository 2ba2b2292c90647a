"""A report in a real browser: Debian's Chromium, driven as a reader would; no test here may leave an error behind."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

import dumpdiff
from dumpdiff.report import html
from dumpdiff.result import Result

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
)  # fmt: skip
SECONDS = 20  #: how long to wait before a page is called broken


def written(result: Result) -> bytes:
    stream = io.BytesIO()
    html.write(result, stream)
    return stream.getvalue()


@dataclass(frozen=True)
class Browser:
    """What a reader does with a page, in few words."""

    driver: Chrome
    folder: Path

    def open(self, page: bytes, hash_: str = "", *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """Open a page from a file, and wait until it can be used."""
        file = self.folder / "report.html"
        file.write_bytes(page)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.driver.get(f"{file.as_uri()}{hash_}")
        self.until("performance.getEntriesByName('interactive').length > 0")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return ({script})", *arguments)

    def until(self, condition: str) -> None:
        WebDriverWait(self.driver, SECONDS).until(lambda _: self.run(condition), f"never true: {condition}")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def press(self, key: str) -> None:
        self.find("body").send_keys(key)

    @property
    def hash(self) -> str:
        return str(self.run("decodeURIComponent(location.hash)"))

    def errors(self) -> list[str]:
        """What the console holds that is worse than information, since this was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """What was fetched besides the file itself, since this was last asked."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith((self.folder.as_uri(), "about:", "data:", "blob:"))]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.fail("the report is tested in Chromium: as root, apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = str(programs[0])
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(programs[1])))
    driver.get("about:blank")  # the browser's own first page still loads, and is none of what is tested
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome, tmp_path: Path) -> Iterator[Browser]:
    """A browser that fails the test if the page logged an error or fetched anything."""
    browser = Browser(chromium, tmp_path)
    browser.errors(), browser.requests()
    yield browser
    assert browser.errors() == []
    assert browser.requests() == []


@pytest.fixture(scope="session")
def aligned(dump: Callable[[str], Path]) -> Callable[[str, str], Result]:
    """``aligned("ms_graph", "pt_none")``: the result of two shipped dumps with its drawings, made once."""
    return cache(lambda target, reference: dumpdiff.align(dump(target), dump(reference), closeups=True))


@pytest.fixture(scope="session")
def demo(aligned: Callable[[str, str], Result]) -> Result:
    """The pair of ``make demo``: one finding."""
    return aligned("demo_mindspore", "demo_pytorch")


@pytest.fixture(scope="session")
def demo_page(demo: Result) -> bytes:
    return written(demo)
