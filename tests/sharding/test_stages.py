"""Stages of a pipeline as one trace."""

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
from dumpdiff.sharding.stages import join_stages

NO_TENSORS = build_tensor_table({"op": []})


def build_stage(rank: int) -> Trace:
    """Return a stage of two layers with a forward, a backward and an update each."""
    phases = [FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER]
    layers = [0, 1, 1, 0, 0]
    ops = build_op_table(
        {
            "name": [f"op.{number}" for number in range(5)],
            "kind": ["Functional.linear"] * 5,
            "phase": phases,
            "scope": [f"decoder.layers.{layer}.mlp" for layer in layers],
            "forward": [-1, -1, 1, 0, -1],
        }
    )
    tensors = build_tensor_table(
        {
            "op": [0, 1],
            "slot": ["input.1", "input.1"],
            "slot_kind": ["input", "input"],
            "parameter": ["decoder.layers.0.mlp.weight", "decoder.layers.1.mlp.weight"],
        }
    )
    return Trace(Source("/dump", "msprobe", "", "pytorch", rank=rank), ops, tensors)


def test_passes_run_through_the_stages_and_back() -> None:
    joined = join_stages([build_stage(0), build_stage(1)], ["rank 0", "rank 1"])
    assert joined.ops["name"].tolist() == [
        "op.0 (rank 0)",
        "op.1 (rank 0)",
        "op.0 (rank 1)",
        "op.1 (rank 1)",
        "op.2 (rank 1)",
        "op.3 (rank 1)",
        "op.2 (rank 0)",
        "op.3 (rank 0)",
        "op.4 (rank 0)",
        "op.4 (rank 1)",
    ]
    assert joined.ops["forward"].tolist() == [-1, -1, -1, -1, 3, 2, 1, 0, -1, -1]


def test_layers_are_numbered_on() -> None:
    joined = join_stages([build_stage(0), build_stage(1)], ["rank 0", "rank 1"])
    assert joined.tensors["parameter"].tolist() == [
        "decoder.layers.0.mlp.weight",
        "decoder.layers.1.mlp.weight",
        "decoder.layers.2.mlp.weight",
        "decoder.layers.3.mlp.weight",
    ]
    assert joined.ops["scope"].iat[4] == "decoder.layers.3.mlp"


def build_sending_stage() -> Trace:
    """Return a last stage that doubles the gradient of its input before it sends it."""
    kinds = ["Distributed.recv", "Torch.exp", "Torch.exp", "Tensor.__mul__", "Distributed.isend"]
    phases = [COMMUNICATION, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION]
    columns = {"name": [f"{kind}.0" for kind in kinds], "kind": kinds, "phase": phases}
    return Trace(Source("/dump", "msprobe", "", "pytorch"), build_op_table(columns), NO_TENSORS)


def build_receiving_stage() -> Trace:
    """Return a first stage, which sends an activation and receives its gradient."""
    kinds = ["Torch.exp", "Distributed.isend", "Distributed.recv", "Torch.exp"]
    phases = [FORWARD, COMMUNICATION, COMMUNICATION, BACKWARD]
    columns = {"name": [f"{kind}.0" for kind in kinds], "kind": kinds, "phase": phases}
    return Trace(Source("/dump", "msprobe", "", "pytorch"), build_op_table(columns), NO_TENSORS)


def test_what_is_done_to_a_gradient_before_it_is_sent_comes_before_the_next_stage() -> None:
    joined = join_stages([build_receiving_stage(), build_sending_stage()], ["rank 0", "rank 1"])
    names, phases = joined.ops["name"].tolist(), joined.ops["phase"].tolist()
    product = names.index("Tensor.__mul__.0 (rank 1)")
    assert phases[product] == BACKWARD
    assert names[product + 1 :] == [
        "Distributed.isend.0 (rank 1)",
        "Distributed.recv.0 (rank 0)",
        "Torch.exp.0 (rank 0)",
    ]
