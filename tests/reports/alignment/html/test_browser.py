"""The report in a real browser: mouse, keyboard, small screens, the dark theme, paper."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from results import FINDING, RSQRT, extend_result, make_pairs, make_result
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.summary import format_headline

from ...browser import Browser
from .conftest import write_page
from .test_page import make_hostile_result

#: The first divergence of the demo pair: its row in the table of pairs, and its op on both sides.
ROW = 102
ADD = (
    "Default/network-WithLoss/backbone-Llama/layers-CellList/0-Decoder/input_norm-RMSNorm/Add-op12"
)
ADD_IN_PYTORCH = "Tensor.__add__.12.forward"

PIXELS = """(() => {
  const canvas = document.querySelector('#chart canvas'), seen = new Set();
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
  }
  return [...seen];
})()"""


def read_color(browser: Browser, name: str) -> str:
    """Return a color of the style sheet as the canvas holds it."""
    code = browser.run(
        "getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", f"--{name}"
    ).strip()
    code = "".join(2 * digit for digit in code[1:]) if len(code) == 4 else code[1:]
    return ",".join(str(int(code[i : i + 2], 16)) for i in (0, 2, 4))


def move_to_pair(browser: Browser, row: int) -> ActionChains:
    """Return actions that move the pointer to a pair's point in the chart."""
    browser.run("document.getElementById('chart').scrollIntoView({block: 'center'})")
    x, y, width, height = browser.run(
        "[...report.network.at(arguments[0]), report.network.plot.width,"
        " report.network.plot.height]",
        row,
    )
    over = browser.find("#chart .over")
    actions = ActionChains(browser.driver, duration=0)
    return actions.move_to_element_with_offset(over, round(x - width / 2), round(y - height / 2))


def read_column(browser: Browser, column: int = 0) -> list[str]:
    """Return a column of the pairs on screen."""
    rows = "[...document.querySelectorAll('#pairs-table tr[data-row]')]"
    return list(browser.run(f"{rows}.map(row => row.cells[{column}].textContent)"))


def test_the_answer_comes_first(browser: Browser, demo: Result, demo_page: bytes) -> None:
    browser.open(demo_page)
    assert browser.find("h1").text == "First divergence: layers.1.post_attention_norm"
    answer = browser.find("#answer").text
    assert format_headline(demo).removeprefix("first divergence: ") in answer.replace("\n", " ")
    assert "Likely cause: epsilon." in answer
    for text in (
        "4.3e-3",
        "2,237 × tolerance",
        "version 2.10.0",
        "77.7 %",
        str(demo.target.source.path),
    ):
        assert text in answer
    assert browser.find("#failure").is_displayed() is False


def test_the_chart_has_every_state_and_the_tolerance(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    painted = browser.run(PIXELS)
    for name in ("introduced", "propagated", "agreeing", "tolerance"):
        assert read_color(browser, name) in painted
    assert read_color(browser, "amplified") not in painted


def test_hovering_names_both_ops(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    move_to_pair(browser, ROW).perform()
    tip = browser.find(".tip").text
    assert "introduced" in tip
    assert "4.3e-3" in tip
    assert ADD in tip
    assert ADD_IN_PYTORCH in tip


def test_a_click_on_a_point_opens_its_pair(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    move_to_pair(browser, ROW).click().perform()
    assert browser.hash == f"#pair={ROW}"
    sheet = browser.find("#pair").text
    assert f"Pair {ROW}: introduced" in sheet
    assert ADD in sheet
    assert "2 x 16 x 1" in sheet
    assert browser.find(".ring").is_displayed()
    assert browser.run("document.querySelector('#pairs-table tr.current').dataset.row") == str(ROW)
    browser.find("#pair .close").click()
    assert browser.hash == ""
    assert not browser.find("#pair").is_displayed()


def test_dragging_zooms(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    move_to_pair(browser, 50).click_and_hold().move_by_offset(200, 0).release().perform()
    low, high = browser.run("[report.network.plot.low, report.network.plot.high]")
    assert 49 <= low <= 51
    assert high < 200
    assert browser.hash == ""  # the end of a drag is no click on a pair


def test_a_double_click_shows_everything_again(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    browser.run("report.network.plot.zoom(10, 20)")
    over = browser.find("#chart .over")
    empty_corner = (5 - over.rect["width"] // 2, over.rect["height"] // 2 - 5)
    actions = ActionChains(browser.driver, duration=0)
    actions.move_to_element_with_offset(over, *empty_corner).double_click().perform()
    assert browser.run("[report.network.plot.low, report.network.plot.high]") == browser.run(
        "report.network.plot.whole"
    )


def test_error_over_tolerance_is_another_axis(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    before = browser.run("report.network.ceiling")
    browser.find("input[value=ratio]").click()
    assert browser.run("report.network.ceiling") > 1000 * before
    assert browser.run(f"report.network.values[{ROW}]") == pytest.approx(2237, rel=1e-3)
    assert read_color(browser, "introduced") in browser.run(PIXELS)


def test_searching_and_choosing(browser: Browser, demo: Result, demo_page: bytes) -> None:
    browser.open(demo_page)
    browser.find("#search").send_keys("Softmax layers.2")
    lines = demo.pairs.astype(str).agg(" ".join, axis=1)
    is_found = lines.str.contains("softmax", case=False) & lines.str.contains(
        "layers.2", regex=False
    )
    assert browser.find("#pairs-count").text == f"{is_found.sum()} of {len(demo.pairs)}"
    browser.find("#phase").send_keys("backward")
    is_found_backward = is_found & (demo.pairs["phase"] == "backward")
    assert 0 < is_found_backward.sum() < is_found.sum()
    assert browser.find("#pairs-count").text == f"{is_found_backward.sum()} of {len(demo.pairs)}"
    assert browser.hash == "#q=Softmax layers.2&phase=backward"
    assert set(read_column(browser, 5)) == {"backward"}


def test_sorting(browser: Browser, demo: Result, demo_page: bytes) -> None:
    browser.open(demo_page)
    head = browser.find("#pairs-table th.number button")
    worst = [
        str(row)
        for row in demo.pairs["error"].sort_values(ascending=False, kind="stable").index[:20]
    ]
    head.click()
    assert browser.hash == "#sort=-error"
    assert read_column(browser)[:20] == worst
    head.click()
    assert browser.find("#pairs-table [aria-sort]").get_attribute("aria-sort") == "ascending"
    assert read_column(browser, 6)[:20] == ["0"] * 20


def test_only_rows_on_screen_are_elements(browser: Browser, demo: Result) -> None:
    browser.open(write_page(extend_result(demo, 20_000)), "#sort=row")
    assert len(read_column(browser)) < 80
    browser.run("document.getElementById('pairs-table').scrollTo(0, 1e9)")
    browser.wait_until("document.querySelector('#pairs-table tr[data-row=\"19999\"]') !== null")
    assert len(read_column(browser)) < 80
    assert browser.find("#pairs-table").get_property("scrollHeight") == pytest.approx(
        20_000 * 30, rel=0.01
    )


def test_a_cell_of_the_heat_map_shows_its_pairs(
    browser: Browser, demo: Result, demo_page: bytes
) -> None:
    browser.open(demo_page)
    browser.find(".heat td.first").click()
    is_shown = (demo.pairs["scope"] == "layers.1.post_attention_norm") & (
        demo.pairs["phase"] == "forward"
    )
    assert browser.find("#pairs-count").text == f"{is_shown.sum()} of {len(demo.pairs)}"
    assert browser.hash == "#pairs&q=scope:layers.1.post_attention_norm&phase=forward"


def test_an_op_of_the_graph_opens_its_pair(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    kinds = browser.read_texts(".graph .node.here .kind")
    assert kinds == ["Add", "Tensor.__add__"]
    ActionChains(browser.driver).move_to_element(
        browser.find(".graph .node.here rect")
    ).click().perform()
    assert browser.hash == f"#pair={ROW}"


def repeat_finding(demo: Result) -> Result:
    """Return the result with its first finding three times, in other slots."""
    findings = [
        replace(demo.findings[0], rank=rank, slots=((f"output.{rank}", "output.0"),))
        for rank in (1, 2, 3)
    ]
    return replace(demo, findings=tuple(findings))


def test_the_keyboard(browser: Browser, demo: Result) -> None:
    result = repeat_finding(demo)
    browser.open(write_page(result))
    for key, rank in (("n", 1), ("n", 2), ("n", 3), ("n", 3), ("p", 2)):
        browser.press(key)
        assert browser.hash == f"#finding-{result.finding(rank).id}"
    anchor = f"finding-{result.finding(2).id}"
    assert browser.find(".finding.target").get_attribute("id") == anchor
    browser.press("?")
    assert browser.find("#help").is_displayed()
    browser.press(Keys.ESCAPE)
    assert not browser.find("#help").is_displayed()
    browser.press("/")
    assert browser.driver.switch_to.active_element == browser.find("#search")
    browser.driver.switch_to.active_element.send_keys("n/p?", Keys.ESCAPE)
    assert browser.hash == f"#{anchor}&q=n/p?"
    assert browser.driver.switch_to.active_element != browser.find("#search")


def test_arrows_walk_from_pair_to_pair_as_the_table_shows_them(
    browser: Browser, demo: Result, demo_page: bytes
) -> None:
    first, second = demo.pairs["error"].sort_values(ascending=False, kind="stable").index[:2]
    browser.open(demo_page, f"#sort=-error&pair={first}")
    browser.press(Keys.ARROW_DOWN)
    assert browser.hash == f"#sort=-error&pair={second}"
    browser.press(Keys.ARROW_UP)
    assert f"Pair {first}:" in browser.find("#pair h2").text
    browser.press(Keys.ESCAPE)
    assert browser.hash == "#sort=-error"


def test_a_link_opens_what_it_points_at(browser: Browser, demo: Result) -> None:
    result = repeat_finding(demo)
    anchor = f"finding-{result.finding(3).id}"
    browser.open(write_page(result), f"#{anchor}&q=rsqrt&state=propagated")
    assert browser.find(f"#{anchor}").get_attribute("open") is not None
    top = browser.run(f"document.getElementById('{anchor}').getBoundingClientRect().top")
    assert 0 <= top < 200
    assert browser.find("#search").get_property("value") == "rsqrt"
    assert browser.find("#state").get_property("value") == "propagated"
    browser.run("location.hash = '#pair=7&q=%'")
    browser.wait_until("report.pair === 7")
    assert browser.find("#search").get_property("value") == "%"


@pytest.mark.parametrize(
    "hash_",
    ["#pair=99999", "#pair=x", "#pair=-4", "#nowhere", "#q=%E0%A4%A", "#sort=nothing", "#&&=&"],
)
def test_a_broken_link_shows_the_report(browser: Browser, demo_page: bytes, hash_: str) -> None:
    browser.open(demo_page, hash_)
    assert not browser.find("#pair").is_displayed()
    assert browser.find("h1").is_displayed()


def test_what_was_not_compared_can_be_searched(browser: Browser) -> None:
    browser.open(write_page(make_result()))
    assert browser.find("#uncompared-count").text == "31"
    assert browser.find("#unmatched-count").text == "3"
    browser.find("#uncompared-side").send_keys("reference")
    assert browser.find("#uncompared-count").text == "1"
    (row,) = browser.read_texts("#uncompared-table tr[data-row]")
    assert row.split("\n")[0].startswith("reference")
    assert "Tensor.to.0.forward" in row
    assert "dead end" in row


def test_an_isolated_difference_is_marked_but_no_first_divergence(browser: Browser) -> None:
    row = {"target_op": RSQRT, "reference_op": "Torch.rsqrt.3.forward", "phase": "forward"}
    numbers = {"state": "isolated", "metric": "relative_l2", "error": 0.1, "tolerance": 1e-6}
    finding = replace(FINDING, kind="isolated")
    result = make_result(
        verdict="inconclusive", findings=(finding,), pairs=make_pairs({**row, **numbers})
    )
    browser.open(write_page(result))
    painted = browser.run(PIXELS)
    assert read_color(browser, "isolated") in painted
    assert read_color(browser, "introduced") not in painted  # the line to the first divergence


def test_a_hostile_name_is_shown_as_text_everywhere(browser: Browser) -> None:
    browser.open(write_page(make_hostile_result()), "#pair=0")
    shown_text = (
        '</script><script>hacked=1</script><img src=x onerror="hacked=1">{{ 7*7 }}'
        "\\x1b]0;x\\x07\\u202e"
    )
    for place in (
        "#answer",
        "#findings",
        "#pair",
        "#pairs-table",
        "#unmatched-table",
        "#uncompared-table",
    ):
        assert shown_text in browser.find(place).get_property("textContent")
    move_to_pair(browser, 0).perform()
    assert shown_text in browser.find(".tip").text
    assert browser.run("typeof hacked") == "undefined"
    assert browser.run("document.images.length") == 0


def test_the_page_can_reach_nothing(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    fetched = browser.driver.execute_async_script(
        "fetch('https://example.invalid/')"
        ".then(() => 'reached', () => 'refused').then(arguments[0])"
    )
    assert fetched == "refused"
    assert browser.take_requests() == []
    assert all("Content Security Policy" in error for error in browser.take_errors())


def test_copying_gives_markdown(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page)
    permissions = {"permissions": ["clipboardReadWrite"]}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)
    browser.find("#copy").click()
    browser.wait_until("document.getElementById('copy').textContent === 'Copied'")
    pasted = browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0])"
    )
    assert ADD in pasted
    assert pasted == browser.run("report.data.markdown")


def test_a_graph_wider_than_the_screen_begins_at_the_finding(
    browser: Browser, demo_page: bytes
) -> None:
    browser.open(demo_page, width=400)
    box = "document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    frame, node = browser.run(box, ".scroll:has(.graph)"), browser.run(box, ".graph .here")
    assert frame["left"] <= node["left"] < node["right"] <= frame["right"]


@pytest.mark.parametrize("width", [400, 720, 1440])
def test_no_screen_is_too_narrow(browser: Browser, demo_page: bytes, width: int) -> None:
    browser.open(demo_page, "#pair=102", width=width, height=800)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.find("#pair").rect["width"] <= width
    assert browser.find("#chart canvas").is_displayed()


def test_the_dark_theme(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page, dark=True)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 25)"
    assert read_color(browser, "introduced") == "255,111,94"
    assert read_color(browser, "introduced") in browser.run(PIXELS)


def test_paper_shows_everything_unfolded_and_light(browser: Browser, demo: Result) -> None:
    browser.open(write_page(repeat_finding(demo)), dark=True)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = false)")
    unfolded = "[...document.querySelectorAll('details:not(.branch)')]"
    paper = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert paper.startswith(b"%PDF")
    assert browser.run(f"{unfolded}.every(details => details.open)")
    assert read_color(browser, "page") == "18,21,25"


@pytest.mark.parametrize("verdict", ["aligned", "inconclusive"])
def test_a_result_without_findings_or_drawings(browser: Browser, verdict: str) -> None:
    result = make_result(verdict=verdict, findings=())
    browser.open(write_page(result))
    answer = f"{browser.find('.verdict').text}: {browser.find('h1').text}"
    assert answer.lower() == format_headline(result).lower()
    assert len(browser.read_texts("#problems li")) == 5


def test_a_result_without_a_single_pair(browser: Browser) -> None:
    base = make_result(verdict="inconclusive", findings=())
    browser.open(
        write_page(replace(base, pairs=base.pairs.head(0), unmatched=base.unmatched.head(0)))
    )
    assert browser.find("#pairs-count").text == "0 of 0"


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, demo_page: bytes, width: int, dark: bool
) -> None:
    browser.open(demo_page, width=width, dark=dark)
    assert browser.find_accessibility_problems() == []


def test_every_section_can_be_reached_on_a_phone(browser: Browser, demo_page: bytes) -> None:
    browser.open(demo_page, width=400, height=800)
    for link in browser.driver.find_elements("css selector", ".bar nav a"):
        assert 0 <= link.rect["x"] < link.rect["x"] + link.rect["width"] <= 400
        assert link.rect["height"] >= 24


def test_the_pair_that_exceeds_its_tolerance_most_is_first(
    browser: Browser, demo: Result, demo_page: bytes
) -> None:
    browser.open(demo_page)
    ratios = demo.pairs["error"] / demo.pairs["tolerance"]
    worst = ratios.where(demo.pairs["error"] > 0, 0).sort_values(ascending=False, kind="stable")
    assert browser.hash == ""
    assert read_column(browser)[:10] == [str(row) for row in worst.index[:10]]
    browser.find("#pairs-table th.row button").click()
    assert browser.hash == "#sort=row"
    assert read_column(browser)[:3] == ["0", "1", "2"]


def test_overflow_and_nan_can_be_selected(browser: Browser, demo: Result) -> None:
    pairs = demo.pairs.copy()
    pairs.loc[7, "target_max"] = float("inf")
    pairs.loc[9, [f"target_{name}" for name in ("max", "min", "mean", "norm")]] = float("nan")
    browser.open(write_page(replace(demo, pairs=pairs)), "#sort=row&values=not finite")
    assert browser.find("#values").text.split("\n")[-1].strip() == "overflow or NaN (2)"
    assert read_column(browser) == ["7", "9"]
    assert browser.find("#pairs-count").text == f"2 of {len(pairs)}"


def test_a_window_without_room_for_the_chart_is_no_error(
    browser: Browser, demo_page: bytes
) -> None:
    browser.open(demo_page, width=60)  # the fixture fails the test if the console has an error
    assert browser.run("report.network.plot.width") <= 0
