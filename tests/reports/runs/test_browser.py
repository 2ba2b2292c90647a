"""The report of a run in a real browser: step and rank are selected, and every link leads on."""

from __future__ import annotations

import io

import pytest
from run_results import make_collective, make_finding, make_task
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from dumpdiff.model.run_result import RunResult, TaskResult
from dumpdiff.reports.language import VARIABLE
from dumpdiff.reports.runs import html
from dumpdiff.run_divergence import locate_run

from ..browser import Browser


@pytest.fixture(scope="module")
def page() -> bytes:
    """Two ranks in two steps: in step 1, rank 1 makes an error, which rank 0 receives."""
    tasks = [make_task(0), make_task(1), *make_diverged_step()]
    return write_page(locate_run("target", "reference", tasks))


def write_page(run: RunResult) -> bytes:
    stream = io.BytesIO()
    html.write(run, stream)
    return stream.getvalue()


def make_diverged_step() -> list[TaskResult]:
    receiving = make_task(
        0, make_finding("all_reduce.7"), positions=(6,), step=1,
        collectives=(make_collective("all_reduce.7", 6, "agreeing", "introduced"),),
    )  # fmt: skip
    faulty = make_task(
        1, make_finding("<b>linear</b>"), positions=(5,), step=1,
        collectives=(make_collective("all_reduce.3", 6, "propagated", "propagated"),),
    )  # fmt: skip
    return [receiving, faulty]


def read_selection(browser: Browser) -> tuple[str, str]:
    """Return step and rank that the lists show."""
    step, rank = (browser.find(f"#{name}").get_property("value") for name in ("step", "rank"))
    return step, rank


def list_shown(browser: Browser, selector: str) -> list[str]:
    """Return the first lines of the elements that are on the page and not hidden."""
    texts = browser.read_texts(selector)
    return [text.partition("\n")[0] for text in texts if text]


def test_the_step_and_rank_of_the_first_divergence_are_shown_first(
    browser: Browser, page: bytes
) -> None:
    browser.open(page)
    assert browser.find("h1").text.startswith("Rank 1 (tp 1), step 1: layers.1.mlp: ")
    assert browser.find(".lead").text.startswith("rank 1 (tp 1), step 1: <b>linear</b> differs")
    assert read_selection(browser) == ("1", "1")
    assert list_shown(browser, ".task h3") == ["rank 1 (tp 1), step 1: diverged"]
    assert list_shown(browser, ".matrix caption") == ["step 1, forward"]
    assert list_shown(browser, ".matrix tr.selected") == ["rank 1 (tp 1)"]


def test_step_and_rank_are_selected_in_lists_by_a_click_and_by_keys(
    browser: Browser, page: bytes
) -> None:
    browser.open(page)
    browser.find("#step").send_keys("0")
    assert list_shown(browser, ".task h3") == ["rank 1 (tp 1), step 0: aligned"]
    browser.find("#rank").send_keys(Keys.ARROW_UP)
    assert list_shown(browser, ".task h3") == ["rank 0 (tp 0), step 0: aligned"]
    assert browser.hash == "#step=0&rank=0"

    ActionChains(browser.driver).click(browser.find("h2")).perform()
    browser.press(Keys.ARROW_RIGHT)
    browser.press(Keys.ARROW_DOWN)
    browser.press(Keys.ARROW_DOWN)  # there is no further rank
    assert read_selection(browser) == ("1", "1")

    browser.find(".matrix:not([hidden]) tr[data-rank='0'] td").click()
    assert list_shown(browser, ".task h3") == ["rank 0 (tp 0), step 1: diverged"]


def test_the_link_of_a_collective_leads_to_the_rank_that_received_the_error(
    browser: Browser, page: bytes
) -> None:
    browser.open(page)
    (tooltip,) = browser.run(
        "[...document.querySelectorAll('.matrix:not([hidden]) .links title')]"
        ".map(title => title.textContent)"
    )
    assert tooltip == (
        "rank 0 receives finding 1 from rank 1 through all_reduce of group tp: all_reduce.7"
    )
    browser.run(
        "document.querySelector('.matrix:not([hidden]) .links a')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    browser.wait_until("document.getElementById('rank').value === '0'")
    assert list_shown(browser, ".task h3") == ["rank 0 (tp 0), step 1: diverged"]
    assert browser.hash == "#tasks&step=1&rank=0"


@pytest.mark.parametrize("anchor", ["#answer", "#ranks", "#findings", "#tasks"])
def test_the_navigation_leads_to_each_section(browser: Browser, page: bytes, anchor: str) -> None:
    browser.open(page)
    browser.find(f"nav a[href='{anchor}']").click()
    assert browser.hash.startswith(anchor)
    assert browser.find(anchor).is_displayed()
    assert read_selection(browser) == ("1", "1")


@pytest.mark.parametrize("address", ["#task-9-9", "#step=7&rank=3", "#rank=x", "#nowhere"])
def test_a_broken_link_shows_the_first_divergence(
    browser: Browser, page: bytes, address: str
) -> None:
    browser.open(page, address)
    assert read_selection(browser) == ("1", "1")
    assert list_shown(browser, ".task h3") == ["rank 1 (tp 1), step 1: diverged"]


def test_a_rank_that_lacks_the_step_is_said_to(browser: Browser) -> None:
    run = locate_run("target", "reference", [make_task(0), make_task(1), make_task(0, step=1)])
    browser.open(write_page(run), "#step=1&rank=1")
    assert list_shown(browser, ".task h3") == []
    assert browser.find("#no-task").text == "This rank was not compared in this step."


def test_names_are_shown_as_text(browser: Browser, page: bytes) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('main b').length") == 0
    assert "<b>linear</b> differs" in browser.find("#findings").text


@pytest.mark.parametrize(
    ("language", "width", "dark"), [("en", 1440, False), ("zh", 1440, True), ("zh", 400, False)]
)
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, language: str, width: int, dark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, language)
    page = write_page(locate_run("target", "reference", make_diverged_step()))
    browser.open(page, width=width, dark=dark)
    assert browser.find_accessibility_problems() == []
    assert browser.find("h1").text
    assert browser.run("document.documentElement.scrollWidth") <= width
