"""What is indexed out of a value, where all that is indexed together is the value."""

from dataclasses import replace

import numpy as np
import pytest
from traces import find_value, record_calls

from dumpdiff.graph import build_flow
from dumpdiff.graph.dataflow import Bridge
from dumpdiff.graph.missing_edges import find_bridge, has_missing_producer, is_graph_input
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table

RANDOM = np.random.default_rng(5)
#: Weights of the 3 experts of 20 tokens, and the expert of each.
WEIGHTS = RANDOM.uniform(0.1, 1, (20, 3)).astype(np.float32)
EXPERTS = RANDOM.integers(0, 4, (20, 3))
SCALE = "Tensor.__mul__.0.forward"


def record_experts(factor: float = 1.0) -> Trace:
    """Record ``out_e * weights[tokens, places, None]`` of four experts in one module call.

    The weights that the experts read are ``factor`` times the router's.
    """
    calls = [("Tensor.__mul__", -1, [WEIGHTS / 2], WEIGHTS)]
    for expert in range(4):
        own_weights = factor * WEIGHTS[expert == EXPERTS][:, None]
        out = RANDOM.standard_normal((len(own_weights), 8)).astype(np.float32)
        calls.append(("Tensor.__mul__", 5, [out, own_weights], out * own_weights))
    calls.append(("Module.MoE", -1, [RANDOM.standard_normal((20, 8))], calls[-1][3]))
    rows = []
    for op, (_, _, inputs, output) in enumerate(calls):
        slots = [(f"input.{i}", "input", value) for i, value in enumerate(inputs)]
        for slot, slot_kind, value in [*slots, ("output.0", "output", output)]:
            rows.append({
                "op": op, "slot": slot, "slot_kind": slot_kind, "size": value.size,
                "shape": value.shape, "dtype": "float32", "max": float(value.max()),
                "min": float(value.min()), "mean": float(value.mean()),
                "norm": float(np.linalg.norm(value.astype(float))), "nonfinite": 0,
            })  # fmt: skip
    kinds = [kind for kind, _, _, _ in calls]
    ops = build_op_table({
        "name": [f"{kind}.{number}.forward" for number, kind in enumerate(kinds)],
        "kind": kinds,
        "parent": [parent for _, parent, _, _ in calls],
    })  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Trace(Source("/dump", "msprobe", "", "pytorch"), ops, build_tensor_table(columns))


@pytest.mark.parametrize("expert", [1, 2, 3, 4])
def test_the_weights_that_an_expert_reads_come_from_those_of_the_router(expert):
    flow = build_flow(record_experts())
    weights = find_value(flow, SCALE, "output.0")
    indexed = find_value(flow, f"Tensor.__mul__.{expert}.forward", "input.1")
    assert flow.producers[indexed] == -1
    assert flow.partitions[indexed] == weights
    assert has_missing_producer(flow, indexed)
    assert not is_graph_input(flow, indexed)
    assert find_bridge(flow, indexed) == Bridge((weights,), "part")


def test_other_numbers_of_the_same_count_come_from_nowhere():
    """A difference of 1 % in the norm is no rounding."""
    flow = build_flow(record_experts(factor=1.01))
    indexed = find_value(flow, "Tensor.__mul__.1.forward", "input.1")
    assert flow.partitions == {}
    assert is_graph_input(flow, indexed)


@pytest.mark.parametrize("n_vectors", [1, 2])
def test_numbers_that_are_read_one_after_the_other_are_those_of_a_vector(n_vectors):
    """``sum(weights[n] * level for n, level in enumerate(levels))``, perhaps twice in one call."""
    vectors = RANDOM.uniform(0.1, 1, (n_vectors, 3))
    computing_calls = [("softmax", [vector / 2], vector) for vector in vectors]
    reading_calls = []
    for number in vectors.ravel():
        level = RANDOM.standard_normal((4, 5))
        reading_calls.append(("mul", [np.array(number), level], number * level))
    trace = record_calls(*computing_calls, *reading_calls, ("module", [level / 2], level / 3))
    parents = [-1] * n_vectors + [3 * n_vectors + n_vectors] * len(reading_calls) + [-1]
    flow = build_flow(replace(trace, ops=trace.ops.assign(parent=parents)))
    for n in range(len(reading_calls)):
        number = find_value(flow, f"call.{n_vectors + n}", "input.0")
        assert flow.partitions[number] == find_value(flow, f"call.{n // 3}", "output.0")
