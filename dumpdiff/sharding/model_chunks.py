"""The model chunks of one rank, each as a stage of the pipeline.

In an interleaved pipeline a rank holds several pieces of the model, which do not follow one
another: Megatron-LM calls them chunks, or virtual stages. msprobe is given a list of modules then,
and puts the number of the chunk before the name of each module.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from ..communication.collectives import RECV, TRANSFERS, classify_kind
from ..graph import Flow, build_flow
from ..model.arrays import Flags, Ints
from ..model.trace import BACKWARD, FORWARD, Trace
from .micro_batches import select_ops
from .stages import NAMED_COLUMNS

_CHUNK = re.compile(r"^(\d+)\.")


def split_model_chunks(flow: Flow) -> list[Flow]:
    """Return the flow of each model chunk in order, or the given one if the rank has one model."""
    ops = flow.trace.ops
    in_pass = ops["phase"].isin((FORWARD, BACKWARD)).to_numpy()
    is_transfer = ops["kind"].map(classify_kind).isin(TRANSFERS).to_numpy()
    numbers = np.array([_read_number(scope) for scope in ops["scope"]], dtype=int)
    numbers[~in_pass] = -1
    is_numbered_forward = (ops["phase"] == FORWARD).to_numpy() & (numbers >= 0)
    if not _are_chunks(numbers[in_pass], numbers[is_numbered_forward | is_transfer]):
        return [flow]
    _number_loose_ops(flow, numbers, in_pass)
    _number_updates(flow, numbers)
    return [
        build_flow(_remove_numbers(select_ops(flow, numbers == chunk)))
        for chunk in range(numbers.max() + 1)
    ]


def _read_number(scope: str) -> int:
    match = _CHUNK.match(scope)
    return int(match[1]) if match else -1


def _are_chunks(numbers: Ints, forward_numbers: Ints) -> bool:
    """Return whether numbers before module names are those of chunks, 0, 1, and so on.

    ``forward_numbers`` are those of the forward calls that have one, and -1 for transfers. The
    modules of an nn.Sequential have such numbers, too, but one is called after the other: between
    the calls of two chunks something is sent or received.
    """
    chunks = set(numbers[numbers >= 0].tolist())
    if len(chunks) < 2 or chunks != set(range(len(chunks))):
        return False
    is_adjacent = (forward_numbers[1:] >= 0) & (forward_numbers[:-1] >= 0)
    return not (is_adjacent & (forward_numbers[1:] != forward_numbers[:-1])).any()


def _number_loose_ops(flow: Flow, numbers: Ints, in_pass: Flags) -> None:
    """Number transfers and ops without a module up to the end of the passes, in place.

    What is received belongs to the next op, everything else to the one before.
    """
    kinds = flow.trace.ops["kind"].map(classify_kind)
    end = int(np.flatnonzero(in_pass)[-1]) + 1
    while end < len(numbers) and kinds.iat[end] in TRANSFERS:
        end += 1  # the gradient that is sent to the stage before
    known = pd.Series(numbers[:end]).where(lambda series: series >= 0)
    previous, following = known.ffill(), known.bfill()
    is_received = (kinds[:end] == RECV).to_numpy()
    numbers[:end] = np.where(
        is_received, following.fillna(previous), previous.fillna(following)
    ).astype(int)


def _number_updates(flow: Flow, numbers: Ints) -> None:
    """Number the ops after the passes by the weights and gradients that they read, in place.

    Ops that read single numbers only (the gradient norm) belong to the first chunk.
    """
    shared_chunk = -1
    owners: dict[int, int] = {}
    for op in np.flatnonzero(numbers >= 0).tolist():
        chunk = int(numbers[op])
        for value in (*flow.reads[op], *flow.writes[op]):
            owners[value] = chunk if owners.get(value, chunk) == chunk else shared_chunk
    previous = 0
    for op in np.flatnonzero(numbers < 0).tolist():
        arrays = [value for value in flow.reads[op] if flow.sizes[value] > 1]
        chunks = [owners[value] for value in arrays if owners.get(value, shared_chunk) >= 0]
        if chunks:
            previous = chunks[0]
        numbers[op] = previous if arrays else 0
        for value in flow.writes[op]:
            owners.setdefault(value, int(numbers[op]))


def _remove_numbers(trace: Trace) -> Trace:
    """Return a trace whose modules are named without the number of the chunk."""
    scopes = [_CHUNK.sub("", scope) for scope in trace.ops["scope"]]
    ops = trace.ops.assign(scope=pd.Series(scopes, dtype=object))
    names = {
        column: pd.Series([_CHUNK.sub("", name) for name in trace.tensors[column]], dtype=object)
        for column in NAMED_COLUMNS
    }
    return replace(trace, ops=ops, tensors=trace.tensors.assign(**names))
