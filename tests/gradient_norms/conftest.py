"""Real gradients of the small model, printed and saved by either framework; logs with local norms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dumpdiff.capture.snippets import snippet
from dumpdiff.gradient_norms import Norms, read_norms

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "fixtures"


@pytest.fixture(scope="session")
def ms(dump: Callable[[str], Path]) -> Norms:
    """Gradients of the second model in MindSpore: 4 layers, names of MindSpore Transformers."""
    return read_norms(dump("ms_mf_none"))


@pytest.fixture(scope="session")
def pt(dump: Callable[[str], Path]) -> Norms:
    """The same in PyTorch, names of Hugging Face."""
    return read_norms(dump("pt_none"))


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``printed("pytorch")``: the folder that printing/print_pytorch.py filled; its output is in said.txt."""

    @cache
    def run(framework: str) -> Path:
        out = tmp_path_factory.mktemp(f"printed_{framework}")
        for kind in ("local-norm", "save-grads"):
            (out / f"snippet_{kind.replace('-', '_')}.py").write_text(
                snippet(kind, framework), encoding="utf-8"
            )
        script = HERE / "printing" / f"print_{framework}.py"
        done = subprocess.run(
            [sys.executable, script, out, out, FIXTURES],
            cwd=out,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (out / "said.txt").write_text(done.stdout, encoding="utf-8")
        return out

    return run
