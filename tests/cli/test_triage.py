"""``dumpdiff triage`` as a user runs it; recorded cases are in tests/acceptance/test_triage.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schemas import check

from dumpdiff.diagnosis import case

from .conftest import Run

SAMPLES = Path(__file__).parents[1] / "samples"
NEW, OLD = SAMPLES / "logs" / "megatron_0.17.log", SAMPLES / "logs" / "megatron_0.12.log"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of two runs: settings and a log each."""
    for name, settings, log in (("ms", "llama.yaml", NEW), ("pt", "llama_megatron.sh", OLD)):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / settings).write_text((SAMPLES / settings).read_text())
        (tmp_path / name / "logs" / "train.log").write_text(log.read_text())
    return tmp_path / "ms", tmp_path / "pt"


def test_init_writes_a_case_that_can_be_read(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    assert run("triage", "--init", *folders, "-o", tmp_path / "case.yaml").exit_code == 0
    text = (tmp_path / "case.yaml").read_text()
    assert "  log: ms/logs " in text
    assert "  # dump: dump " in text
    written_case = case.load_case(tmp_path / "case.yaml")
    assert written_case.target == case.Run(
        settings=str(tmp_path / "ms" / "llama.yaml"), log=str(tmp_path / "ms" / "logs")
    )


def test_init_overwrites_nothing(run: Run, folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text("mine")
    refused = run("triage", "--init", *folders, "-o", tmp_path / "case.yaml")
    assert (refused.exit_code, (tmp_path / "case.yaml").read_text()) == (2, "mine")
    assert "was not written by dumpdiff; give another name, or --force" in refused.stderr


def test_a_case_two_folders_and_options_give_the_same_conclusion(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, reference = folders
    run("triage", "--init", *folders, "-o", tmp_path / "case.yaml")
    options = ("-t", f"log={target}/logs", "-t", f"settings={target}/llama.yaml")
    options += ("-r", f"log={reference}/logs", "-r", f"settings={reference}/llama_megatron.sh")
    first, *further = [
        run("triage", *inputs, "--min-steps", 6, "-q")
        for inputs in ((tmp_path / "case.yaml",), folders, options)
    ]
    for outcome in further:
        assert (outcome.exit_code, outcome.stdout) == (first.exit_code, first.stdout)
    assert first.stdout.startswith("triage: ")
    assert first.stdout.count("\n") == 1


def test_a_wrong_setting_has_its_exit_code(run: Run, folders: tuple[Path, Path]) -> None:
    yaml = folders[0] / "llama.yaml"
    yaml.write_text(yaml.read_text().replace("rms_norm_eps: 1.e-5", "rms_norm_eps: 1.e-6"))
    result = run("triage", *folders, "--min-steps", 6, "--json", "-")
    assert result.exit_code == 11
    check(json.loads(result.stdout))
    assert "the settings differ: norm epsilon: 1e-06" in result.stderr


def test_an_input_that_cannot_be_read_is_reported_and_the_rest_is_used(
    run: Run, folders: tuple[Path, Path]
) -> None:
    (folders[0] / "empty.pt").write_bytes(b"")
    result = run(
        "triage", "-t", f"log={folders[0]}/logs", "-r", f"log={folders[1]}/logs", "--min-steps", 6,
        "-t", f"weights={folders[0]}/empty.pt", "-r", f"weights={folders[0]}/empty.pt",
    )  # fmt: skip
    assert result.exit_code == 3
    assert "empty.pt" in result.stdout
    assert "6 steps within the migration standard" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a case file, or two folders, or inputs with --target and --reference"),
        (
            ("a", "b", "c"),
            "give a case file, or two folders, or inputs with --target and --reference",
        ),
        (("-t", "log"), "'log' has no value"),
        (("-t", "log=a", "-t", "log=b"), "a key can be given once for each run"),
        (("nowhere.yaml",), "there is no such file"),
        (("--init", "one"), "--init takes two folders"),
        (("nowhere", "nowhere"), "there is no such folder"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run("triage", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_pages_never_replace_an_input_or_what_a_person_wrote(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run("triage", "--init", *folders, "-o", tmp_path / "case.yaml")
    inside = run("triage", tmp_path / "case.yaml", "--pages", folders[0] / "logs" / "pages")
    assert inside.exit_code == 2
    assert "lies inside the input" in inside.stderr
    assert not (folders[0] / "logs" / "pages").exists()
    html = run("triage", tmp_path / "case.yaml", "--html", folders[0] / "logs" / "triage.html")
    assert html.exit_code == 2
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "logs.html").write_text("mine")
    refused = run("triage", tmp_path / "case.yaml", "--pages", pages)
    assert refused.exit_code == 2
    assert "was not written by dumpdiff" in refused.stderr
    assert [path.name for path in pages.iterdir()] == ["logs.html"]


def test_pages_can_be_written_again_and_redacted(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    for options in ((), ("--redact",)):
        outcome = run("triage", *folders, "--min-steps", 6, "--pages", tmp_path / "p", *options)
        assert outcome.exit_code == 3
        is_named = str(tmp_path) in (tmp_path / "p" / "logs.html").read_text()
        assert is_named == (not options)
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {"triage.html", "settings.html", "checklist.html", "logs.html"}
