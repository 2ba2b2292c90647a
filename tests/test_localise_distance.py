"""The localization benchmark's comparison of a faulty recording with the clean one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

LOCALISE = Path(__file__).parents[1] / "benchmarks" / "localise"
sys.path.insert(0, str(LOCALISE))

import dumps  # noqa: E402
import truth  # noqa: E402


def make_dump(*values: np.ndarray, roles: tuple[str, ...] = ()) -> dumps.Dump:
    """Return a dump of one op that has these tensors."""
    table = pd.DataFrame({
        "op": 0,
        "slot_kind": list(roles) or ["output"] * len(values),
        "file": [f"{number}.npy" for number in range(len(values))],
        "constant": False,
    })  # fmt: skip
    ops = pd.DataFrame({"forward": [-1]})
    trace = SimpleNamespace(tensors=table, ops=ops, array=values.__getitem__)
    bits = tuple(str(number) for number in range(len(values)))
    return dumps.Dump(trace, bits, bits)


@pytest.mark.parametrize("fill", [-1e9, np.finfo(np.float32).min, -np.inf])
def test_mask_fill_does_not_hide_other_elements(fill: float) -> None:
    clean = make_dump(np.array([1.0, 2.0, fill]))
    faulty = make_dump(np.array([1.0, 4.0, fill]))
    assert dumps.compute_distance(faulty, 0, clean, 0) == pytest.approx(2 / 5**0.5)


def test_an_element_that_is_masked_on_one_side_only_is_a_difference() -> None:
    clean, faulty = make_dump(np.array([1.0, 2.0])), make_dump(np.array([1.0, -1e9]))
    assert dumps.compute_distance(faulty, 0, clean, 0) > 1e8


def test_what_joins_its_inputs_in_any_order_computes_nothing() -> None:
    roles = ("input", "input", "output")
    sine, cosine = np.array([0.1, 0.2]), np.array([0.9, 0.8])
    dump = make_dump(sine, cosine, np.array([0.9, 0.8, 0.1, 0.2]), roles=roles)
    assert truth._is_joining(dump, 0, [2])
    dump = make_dump(sine, cosine, np.array([0.9, 0.8, 0.1, 0.1]), roles=roles)
    assert not truth._is_joining(dump, 0, [2])


def test_a_module_call_without_an_op_inside_computes() -> None:
    calls = [
        ("Functional.embedding.0.forward", "op", 1),
        ("Module.encoder.Embedding.forward.0", "module", 3),
        ("Module.rnn.LSTM.forward.0", "module", 3),
        ("Module.model.forward.0", "module", -1),
        ("Module.rnn.LSTM.backward.0", "module", -1),
        ("Functional.embedding.0.backward", "op", 6),
        ("Module.encoder.Embedding.backward.0", "module", -1),
    ]
    ops = pd.DataFrame(calls, columns=["name", "level", "parent"])
    assert truth._flag_leaves(ops) == [True, False, True, False, True, True, False]


def test_where_a_rearrangement_was_left_out_the_op_before_it_is_a_right_answer() -> None:
    """The clean op reads the slice rearranged, the faulty one the slice itself: equal numbers."""
    names = ["Slice", "Reshape", "Mul"]
    rows = [(0, "output"), (1, "output"), (2, "input"), (2, "output")]
    table = pd.DataFrame({
        "op": [op for op, _ in rows],
        "slot": [f"{kind}.0" for _, kind in rows],
        "slot_kind": [kind for _, kind in rows],
        "source_tensor": -1,
    })  # fmt: skip
    trace = SimpleNamespace(tensors=table, ops=pd.DataFrame({"name": names, "forward": -1}))
    numbers = ("x", "x", "x", "y")
    clean = dumps.Dump(trace, ("slice", "pairs", "pairs", "product"), numbers)
    faulty = dumps.Dump(trace, ("slice", "pairs", "slice", "other"), numbers)
    changed = np.array([truth.SAME, truth.SAME, truth.SAME, truth.CHANGED])
    assert truth.find_rewired_producers(clean, faulty, [0, 1, 2], changed, [2]) == {0, 1}
    assert truth.find_rewired_producers(clean, clean, [0, 1, 2], changed, [2]) == set()
