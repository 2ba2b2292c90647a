"""Experts of several ranks, gathered on the first rank."""

from __future__ import annotations

from collections.abc import Sequence

from dumpdiff.graph import Flow, build_flow
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.sharding.separate_modules import gather_separate_modules

EXPERTS = "layers.0.experts"


def build_rank(weights: Sequence[float]) -> Flow:
    """Return a rank with a module of experts, each with a weight of one number, and a norm."""
    names = ["Module.norm"]
    scopes, parents, parameters = ["layers.0.norm"], [-1], ["layers.0.norm.weight"]
    for number, _ in enumerate(weights):
        names.append(f"Functional.linear.{number}")
        scopes.append(f"{EXPERTS}.{number}")
        parents.append(len(weights) + 1)
        parameters.append(f"{EXPERTS}.{number}.weight")
    names.append("Module.experts")
    scopes.append(EXPERTS)
    parents.append(-1)
    parameters.append("")
    numbers = [7.0, *weights, 5.0]
    columns = {"name": names, "kind": names, "scope": scopes, "parent": parents}
    tensors = build_tensor_table(
        {
            "op": list(range(len(names))),
            "slot": ["input.1"] * len(names),
            "slot_kind": ["input"] * len(names),
            "dtype": ["float32"] * len(names),
            "shape": [(4, 2)] * len(names),
            "size": [8] * len(names),
            "parameter": parameters,
            "max": numbers,
            "min": [-number for number in numbers],
            "mean": [0.1 * number for number in numbers],
            "norm": [2 * number for number in numbers],
        }
    )
    return build_flow(
        Trace(Source("/dump", "msprobe", "", "pytorch"), build_op_table(columns), tensors)
    )


def test_experts_are_numbered_on_in_the_order_of_the_ranks() -> None:
    flows = [build_rank([1.1, 1.2]), build_rank([1.3, 1.4])]
    gathered, remaining = gather_separate_modules(
        flows, ["rank 0", "rank 1"], [build_rank([1.1, 1.2, 1.3, 1.4])]
    )
    assert gathered.trace.ops["name"].tolist() == [
        "Module.norm",
        "Functional.linear.0",
        "Functional.linear.1",
        "Functional.linear.0 (rank 1)",
        "Functional.linear.1 (rank 1)",
        "Module.experts",
    ]
    assert gathered.trace.ops["scope"].iloc[3:5].tolist() == [f"{EXPERTS}.2", f"{EXPERTS}.3"]
    assert gathered.trace.ops["parent"].tolist() == [-1, 5, 5, 5, 5, -1]
    assert gathered.tensors["parameter"].tolist()[3] == f"{EXPERTS}.2.weight"
    assert gathered.tensors["max"].tolist()[3] == 1.3
    assert remaining.trace.ops["name"].tolist() == ["Module.norm", "Module.experts"]


def test_numbers_follow_the_ranks_also_if_the_weights_are_in_another_order() -> None:
    flows = [build_rank([1.2, 1.1]), build_rank([1.3, 1.4])]
    gathered, _ = gather_separate_modules(
        flows, ["rank 0", "rank 1"], [build_rank([1.1, 1.2, 1.3, 1.4])]
    )
    assert gathered.tensors["max"].tolist()[1:5] == [1.2, 1.1, 1.3, 1.4]


def test_replicas_and_unknown_weights_stay_where_they_are() -> None:
    other_flows = [build_rank([1.1, 1.2])]
    for ranks in ([[1.1, 1.2], [1.1, 1.2]], [[1.1, 1.2], [1.3, 1.4]]):
        flows = [build_rank(weights) for weights in ranks]
        assert gather_separate_modules(flows, ["rank 0", "rank 1"], other_flows) == flows
