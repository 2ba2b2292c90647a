"""The two ends of the edges of a recorded graph network, which has each edge in both directions.

And tokens and labels, which are the tokens rolled by one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from traces import find_op

import dumpdiff
from dumpdiff import read
from dumpdiff.graph import Flow, build_flow


def test_sources_and_targets_are_two_values(flow: Callable[[str], Flow]) -> None:
    edges = flow("ms_edges")
    is_edges = ((edges.tensors["size"] == 56) & (edges.tensors["max"] == 29)).to_numpy()
    rows = np.flatnonzero(is_edges & (edges.tensor_class >= 0))
    assert edges.tensors.loc[rows, ["min", "mean", "norm"]].drop_duplicates().shape[0] == 1
    contents = {edges.trace.array(int(row)).astype(np.int64).tobytes() for row in rows}
    assert len(contents) == len(set(edges.tensor_class[rows].tolist())) == 2


def test_a_sound_pair_with_such_edges_is_aligned(dump: Callable[[str], Path]) -> None:
    folders = dump("ms_edges"), dump("pt_edges")
    assert dumpdiff.align(*folders).verdict == "aligned"
    assert dumpdiff.align(*reversed(folders)).verdict == "aligned"


def test_tokens_and_rolled_tokens_are_two_values_and_a_transpose_is_the_same(
    dump: Callable[[str], Path],
) -> None:
    folder = dump("pt_labels")
    for first, second in (("rolled", "transposed"), ("transposed", "rolled")):
        result = dumpdiff.align(folder / f"labels_{first}", folder / f"labels_{second}")
        assert result.verdict == "aligned"
        flow = build_flow(read(folder / f"labels_{first}"))
        tokens = flow.reads[find_op(flow.trace, "Functional.embedding.0.forward")]
        labels = flow.writes[find_op(flow.trace, "Torch.roll.0.forward")]
        assert set(labels).isdisjoint(tokens)


def test_tokens_in_place_of_labels_are_found(dump: Callable[[str], Path]) -> None:
    folder = dump("pt_labels")
    result = dumpdiff.align(folder / "labels_same", folder / "labels_rolled")
    assert result.verdict == "diverged"
    assert result.first_divergence is not None
    assert result.first_divergence.reference_ops[0] == "Torch.roll.0.forward"


def test_two_masks_of_one_shape_are_two_values(dump: Callable[[str], Path]) -> None:
    """The sum counts the first condition; the second one was computed since, and looks like it."""
    flow = build_flow(read(dump("pt_operators") / "conditions"))
    counted, other = (
        flow.writes[find_op(flow.trace, name)][0]
        for name in ("Tensor.__gt__.0.forward", "Tensor.__lt__.0.forward")
    )
    reads = flow.reads[find_op(flow.trace, "Tensor.sum.0.forward")]
    assert counted in reads
    assert other not in reads


def test_masks_of_as_many_elements_times_a_number_are_several_values(
    dump: Callable[[str], Path],
) -> None:
    flow = build_flow(read(dump("pt_scalings") / "scalings_masks"))
    masks = [
        flow.writes[find_op(flow.trace, f"Tensor.__truediv__.{n}.forward")][0] for n in range(3)
    ]
    numbers = flow.classes.loc[masks, ["size", "max", "min", "norm"]]
    assert len(numbers.drop_duplicates()) == 1
    assert len(set(masks)) == 3


def test_samples_of_as_many_ones_are_several_values_although_they_are_rounded(
    dump: Callable[[str], Path],
) -> None:
    """Samples whose gradient is that of probabilities are zeros and 0.99999994 or 1."""
    flow = build_flow(read(dump("pt_samples") / "samples_padded"))
    samples = [flow.writes[find_op(flow.trace, f"Tensor.__sub__.{n}.forward")][0] for n in range(3)]
    numbers = flow.classes.loc[samples, ["size", "max", "min", "norm"]]
    assert len(numbers.drop_duplicates()) == 1
    assert len(set(samples)) == 3
