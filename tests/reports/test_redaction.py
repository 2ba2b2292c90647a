"""A redacted report names no folder, user or host, and says everything else."""

from __future__ import annotations

import getpass
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff.reports.redaction import redact_result


@dataclass(frozen=True)
class Texts:
    """Stands for a result."""

    texts: tuple[str, ...]


def redact(*texts: str) -> tuple[str, ...]:
    return redact_result(Texts(texts)).texts


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/alice/runs/ms dump/step0", "/…/step0"),
        ("model.py:46 of /home/alice/model.py:46", "model.py:46 of /…/model.py:46"),
        ("see /home/alice/a.log, and alice's notes", "see /…/a.log, and …'s notes"),
        (r"C:\Users\Bob\dump\x.npy", "/…/x.npy"),
        ("Default/network-WithLoss/_backbone/MatMul-op0", None),
        ("values 140 / 140, 3 ops/s, and/or", None),
        ("layers.0.attention.wq.weight", None),
    ],
)
def test_paths_end_with_their_last_component(text: str, redacted: str | None) -> None:
    assert redact(text) == (text if redacted is None else redacted,)


def test_the_user_of_one_path_is_hidden_in_all_texts() -> None:
    assert redact("/home/alice/x/y", "run of alice", "malice") == ("/…/y", "run of …", "malice")


def test_this_user_and_this_host_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    monkeypatch.setattr(getpass, "getuser", lambda: "bob")
    assert redact("recorded on node-17.") == ("recorded on ….",)
    assert redact("by bob, not by bobby") == ("by …, not by bobby",)


def test_no_report_names_the_folders_of_the_dumps(
    dump: Callable[[str], Path], tmp_path: Path
) -> None:
    root = tmp_path / "home" / "alice" / "secret_project"
    for name in ("pt_gpt2", "pt_gpt2_no_bias"):
        shutil.copytree(dump(name), root / name)
    dumpdiff.align(root / "pt_gpt2", root / "pt_gpt2_no_bias", output=root / "result")
    for result in (root / "result", root / "result" / "result.json"):
        report = dumpdiff.report(result, redact=True)
        for output in ("html", "markdown", "junit", "json", "csv"):
            text = report.render(output)
            assert "secret_project" not in text, output
            assert "alice" not in text, output
        assert "secret_project" in dumpdiff.report(result).render("json")
