"""docs/notebook.ipynb runs from top to bottom and shows what its comments promise."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code_cells) == 10
    shown = "\n".join(
        str(output["data"]) for cell in code_cells for output in cell.outputs if "data" in output
    )
    assert "<b>diverged</b>" in shown
    assert "behaves as attention scores 0.25 times the reference" in shown
    assert "layers.1.attention" in shown
