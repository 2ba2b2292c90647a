"""docs/notebook.ipynb runs from top to bottom and shows what its comments promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path: Path, dump: Callable[[str], Path]) -> None:
    demo = tmp_path / ".demo"
    demo.mkdir()
    for name in ("demo_mindspore", "demo_pytorch"):
        (demo / name).symlink_to(dump(name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code_cells) == 10
    shown = "\n".join(
        str(output["data"]) for cell in code_cells for output in cell.outputs if "data" in output
    )
    assert "<b>diverged</b>" in shown
    assert "behaves as epsilon = 0.01" in shown
    assert "layers.1.post_attention_norm" in shown
    assert (demo / "notebook" / "report.html").stat().st_size > 100_000
