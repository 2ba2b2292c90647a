"""The real framework under every configuration that the tests are about, in one go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import FIXTURES

from .asked import ASKED
from .cases import CASES
from .generated import generate


@dataclass(frozen=True)
class Outcome:
    """What MindSpore made of a configuration."""

    refused: bool  #: the training stopped
    said: str
    files: tuple[Path, ...]  #: npy files under the folder of the dump, relative to it
    folder: Path  #: of the dump


@pytest.fixture(scope="session")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """``tried("comma")``: what happened under the configuration of this name; each ran once."""
    folder = tmp_path_factory.mktemp("configs")
    for item in (*CASES, *ASKED, *generate()):
        item.write(folder)
    subprocess.run(
        [sys.executable, FIXTURES / "try_mindspore_configs.py", folder],
        check=True,
        capture_output=True,
    )
    outcomes = json.loads((folder / "outcomes.json").read_text(encoding="utf-8"))

    def outcome(name: str) -> Outcome:
        out = folder / name / "out"
        files = tuple(file.relative_to(out) for file in sorted(out.rglob("*.npy")))
        return Outcome(outcomes[name]["code"] != 0, outcomes[name]["said"], files, out)

    return outcome
