"""The tree of the model in a real browser: what is open, its words, its keys."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from results import extend_result
from selenium.webdriver.common.keys import Keys

from dumpdiff.model.result import Result

from ...browser import Browser
from .conftest import write_page
from .test_browser import ADD, ADD_IN_PYTORCH, ROW

SCOPE = "layers.1.post_attention_norm"


def read_open_modules(browser: Browser) -> list[str]:
    return browser.read_texts("#model-tree [open] > summary bdi")


def find_module(browser: Browser, name: str) -> str:
    """Return an expression for the summary of the first visible module of a name."""
    summaries = "[...document.querySelectorAll('#model-tree summary')]"
    return f"{summaries}.find(summary => summary.querySelector('bdi').textContent === '{name}')"


def test_the_way_to_the_first_divergence_is_open(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    assert read_open_modules(browser) == ["forward", *SCOPE.split(".")]
    leaves = browser.read_texts("#model-tree .leaf:has(.introduced)")
    assert len(leaves) == 1
    assert "introduced" in leaves[0]
    assert ADD.split("/")[-1] in leaves[0]
    assert ADD_IN_PYTORCH in leaves[0]
    assert "2,237 × tol." in leaves[0]


def test_a_module_counts_what_differs_and_has_the_color_of_its_worst_pair(
    browser: Browser, demo: Result, demo_page: bytes
) -> None:
    browser.open(demo_page)
    pairs = demo.pairs[(demo.pairs["phase"] == "forward") & (demo.pairs["scope"] == SCOPE)]
    n_differing = pairs["state"].isin(("introduced", "amplified", "propagated", "isolated")).sum()
    text = browser.run(f"{find_module(browser, 'post_attention_norm')}.textContent")
    assert f"{n_differing} of {len(pairs)} differ" in text
    cell = browser.find(".heat td.first").get_attribute("class")
    color = f"{find_module(browser, 'post_attention_norm')}.querySelector('i').className"
    assert browser.run(color) == cell


def test_every_op_of_both_sides_is_in_the_tree(browser: Browser, demo: Result) -> None:
    browser.open(write_page(demo))
    for side in ("target", "reference"):
        unmatched = demo.unmatched[demo.unmatched["side"] == side]
        names = pd.concat([demo.pairs[f"{side}_op"], unmatched["op"]])
        phases = pd.concat([demo.pairs["phase"], unmatched["phase"]])
        for phase, ops in names.groupby(phases):
            text = f"{find_module(browser, str(phase))}.querySelector('.{side}').textContent"
            assert browser.run(text) == f"{ops.nunique()} ops"


def test_a_module_of_which_nothing_was_compared_does_not_agree(
    browser: Browser, demo: Result
) -> None:
    pairs = demo.pairs.copy()
    is_embedding = pairs["scope"].str.startswith("embedding")
    pairs.loc[is_embedding, ["error", "tolerance"]] = float("nan")
    pairs.loc[is_embedding, "state"] = "incomparable"
    browser.open(write_page(replace(demo, pairs=pairs)))
    module = find_module(browser, "embedding")
    assert browser.run(f"{module}.querySelector('.size').textContent") == "not compared"
    assert browser.run(f"{module}.querySelector('i').className") == "none"


def test_an_operator_opens_its_pair(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    browser.find("#model-tree a.leaf:has(.introduced)").click()
    assert browser.hash == f"#pair={ROW}"
    assert f"Pair {ROW}: introduced" in browser.find("#pair").text


def test_arrow_keys_move_open_and_close(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    focused = "document.activeElement.querySelector('bdi').textContent"
    browser.run("document.querySelector('#model-tree summary').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert browser.run(focused) == "embedding"
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert "embedding" in read_open_modules(browser)
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert "embedding" not in read_open_modules(browser)
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert browser.run(focused) == "forward"
    assert browser.hash == ""


def test_only_what_is_open_is_in_the_document(browser: Browser, demo: Result) -> None:
    browser.open(write_page(extend_result(demo, 20_000)))
    assert len(browser.driver.find_elements("css selector", "#model-tree .leaf")) < 500
