"""The page is one file, closed to the network, and safe with any name in a dump."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from results import (
    FINDING,
    RSQRT,
    extend_result,
    make_pairs,
    make_result,
    make_uncompared,
    make_unmatched,
)

from dumpdiff.model.result import Result
from dumpdiff.model.verdict import VALUE_STATES

from .conftest import write_page

MEGABYTE = 1_000_000


def read_policy(page: str) -> dict[str, list[str]]:
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert match
    return {rule.split()[0]: rule.split()[1:] for rule in html.unescape(match[1]).split("; ")}


def test_the_policy_names_every_script_and_style_and_nothing_else(demo_page: bytes) -> None:
    page = demo_page.decode()
    for tag in ("script", "style"):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sums = [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in texts
        ]
        assert len(sums) > 1
        assert read_policy(page)[f"{tag}-src"] == sums
    assert read_policy(page)["default-src"] == ["'none'"]


def test_nothing_is_fetched(demo_page: bytes) -> None:
    markup = re.sub(
        r"<script.*?</script>|<style.*?</style>", "", demo_page.decode(), flags=re.DOTALL
    )
    styles = "".join(re.findall(r"<style>(.*?)</style>", demo_page.decode(), re.DOTALL))
    assert not re.search(r"""\s(src|srcset|action|data)=|href="(?!#)|\sstyle=|\son\w+=""", markup)
    assert not re.search(r"url\(|@import", styles)


def test_equal_results_give_equal_bytes(demo: Result, demo_page: bytes) -> None:
    assert write_page(demo) == demo_page


HOSTILE = (
    '</script><script>hacked=1</script><img src=x onerror="hacked=1">{{ 7*7 }}\x1b]0;x\x07\u202e'
)


def make_hostile_result() -> Result:
    """Return a result in which every text from a dump is an attack."""
    row = dict.fromkeys(
        ("target_op", "reference_op", "target_slot", "scope", "evidence", "layout"), HOSTILE
    )
    finding = replace(
        FINDING,
        scope=HOSTILE,
        title=f"diverges at {HOSTILE}",
        target_ops=(HOSTILE,),
        reference_ops=(HOSTILE,),
        evidence=(HOSTILE,),
        source={"target": HOSTILE},
        unexplained=HOSTILE,
        slots=((HOSTILE, HOSTILE),),
    )
    numbers = {
        "phase": "forward",
        "state": "introduced",
        "metric": "relative_l2",
        "error": 0.1,
        "tolerance": 1e-6,
    }
    base = make_result()
    source = replace(base.target.source, path=HOSTILE, format_variant=HOSTILE)
    return make_result(
        findings=(finding,),
        pairs=make_pairs(row | numbers),
        notes=(HOSTILE,),
        target=replace(base.target, source=source),
        unmatched=make_unmatched(("target", HOSTILE, HOSTILE, "forward", HOSTILE, "no partner")),
        uncompared=make_uncompared(
            ("target", HOSTILE, HOSTILE, "forward", HOSTILE, "unpaired", "no partner")
        ),
    )


def test_a_hostile_name_stays_text() -> None:
    page = write_page(make_hostile_result()).decode()
    assert "hacked=1</script>" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=&#34;hacked=1&#34;&gt;{{ 7*7 }}\\x1b]0;x\\x07\\u202e" in page


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"scope": "", "target_ops": ()}, "Torch.rsqrt.3.forward"),
        ({"scope": "", "reference_ops": ()}, RSQRT),
        (
            {
                "scope": "",
                "target_ops": (),
                "reference_ops": (),
                "slots": (),
                "metrics": {},
                "tolerance": 0.0,
            },
            "",
        ),
    ],
)
def test_a_finding_without_scope_is_named_by_an_op(changes: dict[str, Any], place: str) -> None:
    page = write_page(make_result(findings=(replace(FINDING, **changes),))).decode()
    assert f"<h1>First divergence: {place}</h1>" in page


@pytest.mark.parametrize(("rows", "budget"), [(20_000, 6 * MEGABYTE), (100_000, 14 * MEGABYTE)])
def test_the_file_stays_small_enough_to_mail(demo: Result, rows: int, budget: int) -> None:
    assert len(write_page(extend_result(demo, rows))) < budget


def read_rows(page: str, table_class: str) -> list[list[str]]:
    """Return the texts of the cells of the body of a table."""
    table = re.search(rf'<table class="{table_class}">(.*?)</table>', page, re.DOTALL)
    assert table is not None
    body = table[1].partition("<tbody>")[2]
    rows = []
    for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        rows.append([re.sub("<[^>]+>", "", cell).strip() for cell in cells])
    return rows


def test_the_answer_counts_the_states_and_the_reasons() -> None:
    page = write_page(make_result()).decode()
    values, ops = read_rows(page, "states")[:2]
    assert values[:3] == ["forward values", "83.3 %", "99.3 %"]
    assert values[3:] == ["1 / 1", "9 / 9", "140 / 140", "12 / 0", "", "18 / 1"]
    assert ops[3:] == ["1 / 1", "19 / 11", "180 / 150", "7 / 0", "", "34 / 3"]
    assert read_rows(page, "reasons")[0] == ["dead end", "18 / 1", "0 / 1"]
    assert "Compared values beyond tolerance: 1 introduced, 9 propagated." in page


def test_an_isolated_difference_is_no_first_divergence() -> None:
    note = "1 value differs without consequence"
    isolated = replace(FINDING, kind="isolated")
    result = make_result(verdict="inconclusive", findings=(isolated,), notes=(note,))
    page = write_page(result).decode()
    assert note in re.sub("<[^>]+>", "", page)
    assert "First divergence" not in page
    assert '<span class="tag">isolated</span>' in page


def test_every_state_has_a_mark_a_color_and_a_word() -> None:
    page = write_page(make_result()).decode()
    words = re.findall(r"<dt>(.*?)</dt>", page)
    for state in VALUE_STATES:
        assert f'id="mark-{state}"' in page
        assert f".{state} {{ --state: var(--{state}); }}" in page
        assert state in words


def test_the_words_on_the_page_are_those_of_the_glossary(demo_page: bytes) -> None:
    section = re.search(r'<section id="words">(.*?)</section>', demo_page.decode(), re.DOTALL)
    assert section is not None
    words = re.findall(r"<dt>(.*?)</dt>", section[1])
    glossary = (Path(__file__).parents[4] / "docs" / "glossary.md").read_text(encoding="utf-8")
    headings = ", ".join(re.findall(r"^\*\*(.*?)\*\*", glossary, re.MULTILINE)).split(", ")
    assert len(words) > 5
    assert set(words) <= set(headings)
