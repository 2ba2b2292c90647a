"""The report for an issue: the answer, a table, the evidence folded, and safe with any name."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from results import BACKWARD, BASELINE, FINDING, RSQRT, make_result

from dumpdiff import align
from dumpdiff.model.finding import Cause
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.markdown import to_markdown, write

from ..pages import Page

HOSTILE = "a|b<script>alert(1)</script>`@user` #2\n## x"


def read_table(markdown: str, first: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this name."""
    lines = markdown.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize(
    ("verdict", "start"),
    [
        ("diverged", "**First divergence:** `layers.1.post_norm`, rsqrt"),
        ("aligned", "**Aligned:** values compared: forward 83.3 % (target), 99.3 % (reference); "),
        ("inconclusive", "**Inconclusive:** step 0 is the first that both have"),
    ],
)
def test_the_answer_is_the_first_line(verdict: str, start: str) -> None:
    assert to_markdown(make_result(verdict=verdict)).startswith(start)


def test_both_dumps_are_named() -> None:
    rows = read_table(to_markdown(make_result(baseline=BASELINE)), "side")
    assert [row[0] for row in rows[2:]] == ["target", "reference", "baseline"]
    assert "477 ops, 2430 tensors, `/data/ms_dump`" in rows[2][1]
    assert rows[4][1].endswith("spread up to 4.0e-6, `/data/again`")


def test_findings_are_a_table_with_names_in_full() -> None:
    header, _, first, second = read_table(to_markdown(make_result()), "#")
    row = dict(zip(header, first, strict=True))
    assert row["target"] == f"`{RSQRT}`"
    assert (row["error"], row["tolerance"], row["confidence"]) == ("3.1e-2", "1.0e-5", "97 %")
    assert dict(zip(header, second, strict=True))["target"] == "`g1` to `g5`"


def test_many_findings_are_counted_and_stay_few() -> None:
    findings = tuple(replace(FINDING, rank=rank) for rank in range(1, 31))
    markdown = to_markdown(make_result(findings=findings))
    assert len(read_table(markdown, "#")) == 2 + 10
    assert "20 more findings." in markdown
    assert markdown.count("<summary>Finding ") == 3


def test_evidence_is_folded() -> None:
    folded = (
        to_markdown(make_result())
        .partition("<summary>Finding 1: evidence</summary>")[2]
        .partition("</details>")[0]
    )
    for text in (
        "`output.0` vs `output.0`",
        "`model.py:46` (target)",
        "cosine -",
        "input values agree",
    ):
        assert text in folded


def test_the_cause_follows_the_answer() -> None:
    cause = Cause("epsilon", "layers.1.norm behaves as epsilon = 0.01", 3e-8)
    markdown = to_markdown(
        make_result(findings=(replace(FINDING, side="target", causes=(cause,)),))
    )
    assert (
        markdown.splitlines()[2] == "**Why (`epsilon`):** `layers.1.norm` behaves as epsilon = 0.01"
    )
    assert "introduced, forward (wrong side: target)" in markdown


def test_states_reasons_and_problems_are_there() -> None:
    markdown = to_markdown(make_result())
    states = read_table(markdown, "target / reference")
    assert states[2] == [
        "forward values", "83.3 % / 99.3 %", "1 / 1", "9 / 9", "140 / 140", "12 / 0", "", "18 / 1"
    ]  # fmt: skip
    reasons = read_table(markdown, "not compared, target / reference")
    assert reasons[2] == ["dead end", "18 / 1", "0 / 1"]
    assert "Compared values beyond tolerance: 1 introduced, 9 propagated." in markdown
    assert markdown.count("- target: `statistic.csv:") == 5


def make_hostile_result() -> Result:
    finding = replace(
        FINDING,
        title=HOSTILE,
        scope=HOSTILE,
        target_ops=(HOSTILE,),
        slots=((HOSTILE, HOSTILE),),
        evidence=(HOSTILE,),
        source={"target": HOSTILE},
        causes=(Cause("epsilon", HOSTILE, 0.0),),
        unexplained=HOSTILE,
    )
    target = make_result().target
    side = replace(target, source=replace(target.source, path=HOSTILE, format_variant=HOSTILE))
    return make_result(findings=(finding, BACKWARD), notes=(HOSTILE,), target=side)


def test_hostile_names_stay_text() -> None:
    markdown = to_markdown(make_hostile_result())
    assert "\n##" not in markdown
    page = Page(markdown)
    assert page.tags == {
        "p",
        "strong",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "ul",
        "li",
        "sub",
    }
    assert page.rows == [2] * 3 + [8] * 3 + [8] * 5 + [3] * 4
    assert page.text.count("a|b<script>alert(1)</script>`@user`") >= 8


def test_the_report_fits_into_one_comment_however_long_the_names() -> None:
    long = replace(
        FINDING, title="|" * 10**5, target_ops=("|" * 10**4,) * 24, evidence=("`" * 10**5,) * 50
    )
    markdown = to_markdown(make_result(findings=(long,) * 50, notes=("<" * 10**5,) * 50))
    assert len(markdown) < 65_536
    assert markdown.startswith("**First divergence:**")
    assert "too long for one comment" in markdown
    assert markdown.count("<details>") == markdown.count("</details>")


def test_findings_of_an_inconclusive_result_come_with_a_warning() -> None:
    assert "too little was compared to rely on them" in to_markdown(
        make_result(verdict="inconclusive")
    )
    assert "rely on them" not in to_markdown(make_result())
    isolated = make_result(verdict="inconclusive", findings=(replace(FINDING, kind="isolated"),))
    assert "rely on them" not in to_markdown(isolated)


def test_nothing_at_all_is_said_too() -> None:
    empty = make_result(findings=(), coverage={}, states={}, notes=(), verdict="inconclusive")
    assert "**Inconclusive:** nothing compared" in to_markdown(empty)


def test_a_path_that_is_no_text_can_be_written() -> None:
    stream = io.BytesIO()
    target = make_result().target
    write(
        make_result(target=replace(target, source=replace(target.source, path="/\udcff"))), stream
    )
    assert b"udcff" in stream.getvalue()


def test_the_demo(dump: Callable[[str], Path]) -> None:
    markdown = to_markdown(align(dump("demo_mindspore"), dump("demo_pytorch")))
    first, cause = markdown.splitlines()[:3:2]
    assert first.startswith("**First divergence:** `layers.1.post_attention_norm`, add (`Default/")
    assert "vs `Tensor.__add__.12.forward`: relative L2 4.3e-3, inputs agree to" in first
    assert cause.startswith(
        "**Why (`epsilon`):** `layers.1.post_attention_norm` behaves as epsilon = 0.01;"
    )
    assert len(markdown) < 5000
