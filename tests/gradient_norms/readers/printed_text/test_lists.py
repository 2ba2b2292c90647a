"""Norms that a person wrote down, in any format."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import read_error, write_text


@pytest.mark.parametrize(
    "line",
    [
        "{name}: {value}",
        "[rank0] {name} grad norm = tensor({value}, device='cuda:0')",
        "iter 1 | {name} | l2 norm: {value} |",
        "{name}, grad_norm: {value}, mean: 3e-5",
    ],
)
def test_lines_with_a_name_and_a_number_are_read_in_many_formats(tmp_path: Path, line: str) -> None:
    pairs = {"model.layers.10.mlp.fc2.weight": "0.125", "model.norm.bias": "2.5e-05"}
    lines = [line.format(name=name, value=value) for name, value in pairs.items()]
    norms = read_norms(write_text(tmp_path, "\n".join(["loading 3 files", *lines])))
    values = dict(zip(norms.names, norms.raw_values.tolist(), strict=True))
    assert values == {name: float(value) for name, value in pairs.items()}


def test_text_near_a_number_can_mark_it_as_a_square(tmp_path: Path) -> None:
    norms = read_norms(write_text(tmp_path, "a.weight norm**2: 0.25\nb.weight norm**2: 4.0\n"))
    assert norms.values.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.txt", "0.5\n0.25\n", ("", "")),
        ("a.txt", "# step 1\n[0.5, 0.25]\n", ("", "")),
        ("a.txt", "[tensor(0.5, device='cuda:0'), tensor(0.25)]", ("", "")),
        ("a.txt", "embed 0.5\nhead 0.25\n", ("embed", "head")),
        ("a.txt", "embed: 0.5\nhead = 0.25\n", ("embed", "head")),
        ("a.csv", "step,parameter,grad_norm\n1,embed,0.5\n1,head,0.25\n", ("embed", "head")),
        ("a.csv", "norm\n0.5\n0.25\n", ("", "")),
        ("a.json", "[0.5, 0.25]", ("", "")),
        ("a.json", '{"step": 1, "norms": {"embed": 0.5, "head": 0.25}}', ("embed", "head")),
        (
            "a.json",
            '[{"name": "embed", "norm": 0.5}, {"name": "head", "norm": 0.25}]',
            ("embed", "head"),
        ),
        ("a.json", '[["embed", 0.5], ["head", 0.25]]', ("embed", "head")),
    ],
)
def test_a_list_is_read_in_any_format(
    tmp_path: Path, name: str, content: str, names: tuple[str, ...]
) -> None:
    norms = read_norms(write_text(tmp_path, content, name))
    assert (norms.names, norms.raw_values.tolist()) == (names, [0.5, 0.25])


@pytest.mark.parametrize(
    ("content", "squared"),
    [('{"squared norms": [0.25, 4.0]}', True), ('{"norms": [0.25, 4.0]}', None)],
)
def test_a_json_key_can_mark_squares(tmp_path: Path, content: str, squared: bool | None) -> None:
    assert read_norms(write_text(tmp_path, content, "a.json")).squared is squared


@pytest.mark.parametrize("first", [0, 1])
def test_a_table_of_several_steps_contains_each_parameter_once_per_step(
    tmp_path: Path, first: int
) -> None:
    rows = [
        f"{step},{name},{value}"
        for step, value in ((first, 0.5), (first + 1, 0.25))
        for name in ("embed", "head")
    ]
    table = write_text(tmp_path, "\n".join(["step,parameter,grad_norm", *rows]), "a.csv")
    assert (read_norms(table).step, read_norms(table).raw_values.tolist()) == (1, [0.5, 0.5])
    assert (read_norms(table, 2).names, read_norms(table, 2).raw_values.tolist()) == (
        ("embed", "head"),
        [0.25, 0.25],
    )
    assert read_error(table, 3).endswith("has no norms of step 3; it has those of steps 1 to 2")
