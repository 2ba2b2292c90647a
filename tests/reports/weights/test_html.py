"""The page on two checkpoints: real files, compared, in a real browser."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from selenium.webdriver.common.keys import Keys

import dumpdiff
from dumpdiff.reports.weights import html as weights_html
from dumpdiff.reports.weights.html import build_layer_maps
from dumpdiff.weight_comparison import WeightsResult

from ..alignment.html.test_page import HOSTILE, read_policy
from ..browser import Browser

Weights = dict[str, np.ndarray]

GATE, UP = "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight"
HALVED = "layers.1.attention.k.weight"


def make_weights() -> Weights:
    draw = np.random.default_rng(5).standard_normal
    parts = {"self_attn.q_proj": (32, 16), "self_attn.k_proj": (16, 16)}
    parts |= {"mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24)}
    named = {
        f"model.layers.{layer}.{part}.weight": draw(shape)
        for layer in range(3)
        for part, shape in parts.items()
    }
    named |= {"model.embed_tokens.weight": draw((40, 16)), "model.norm.weight": draw(16)}
    return {name: value.astype(np.float32) for name, value in named.items()}


def make_mistaken_weights() -> Weights:
    """Swap gate and up, halve one k, round one q, drop the last norm, add an unknown tensor."""
    weights = make_weights()
    for layer in range(3):
        gate, up = (f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up"))
        weights[gate], weights[up] = weights[up], weights[gate]
    weights["model.layers.1.self_attn.k_proj.weight"] *= np.float32(0.5)
    weights["model.layers.2.self_attn.q_proj.weight"] = weights[
        "model.layers.2.self_attn.q_proj.weight"
    ].astype(np.float16)
    del weights["model.norm.weight"]
    weights[f"model.{HOSTILE}.weight"] = np.arange(35, dtype=np.float32).reshape(7, 5)
    return weights


def compare_weights(folder: Path, target: Weights, reference: Weights) -> WeightsResult:
    for name, weights in (("target", target), ("reference", reference)):
        save_file(weights, folder / f"{name}.safetensors")
    return dumpdiff.weights.compare(folder / "target.safetensors", folder / "reference.safetensors")


def write_page(result: WeightsResult) -> bytes:
    stream = io.BytesIO()
    weights_html.write(result, stream)
    return stream.getvalue()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> WeightsResult:
    return compare_weights(
        tmp_path_factory.mktemp("checkpoints"), make_mistaken_weights(), make_weights()
    )


@pytest.fixture(scope="module")
def page(result: WeightsResult) -> bytes:
    return write_page(result)


def read_column(browser: Browser, place: int) -> list[str]:
    """Return a column of the parameters on screen."""
    rows = "[...document.querySelectorAll('#parameters-table tr[data-row]')]"
    return list(browser.run(f"{rows}.map(row => row.cells[{place}].textContent)"))


def test_the_answer_comes_first(browser: Browser, result: WeightsResult, page: bytes) -> None:
    browser.open(page)
    assert browser.find(".verdict").text == "DIFFER"
    assert browser.find("h1").text.startswith(
        f"7 of 16 parameters are wrong: {GATE}: the reference's {UP}"
    )
    assert browser.read_texts(".figures dd:nth-child(2)") == ["16", "7", "1", "1", "99.4 %"]
    facts = browser.find(".facts").text
    for fact in (
        result.target.path,
        result.reference.path,
        "safetensors",
        "huggingface",
        "17 tensors, 0.0247 MB",
    ):
        assert fact in facts
    assert browser.read_texts(".relations tbody th") == ["identical", "rounded", "different"]
    assert browser.read_texts(".relations .number") == ["8", "1", "7"]


def test_every_mistake_is_listed_once_for_all_layers(browser: Browser, page: bytes) -> None:
    browser.open(page)
    assert browser.read_texts("#wrong .what") == [
        f"{GATE}: the reference's {UP}",
        f"{UP}: the reference's {GATE}",
        f"{HALVED}: 0.5 times the reference's",
    ]
    browser.find("#mistake-3 summary").click()
    cells = browser.read_texts("#mistake-3 tbody tr > *")
    assert cells[:5] == [HALVED, "0.5 times the reference's", "16 × 16", "float32", "5.0e-1"]
    assert cells[-1] == "100 %"


def test_a_mistake_links_to_its_parameter(browser: Browser, page: bytes) -> None:
    browser.open(page, "#mistake-3")
    browser.find("#mistake-3 tbody a").click()
    browser.wait_until("!document.getElementById('parameter').hidden")
    sheet = browser.find("#parameter").text
    assert sheet.startswith(f"{HALVED}: different")
    assert "model.layers.1.self_attn.k_proj.weight" in sheet
    assert "kind scaled" in sheet
    browser.press(Keys.ESCAPE)
    assert not browser.find("#parameter").is_displayed()


def test_what_one_side_lacks_is_listed(
    browser: Browser, result: WeightsResult, page: bytes
) -> None:
    browser.open(page)
    assert browser.read_texts("#missing li") == ["model.norm.weight"]
    assert len(result.unknown) == len(browser.read_texts("#unknown li")) == 1


def test_a_cell_of_the_map_shows_its_parameters(browser: Browser, page: bytes) -> None:
    browser.open(page)
    cell = browser.find(f'.heat td[title^="{HALVED}"]')
    assert (cell.get_attribute("class"), cell.get_attribute("title")) == (
        "different",
        f"{HALVED}: different",
    )
    browser.run("arguments[0].click()", cell)
    assert read_column(browser, 2) == [HALVED]
    assert browser.find("#count").text == "1 of 16"


def test_the_experts_of_a_layer_share_a_cell(result: WeightsResult) -> None:
    pairs = [
        replace(result.pairs[0], path=f"layers.0.mlp.experts.{i}.up_proj.weight", mistake=None)
        for i in range(9)
    ]
    pairs[4] = replace(pairs[4], relation="noise")
    ((layer, (cell,)),) = build_layer_maps(pairs)[0].rows
    assert (layer, cell.css_class if cell else "") == ("layers.0", "noise")
    assert cell is not None
    assert cell.tooltip == "layers.0.mlp.experts.*.up_proj.weight: 8 identical, 1 noise"


def test_search_filter_and_sort(browser: Browser, page: bytes) -> None:
    browser.open(page)
    browser.find("#search").send_keys("gate_proj layers.2")
    assert "layers.2.mlp.gate_proj.weight" in read_column(browser, 2)
    assert {name.split(".")[1] for name in read_column(browser, 2)} == {"2"}

    browser.open(page, "#state=rounded")
    assert read_column(browser, 2) == ["layers.2.attention.q.weight"]
    assert read_column(browser, 5) == ["float16"]

    browser.open(page, "#sort=-error")
    assert set(read_column(browser, 1)[:7]) == {"different"}
    assert HALVED in read_column(browser, 2)[:7]


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_phone(browser: Browser, page: bytes, dark: bool) -> None:
    browser.open(page, "#parameter=3", width=400, height=800, dark=dark)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.find("#parameter").is_displayed()


def test_a_hostile_name_stays_text(browser: Browser, tmp_path: Path) -> None:
    reference = make_weights() | {
        f"model.layers.0.{HOSTILE}.weight": np.arange(12, dtype=np.float32).reshape(3, 4)
    }
    target = reference | {
        f"model.layers.0.{HOSTILE}.weight": np.zeros((3, 4), np.float32),
        f"a.{HOSTILE}": np.ones((9, 2)),
    }
    result = compare_weights(tmp_path, target, reference | {f"b.{HOSTILE}": np.ones((2, 5))})
    assert (len(result.mistakes), len(result.missing), len(result.unknown)) == (1, 1, 1)
    side = replace(result.target, path=HOSTILE, format=HOSTILE, family=HOSTILE)
    page = write_page(replace(result, target=side, notes=(HOSTILE,)))
    assert b"<img" not in page
    assert b"hacked=1</script>" not in page
    assert b"&lt;img src=x onerror=&#34;hacked=1&#34;&gt;{{ 7*7 }}\\x1b]0;x\\x07\\u202e" in page
    browser.open(page, "#sort=-error&parameter=0")
    assert browser.run("typeof hacked") == "undefined"
    assert any(r"<img src=x" in name for name in read_column(browser, 2))


def test_the_same_weights(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_page(compare_weights(tmp_path, make_weights(), make_weights())))
    assert (
        browser.find("h1").text == "Same weights, bit for bit: 17 parameters, 100 % of the elements"
    )
    assert browser.read_texts("nav a") == ["Answer", "Layers", "Parameters"]


def test_nothing_to_compare(browser: Browser, tmp_path: Path) -> None:
    counter = {"global_step": np.ones(1, np.float32)}
    browser.open(write_page(compare_weights(tmp_path, counter, counter)))
    assert browser.find(".verdict").text == "INCONCLUSIVE"
    browser.find("#search").send_keys("x")
    assert browser.find("#count").text == "0 of 0"


def test_one_closed_file(result: WeightsResult, page: bytes) -> None:
    assert write_page(result) == page
    assert read_policy(page.decode())["default-src"] == ["'none'"]


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, page: bytes, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.find_accessibility_problems() == []
