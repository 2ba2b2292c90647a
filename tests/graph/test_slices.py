"""A value that is another one without a part of one axis is found long after that one."""

import numpy as np
import pytest
from traces import record_calls

from dumpdiff.graph import build_flow
from dumpdiff.graph.passing_values import WINDOW
from dumpdiff.graph.slices import find_slices

LOGITS = np.random.default_rng(0).standard_normal((3, 9, 16)).astype(np.float32)
LOGITS[1, 4, :2] = 9, -9  # both extremes are in every slice


def find_whole(part, logits=LOGITS):
    """Return the value that the part was cut from, if one is found, and the logits."""
    noise = np.random.default_rng(1).standard_normal((WINDOW + 1, 4, 8)).astype(np.float32)
    calls = [("Functional.linear", [noise[0]], logits)]
    calls += [("Torch.tanh", [values], np.tanh(values)) for values in noise]
    calls += [("Functional.log_softmax", [part], np.abs(part))]
    flow = build_flow(record_calls(*calls))
    (sliced_value,) = flow.reads[len(calls) - 1]
    return find_slices(flow, [sliced_value]).get(sliced_value), *flow.writes[0]


def test_all_but_the_last_position_is_a_slice() -> None:
    whole, logits = find_whole(LOGITS[:, :-1])
    assert whole == logits


def test_what_lacks_an_extreme_is_none() -> None:
    assert find_whole(LOGITS[:, 5:])[0] is None


def test_what_is_shorter_along_two_axes_is_none() -> None:
    assert find_whole(LOGITS[:2, :-1])[0] is None


@pytest.mark.parametrize(("n_masks", "is_found"), [(1, True), (12, False)])
def test_extremes_that_many_values_have_are_no_evidence(n_masks, is_found) -> None:
    """All masks have those of 0 and 1."""
    rng = np.random.default_rng(2)
    orders = [rng.permutation(24).reshape(4, 6) for _ in range(n_masks)]
    masks = [(order < 6 + n).astype(np.float32) for n, order in enumerate(orders)]
    calls = [("Torch.sigmoid", [rng.standard_normal((2, 3))], mask) for mask in masks]
    calls += [("Torch.cumsum", [masks[0][:, :-1]], masks[0][:, :-1].cumsum(axis=1))]
    flow = build_flow(record_calls(*calls))
    assert bool(find_slices(flow, flow.reads[n_masks])) == is_found
