"""The page of a triage as a reader uses it, in a real browser."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import pytest
from selenium.webdriver.common.keys import Keys

from dumpdiff.diagnosis.advice import Advice
from dumpdiff.diagnosis.decision import RuledOut
from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.model.stage import Stage
from dumpdiff.reports.triage import html
from dumpdiff.reports.triage.markdown import to_markdown

from ..alignment.html.test_page import HOSTILE, read_policy
from ..browser import Browser


def write_page(triaged: TriageResult) -> bytes:
    stream = io.BytesIO()
    html.write(triaged, stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def page(triaged: TriageResult) -> bytes:
    return write_page(triaged)


def test_the_answer_comes_first(browser: Browser, triaged: TriageResult, page: bytes) -> None:
    browser.open(page)
    assert browser.find(".verdict").text == "DIFFER · FORWARD"
    assert browser.find("h1").text == "The forward pass differs"
    assert browser.find(".cause").text == triaged.decision.headline.partition(": ")[2]
    assert browser.read_texts(".reasons h2") == ["Because", "Ruled out", "Not known"]
    assert any("epsilon = 0.01" in line for line in browser.read_texts(".evidence li"))
    assert browser.read_texts(".ruled th") == ["weights", "backward"]
    assert browser.read_texts(".ruled a") == ["weights", "norms"]
    assert browser.find("#failure").is_displayed() is False


def test_the_strip_has_every_stage_and_a_link_to_it(browser: Browser, page: bytes) -> None:
    browser.open(page)
    assert tuple(browser.read_texts(".strip strong")) == STAGES
    assert browser.read_texts(".strip .inconclusive small") == ["inconclusive"]
    assert not browser.run("document.getElementById('stage-weights').open")
    browser.find('.strip a[href="#stage-weights"]').click()
    browser.wait_until("document.getElementById('stage-weights').open")
    assert browser.hash == "#stage-weights"
    assert (
        0
        <= browser.run("document.getElementById('stage-weights').getBoundingClientRect().top")
        < 900
    )


def test_what_differs_is_unfolded(browser: Browser, page: bytes) -> None:
    browser.open(page)
    assert browser.read_texts("#stages details[open] .name") == [
        "checklist",
        "logs",
        "forward",
        "optimizer",
    ]
    cells = browser.read_texts("#stage-forward .rows tbody tr > *")
    assert cells[0] == "layers.1.post_attention_norm"
    assert "4.3e-3" in cells


def test_the_tree_shows_the_branch_that_was_taken(browser: Browser, page: bytes) -> None:
    browser.open(page)
    assert browser.read_texts(".tree .taken th") == ["the losses differ at step 1"]
    assert browser.read_texts(".tree .taken li") == [
        "data agree",
        "weights agree",
        "forward differ",
    ]


def test_curves_and_bars_are_drawn(browser: Browser, page: bytes) -> None:
    browser.open(page, "#stage-norms")
    labels = browser.run(
        "[...document.querySelectorAll('.curves')].map(svg => svg.getAttribute('aria-label'))"
    )
    assert labels == ["loss", "|target - reference|", "global norm", "learning rate"]
    assert browser.find(".curves polyline.target").rect["width"] > 100
    assert browser.read_texts(".bars th") == ["layers.0.bias", "layers.0.weight"]
    assert browser.find(".bars svg").rect["width"] > 100


def test_commands_and_the_report_can_be_copied(
    browser: Browser, triaged: TriageResult, page: bytes
) -> None:
    browser.open(page)
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]}
    )
    for button, text in (
        (".command button", f"{triaged.advice[0].commands[0]}\n"),
        ("#copy", to_markdown(triaged)),
    ):
        browser.find(button).click()
        browser.wait_until(f"document.querySelector({button!r}).textContent === 'Copied'")
        assert (
            browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
            == text
        )


def test_keys_walk_through_the_stages(browser: Browser, page: bytes) -> None:
    browser.open(page)
    for key, stage in (("n", "settings"), ("n", "checklist"), ("p", "settings"), ("p", "settings")):
        browser.press(key)
        assert browser.hash == f"#stage-{stage}"
    assert browser.find(".finding.target").get_attribute("id") == "stage-settings"
    browser.press("?")
    assert browser.find("#help").is_displayed()
    browser.press(Keys.ESCAPE)
    browser.press(Keys.ESCAPE)
    assert browser.read_texts(".finding.target") == []


def test_what_was_not_given_is_no_link(browser: Browser, weights_only: TriageResult) -> None:
    browser.open(write_page(weights_only))
    assert browser.find(".verdict").text == "INCONCLUSIVE"
    assert browser.read_texts(".strip .absent small") == ["not given"] * (len(STAGES) - 1)
    assert len(browser.driver.find_elements("css selector", ".strip a")) == 1
    assert "no training log of the target and the reference" in browser.find(
        ".strip li:nth-child(4)"
    ).get_attribute("title")
    assert browser.read_texts(".tree .taken") == []
    assert browser.read_texts(".curves") == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 720, 1440])
def test_no_screen_is_too_narrow(browser: Browser, page: bytes, width: int, dark: bool) -> None:
    browser.open(page, width=width, height=800, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert browser.run("document.documentElement.scrollWidth") <= width
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 21, 25)" if dark else "rgb(247, 247, 245)")


def test_paper_shows_everything_unfolded(browser: Browser, page: bytes) -> None:
    browser.open(page, dark=True)
    paper = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert paper.startswith(b"%PDF")
    assert browser.run("[...document.querySelectorAll('details')].every(details => details.open)")


def test_hostile_text_stays_text(browser: Browser, triaged: TriageResult) -> None:
    evidence = triaged.evidence
    assert evidence.weights is not None
    weights = replace(
        evidence.weights, notes=(HOSTILE,), target=replace(evidence.weights.target, path=HOSTILE)
    )
    hostile_triage = replace(
        triaged,
        decision=replace(
            triaged.decision,
            headline=f"{HOSTILE}: {HOSTILE}",
            evidence=(HOSTILE,),
            other_differences=(HOSTILE,),
            missing=(HOSTILE,),
            ruled_out=(RuledOut("data", "data", HOSTILE),),
        ),
        advice=(Advice(HOSTILE, (HOSTILE,)),),
        evidence=replace(
            evidence,
            weights=weights,
            skipped={"data": HOSTILE},
            stages=tuple(
                Stage(s.name, s.verdict, HOSTILE) for s in evidence.stages if s.name != "data"
            ),
        ),
    )
    page = write_page(hostile_triage)
    assert b"<img" not in page
    assert b"hacked=1</script>" not in page
    browser.open(page, "#stage-weights")
    assert browser.run("typeof hacked") == "undefined"
    shown_text = (
        HOSTILE.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\u202e", "\\u202e")
    )
    for place in (".cause", ".command pre", "#stage-weights"):
        assert shown_text in browser.find(place).get_property("textContent")


def test_one_closed_file_of_little_size(triaged: TriageResult, page: bytes) -> None:
    assert write_page(triaged) == page
    assert read_policy(page.decode())["default-src"] == ["'none'"]
    assert b" style=" not in page
    assert len(page) < 200_000


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, page: bytes, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.find_accessibility_problems() == []
