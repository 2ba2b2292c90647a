"""A result is complete: every report can be made from it later, elsewhere, without the dumps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from results import make_result

import dumpdiff
from dumpdiff import DumpError, Result
from dumpdiff.model.storage import read_result, write_result
from dumpdiff.reports.alignment.json import to_json

Dump = Callable[[str], Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, dump: Dump) -> tuple[Path, Path]:
    """Copies of the demo's dumps, which tests may move away."""
    folder = tmp_path_factory.mktemp("pair")
    for name in ("demo_mindspore", "demo_pytorch"):
        shutil.copytree(dump(name), folder / name)
    return folder / "demo_mindspore", folder / "demo_pytorch"


@pytest.fixture(scope="module")
def result(pair: tuple[Path, Path]) -> Result:
    return dumpdiff.align(*pair)


@pytest.fixture(scope="module")
def folder(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("saved") / "result")


@pytest.fixture
def dumps_are_gone(pair: tuple[Path, Path]) -> None:
    for path in pair:
        path.rename(path.with_name(f"{path.name}_moved"))
    yield
    for path in pair:
        path.with_name(f"{path.name}_moved").rename(path)


def test_the_folder_holds_a_result_for_programs_spreadsheets_people_and_dumpdiff(
    folder: Path,
) -> None:
    names = {file.name for file in folder.iterdir()}
    assert names == {"result.json", "pairs.csv", "report.html", "complete.npz"}


@pytest.fixture(scope="module")
def outputs(result: Result) -> dict[str, str]:
    """Every output, made while the dumps are there."""
    return {
        "json": result.to_json(),
        "csv": result.to_csv(),
        "html": result.to_html(),
        "markdown": result.to_markdown(),
        "junit": result.to_junit(),
    }


@pytest.mark.usefixtures("dumps_are_gone")
def test_every_output_is_the_same_from_the_folder(folder: Path, outputs: dict[str, str]) -> None:
    loaded = dumpdiff.load(folder)
    assert loaded.to_json() == outputs["json"]
    assert loaded.to_csv() == outputs["csv"]
    assert loaded.to_html() == outputs["html"]
    assert loaded.to_markdown() == outputs["markdown"]
    assert loaded.to_junit() == outputs["junit"]


def test_align_writes_the_folder_that_save_writes(
    pair: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    dumpdiff.align(*pair, output=tmp_path / "out")
    for name in ("result.json", "pairs.csv", "report.html"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.usefixtures("dumps_are_gone")
def test_a_report_needs_no_dumps(folder: Path, tmp_path: Path) -> None:
    loaded = dumpdiff.report(folder, html=tmp_path / "report.html", csv=tmp_path / "pairs.csv")
    assert loaded.verdict == "diverged"
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    assert (tmp_path / "pairs.csv").read_bytes() == (folder / "pairs.csv").read_bytes()


@pytest.mark.usefixtures("dumps_are_gone")
def test_a_dump_that_is_missing_is_named_with_the_option_that_helps(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DumpError, match=r"the target dump is missing; .*--target PATH"):
        dumpdiff.explain(folder)
    with pytest.raises(DumpError, match="the target dump is missing"):
        dumpdiff.narrow(folder, tmp_path / "next")


@pytest.mark.usefixtures("dumps_are_gone")
def test_dumps_that_were_moved_can_be_named(pair: tuple[Path, Path], folder: Path) -> None:
    target, reference = (path.with_name(f"{path.name}_moved") for path in pair)
    finding = dumpdiff.explain(folder, target=target, reference=reference)
    assert finding.causes[0].name == "epsilon"


def test_paths_in_the_result_are_absolute(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pair[0].parent)
    document = json.loads(dumpdiff.align("demo_mindspore", "demo_pytorch").to_json())
    assert Path(document["target"]["path"]).is_absolute()
    assert Path(document["reference"]["path"]).is_absolute()


def test_the_identity_of_a_finding_is_its_ops_and_slots(result: Result) -> None:
    first = result.findings[0]
    assert replace(first, scope="elsewhere", title="another", rank=7).id == first.id
    assert replace(first, target_ops=("other",)).id != first.id


def test_a_finding_is_explained_by_rules_that_rename_its_module(
    result: Result, folder: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "scopes:\n  block:\n    modules:\n"
        "      second_norm: [post_norm, post_attention_layernorm]\n",
        encoding="utf-8",
    )
    first = result.findings[0]
    explained = dumpdiff.explain(folder, first.id, rules=[rules])
    assert explained.id == first.id
    assert explained.scope == "layers.1.second_norm"
    assert explained.title != first.title


def test_identities_are_different_within_a_result(result: Result) -> None:
    ids = [finding.id for finding in result.findings]
    assert len(set(ids)) == len(ids)


def test_a_finding_is_found_by_rank_or_identity(result: Result) -> None:
    first = result.findings[0]
    assert result.finding(1) is result.finding("1") is result.finding(first.id) is first
    with pytest.raises(DumpError, match="no finding 99"):
        result.finding(99)


def test_a_finding_explains_itself(result: Result) -> None:
    first = replace(result.findings[0], causes=(), unexplained="")
    assert first.explain().causes[0].name == "epsilon"


def test_a_result_shows_itself_in_a_line_and_in_a_notebook(result: Result) -> None:
    assert repr(result).startswith("<Result diverged, ")
    assert "\n" not in repr(result)
    assert "<b>diverged</b>" in result._repr_html_()
    assert (
        "<li>forward values of the reference: 1 introduced, 53 propagated, 99 agreeing, "
        "5 unpaired</li>"
    ) in result._repr_html_()


def test_a_notebook_shows_names_from_a_dump_as_text() -> None:
    hostile = make_result()
    finding = replace(hostile.findings[0], title="<script>alert(1)</script>")
    assert "<script>" not in replace(hostile, findings=(finding,))._repr_html_()


def test_a_result_that_was_only_made_up_cannot_write_itself() -> None:
    with pytest.raises(DumpError, match=r"not made by dumpdiff\.align"):
        make_result().to_json()


def test_everything_in_a_result_is_stored(tmp_path: Path) -> None:
    original = make_result()
    write_result(original, tmp_path / "result.npz")
    stored = read_result(tmp_path / "result.npz")
    assert to_json(stored) == to_json(original)
    assert stored.finding_contexts == original.finding_contexts
    pd.testing.assert_frame_equal(stored.pairs, original.pairs)
    pd.testing.assert_frame_equal(stored.uncompared, original.uncompared)
    assert stored.states == original.states
    pd.testing.assert_frame_equal(stored.unmatched, original.unmatched)


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", b"PK\x03\x04" + bytes(40)],
    ids=["empty", "text", "damaged zip"],
)
def test_what_is_no_result_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "complete.npz").write_bytes(content)
    with pytest.raises(DumpError, match=r"complete\.npz: "):
        dumpdiff.load(tmp_path)


def test_no_pickled_object_is_loaded(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "complete.npz", result=objects)
    with pytest.raises(DumpError, match="found something else"):
        dumpdiff.load(tmp_path)


def test_a_folder_without_a_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="found no such file"):
        dumpdiff.load(tmp_path)
