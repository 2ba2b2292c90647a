"""``dumpdiff align``: options, output and exit codes, on a made-up result; then on real dumps."""

from __future__ import annotations

import csv
import inspect
import io
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import click
import jsonschema
import numpy as np
import pytest
from results import make_result

import dumpdiff
from dumpdiff import cli, figures
from dumpdiff.model import trace
from dumpdiff.model.result import PAIR_COLUMNS, Result
from dumpdiff.reports import outputs

from .conftest import Run

Dump = Callable[[str], Path]
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text())


def check(document: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


COMMAND = cli.main.get_command(click.Context(cli.main), "align")


class Backend:
    """Writes the outputs of a made-up result, which has no dumps."""

    def write(self, result: Result, output: str, stream: IO[bytes]) -> None:
        outputs.write(result, output, stream)

    def save(self, result: Result, folder: Path) -> None:
        raise NotImplementedError


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the library's ``align``; it returns ``called["result"]``, a divergence."""
    call: dict[str, Any] = {"result": make_result(backend=Backend())}

    def align(target: str, reference: str, **options: Any) -> Result:
        call.update(target=target, reference=reference, options=options)
        return call["result"]  # type: ignore[no-any-return]

    monkeypatch.setattr(dumpdiff, "align", align)
    return call


@pytest.mark.parametrize(
    ("verdict", "code"), [("aligned", 0), ("diverged", 1), ("inconclusive", 3)]
)
def test_the_exit_code_is_the_verdict(
    run: Run, called: dict[str, Any], verdict: str, code: int
) -> None:
    called["result"] = make_result(verdict=verdict, backend=Backend())
    assert run("align", "a", "b").exit_code == code


def test_options_reach_the_library(run: Run, called: dict[str, Any]) -> None:
    run(
        "align", "a", "b", "--step", 2, "--rank", 1, "--graph", 0, "--baseline", "again",
        "--rules", "x", "--rules", "y", "--min-coverage", 0.9, "-o", "result",
        "--weights-target", "w", "--weights-reference", "v", "--verify",
    )  # fmt: skip
    assert (called["target"], called["reference"]) == ("a", "b")
    assert called["options"] == {
        "step": 2, "rank": 1, "graph": 0, "rules": ("x", "y"), "min_coverage": 0.9,
        "progress": None, "verify": True, "steps": None, "ranks": None, "jobs": None,
            "scheduler": None,
        "baseline": "again", "weights_target": "w", "weights_reference": "v", "output": "result",
    }  # fmt: skip


def test_the_defaults_are_those_of_the_library() -> None:
    parameters = inspect.signature(dumpdiff.align).parameters
    defaults = {option.name: option.default for option in COMMAND.params}
    assert defaults["min_coverage"] == parameters["min_coverage"].default
    for name in ("step", "rank", "graph", "progress"):
        assert parameters[name].default is None


def test_phases_are_those_of_a_trace() -> None:
    (phase,) = (option for option in COMMAND.params if option.name == "phase")
    assert tuple(phase.type.choices) == trace.PHASES


def test_the_first_line_is_the_answer(run: Run, called: dict[str, Any]) -> None:
    lines = run("align", "a", "b").stdout.splitlines()
    assert lines[0].startswith("diverged: layers.1.post_norm: error 3.1e-2; model.py:46")
    assert len(lines) > 1


def test_quiet_is_the_first_line_alone(run: Run, called: dict[str, Any]) -> None:
    assert len(run("align", "a", "b", "-q").stdout.splitlines()) == 1


def is_json(text: str) -> bool:
    check(json.loads(text))
    return True


FORMS: dict[str, Callable[[str], bool]] = {
    "--json": is_json,
    "--csv": lambda text: next(csv.reader(io.StringIO(text))) == list(PAIR_COLUMNS),
    "--html": lambda text: text.lower().startswith("<!doctype html>"),
    "--markdown": lambda text: text.startswith("**First divergence:**"),
    "--junit": lambda text: ElementTree.fromstring(text).tag == "testsuites",
}


@pytest.mark.parametrize("option", FORMS)
def test_a_dash_writes_to_standard_output_and_moves_the_report(
    run: Run, called: dict[str, Any], option: str
) -> None:
    result = run("align", "a", "b", option, "-")
    assert result.stderr.startswith("diverged: ")
    assert FORMS[option](result.stdout)


def test_all_formats_at_once(run: Run, called: dict[str, Any], tmp_path: Path) -> None:
    files = {option: tmp_path / f"r.{option.strip('-')}" for option in FORMS}
    options = chain.from_iterable(files.items())
    result = run("align", "a", "b", *options)
    assert result.stdout.startswith("diverged: ")
    for option, file in files.items():
        assert FORMS[option](file.read_text())
    assert len(files["--csv"].read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "options", [["--limit", 0], ["--phase", "optimizer"], ["--scope", "nowhere"], ["-q"], ["-v"]]
)
def test_what_is_printed_changes_neither_files_nor_exit_code(
    run: Run, called: dict[str, Any], tmp_path: Path, options: list[Any]
) -> None:
    def run_align(name: str, *filters: Any) -> tuple[int, bytes, bytes]:
        files = tmp_path / f"{name}.json", tmp_path / f"{name}.csv"
        result = run("align", "a", "b", "--json", files[0], "--csv", files[1], *filters)
        return result.exit_code, files[0].read_bytes(), files[1].read_bytes()

    assert run_align("filtered", *options) == run_align("complete")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--phase", "sideways"], "'sideways' is not one of"),
        (["--step", "-1"], "-1 is not in the range"),
        (["--min-coverage", "2"], "2.0 is not in the range"),
        (["--limit", "many"], "'many' is not a valid integer"),
        (["--json", "-", "--junit", "-"], "two outputs cannot both be written to -"),
        (["--jsn", "x"], "No such option"),
        (["c"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_2_and_nothing_runs(
    run: Run, called: dict[str, Any], options: list[str], complaint: str
) -> None:
    result = run("align", "a", "b", *options)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "options" not in called


@pytest.mark.parametrize("option", FORMS)
@pytest.mark.parametrize("file", ["", "missing/result"])
def test_a_file_that_cannot_be_written_is_an_error_before_the_work(
    run: Run, called: dict[str, Any], tmp_path: Path, option: str, file: str
) -> None:
    result = run("align", "a", "b", option, tmp_path / file)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "options" not in called


# From here on nothing is replaced: real dumps are compared.


def align_dumps(run: Run, target: Path, reference: Path, *options: Any) -> tuple[int, Any]:
    """Exit code and JSON of a real run, the latter valid."""
    result = run("align", target, reference, "--json", "-", *options)
    assert result.exit_code in (0, 1, 3), result.stderr
    document = json.loads(result.stdout)
    check(document)
    return result.exit_code, document


def test_a_clean_pair_is_aligned(run: Run, dump: Dump) -> None:
    code, document = align_dumps(run, dump("ms_graph"), dump("v6.0_api_stack"))
    assert (code, document["verdict"], document["findings"]) == (0, "aligned", [])
    assert document["first_divergence"] is None
    assert document["coverage"]["reference"]["forward"]["share"] >= 0.95
    assert document["coverage"]["reference"]["backward"]["share"] >= 0.90


def test_a_wrong_weight_is_found(run: Run, dump: Dump) -> None:
    code, document = align_dumps(run, dump("ms_graph_bug_w1"), dump("v6.0_api_stack_summary"))
    first = document["first_divergence"]
    assert (code, document["verdict"]) == (1, "diverged")
    assert (
        "Functional.linear.18.forward" in first["reference_ops"]
        or "layers.2.mlp.w1" in first["scope"]
    )


def test_too_little_compared_is_inconclusive(run: Run, dump: Dump) -> None:
    code, document = align_dumps(
        run, dump("ms_graph"), dump("v6.0_api_stack_summary"), "--min-coverage", 1
    )
    assert (code, document["verdict"]) == (3, "inconclusive")


def test_a_dump_against_itself_is_aligned(run: Run, dump: Dump) -> None:
    path = dump("v6.0_api_stack_summary")
    code, document = align_dumps(run, path, path)
    assert (code, document["findings"]) == (0, [])


def test_the_csv_has_a_row_for_every_pair_of_the_json(run: Run, dump: Dump, tmp_path: Path) -> None:
    path = dump("v6.0_api_stack_summary")
    _, document = align_dumps(run, path, path, "--csv", tmp_path / "pairs.csv")
    with (tmp_path / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(document["pairs"].values()) > 0
    assert {row["state"] for row in rows} == set(document["pairs"])


def test_a_checkpoint_that_names_parameters_is_recorded(
    run: Run, dump: Dump, tmp_path: Path
) -> None:
    """A dump of calls names no parameters; its checkpoint does, and ``explain`` reads it again."""
    named = dumpdiff.read(dump("demo_mindspore"))
    rows = named.tensors[(named.tensors["parameter"] != "") & (named.tensors["file"] != "")]
    for row, name in rows["parameter"].items():
        np.save(tmp_path / f"{name}.npy", named.array(row))
    options = ("--weights-reference", tmp_path, "--json", "-")
    outcome = run("align", dump("demo_mindspore"), dump("demo_pytorch"), *options)
    document = json.loads(outcome.stdout)
    assert outcome.exit_code == 1
    assert document["reference"]["details"]["weights"] == str(tmp_path)
    assert "weights" not in document["target"]["details"]


@pytest.fixture
def pair(dump: Dump) -> tuple[Path, Path]:
    """The demo: an epsilon that is wrong on the MindSpore side."""
    return dump("demo_mindspore"), dump("demo_pytorch")


def test_a_folder_gets_the_complete_result_and_the_answer_is_printed(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "result"
    result = run("align", *pair, "-o", folder, "-q")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("diverged: layers.1.post_attention_norm: epsilon, ")
    names = {file.name for file in folder.iterdir()}
    assert names == {"result.json", "pairs.csv", "report.html", "complete.npz"}
    check(json.loads((folder / "result.json").read_text()))


def test_a_folder_and_files_hold_the_same(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, json_file, html_file = (tmp_path / name for name in ("out", "a.json", "a.html"))
    run("align", *pair, "-o", folder, "--json", json_file, "--html", html_file)
    assert (folder / "result.json").read_bytes() == json_file.read_bytes()
    assert (folder / "report.html").read_bytes() == html_file.read_bytes()


@pytest.mark.parametrize("inside", ["", "result"])
def test_a_folder_that_cannot_be_made_is_an_error_before_the_work(
    run: Run, called: dict[str, Any], tmp_path: Path, inside: str
) -> None:
    (tmp_path / "file").write_text("kept")
    result = run("align", "a", "b", "-o", tmp_path / "file" / inside)
    assert result.exit_code == 2
    assert result.stderr == f"dumpdiff: {tmp_path / 'file'}: is a file; give a folder to write\n"
    assert (tmp_path / "file").read_text() == "kept"
    assert "options" not in called


@pytest.mark.parametrize(
    ("options", "n_drawings"),
    [
        (["--json", "j", "--csv", "c", "--markdown", "m", "--junit", "u"], 0),
        (["--html", "h"], 1),
        (["-o", "folder", "--html", "h"], 1),
    ],
)
def test_drawings_are_made_once_and_only_for_the_page(
    run: Run,
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    n_drawings: int,
) -> None:
    collect = figures.collect_finding_contexts
    calls: list[Result] = []

    def collect_and_count(comparison: Any, result: Result) -> Any:
        calls.append(result)
        return collect(comparison, result)

    monkeypatch.setattr(figures, "collect_finding_contexts", collect_and_count)
    monkeypatch.chdir(tmp_path)
    assert run("align", *pair, *options).exit_code == 1
    assert len(calls) == n_drawings
