"""``dumpdiff golden`` on a real dump: exit codes, JUnit, annotations."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

import dumpdiff
from dumpdiff.cli import main


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumpdiff.demo(tmp_path_factory.mktemp("golden") / "runs") / "megatron" / "dump"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["golden", *map(str, arguments)])


def test_record_and_check(dump: Path, tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    assert run("record", dump, file).stdout == f"golden: 272 values recorded in {file}\n"
    outcome = run("check", dump, file, "-q")
    assert (outcome.exit_code, outcome.stdout) == (0, "golden agree: 272 identical\n")


def test_a_change_fails_the_build_and_points_at_the_line(dump: Path, tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    run("record", dump, file)
    lines = file.read_text().splitlines()
    lines[3] = lines[3].replace('"float32"', '"float16"')
    file.write_text("\n".join(lines))
    junit = tmp_path / "golden.xml"
    outcome = run("check", dump, file, "--github", "-", "--junit", junit)
    assert outcome.exit_code == 1
    answer, annotation = outcome.stdout.splitlines()
    assert answer.startswith("::error title=golden differ::271 identical, 1 changed; first: ")
    assert annotation.startswith("::error file=pytorch_model.py,line=")
    assert annotation.endswith("dtype float32, was float16 (pytorch_model.py:210)")
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
