"""A real browser, Debian's Chromium, with the actions of a person who reads a report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 20  #: after which a page is considered broken


@dataclass(frozen=True)
class Browser:
    """The actions of a person who reads a page."""

    driver: Chrome
    folder: Path
    servers: list[str] = field(default_factory=list)  #: addresses that pages may ask

    def open(
        self,
        page: bytes,
        hash_: str = "",
        *,
        width: int = 1440,
        height: int = 900,
        dark: bool = False,
    ) -> None:
        """Open a page from a file, and wait until it can be used."""
        file = self.folder / "report.html"
        file.write_bytes(page)
        self._load(f"{file.as_uri()}{hash_}", width, height, dark)

    def visit(
        self, address: str, hash_: str = "", *, width: int = 1440, dark: bool = False
    ) -> None:
        """Open a page of a server, which it may ask, and wait until it can be used."""
        self.servers.append(address)
        self._load(f"{address}{hash_}", width, 900, dark)

    def _load(self, address: str, width: int, height: int, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.driver.get(address)
        self.wait_until("performance.getEntriesByName('interactive').length > 0")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return ({script})", *arguments)

    def wait_until(self, condition: str) -> None:
        WebDriverWait(self.driver, SECONDS).until(
            lambda _: self.run(condition), f"never true: {condition}"
        )

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def read_texts(self, selector: str) -> list[str]:
        return [element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def press(self, key: str) -> None:
        self.find("body").send_keys(key)

    @property
    def hash(self) -> str:
        return str(self.run("decodeURIComponent(location.hash)"))

    def find_accessibility_problems(self) -> list[str]:
        """Return the rules of axe that the page breaks, with their impact and first element."""
        script = resources.files("axe_core_python").joinpath("axe.min.js")
        self.driver.execute_script(script.read_text(encoding="utf-8"))
        violations = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']})"
            ".then(({violations}) => done(violations))"
        )
        problems = []
        for violation in violations:
            element = violation["nodes"][0]["html"][:120]
            problems.append(f"{violation['impact']} {violation['id']}: {element}")
        return problems

    def take_errors(self) -> list[str]:
        """Return the warnings and errors that the console has since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def take_requests(self) -> list[str]:
        """Return the addresses that were fetched since the last call, without file and servers."""
        events = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        urls = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [
            url
            for url in urls
            if not url.startswith((self.folder.as_uri(), *self.servers, "about:", "data:", "blob:"))
        ]
