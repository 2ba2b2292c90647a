"""Tables of a trace, the dataflow that a dump records, and problems in one line."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.model.trace import (
    OP_COLUMNS,
    TENSOR_COLUMNS,
    Problem,
    Source,
    Trace,
    build_op_table,
    build_tensor_table,
)

SOURCE = Source("/data/dump", "msprobe", "26.2", "pytorch")


def test_a_table_has_all_columns_with_neutral_values() -> None:
    ops = build_op_table({"name": ["a", "b"]})
    assert list(ops) == list(OP_COLUMNS)
    assert set(ops["phase"]) == {"forward"}
    assert set(ops["parent"]) == {-1}
    tensors = build_tensor_table({"op": [0, 1], "shape": [(2, 3), None]})
    assert list(tensors) == list(TENSOR_COLUMNS)
    assert tensors["shape"].tolist() == [(2, 3), None]
    assert tensors["trusted"].all()
    assert tensors["norm"].isna().all()


def test_an_empty_table_has_all_columns() -> None:
    assert list(build_op_table({})) == list(OP_COLUMNS)
    assert len(build_tensor_table({})) == 0


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(TypeError, match="no such column: color"):
        build_op_table({"name": ["a"], "color": ["red"]})


def test_columns_have_the_dtypes_of_the_schema() -> None:
    for table, schema in (
        (build_op_table({"name": ["a"]}), OP_COLUMNS),
        (build_tensor_table({"op": [0]}), TENSOR_COLUMNS),
    ):
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {
            name: dtype for name, (dtype, _) in schema.items()
        }


def test_the_graph_has_the_recorded_edges() -> None:
    ops = build_op_table({"name": ["a", "b", "c"], "kind": ["Mul", "Add", "Sum"]})
    tensors = build_tensor_table({"op": [0, 1, 1, 2], "source_tensor": [-1, 0, -1, 2]})
    graph = Trace(SOURCE, ops, tensors).graph
    assert sorted(graph.edges) == [(0, 1), (1, 2)]
    assert graph.nodes[1] == {"name": "b", "kind": "Add", "phase": "forward"}


def test_a_tensor_is_loaded_by_its_file_and_statistics_alone_are_an_error() -> None:
    tensors = build_tensor_table({"op": [0, 0], "file": ["a.npy", ""]})
    trace = Trace(SOURCE, build_op_table({"name": ["a"]}), tensors, load=lambda file: np.ones(2))
    assert trace.array(0).tolist() == [1.0, 1.0]
    with pytest.raises(KeyError, match="statistics only"):
        trace.array(1)


def test_a_problem_is_one_line() -> None:
    assert str(Problem("dump.json", "cut")) == "dump.json: cut"
    problem = Problem("statistic.csv", "no number", line=7, count=3)
    assert str(problem) == "statistic.csv:7: no number (3 times)"


def test_the_number_of_a_trace_is_its_rank_or_process() -> None:
    assert SOURCE.number is None
    assert Source("", "", "", "", process=57).number == 57
    assert Source("", "", "", "", rank=0, process=57).number == 0


def test_a_column_of_one_text_or_number_takes_the_place_of_one_element():
    columns = {"op": [0, 0, 1], "slot": ["input.0", "output.0", "input.0"], "hash": [""] * 3}
    nothing = [float("nan")] * 3
    tensors = build_tensor_table({**columns, "max": [1.0, 2.0, 1.0], "mean": nothing})
    repeated = [name for name in columns if not any(tensors[name].to_numpy().strides)]
    assert repeated == ["hash"]
    assert not any(tensors["mean"].to_numpy().strides)
    assert tensors["slot"].tolist() == columns["slot"]
    assert tensors["hash"].tolist() == columns["hash"]
    assert tensors["max"].tolist() == [1.0, 2.0, 1.0]
    assert tensors["mean"].isna().all()


def test_the_table_keeps_what_a_reader_changes_later():
    names = np.array(["a", "b"], dtype=object)
    ops = build_op_table({"name": names})
    names[0] = "c"
    assert ops["name"].tolist() == ["a", "b"]
