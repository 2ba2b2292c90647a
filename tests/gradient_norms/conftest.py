"""Real gradients of the small model, printed and saved by both frameworks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dumpdiff.capture.snippets import build_snippet
from dumpdiff.gradient_norms import Norms, read_norms

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "fixtures"


@pytest.fixture(scope="session")
def ms(dump: Callable[[str], Path]) -> Norms:
    """Gradients of the second model (4 layers) in MindSpore, with MindFormers names."""
    return read_norms(dump("ms_mf_none"))


@pytest.fixture(scope="session")
def pt(dump: Callable[[str], Path]) -> Norms:
    """The same gradients in PyTorch, with names of Hugging Face."""
    return read_norms(dump("pt_none"))


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: framework to the folder of printing/print_FRAMEWORK.py, which ran.

    The output of the script is in printed.txt.
    """

    @cache
    def print_gradients(framework: str) -> Path:
        out = tmp_path_factory.mktemp(f"printed_{framework}")
        for kind in ("local-norm", "save-grads"):
            (out / f"snippet_{kind.replace('-', '_')}.py").write_text(
                build_snippet(kind, framework), encoding="utf-8"
            )
        script = HERE / "printing" / f"print_{framework}.py"
        process = subprocess.run(
            [sys.executable, script, out, out, FIXTURES],
            cwd=out,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        (out / "printed.txt").write_text(process.stdout, encoding="utf-8")
        return out

    return print_gradients
