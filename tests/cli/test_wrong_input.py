"""Wrong input: one clear line and exit code 2, or a counted problem; never a traceback."""

from __future__ import annotations

import json
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy, copytree

import numpy as np
import pytest

from .conftest import Run

Dump = Callable[[str], Path]

# What is at a path instead of a dump. Each function takes the path, which is free, and a real
# dump.json.


def make_nothing(path: Path, real: Path) -> None:
    """A path that does not exist."""


def make_empty_folder(path: Path, real: Path) -> None:
    path.mkdir()


def make_folder_of_other_things(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "README.md").write_text("# Hello\n")


def make_text_file(path: Path, real: Path) -> None:
    path.write_text("Hello\n")


def make_empty_file(path: Path, real: Path) -> None:
    path.touch()


def make_binary_file(path: Path, real: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def make_real_pickle(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "api_stack_dump.pkl").write_bytes(pickle.dumps([["Torch.add.0.forward", [1, 2]]]))


def make_real_pickle_in_words(path: Path, real: Path) -> None:
    path.write_bytes(pickle.dumps({"a": [1, 2]}, protocol=0))


def make_json_of_something_else(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "dump.json").write_text('{"version": 1, "items": []}')


def make_bottomless_json(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "dump.json").write_text(
        '{"task": "statistics", "level": "L1", "data": ' + "[" * 200_000
    )


def make_json_without_tensors(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "dump.json").write_text(
        '{"task": "statistics", "level": "L1", "dump_data_dir": null, "data": {}}'
    )


def make_folder_named_dump_json(path: Path, real: Path) -> None:
    (path / "dump.json").mkdir(parents=True)


def make_empty_pkl(path: Path, real: Path) -> None:
    path.mkdir()
    (path / "api_stack_dump.pkl").touch()


def make_csv_of_unknown_header(path: Path, real: Path) -> None:
    folder = path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    (folder / "statistic.csv").write_text("Name,Colour,Weight\nAdd-op0,red,3\n")


def make_csv_of_header_alone(path: Path, real: Path) -> None:
    folder = path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    (folder / "statistic.csv").write_text(
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
        "Max Value,Min Value\n"
    )


def make_damaged_npy_alone(path: Path, real: Path) -> None:
    folder = path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    (
        folder / "Add.Default_Add-op0.0.0.1795208090162012.output.0.DefaultFormat.Float32.npy"
    ).write_bytes(b"\x93NUMPY")


def make_link_to_itself(path: Path, real: Path) -> None:
    path.symlink_to(path)


NO_DUMP = {
    make_nothing: "no such file or folder",
    make_empty_folder: "the folder is empty",
    make_folder_of_other_things: "no dump in this folder; expected .*dump.json",
    make_text_file: "not a dump; expected",
    make_empty_file: "an empty file; expected",
    make_binary_file: "not a dump; expected",
    make_real_pickle: "api_stack_dump.pkl: real pickle; not read",
    make_real_pickle_in_words: "not a dump; expected",
    make_json_of_something_else: "no dump in this folder",
    make_bottomless_json: "dump.json: JSON nested too deeply",
    make_json_without_tensors: "dump.json: holds no entry with tensors",
    make_folder_named_dump_json: "no dump in this folder",
    make_empty_pkl: "no dump in this folder",
    make_csv_of_unknown_header: "no dump in this folder; expected .*statistic.csv",
    make_csv_of_header_alone: "statistic.csv: has a header but no row",
    make_damaged_npy_alone: "no dump in this folder|holds no tensor that can be read",
    make_link_to_itself: "no such file or folder|[Ss]ymbolic links",
}


@contextmanager
def give_up_rights() -> Iterator[None]:
    """Run the body without the right to read closed files, also as root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # nobody
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("closed", ["dump.json", "."])
def test_no_permission_is_one_line_and_2(run: Run, dump: Dump, closed: str) -> None:
    real = next(dump("pt_none").rglob("dump.json"))
    run("inspect", real)  # loads what the command needs while that can still be read
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy(real, folder)
        path = Path(folder, closed)
        path.chmod(0)
        with give_up_rights():
            result = run("inspect", folder)
        path.chmod(0o755)
    assert result.exit_code == 2, result.output
    message = read_message(result.stderr)
    assert message.startswith(str(path))
    assert re.search("cannot be read|Permission denied", message)


@pytest.fixture
def half_closed(dump: Dump) -> Iterator[Path]:
    """A dump with a second rank whose folder nobody may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for rank in ("rank0", "rank1"):
            copytree(next(dump("pt_none").rglob("dump.json")).parent, Path(folder, "step0", rank))
        closed = Path(folder, "step0", "rank1")
        closed.chmod(0)
        yield Path(folder)
        closed.chmod(0o755)


@pytest.mark.parametrize("command", ["inspect", "verify", "check", "align"])
def test_a_rank_without_permission_is_said(run: Run, half_closed: Path, command: str) -> None:
    dumps = [half_closed] * (2 if command == "align" else 1)
    run(command, *dumps)  # loads what the command needs while that can still be read
    with give_up_rights():
        result = run(command, *dumps)
    assert "step0/rank1: cannot be read (Permission denied)" in " ".join(result.stdout.split())


def test_what_cannot_be_read_does_not_agree(run: Run, half_closed: Path) -> None:
    run("align", half_closed, half_closed)
    with give_up_rights():
        result = run("align", half_closed, half_closed)
    assert result.exit_code == 3, result.output


def read_message(stderr: str) -> str:
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("dumpdiff: ")
    return lines[0].removeprefix("dumpdiff: ")


@pytest.mark.parametrize("make", NO_DUMP, ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["inspect", "align"])
def test_no_dump_is_one_line_and_2(
    run: Run, dump: Dump, tmp_path: Path, command: str, make: Callable[[Path, Path], None]
) -> None:
    valid_dump = dump("pt_none") / "statistics_mix"
    path = tmp_path / "bad"
    make(path, next(valid_dump.rglob("dump.json")))
    result = run("inspect", path) if command == "inspect" else run("align", valid_dump, path)
    assert result.exit_code == 2, result.output
    message = read_message(result.stderr)
    assert "bad" in message, "the line names the file"
    assert re.search(NO_DUMP[make], message), message
    assert result.stdout == ""


def cut(file: Path, share: float) -> Path:
    """Keep only the first part of a file, as after a full disk or a killed process."""
    content = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(content[: int(len(content) * share)])
    return file


def cut_json(folder: Path) -> Path:
    return cut(next(folder.rglob("dump.json")), 0.5)


def cut_stack(folder: Path) -> Path:
    return cut(next(folder.rglob("stack.json")), 0.5)


def cut_construct(folder: Path) -> Path:
    return cut(next(folder.rglob("construct.json")), 0.5)


def cut_pkl(folder: Path) -> Path:
    return cut(next(folder.rglob("*.pkl")), 0.7)


def tear_line_in_pkl(folder: Path) -> Path:
    file = next(folder.rglob("*.pkl"))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:10], lines[10][:20] + b"\n", *lines[11:]]))
    return file


def cut_npy(folder: Path) -> Path:
    return cut(sorted(folder.rglob("*.npy"))[5], 0.6)


def cut_npy_to_nothing(folder: Path) -> Path:
    return cut(sorted(folder.rglob("*.npy"))[5], 0)


def pickle_npy(folder: Path) -> Path:
    file = sorted(folder.rglob("*.npy"))[5]
    file.chmod(0o600)
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    return file


def cut_graph(folder: Path) -> Path:
    return cut(next(folder.rglob("*_graph_0.pb")), 0.5)


DAMAGED = {
    cut_json: "pt_none",
    cut_stack: "pt_none",
    cut_construct: "pt_none",
    cut_pkl: "v6.0_api_stack_summary",
    tear_line_in_pkl: "v6.0_api_stack_summary",
    cut_npy: "ms_graph",
    cut_npy_to_nothing: "ms_graph",
    pickle_npy: "ms_graph",
    cut_graph: "ms_graph",
}


@pytest.mark.parametrize("damage", DAMAGED, ids=lambda damage: damage.__name__)
def test_damage_is_a_counted_problem_and_the_rest_is_used(
    run: Run, dump: Dump, tmp_path: Path, damage: Callable[[Path], Path]
) -> None:
    copytree(dump(DAMAGED[damage]), tmp_path / "dump")
    file = damage(tmp_path / "dump")
    result = run("inspect", tmp_path / "dump", "--json", "-")
    assert result.exit_code == 0, result.stderr
    read = json.loads(result.stdout)["read"]
    assert read["tensors"] > 0
    assert any(
        file.name in problem["file"] and problem["count"] >= 1 for problem in read["problems"]
    ), read["problems"]
    assert file.name in result.stderr, "the text counts it too"


def keep_step(number: int) -> Callable[[Path, Path], Path]:
    def make(dump: Path, path: Path) -> Path:
        return Path(copytree(next(dump.rglob("step0")), path / f"step{number}")).parent

    return make


def keep_rank(number: int) -> Callable[[Path, Path], Path]:
    def make(dump: Path, path: Path) -> Path:
        (index,) = dump.rglob("dump.json")
        return Path(copytree(index.parent, path / "step0" / f"rank{number}")).parents[1]

    return make


@pytest.mark.parametrize(
    ("target", "reference", "options", "complaint"),
    [
        (keep_step(0), keep_step(1), [], "no step in common"),
        (keep_step(0), keep_step(0), ["--step", 5], "step 5 is "),
        (keep_rank(0), keep_rank(0), ["--rank", 5], "rank 5 is "),
        (keep_rank(0), keep_rank(0), ["--graph", 5], "graph 5 is "),
        (keep_rank(0), keep_rank(0), ["--rules", "missing.yaml"], "missing.yaml"),
    ],
)
def test_nothing_to_compare_is_one_line_and_2(
    run: Run,
    dump: Dump,
    tmp_path: Path,
    target: Callable[[Path, Path], Path],
    reference: Callable[[Path, Path], Path],
    options: list[str | int],
    complaint: str,
) -> None:
    real = dump("pt_none") / "statistics_mix"
    result = run("align", target(real, tmp_path / "a"), reference(real, tmp_path / "b"), *options)
    assert result.exit_code == 2, result.output
    assert complaint in read_message(result.stderr)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("scopes: [", "line 1|:1"),
        ("no_such_section: 1\n", "no_such_section"),
        ("- a list\n", "mapping|section"),
        ("\0", "rules.yaml"),
    ],
    ids=["no yaml", "unknown section", "a list", "a control character"],
)
def test_broken_rules_name_file_and_reason(
    run: Run, dump: Dump, tmp_path: Path, text: str, pattern: str
) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    path = dump("v6.0_api_stack_summary")
    result = run("align", path, path, "--rules", tmp_path / "rules.yaml")
    assert result.exit_code == 2, result.output
    line = read_message(result.stderr)
    assert "rules.yaml" in line
    assert re.search(pattern, line)


def test_damage_of_either_side_is_in_the_result(run: Run, dump: Dump, tmp_path: Path) -> None:
    intact = dump("v6.0_api_stack_summary")
    copytree(intact, tmp_path / "dump")
    tear_line_in_pkl(tmp_path / "dump")
    for pair, side in (
        ((tmp_path / "dump", intact), "target"),
        ((intact, tmp_path / "dump"), "reference"),
    ):
        result = run("align", *pair, "--json", "-")
        assert result.exit_code in (0, 1, 3), result.stderr
        assert {problem["side"] for problem in json.loads(result.stdout)["problems"]} == {side}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("triage runs", "is a folder, not a case file; two folders"),
        ("explain runs --finding 1", "expected a result of dumpdiff align .*, found no such file"),
        ("narrow runs -o next", "expected a result of dumpdiff align .*, found no such file"),
        ("golden check runs runs", "expected a golden reference.*, found a folder"),
        ("data train.log train.log", "neither a saved batch .* nor a dump: "),
    ],
)
def test_an_input_of_another_kind_is_named(
    run: Run, command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "train.log").write_text("step 1 loss 5\n")
    monkeypatch.chdir(tmp_path)
    result = run(*command.split())
    assert result.exit_code == 2, result.output
    assert re.search(message, read_message(result.stderr))
