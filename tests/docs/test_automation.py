"""docs/automation.md: its commands run as printed and leave the JSON that it names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import dumpdiff
from dumpdiff.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "automation.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).splitlines()


def test_every_command_runs_and_its_json_is_as_said(
    tmp_path: Path, dump: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = dumpdiff.demo(tmp_path / "runs")
    (runs / "tp2_dump").symlink_to(dump("parallel_ms_tp2"))
    (runs / "tp1_dump").symlink_to(dump("parallel_pt_tp1"))
    monkeypatch.chdir(runs)
    codes = []
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "dumpdiff"
        outcome = CliRunner().invoke(main, arguments)
        codes.append(outcome.exit_code)
    assert codes == [14, 1, 0, 0, 0, 1, 0, 0]
    documents = {file.stem: json.loads(file.read_text()) for file in runs.glob("*.json")}
    assert documents["triage"]["conclusion"]["cause"] == "forward"
    assert documents["brief"]["findings"][0]["scope"] == "layers.1.attention"
    finding_id = documents["brief"]["findings"][0]["id"]
    assert documents["brief"]["next"] == [f"dumpdiff explain RESULT --finding {finding_id}"]
    assert documents["explanation"]["side"] == "target"
    assert documents["tp"]["verdict"] == "aligned"
    assert documents["weights"]["verdict"] == "agree"
    assert documents["golden_check"]["counts"]["identical"] == 272
    for name in ("brief", "tp", "port"):
        assert (runs / f"{name}.json").stat().st_size <= 8_000
