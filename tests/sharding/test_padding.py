"""A vocabulary that one run pads: 30 tokens, 32 rows on two ranks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.graph import build_flow
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Trace
from dumpdiff.sharding import Merged, RunOfRanks, merge_runs
from tests.parallel_runs import read_ranks

EMBEDDING = "embedding.word_embeddings.weight"


@pytest.fixture
def target(dump: Callable[[str], Path]) -> dict[int, Trace]:
    return read_ranks(dump("parallel_pt_padded_tp2"))


@pytest.fixture
def reference(dump: Callable[[str], Path]) -> dict[int, Trace]:
    return read_ranks(dump("parallel_pt_padded_tp1"))


def merge(target: Mapping[int, Trace], reference: Mapping[int, Trace]) -> Merged:
    """Return the target as one run."""
    runs = [
        RunOfRanks(tuple(traces), tuple(map(build_flow, traces.values())))
        for traces in (target, reference)
    ]
    return merge_runs(*runs, {})[0]


def get_embedding(trace: Trace) -> int:
    return int(np.flatnonzero(trace.tensors["parameter"] == EMBEDDING)[0])


def drop_files(trace: Trace) -> Trace:
    """Return a trace that has statistics only."""
    return replace(trace, tensors=trace.tensors.assign(file=""))


def double_files(trace: Trace, is_changed: Callable[[str], bool]) -> Trace:
    """Return a trace in which some of the whole tensors are twice as large."""

    def load(file: str) -> AnyArray:
        assert trace.load is not None
        array = trace.load(file)
        return array * 2 if is_changed(file) else array

    return replace(trace, load=load)


def test_the_rest_of_the_rows_is_compared(
    target: dict[int, Trace], reference: dict[int, Trace]
) -> None:
    merged = merge(target, reference)
    whole, row = reference[0], get_embedding(merged.trace)
    np.testing.assert_allclose(
        merged.trace.array(row), whole.array(get_embedding(whole)), rtol=1e-6
    )
    shapes = merged.trace.tensors["shape"].tolist()
    assert shapes[row] == (30, 16)
    assert (8, 2, 30) in shapes
    assert any("32 slices in the place of 30" in note for note in merged.notes)
    assert any("the last 2 are taken for padding" in note for note in merged.notes)


def test_its_statistics_are_those_without_the_padding(
    target: dict[int, Trace], reference: dict[int, Trace]
) -> None:
    trace, columns = merge(target, reference).trace, ["max", "min", "mean", "norm", "size"]
    expected = reference[0].tensors.loc[get_embedding(reference[0]), columns]
    statistics = trace.tensors.loc[get_embedding(trace), columns]
    np.testing.assert_allclose(statistics.astype(float), expected.astype(float), rtol=1e-5)


def test_a_wrong_shard_does_not_hide_the_padding(
    target: dict[int, Trace], reference: dict[int, Trace]
) -> None:
    target[1] = double_files(target[1], lambda file: "embedding" in file.lower())
    trace = merge(target, reference).trace
    assert trace.tensors["shape"][get_embedding(trace)] == (30, 16)


def test_statistics_include_the_padding_and_a_note_says_so(
    target: dict[int, Trace], reference: dict[int, Trace]
) -> None:
    target = {rank: drop_files(trace) for rank, trace in target.items()}
    merged = merge(target, {0: drop_files(reference[0])})
    assert any("statistics include the padding" in note for note in merged.notes)
    assert merged.trace.tensors["size"][get_embedding(merged.trace)] == 32 * 16


def test_other_rows_are_no_padding(target: dict[int, Trace], reference: dict[int, Trace]) -> None:
    """The rows that the other run has, too, are other ones."""
    changed = {rank: double_files(trace, lambda file: True) for rank, trace in target.items()}
    merged = merge(changed, reference)
    assert not any("padding" in note for note in merged.notes)
