"""Served pages in a real browser: values and figures come when a pair is opened."""

from __future__ import annotations

import pytest

from dumpdiff.page_server.server import ListeningServer

from ..browser import Browser

LOADED = "document.querySelector('.views .window') && document.querySelector('.views .drawings')"

#: Types a number into the input of the first axis.
SET_FIRST_INDEX = """((input, value) => {
  input.value = value;
  input.dispatchEvent(new Event("change", { bubbles: true }));
})(document.querySelector(".slice input"), arguments[0])"""


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_a_pair_shows_its_values(
    browser: Browser, server: ListeningServer, width: int, dark: bool
) -> None:
    browser.visit(server.address, width=width, dark=dark)
    browser.run("report.open(200)")
    browser.wait_until(LOADED)
    assert browser.find(".window .largest").is_displayed()
    assert browser.find_accessibility_problems() == []


def test_an_index_and_the_largest_difference_can_be_chosen(
    browser: Browser, server: ListeningServer
) -> None:
    browser.visit(server.address, "#pair=200")
    browser.wait_until(LOADED)
    (first, *_) = browser.read_texts(".window tbody tr:first-child td")
    browser.run(SET_FIRST_INDEX, 0)
    browser.wait_until("!document.querySelector('.window .largest')")
    assert browser.read_texts(".window tbody tr:first-child td")[0] != first
    browser.find(".slice button").click()
    browser.wait_until("document.querySelector('.window .largest')")


def test_an_ended_server_is_a_sentence(browser: Browser, server: ListeningServer) -> None:
    browser.visit(server.address)
    browser.run("window.fetch = () => Promise.reject(new Error('gone'))")
    browser.run("report.open(200)")
    browser.wait_until("document.querySelector('.views').textContent.includes('dumpdiff serve')")
