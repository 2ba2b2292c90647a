"""The inputs of a triage are found in folders, and nothing is taken for what it is not."""

from __future__ import annotations

import json
from pathlib import Path

from dumpdiff.diagnosis.discovery import discover_case


def test_the_configuration_of_a_recorder_is_no_settings(tmp_path: Path) -> None:
    recorder = {"task": "statistics", "dump_path": "d", "level": "mix", "rank": [], "step": [0]}
    state = {"log_history": [{"loss": 5.0, "step": 1}, {"loss": 4.0, "step": 2}]}
    for side in ("target", "reference"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "config.json").write_text(json.dumps(recorder))
        (tmp_path / side / "trainer_state.json").write_text(json.dumps(state))
    case = discover_case(tmp_path / "target", tmp_path / "reference")
    assert case.target.settings == ""
    assert case.target.log == str(tmp_path / "target" / "trainer_state.json")
