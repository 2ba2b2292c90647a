"""The calls of each micro-batch of one rank."""

from dumpdiff.graph import build_flow
from dumpdiff.model.trace import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Source,
    Trace,
    build_op_table,
    build_tensor_table,
)
from dumpdiff.sharding.micro_batches import count_micro_batches, split_micro_batches

FORWARD_KINDS = ["Functional.linear", "Functional.silu"]


def build_trace(n_batches: int) -> Trace:
    """Return two forward calls and their gradients for each micro-batch, then one update."""
    kinds, phases, forward = [], [], []
    for batch in range(n_batches):
        kinds += [*FORWARD_KINDS, *FORWARD_KINDS[::-1]]
        phases += [FORWARD, FORWARD, BACKWARD, BACKWARD]
        forward += [-1, -1, 4 * batch + 1, 4 * batch]
    kinds.append("Tensor.add_")
    phases.append(OPTIMIZER)
    forward.append(-1)
    names = [f"{kind}.{number}" for number, kind in enumerate(kinds)]
    columns = {"name": names, "kind": kinds, "phase": phases, "forward": forward}
    numbers = [1.0 + 0.3 * number for number in range(len(kinds))]
    tensors = build_tensor_table(
        {
            "op": list(range(len(kinds))),
            "slot": ["output.0"] * len(kinds),
            "slot_kind": ["output"] * len(kinds),
            "dtype": ["float32"] * len(kinds),
            "shape": [(4, 2)] * len(kinds),
            "size": [8] * len(kinds),
            "max": numbers,
            "min": [-number for number in numbers],
            "norm": numbers,
        }
    )
    source = Source("/dump", "msprobe", "", "pytorch")
    return Trace(source, build_op_table(columns), tensors)


def test_calls_are_counted_against_the_other_run() -> None:
    once, thrice = build_flow(build_trace(1)), build_flow(build_trace(3))
    assert count_micro_batches(thrice, once) == 3
    assert count_micro_batches(once, thrice) == 1
    assert count_micro_batches(thrice, thrice) == 1


def test_every_micro_batch_has_its_calls_and_the_update() -> None:
    batches = split_micro_batches(build_flow(build_trace(2)), 2)
    assert batches is not None
    assert batches[1].trace.ops["name"].tolist() == [
        "Functional.linear.4",
        "Functional.silu.5",
        "Functional.silu.6",
        "Functional.linear.7",
        "Tensor.add_.8",
    ]
    assert batches[1].trace.ops["forward"].tolist() == [-1, -1, 1, 0, -1]


def test_other_calls_are_not_split() -> None:
    assert split_micro_batches(build_flow(build_trace(3)), 2) is None
