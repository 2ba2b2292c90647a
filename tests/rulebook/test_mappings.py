"""msprobe's mapping files given as rules: recognized by content; errors have a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.rulebook import RuleError, Rules, load_rules

DATA = """\
Cell.fc.Dense.forward.0.input.0: Module.fc.Linear.forward.0.input.0
Cell.fc.Dense.forward.0.parameters.weight: Module.fc.Linear.forward.0.parameters.weight
Cell.fc.Dense.parameters_grad.0.weight: Module.fc.Linear.parameters_grad.weight
Primitive.matmul.MatMul.2.backward.output.0.1: Functional.linear.2.backward.output.0
"""


def load_mapping(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "mapping.yaml"
    file.write_text(text)
    return load_rules([file])


def test_a_data_mapping_names_slots_as_traces_do(tmp_path: Path) -> None:
    dense, linear = "Cell.fc.Dense", "Module.fc.Linear"
    assert load_mapping(tmp_path, DATA).named_pairs.tensors == {
        (f"{dense}.forward.0", "input.0"): (f"{linear}.forward.0", "input.0"),
        (f"{dense}.forward.0", "parameter.weight"): (f"{linear}.forward.0", "parameter.weight"),
        (f"{dense}.parameters_grad.0", "output.weight"): (
            f"{linear}.parameters_grad",
            "output.weight",
        ),
        ("Primitive.matmul.MatMul.2.backward", "output.0.1"): (
            "Functional.linear.2.backward",
            "output.0",
        ),
    }


def test_a_cell_mapping_names_modules(tmp_path: Path) -> None:
    named_pairs = load_mapping(tmp_path, "fc2.Dense: fc2.Linear\n").named_pairs
    assert named_pairs.modules == {"fc2.Dense": "fc2.Linear"}
    assert "Module.fc2.Linear.backward.1" in named_pairs.list_module_names(
        "Cell.fc2.Dense.backward.1"
    )
    assert list(named_pairs.list_module_names("Cell.fc1.Dense.forward.0")) == []


@pytest.mark.parametrize(
    "text",
    [
        "- {ms_api: Functional.abs, pt_api: Torch.abs, ms_args: [0], pt_args: [0]}\n",
        "Functional.abs: Torch.abs\n",
    ],
)
def test_an_api_mapping_names_kinds(tmp_path: Path, text: str) -> None:
    assert load_mapping(tmp_path, text).named_pairs.kinds == {"Functional.abs": "Torch.abs"}


def test_a_mapping_changes_no_rule(tmp_path: Path) -> None:
    counts = load_mapping(tmp_path, DATA).count_rules()
    assert counts.pop("named pairs") == 4
    assert counts == load_rules().count_rules()


def test_a_later_file_wins(tmp_path: Path) -> None:
    for name, kind in (("a", "Torch.abs"), ("b", "Torch.absolute")):
        (tmp_path / name).write_text(f"Functional.abs: {kind}\n")
    assert load_rules([tmp_path / "a", tmp_path / "b"]).named_pairs.kinds == {
        "Functional.abs": "Torch.absolute"
    }


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            DATA + "Cell.fc.Dense: Module.fc.Linear\n",
            5,
            "'Cell.fc.Dense' is not the name of a tensor, such as",
        ),
        (
            DATA + "Cell.fc.Dense.forward.0.input.0: x.forward.0.input.0\n",
            5,
            "is given twice, first in line 1",
        ),
        (
            "- {ms_api: Functional.abs}\n",
            1,
            "expected a row of an msprobe API mapping, with ms_api and pt_api",
        ),
        ("TopLayer:\n  model: {a: b}\n", 2, "expected a text"),
        ("fc.Dense: {}\n", 1, "unknown key 'fc.Dense'"),
        ("fc.Dense:\n", 1, "expected a text, found nothing"),
        ("scope: model.layers\n", 1, "unknown key 'scope'"),
    ],
)
def test_an_error_has_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(RuleError, match=reason) as caught:
        load_mapping(tmp_path, text)
    assert caught.value.line == line


LAYERS = """TopLayer:
  network_with_loss: module
Cell:
  head: lm_head
ParallelAttention:
  qkv_proj: query_key_value
  out_proj.inner: dense(of the output)
"""


def test_a_layer_mapping_renames_the_modules_in_a_class(tmp_path: Path) -> None:
    """The longest path counts, other names stay, and text in parentheses is a comment."""
    pairs = load_mapping(tmp_path, LAYERS).named_pairs
    attention = "network_with_loss.layers.0.attention"
    classes = {attention: "ParallelAttention"}
    for path, expected in (
        (f"{attention}.qkv_proj", "module.layers.0.attention.query_key_value"),
        (f"{attention}.out_proj.inner", "module.layers.0.attention.dense"),
        (f"{attention}.out_proj", "module.layers.0.attention.out_proj"),
        ("head", "lm_head"),
        ("other.qkv_proj", "other.qkv_proj"),
    ):
        assert pairs.convert_path(path, classes) == expected
