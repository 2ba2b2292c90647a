"""File names of MindSpore's dumper, of every generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.readers.mindspore.file_names import (
    FileName,
    encode_op_name,
    parse_file_name,
    read_mapping,
    strip_op_number,
)

NEW = (
    "MatMul.Default_network-WithLoss_layers-CellList_2-Block_up_proj-Linear_MatMul-op0.0.0.1795208801567592"
    ".input.1.DefaultFormat.Float32.npy"
)


def test_a_name_since_2_4():
    name = "Default_network-WithLoss_layers-CellList_2-Block_up_proj-Linear_MatMul-op0"
    assert parse_file_name(NEW) == FileName("MatMul", name, 1795208801567592, "input", 1, "Float32")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Conv2D.Default--network-Net--conv1-Conv2d--Conv2D-op369.2.7.1623124369613540.output.0.DefaultFormat.npy",
            FileName(
                "Conv2D",
                "Default--network-Net--conv1-Conv2d--Conv2D-op369",
                1623124369613540,
                "output",
                0,
                "",
            ),
        ),
        (
            "Parameter.moment1_net_weight.0.0.1795208801759730.output.0.DefaultFormat.Float32.npy",
            FileName("Parameter", "moment1_net_weight", 1795208801759730, "output", 0, "Float32"),
        ),
        (
            "Add.Default_Add-op0.0.0.1734008383669918.input.0.NC1HWC0.bfloat16.npy",
            FileName("Add", "Default_Add-op0", 1734008383669918, "input", 0, "bfloat16"),
        ),
        (
            "ge:Conv2D.conv1.5.3.1734008383669918.input.0.ND.npy",
            FileName("ge:Conv2D", "conv1", 1734008383669918, "input", 0, ""),
        ),
    ],
)
def test_names_of_other_generations(name: str, expected: FileName):
    assert parse_file_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "Functional.linear.0.forward.input.0.npy",  # ptdbg_ascend
        "Functional.linear.0.forward.input.0.0.npy",
        "Cell.layers.0.Dense.forward.0.input.0.npy",  # msprobe
        "Mint.add.0.backward.output.0.npy",
        "weights.npy",
        "506920874.npy",
        NEW.replace("1795208801567592", "12"),
        NEW + ".bak",
        NEW.replace("Default_", "../"),
        "A" * 5000 + NEW,
    ],
)
def test_other_names_are_not_taken(name: str):
    assert parse_file_name(name) is None


@pytest.mark.parametrize(
    "spelling", ["Default/fc-Dense/MatMul-op0", "Default--fc-Dense--MatMul-op0"]
)
def test_both_encodings_of_a_scope_are_one_op(spelling: str):
    assert encode_op_name(spelling) == "Default_fc-Dense_MatMul-op0"


def test_ops_of_one_scope_and_type_are_a_group():
    assert (
        strip_op_number("Default_fc-Dense_MatMul-op0")
        == strip_op_number("Default_fc-Dense_MatMul-op12")
        == "Default_fc-Dense_MatMul"
    )


def test_mapping_has_no_header(tmp_path: Path):
    (tmp_path / "mapping.csv").write_text(f"506920874.npy,{NEW}\n1489119860.npy,{NEW}\nbroken\n")
    assert read_mapping(tmp_path) == {"506920874.npy": NEW, "1489119860.npy": NEW}


def test_no_mapping_is_an_empty_one(tmp_path: Path):
    assert read_mapping(tmp_path) == {}
