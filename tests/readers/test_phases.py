"""The phase of an op of a compiled graph: names, what it reads, and what it feeds."""

import pytest

from dumpdiff.model.trace import BACKWARD, FORWARD
from dumpdiff.readers.mindspore.graph import Dataflow, GraphOp, Slot
from dumpdiff.readers.mindspore.phases import assign_phases

SPIKE = "Default/net-Net/spike-Spike"


def build_op(name, *sources):
    inputs = tuple(Slot(op=source) for source in sources)
    kind = name.rpartition("/")[2].partition("-")[0]
    return GraphOp(kind, name, name, inputs, (), "")


def list_phases(*ops):
    return assign_phases(Dataflow(ops, {}, frozenset(), ()))


def test_a_users_backward_function_is_backward_also_where_it_reads_no_gradient():
    """The derivative of a surrogate, which the gradient is multiplied by, follows from x alone."""
    phases = list_phases(
        build_op("Default/net-Net/MatMul-op0"),
        build_op(f"{SPIKE}/GreaterEqual-op0", 0),
        build_op("Gradients/Default/net-Net/Grad_ReduceSum/BroadcastTo-op0", 1),
        build_op(f"{SPIKE}/Abs-op0", 0),
        build_op("Expand/_Muls/Mul-op0", 3),
        build_op(f"{SPIKE}/Mul-op0", 2, 4),
    )
    assert phases == [FORWARD, FORWARD, BACKWARD, BACKWARD, BACKWARD, BACKWARD]


@pytest.mark.parametrize("name", [f"{SPIKE}/Abs-op0", "recompute_Default/net-Net/Abs-op0"])
def test_what_is_computed_before_the_backward_pass_or_again_is_forward(name):
    is_recomputed = name.startswith("recompute_")
    value = build_op(name, 0)
    gradient = build_op("Gradients/Default/net-Net/Grad_ReduceSum/BroadcastTo-op0", 0)
    ops = (gradient, value) if is_recomputed else (value, gradient)
    places = (1, 2)
    phases = list_phases(
        build_op("Default/net-Net/MatMul-op0"),
        *ops,
        build_op("Gradients/Default/net-Net/Grad_Mul/Mul-op0", *places),
    )
    assert phases[1 + is_recomputed] == FORWARD
