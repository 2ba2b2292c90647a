"""Micro-batches of one rank as ranks of their own.

A run that accumulates gradients makes every call of the forward and of the backward pass once for
each micro-batch. The calls of one micro-batch are those that one rank of a data-parallel run makes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from ..communication.collectives import RECV, TRANSFERS, classify_kind
from ..graph import Flow, build_flow
from ..model.arrays import Flags, Ints, Objects
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, Trace

#: Share of the kinds of calls that must be made so many times more often.
_MIN_SHARE = 0.8


def count_micro_batches(flow: Flow, other: Flow) -> int:
    """Return how many times more often ``flow`` makes the calls of the forward pass than ``other``.

    1 if it makes them as often, less often, or not a whole number of times.
    """
    counts, other_counts = _count_calls(flow.trace), _count_calls(other.trace)
    ratios: Counter[int] = Counter()
    for key in counts.keys() & other_counts.keys():
        ratio, remainder = divmod(counts[key], other_counts[key])
        ratios[0 if remainder else ratio] += 1
    if not ratios:
        return 1
    ratio, n_keys = ratios.most_common(1)[0]
    return ratio if ratio > 1 and n_keys >= _MIN_SHARE * ratios.total() else 1


def _count_calls(trace: Trace) -> Counter[tuple[str, str]]:
    """Return how often each call of the forward pass is made, by kind and shape of the weights."""
    ops = trace.ops
    is_counted = (ops["phase"] == FORWARD) & ~ops["recomputed"]
    is_module = is_counted & (ops["level"] == "module")
    chosen = ops[is_module] if is_module.any() else ops[is_counted]
    return Counter(zip(chosen["scope"].tolist(), chosen["kind"].tolist(), strict=True))


def split_micro_batches(flow: Flow, n_batches: int) -> list[Flow] | None:
    """Return the flow of each micro-batch; None if the calls are not the same ones repeated.

    What is called once, after the last backward pass, is in all of them.
    """
    batches = _number_batches(flow.trace, n_batches)
    if batches is None:
        return None
    flows = []
    for batch in range(n_batches):
        trace = select_ops(flow, (batches == batch) | (batches < 0))
        flows.append(build_flow(trace))
    return flows


def _number_batches(trace: Trace, n_batches: int) -> Ints | None:
    """Return (ops,) the micro-batch of each op, -1 if it belongs to all."""
    ops = trace.ops
    phases = ops["phase"].to_numpy()
    kinds = ops["kind"].to_numpy()
    batches = np.full(len(ops), -1)
    is_forward = phases == FORWARD
    forward_calls = ops["forward"].to_numpy()
    backward_ops = np.flatnonzero(phases == BACKWARD)
    forward_ops = np.flatnonzero(is_forward)
    segments = _cut(forward_ops, kinds, n_batches)
    if segments is None and len(backward_ops):
        segments = _cut_around(forward_ops, int(backward_ops[0]), kinds, n_batches)
    if segments is None:
        return None
    for batch, segment in enumerate(segments):
        batches[segment] = batch
    is_linked = forward_calls[backward_ops] >= 0
    linked = backward_ops[is_linked]
    batches[linked] = batches[forward_calls[linked]]
    unlinked = backward_ops[~is_linked]
    if len(unlinked):
        segments = _cut(unlinked, kinds, n_batches)
        if segments is None:
            return None
        for batch, segment in enumerate(segments):
            batches[segment] = batch
    _number_collectives(phases, kinds, batches, n_batches)
    return batches


def _cut(rows: Ints, kinds: Objects, n_batches: int) -> list[Ints] | None:
    """Return rows in equal segments with the same kinds; None if there are none."""
    length, remainder = divmod(len(rows), n_batches)
    if remainder or not length:
        return None
    segments = [rows[begin : begin + length] for begin in range(0, len(rows), length)]
    first_kinds = kinds[segments[0]].tolist()
    if any(kinds[segment].tolist() != first_kinds for segment in segments[1:]):
        return None
    return segments


def _cut_around(
    rows: Ints, first_backward: int, kinds: Objects, n_batches: int
) -> list[Ints] | None:
    """Return rows in segments, if all forward passes come before the first backward pass.

    What a backward pass computes with forward calls (a loss with its own gradient) follows in
    segments of its own.
    """
    before = _cut(rows[rows < first_backward], kinds, n_batches)
    after = _cut(rows[rows > first_backward], kinds, n_batches)
    if before is None or after is None:
        return None
    return [np.concatenate(parts) for parts in zip(before, after, strict=True)]


def _number_collectives(phases: Objects, kinds: Objects, batches: Ints, n_batches: int) -> None:
    """Number the collectives up to the last backward op, in place.

    Each micro-batch makes the same share of the calls of a kind; if they do not divide, they belong
    to the micro-batch of the op before. What is sent always does, and what is received belongs to
    that of the next op.
    """
    is_pass = (phases == FORWARD) | (phases == BACKWARD)
    if not is_pass.any():
        return
    last_op = int(np.flatnonzero(is_pass)[-1])
    while last_op + 1 < len(phases) and classify_kind(kinds[last_op + 1]) in TRANSFERS:
        last_op += 1  # the gradient that is sent to the stage before
    batch = 0
    for op in range(last_op + 1):
        if phases[op] == COMMUNICATION:
            batches[op] = batch
        elif phases[op] != OPTIMIZER:
            batch = int(batches[op])
    collectives = np.flatnonzero(phases[: last_op + 1] == COMMUNICATION)
    for op in reversed(collectives.tolist()):
        if classify_kind(kinds[op]) == RECV and op < last_op:
            batches[op] = batches[op + 1]
    for kind in set(kinds[collectives].tolist()):
        if classify_kind(kind) in TRANSFERS:
            continue
        calls = collectives[kinds[collectives] == kind]
        length, remainder = divmod(len(calls), n_batches)
        if not remainder:
            batches[calls] = np.arange(len(calls)) // length


def select_ops(flow: Flow, is_selected: Flags) -> Trace:
    """Return the trace of some of the ops of a flow, with complete statistics."""
    trace = flow.trace
    selected = np.flatnonzero(is_selected)
    new_ops = np.full(len(trace.ops) + 1, -1)
    new_ops[selected] = np.arange(len(selected))
    ops = trace.ops.iloc[selected].reset_index(drop=True)
    for column in ("parent", "forward"):
        ops[column] = new_ops[ops[column].to_numpy()]
    row_ops = flow.tensors["op"].to_numpy()
    rows = np.flatnonzero(is_selected[row_ops])
    new_rows = np.full(len(flow.tensors) + 1, -1)
    new_rows[rows] = np.arange(len(rows))
    tensors = flow.tensors.iloc[rows].reset_index(drop=True)
    tensors["op"] = new_ops[tensors["op"].to_numpy()]
    tensors["source_tensor"] = new_rows[tensors["source_tensor"].to_numpy()]
    return replace(trace, ops=ops, tensors=pd.DataFrame(tensors))
