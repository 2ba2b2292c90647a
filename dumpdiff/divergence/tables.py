"""The tables of a result: one row per pair of tensors, one per op without a partner."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..graph import Flow
from ..model.arrays import Ints
from ..model.result import PAIR_COLUMNS, UNMATCHED_COLUMNS
from .coverage import flag_compared_ops
from .joint_graph import JointGraph
from .states import RECONVERGED, States

_METRICS = (
    "layout", "error", "metric", "tolerance", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond",
    "nonfinite_mismatch", "rounded_error", "confidence", "evidence",
)  # fmt: skip


def build_pair_table(
    graph: JointGraph, states: States, scopes_t: list[str], scopes_r: list[str]
) -> pd.DataFrame:
    """One row per result tensor of the reference whose value has a partner, in the order of the target's execution.

    Results are outputs, the gradients given to an API's backward record, and what nobody made: parameters, batch.
    The partner is the same value's tensor at the matching op of the target if it has one there, else where it was made.
    """
    alignment = graph.comparison.alignment
    target, reference = alignment.target, alignment.reference
    rows_r = _results(reference)
    node = graph.reference_nodes[reference.tensor_class[rows_r]]
    rows_r, node = (
        rows_r[node < len(graph.comparison.pairs)],
        node[node < len(graph.comparison.pairs)],
    )
    rows_t = _partners(graph, rows_r, node)
    order = np.lexsort((rows_r, target.tensors["op"].to_numpy()[rows_t]))
    rows_r, rows_t, node = rows_r[order], rows_t[order], node[order]
    table = pd.DataFrame({"target": rows_t, "reference": rows_r})
    for side, flow, rows in (("target", target, rows_t), ("reference", reference, rows_r)):
        tensors, ops = flow.tensors, flow.tensors["op"].to_numpy()[rows]
        table[f"{side}_op"] = flow.trace.ops["name"].to_numpy()[ops]
        for name in ("slot", "dtype", "shape", "max", "min", "mean", "norm"):
            table[f"{side}_{name}"] = tensors[name].to_numpy()[rows]
    table["phase"] = reference.trace.ops["phase"].to_numpy()[
        reference.tensors["op"].to_numpy()[rows_r]
    ]
    ops_t, ops_r = (
        f.tensors["op"].to_numpy()[rows] for f, rows in ((target, rows_t), (reference, rows_r))
    )
    scopes = [
        scopes_r[r] or scopes_t[t] for t, r in zip(ops_t.tolist(), ops_r.tolist(), strict=True)
    ]
    table["scope"] = pd.Series(scopes, dtype=object)
    for name in _METRICS:
        table[name] = graph.comparison.pairs[name].to_numpy()[node]
    named = np.where(states.state[node] == RECONVERGED, "incomparable", states.state[node])
    table["state"] = pd.Series(named, dtype=object)
    return table[list(PAIR_COLUMNS)]


def _results(flow: Flow) -> Ints:
    tensors = flow.tensors
    op = tensors["op"].to_numpy()
    role = tensors["role"].to_numpy()
    gradient = (flow.trace.ops["forward"].to_numpy()[op] >= 0) & (role == "input")
    known = flow.tensor_class >= 0
    orphan = (
        known & (flow.classes["producer"].to_numpy()[flow.tensor_class] < 0)
        if len(flow.classes)
        else known
    )
    first_read = np.zeros(len(tensors), dtype=bool)
    first_read[np.unique(np.where(orphan, flow.tensor_class, -1), return_index=True)[1]] = True
    rows: Ints = np.flatnonzero(known & (flow.is_computed | gradient | (orphan & first_read)))
    return rows


def _partners(graph: JointGraph, rows_r: Ints, node: Ints) -> Ints:
    alignment = graph.comparison.alignment
    target, reference = alignment.target, alignment.reference
    op_of = dict(
        zip(alignment.ops["reference"].tolist(), alignment.ops["target"].tolist(), strict=True)
    )
    at_op: dict[
        tuple[int, int, str], int
    ] = {}  # (op, class, role), outputs standing in for any role
    known = np.flatnonzero(target.tensor_class >= 0)
    ops, roles = (target.tensors[name].to_numpy()[known].tolist() for name in ("op", "role"))
    for row, op, value, role in zip(
        known.tolist(), ops, target.tensor_class[known].tolist(), roles, strict=True
    ):
        at_op.setdefault((op, value, role), row)
    stands_for = target.classes["tensor"].to_numpy()
    ops_r, roles_r = (
        reference.tensors[name].to_numpy()[rows_r].tolist() for name in ("op", "role")
    )
    partners = []
    for op, role, value in zip(ops_r, roles_r, graph.target_classes[node].tolist(), strict=True):
        partner = op_of.get(op, -1)
        choices = (at_op.get((partner, value, r)) for r in (role, "output", "input", "parameter"))
        partners.append(next((row for row in choices if row is not None), int(stands_for[value])))
    return np.array(partners, dtype=np.int64)


def build_unmatched_table(
    graph: JointGraph, states: States, scopes_t: list[str], scopes_r: list[str]
) -> pd.DataFrame:
    """One row per op of either side none of whose results could be compared, and why."""
    alignment = graph.comparison.alignment
    pairs = len(graph.comparison.pairs)
    compared = np.zeros(graph.n_nodes, dtype=bool)
    compared[:pairs] = graph.comparison.pairs["comparable"]
    paired = np.arange(graph.n_nodes) < pairs
    parted = np.zeros(graph.n_nodes, dtype=bool)
    for node in range(pairs):
        if states.state[node] not in ("agreeing", RECONVERGED):
            parted[list(states.ancestry[node].unpaired_nodes)] = True
    tables = []
    for side, flow, node_of, scopes in (
        ("target", alignment.target, graph.target_nodes, scopes_t),
        ("reference", alignment.reference, graph.reference_nodes, scopes_r),
    ):
        counts, hit = flag_compared_ops(flow, node_of, compared)
        ops = np.flatnonzero(~hit)
        flags = [
            flag_compared_ops(flow, node_of, which)[1][ops]
            for which in (states.state == RECONVERGED, parted, paired)
        ]
        reasons = np.select(
            [~counts[ops], flags[0], flags[1], flags[2]],
            ["no tensor to compare", "healed: another decomposition, every path re-joins agreement",
             "region: between agreement and disagreement", "no statistics"],
            "no partner, and nothing that follows from it has one",
        )  # fmt: skip
        named = {name: flow.trace.ops[name].to_numpy()[ops] for name in ("name", "kind", "phase")}
        tables.append(
            pd.DataFrame(
                {
                    "side": side,
                    "op": named["name"],
                    "kind": named["kind"],
                    "phase": named["phase"],
                    "scope": pd.Series([scopes[op] for op in ops.tolist()], dtype=object),
                    "reason": reasons,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)[list(UNMATCHED_COLUMNS)]
