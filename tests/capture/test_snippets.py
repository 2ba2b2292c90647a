"""Code for training scripts, run in the frameworks that it is for."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.capture.snippets import FRAMEWORKS, KINDS, build_snippet

NORM = re.compile(r"^step:\[(\d+)\] local_norm/(\S+): (\S+)$", re.MULTILINE)
TRAIN = Path(__file__).parent / "training"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``trained("pytorch")``: the folder of a training that used every snippet; its output is in
    said.txt.
    """
    done: dict[str, Path] = {}

    def train(framework: str) -> Path:
        if framework not in done:
            folder = tmp_path_factory.mktemp(f"trained_{framework}")
            for kind in KINDS:
                code = build_snippet(
                    kind,
                    framework,
                    seed=7,
                    folder=str(folder / "gradients"),
                    config=str(folder / "dump.json"),
                )
                (folder / f"snippet_{kind.replace('-', '_')}.py").write_text(code, encoding="utf-8")
            script = TRAIN / f"train_{FRAMEWORKS[framework].template_folder}.py"
            run = subprocess.run(
                [sys.executable, script, folder],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stdout + run.stderr
            (folder / "said.txt").write_text(run.stdout, encoding="utf-8")
            done[framework] = folder
        return done[framework]

    return train


RECORDED = [pytest.param(name, marks=pytest.mark.record) for name in ("pytorch", "mindspore")]


@pytest.mark.parametrize("framework", RECORDED)
def test_the_same_seed_gives_the_same_numbers(
    framework: str, trained: Callable[[str], Path]
) -> None:
    one, two = np.load(trained(framework) / "draws.npy")
    assert np.array_equal(one, two)
    assert len(set(one)) == one.size


@pytest.mark.parametrize("framework", RECORDED)
def test_the_saved_gradient_is_the_gradient_and_not_the_parameter(
    framework: str, trained: Callable[[str], Path]
) -> None:
    folder = trained(framework)
    with np.load(folder / "before.npz") as before, np.load(folder / "after.npz") as after:
        assert set(before) == {file.stem for file in (folder / "gradients").iterdir()}
        for name in before:
            moved = (before[name] - after[name]) / 0.5  # by plain descent with this rate
            np.testing.assert_allclose(
                np.load(folder / "gradients" / f"{name}.npy"), moved, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("framework", RECORDED)
def test_every_line_names_its_parameter_and_the_root_is_taken(
    framework: str, trained: Callable[[str], Path]
) -> None:
    folder = trained(framework)
    lines = NORM.findall((folder / "said.txt").read_text())
    first = {name: float(norm) for step, name, norm in lines if step == "1"}
    assert set(first) == {file.stem for file in (folder / "gradients").iterdir()}
    for name, norm in first.items():
        assert norm == pytest.approx(
            float(np.linalg.norm(np.load(folder / "gradients" / f"{name}.npy"))), rel=1e-5
        )
    assert {step for step, _, _ in lines} == {"1", "2"}


@pytest.mark.parametrize("framework", RECORDED)
def test_the_optimizer_moves_the_weights_by_the_loaded_gradients(
    framework: str, trained: Callable[[str], Path]
) -> None:
    folder = trained(framework)
    with np.load(folder / "before.npz") as before, np.load(folder / "given.npz") as given:
        for name in before:
            np.testing.assert_allclose(
                before[name] - given[name], 0.5 * np.ones_like(before[name]), rtol=1e-5
            )


@pytest.mark.parametrize("framework", RECORDED)
def test_a_gradient_of_another_shape_is_refused(
    framework: str, trained: Callable[[str], Path]
) -> None:
    assert "has the shape" in (trained(framework) / "said.txt").read_text()


@pytest.mark.record
def test_dump_in_pytorch_is_by_msprobe(trained: Callable[[str], Path]) -> None:
    (dump,) = (trained("pytorch") / "dump").glob("step0/*/dump.json")
    assert any("Linear" in name for name in json.loads(dump.read_text())["data"])


@pytest.mark.record
def test_dump_in_mindspore_is_by_the_framework(trained: Callable[[str], Path]) -> None:
    assert any(
        file.name.startswith("MatMul.") for file in (trained("mindspore") / "dump").rglob("*.npy")
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_says_where_to_paste_it_and_is_python(kind: str, framework: str) -> None:
    code = build_snippet(kind, framework)
    assert code.startswith(f"# dumpdiff: {KINDS[kind]}\n# Paste into: ")
    assert "$" not in code
    assert ast.parse(code).body


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parameters_reach_the_code(framework: str) -> None:
    hostile = 'a"b\\c\nd$e'
    defaults = {
        node.value
        for kind in KINDS
        for node in ast.walk(
            ast.parse(
                build_snippet(kind, framework, seed=99, rank=3, folder=hostile, config=hostile)
            )
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, str))
    }
    assert {99, 3, hostile} <= defaults
