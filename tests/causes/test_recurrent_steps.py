"""The first step of a recurrence that diverges, paired with what the other side computes then."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd

from dumpdiff.causes.recurrent_steps import find_step_pairs

SIZE = 72


def make_flow(kinds, reads, writes, n_values):
    """Return a dataflow of forward ops; value n has the whole tensor n."""
    producers = np.full(n_values, -1)
    users = [[] for _ in range(n_values)]
    for op, values in enumerate(writes):
        for value in values:
            producers[value] = op
    for op, values in enumerate(reads):
        for value in values:
            users[value].append(op)
    columns = {
        "phase": ["forward"] * n_values,
        "dtype": ["float32"] * n_values,
        "tensor": list(range(n_values)),
    }
    return SimpleNamespace(
        trace=SimpleNamespace(ops=pd.DataFrame({"phase": ["forward"] * len(kinds)})),
        tensors=pd.DataFrame({"file": ["x.npy"] * n_values}),
        tensor_class=np.arange(n_values),
        reads=reads,
        writes=writes,
        users=users,
        producers=producers,
        sizes=np.full(n_values, SIZE),
        list_column=columns.__getitem__,
    )


def make_index(flows, kinds, agreed_classes):
    def get_producer_kind(side, value):
        producer = int(flows[side].producers[value])
        return kinds[side][producer] if producer >= 0 else ""

    return SimpleNamespace(
        flows=flows, kinds=kinds, agreed_classes=agreed_classes, get_producer_kind=get_producer_kind
    )


def test_first_step_with_agreeing_inputs_is_paired_with_written_out_products():
    """The cells: the first agrees, the second diverges, the third reads what the second left."""
    cell_kinds = ["lstm", "lstm", "lstm"]
    cells = make_flow(cell_kinds, ((0,), (1,), (2,)), ((1,), (2,), (3,)), 4)
    op_kinds = ["mul", "add", "mul", "mul"]
    written_out = make_flow(op_kinds, ((0,), (1,), (2,), (3,)), ((1,), (2,), (3,), (4,)), 5)
    index = make_index((written_out, cells), (op_kinds, cell_kinds), ({0, 2}, {0, 1}))
    pairs = [pair.classes for pair in find_step_pairs(index)]
    assert pairs == [(3, 2), (4, 2)]  # the product before an agreeing sum is inside of a step


def test_agreeing_cells_have_no_pairs():
    kinds = ["lstm"]
    flow = make_flow(kinds, ((0,),), ((1,),), 2)
    index = make_index((flow, flow), (kinds, kinds), ({0, 1}, {0, 1}))
    assert list(find_step_pairs(index)) == []
