"""The demo is two complete runs, small enough to be shipped, and says what it is meant to say."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

import dumpdiff


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumpdiff.demo(tmp_path_factory.mktemp("demo") / "runs")


def test_the_archive_is_small() -> None:
    archive = resources.files("dumpdiff.api") / "data" / "demo.tar.xz"
    assert len(archive.read_bytes()) < 1_000_000


def test_each_run_has_everything_that_a_command_reads(runs: Path) -> None:
    common = {"batch.npz", "checkpoint", "dump", "local_norms.log", "steps", "train.log"}
    assert {path.name for path in (runs / "mindformers").iterdir()} == common | {"settings.yaml"}
    assert {path.name for path in (runs / "megatron").iterdir()} == common | {"train.sh"}


def test_triage_finds_every_input_and_the_faulty_layer(runs: Path) -> None:
    triaged = dumpdiff.triage(dumpdiff.find_case(runs / "mindformers", runs / "megatron"))
    assert triaged.decision.cause == "forward"
    assert "layers.1.attention" in triaged.decision.headline
    assert {"data", "weights"} <= {answer.place for answer in triaged.decision.ruled_out}


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("mine")
    with pytest.raises(dumpdiff.DumpError, match="is not empty; give another folder"):
        dumpdiff.demo(tmp_path)
    assert list(tmp_path.iterdir()) == [file]
