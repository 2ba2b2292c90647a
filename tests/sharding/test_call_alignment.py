"""Which calls of several ranks correspond."""

from __future__ import annotations

from collections.abc import Sequence

from dumpdiff.graph import Flow, build_flow
from dumpdiff.model.trace import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    Source,
    Trace,
    build_op_table,
    build_tensor_table,
)
from dumpdiff.sharding.call_alignment import align_siblings
from dumpdiff.sharding.sibling_tensors import flag_backward_pass


def build_rank(kinds: Sequence[str], rows: int = 4) -> Flow:
    """Return a rank whose calls write one tensor each, with some rows."""
    columns = {"name": [f"{kind}.{n}" for n, kind in enumerate(kinds)], "kind": list(kinds)}
    numbers = [1.0 + n for n in range(len(kinds))]
    tensors = build_tensor_table(
        {
            "op": list(range(len(kinds))),
            "slot": ["output.0"] * len(kinds),
            "slot_kind": ["output"] * len(kinds),
            "dtype": ["float32"] * len(kinds),
            "shape": [(rows, 2) if kind == "index_select" else (4, 2) for kind in kinds],
            "max": numbers,
            "min": numbers,
        }
    )
    return build_flow(
        Trace(Source("/dump", "msprobe", "", "pytorch"), build_op_table(columns), tensors)
    )


def test_a_rank_that_calls_another_operator_is_said_to() -> None:
    ranks = [build_rank(["linear", "silu", "mul"]), build_rank(["linear", "gelu", "mul"])]
    siblings = align_siblings(ranks, ["rank 0", "rank 1"])
    assert siblings.ops.tolist() == [[0, 0], [1, -1], [2, 2]]
    rank_ops = siblings.find_rank_ops("silu.1")
    assert rank_ops.names == {"rank 0": "silu.1"}
    assert rank_ops.substitutes == {"rank 1": ("gelu.1",)}
    assert siblings.find_rank_ops("mul.2").names == {"rank 0": "mul.2", "rank 1": "mul.2"}


def test_calls_with_another_number_of_rows_correspond_between_their_neighbors() -> None:
    kinds = ["linear"] * 12 + ["index_select"] + ["mul"] * 12
    siblings = align_siblings([build_rank([*kinds, "add"]), build_rank(kinds, rows=6)], ["a", "b"])
    assert siblings.ops[:, 1].tolist() == [*range(25), -1]


def test_calls_of_a_custom_gradient_belong_to_the_backward_pass() -> None:
    phases = [FORWARD, COMMUNICATION, BACKWARD, FORWARD, COMMUNICATION, BACKWARD, OPTIMIZER]
    ops = build_op_table(
        {
            "name": [f"op.{n}" for n in range(7)],
            "kind": ["Tensor.__mul__"] * 7,
            "phase": phases,
            "forward": [-1, -1, 0, -1, -1, 0, -1],
        }
    )
    trace = Trace(Source("/dump", "msprobe", "", "pytorch"), ops, build_tensor_table({"op": []}))
    expected = [False, False, True, True, True, True, False]
    assert flag_backward_pass(trace).tolist() == expected
    graph_ops = ops.assign(forward=-1)  # in a graph, forward ops may come late
    graph = Trace(Source("/dump", "npy", "", "mindspore"), graph_ops, trace.tensors)
    expected[3] = False
    assert flag_backward_pass(graph).tolist() == expected
