"""No command writes over an input, and what a command wrote it may write again."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import pytest

import dumpdiff
from dumpdiff.cli import COMMANDS, main
from dumpdiff.cli.writing_command import OUTPUT_FILE, OUTPUT_FOLDER, WritingCommand

from .conftest import MovedResult, Run


def iterate_commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from iterate_commands(command, (*names, name))
        elif command is not None:
            yield command


def test_every_command_with_an_output_checks_it() -> None:
    """An option that names a file to write has the type of outputs."""
    commands = list(iterate_commands(main))
    assert len(commands) >= len(COMMANDS)
    writing_options = {"--json", "--csv", "--html", "--markdown", "--junit", "--svg", "--output"}
    for command in commands:
        for option in command.params:
            # A flag prints, and a FOLDER is where another program will write.
            is_output = writing_options & set(option.opts) and option.metavar != "FOLDER"
            if isinstance(option, click.Option) and is_output and not option.is_flag:
                assert option.type in (OUTPUT_FILE, OUTPUT_FOLDER), command.name
        types = {parameter.type for parameter in command.params}
        has_output = bool(types & {OUTPUT_FILE, OUTPUT_FOLDER})
        assert isinstance(command, WritingCommand) == has_output, command.name


@pytest.fixture
def dumps(dump: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
    """Own copies of the demo's two dumps."""
    names = ("demo_mindspore", "demo_pytorch")
    return tuple(shutil.copytree(dump(name), tmp_path / name) for name in names)


def read_all(*folders: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for root in folders for path in root.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("option", ["--json", "--csv", "--html", "--markdown", "--junit"])
@pytest.mark.parametrize("place", ["file", "new", "link"])
def test_align_never_writes_into_a_dump(
    run: Run, dumps: tuple[Path, Path], tmp_path: Path, option: str, place: str
) -> None:
    before = read_all(*dumps)
    file = next(path for path in before if dumps[1] in path.parents)
    output = {"file": file, "new": file.parent / "new", "link": tmp_path / "link"}[place]
    if place == "link":
        output.symlink_to(file)
    outcome = run("align", *dumps, option, output, "--force")
    assert outcome.exit_code == 2
    assert "lies inside the input" in outcome.stderr
    assert read_all(*dumps) == before


@pytest.mark.parametrize(
    "command",
    [
        ("align", "{a}", "{b}", "-o", "{a}"),
        ("align", "{a}", "{b}", "-o", "{b}/result"),
        ("align", "{a}", "{b}", "--baseline", "{c}", "--json", "{c}/x.json"),
        ("inspect", "{a}", "--json", "{a}/x.json"),
        ("verify", "{a}", "--json", "{a}/x.json"),
        ("data", "{a}", "{b}", "--json", "{b}/x.json"),
        ("norms", "{a}", "{b}", "--json", "{b}/x.json"),
        ("optimizer", "{a}", "{b}", "--json", "{b}/x.json"),
        ("triage", "{a}", "{b}", "--html", "{b}/x.html"),
        ("triage", "-t", "dump={a}", "-r", "dump={b}", "--json", "{b}/x.json"),
        ("triage", "--init", "{a}", "{b}", "-o", "{a}/case.yaml"),
        ("narrow", "{a}", "-o", "{a}/next"),
        ("mapping", "{a}", "--for", "msprobe", "-o", "{a}/data.yaml"),
        ("dump-config", "mindspore", "--like", "{a}", "-o", "{a}/dump.json"),
        ("weights", "convert", "{a}", "--to", "huggingface", "-o", "{a}/new"),
    ],
)
def test_no_command_writes_into_its_inputs(
    run: Run, dumps: tuple[Path, Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    baseline = shutil.copytree(dumps[1], tmp_path / "baseline")
    before = read_all(tmp_path)
    places = {"a": dumps[0], "b": dumps[1], "c": baseline}
    outcome = run(*[word.format(**places) for word in command])
    assert outcome.exit_code == 2
    assert "input" in outcome.stderr
    assert read_all(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        ("settings", "{x}.yaml", "{y}.yaml", "--json", "{x}.yaml"),
        ("checklist", "{x}.yaml", "{y}.yaml", "--json", "{y}.yaml"),
        ("checklist", "--logs", "{x}.log", "{y}.log", "--markdown", "{y}.log"),
        ("logs", "{x}.log", "{y}.log", "--json", "{x}.log"),
        ("logs", "{x}.log", "{y}.log", "--svg", "{y}.log"),
        ("logs", "{x}.log", "{y}.log", "--baseline", "{z}.log", "--json", "{z}.log"),
        ("weights", "{x}.safetensors", "{y}.safetensors", "--json", "{x}.safetensors"),
        ("weights", "{x}.safetensors", "{y}.safetensors", "--csv", "{y}.safetensors"),
        ("weights", "{x}.safetensors", "{y}.safetensors", "--rules-out", "{y}.safetensors"),
        ("weights", "{x}.pt", "{y}.pt", "--rules", "{z}.yaml", "--html", "{z}.yaml"),
        ("report", "{x}.json", "-o", "{x}.json"),
        ("report", "{x}.json", "--markdown", "{x}.json"),
        ("explain", "{x}.json", "--json", "{x}.json"),
        ("mapping", "{x}.json", "--for", "msprobe", "-o", "{x}.json"),
        ("align", "{x}.json", "{y}.json", "--rules", "{z}.yaml", "--csv", "{z}.yaml"),
        ("align", "{x}.json", "{y}.json", "--weights-target", "{z}.pt", "--json", "{z}.pt"),
    ],
)  # fmt: skip
def test_no_command_replaces_an_input_file(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    for name in "xyz":
        for suffix in ("yaml", "log", "safetensors", "json", "pt"):
            (tmp_path / f"{name}.{suffix}").write_text('{"dumpdiff_version": "1"}')
    before = read_all(tmp_path)
    places = {name: tmp_path / name for name in "xyz"}
    outcome = run(*[word.format(**places) for word in command], "--force")
    assert outcome.exit_code == 2
    assert "is an input; give another name" in outcome.stderr
    assert read_all(tmp_path) == before


def test_what_was_written_may_be_written_again(
    run: Run, moved_result: MovedResult, tmp_path: Path
) -> None:
    files = [tmp_path / f"report.{suffix}" for suffix in ("json", "csv", "html", "md", "xml")]
    options = ("--json", "--csv", "--html", "--markdown", "--junit")
    outputs = [word for pair in zip(options, files, strict=True) for word in pair]
    dumps = (moved_result.target, moved_result.reference)
    for _ in range(2):
        assert run("align", *dumps, "-q", "-o", tmp_path / "result", *outputs).exit_code == 1
    for path in files:
        path.write_text("my notes")
    for option, path in zip(options, files, strict=True):
        outcome = run("align", *dumps, "-q", option, path)
        assert outcome.exit_code == 2
        assert "--force" in outcome.stderr
        assert path.read_text() == "my notes"
    (tmp_path / "result" / "pairs.csv").write_text("my notes")
    assert run("align", *dumps, "-q", "-o", tmp_path / "result").exit_code == 2


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_the_documents_about_one_dump_may_be_written_again(
    run: Run, dumps: tuple[Path, Path], tmp_path: Path, command: str
) -> None:
    exit_codes = {run(command, dumps[0], "--json", tmp_path / "x").exit_code for _ in range(2)}
    assert exit_codes == {0}


#: Every output of every command, with inputs that work; {out} is the file that is written.
WRITING = [
    *[("align", "{t}", "{r}", option, "{out}") for option in
      ("--json", "--csv", "--html", "--markdown", "--junit")],
    *[("report", "{result}", option, "{out}") for option in
      ("--html", "--csv", "--markdown", "--junit")],
    ("explain", "{result}", "--json", "{out}"),
    ("mapping", "{result}", "--for", "msprobe", "-o", "{out}"),
    ("inspect", "{t}", "--json", "{out}"),
    ("verify", "{t}", "--json", "{out}"),
    *[("check", "{t}", option, "{out}") for option in ("--json", "--markdown", "--junit")],
    ("dump-config", "mindspore", "--path", "/data", "-o", "{out}.json"),
    ("dump-config", "msprobe", "--framework", "pytorch", "-o", "{out}"),
    ("settings", "{yaml}", "{sh}", "--json", "{out}"),
    ("checklist", "{yaml}", "{sh}", "--json", "{out}"),
    ("checklist", "{yaml}", "{sh}", "--markdown", "{out}"),
    ("logs", "{log}", "{log}", "--json", "{out}"),
    ("logs", "{log}", "{log}", "--svg", "{out}"),
    ("data", "{batch}", "{batch}", "--json", "{out}"),
    ("norms", "{norms}", "{norms}", "--json", "{out}"),
    ("weights", "{weights}", "{weights}", "--json", "{out}"),
    ("weights", "{weights}", "{weights}", "--csv", "{out}"),
    ("weights", "{weights}", "{weights}", "--html", "{out}"),
    ("triage", "-t", "log={log}", "-r", "log={log}", "--json", "{out}"),
    ("triage", "-t", "log={log}", "-r", "log={log}", "--markdown", "{out}"),
]  # fmt: skip
SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.fixture(scope="module")
def inputs(
    dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One sound input of each kind."""
    folder = tmp_path_factory.mktemp("inputs")
    np.savez(folder / "batch.npz", tokens=np.arange(32).reshape(2, 16))
    np.savez(folder / "weights.npz", weight=np.ones((4, 3), np.float32))
    target, reference = dump("pt_gpt2"), dump("pt_gpt2_no_bias")
    dumpdiff.align(target, reference, output=folder / "result")
    return {
        "t": target,
        "r": reference,
        "result": folder / "result",
        "yaml": SAMPLES / "llama.yaml",
        "sh": SAMPLES / "llama_megatron.sh",
        "log": SAMPLES / "logs" / "megatron_0.12.log",
        "norms": SAMPLES / "norms" / "megatron_0.12_local_norm.log",
        "batch": folder / "batch.npz",
        "weights": folder / "weights.npz",
    }


@contextmanager
def fill_disk() -> Iterator[None]:
    """Let no file become larger than a few bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("command", WRITING, ids=lambda words: " ".join(words[:1] + words[-2:-1]))
def test_a_full_disk_leaves_the_older_file_of_every_command(
    run: Run, inputs: dict[str, Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    arguments = [word.format(out=tmp_path / "output", **inputs) for word in command]
    assert run(*arguments).exit_code in (0, 1, 3, *range(10, 20))
    (output,) = tmp_path.iterdir()
    written = output.read_bytes()
    with fill_disk():
        outcome = run(*arguments, "--force")
    assert outcome.exit_code == 2
    assert f"{output.name}: cannot be written (File too large)" in outcome.stderr
    assert output.read_bytes() == written
    assert list(tmp_path.iterdir()) == [output]
