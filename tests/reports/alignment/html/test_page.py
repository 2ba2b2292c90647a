"""One file: whole in itself, closed to the network, and safe whatever a dump calls its ops."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from results import FINDING, RSQRT, make, pairs, repeated, unmatched

from dumpdiff import DumpError
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment.html import check_installed
from dumpdiff.reports.page import assets

from .conftest import written

MEGABYTE = 1_000_000


def policy(page: str) -> dict[str, list[str]]:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert found
    return {rule.split()[0]: rule.split()[1:] for rule in html.unescape(found[1]).split("; ")}


def test_the_policy_names_every_script_and_style_and_nothing_else(demo_page: bytes) -> None:
    page = demo_page.decode()
    for tag in ("script", "style"):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sums = [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in texts
        ]
        assert len(sums) > 1
        assert policy(page)[f"{tag}-src"] == sums
    assert policy(page)["default-src"] == ["'none'"]


def test_nothing_is_fetched(demo_page: bytes) -> None:
    markup = re.sub(
        r"<script.*?</script>|<style.*?</style>", "", demo_page.decode(), flags=re.DOTALL
    )
    styles = "".join(re.findall(r"<style>(.*?)</style>", demo_page.decode(), re.DOTALL))
    assert not re.search(r"""\s(src|srcset|action|data)=|href="(?!#)|\sstyle=|\son\w+=""", markup)
    assert not re.search(r"url\(|@import", styles)


def test_equal_results_give_equal_bytes(demo: Result, demo_page: bytes) -> None:
    assert written(demo) == demo_page


HOSTILE = (
    '</script><script>hacked=1</script><img src=x onerror="hacked=1">{{ 7*7 }}\x1b]0;x\x07\u202e'
)


def hostile() -> Result:
    """Every text that comes from a dump is an attack."""
    row = dict.fromkeys(
        ("target_op", "reference_op", "target_slot", "scope", "evidence", "layout"), HOSTILE
    )
    finding = replace(
        FINDING, scope=HOSTILE, title=f"parts at {HOSTILE}", target_ops=(HOSTILE,), reference_ops=(HOSTILE,),
        evidence=(HOSTILE,), source={"target": HOSTILE}, unexplained=HOSTILE, slots=((HOSTILE, HOSTILE),),
    )  # fmt: skip
    known = {
        "phase": "forward",
        "state": "introduced",
        "metric": "relative_l2",
        "error": 0.1,
        "tolerance": 1e-6,
    }
    base = make()
    source = replace(base.target.source, path=HOSTILE, era=HOSTILE)
    return make(
        findings=(finding,), pairs=pairs(row | known), notes=(HOSTILE,), target=replace(base.target, source=source),
        unmatched=unmatched(("target", HOSTILE, HOSTILE, "forward", HOSTILE, "no partner")),
    )  # fmt: skip


def test_a_hostile_name_stays_text() -> None:
    page = written(hostile()).decode()
    assert "hacked=1</script>" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=&#34;hacked=1&#34;&gt;{{ 7*7 }}\\x1b]0;x\\x07\\u202e" in page


@pytest.mark.parametrize(
    ("changes", "place"),
    [({"scope": "", "target_ops": ()}, "Torch.rsqrt.3.forward"), ({"scope": "", "reference_ops": ()}, RSQRT),
     ({"scope": "", "target_ops": (), "reference_ops": (), "slots": (), "metrics": {}, "tolerance": 0.0}, "")],
)  # fmt: skip
def test_a_finding_is_named_by_what_there_is(changes: dict[str, Any], place: str) -> None:
    page = written(make(findings=(replace(FINDING, **changes),))).decode()
    assert f"<h1>First divergence: {place}</h1>" in page


@pytest.mark.parametrize(("rows", "budget"), [(20_000, 6 * MEGABYTE), (100_000, 14 * MEGABYTE)])
def test_the_file_stays_small_enough_to_mail(demo: Result, rows: int, budget: int) -> None:
    assert len(written(repeated(demo, rows))) < budget


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(assets, "distribution", missing)
    with pytest.raises(DumpError, match=r"pip install 'dumpdiff\[html\]'"):
        check_installed()
