"""What a dump will cost, held against what real dumps take on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff import read
from dumpdiff.capture.cost import Cost, estimate_cost, flag_op_tensors, flag_recorded_tensors
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table


def compute_file_size(folder: Path, *suffixes: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.suffix in suffixes)


def test_npy_files_of_mindspore_are_known_to_the_byte(
    trace: Callable[[str], Trace], dump: Callable[[str], Path]
) -> None:
    found = trace("demo_mindspore")
    expected = estimate_cost(found, "mindspore", whole_tensors=flag_recorded_tensors(found))
    assert expected.tensors == len(list(dump("demo_mindspore").rglob("*.npy")))
    assert expected.bytes == compute_file_size(dump("demo_mindspore"), ".npy")


@pytest.mark.parametrize(
    ("name", "suffixes"), [("demo_pytorch", (".pt", ".json")), ("v6.0_api_stack", (".npy", ".pkl"))]
)
def test_dumps_of_pytorch_are_known_to_a_tenth(
    trace: Callable[[str], Trace], dump: Callable[[str], Path], name: str, suffixes: tuple[str, ...]
) -> None:
    found = trace(name)
    expected = estimate_cost(found, found.source.format, whole_tensors=flag_recorded_tensors(found))
    assert expected.bytes == pytest.approx(compute_file_size(dump(name), *suffixes), rel=0.1)


def test_statistics_are_known_to_a_quarter(dump: Callable[[str], Path]) -> None:
    folder = dump("pt_none") / "statistics_mix"
    found = read(folder)
    assert estimate_cost(
        found, "msprobe", statistics=flag_recorded_tensors(found)
    ).bytes == pytest.approx(compute_file_size(folder, ".json"), rel=0.25)


def test_some_ops_cost_what_their_tensors_do(trace: Callable[[str], Trace]) -> None:
    found = trace("demo_mindspore")
    ops = [10, 300]
    few = estimate_cost(found, "mindspore", whole_tensors=flag_op_tensors(found, ops))
    assert few.tensors == int(found.tensors["op"].isin(ops).sum())
    both = [
        estimate_cost(found, "mindspore", whole_tensors=flag_op_tensors(found, [op])).bytes
        for op in ops
    ]
    assert few.bytes == sum(both)


@pytest.mark.parametrize(
    ("dtype", "mindspore", "msprobe"),
    [
        ("float32", 400, 400),
        ("bfloat16", 400, 200),
        ("float16", 200, 200),
        ("int64", 800, 800),
        ("bool", 100, 100),
    ],
)
def test_an_element_takes_what_its_dtype_does(dtype: str, mindspore: int, msprobe: int) -> None:
    """bfloat16 is stored as float32 where there is no such dtype: in npy files."""
    ops = build_op_table({"name": ["a"], "kind": ["Add"]})
    tensors = build_tensor_table(
        {"op": [0], "slot": ["output.0"], "slot_kind": ["output"], "dtype": [dtype], "size": [100]}
    )
    found = Trace(Source("/d", "mindspore", "", "mindspore"), ops, tensors)
    empty = tensors.assign(size=np.int64(0))
    for format, framework, elements in (
        ("mindspore", "mindspore", mindspore),
        ("msprobe", "mindspore", mindspore),
        ("msprobe", "pytorch", msprobe),
    ):
        spent = [
            estimate_cost(
                Trace(found.source, ops, table),
                format,
                whole_tensors=np.array([True]),
                framework=framework,
            ).bytes
            for table in (tensors, empty)
        ]
        assert spent[0] - spent[1] == elements


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (Cost(1, 500, 0.1), "1 tensors, 500 B, less than a second"),
        (Cost(20_000, 1_540_000, 61.2), "20,000 tensors, 1.54 MB, about 61 s"),
        (Cost(20_000, 3_200_000_000_000, 7200), "20,000 tensors, 3.2 TB, about 120 min"),
    ],
)
def test_it_is_said_in_units_a_person_reads(expected: Cost, said: str) -> None:
    assert str(expected) == said


def test_of_several_steps_everything_is_so_many_times_as_much() -> None:
    assert Cost(2, 3, 0.5).multiply(4) == Cost(8, 12, 2.0)
