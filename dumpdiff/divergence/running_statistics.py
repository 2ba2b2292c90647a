"""The running statistics of batch norms: state that the forward pass updates and does not use.

In training a batch norm computes with the statistics of the batch, so a wrong momentum changes no
other value of the step. PyTorch's recorders do not record running statistics after the call, so
they can rarely be compared; the momentum is an argument of the op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph import Flow
from ..model.finding import Cause, Finding
from ..model.trace import FORWARD
from .joint_graph import JointGraph
from .locations import MAX_NAMED_OPS

_KIND = "batch_norm"
#: The smallest momentum. An epsilon, the other number that a batch norm takes, is smaller.
_MIN_MOMENTUM = 5e-3
#: The momentum is an argument that both sides recorded.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class _Momenta:
    """Momentum of paired batch norms."""

    target_op: int
    reference_op: int
    target: float
    reference: float


def find_momentum_differences(graph: JointGraph, n_findings: int) -> tuple[Finding, ...]:
    """Return a finding if batch norms have another momentum; its rank is ``n_findings`` + 1."""
    alignment = graph.comparison.alignment
    differences = [
        momenta
        for momenta in _collect_momenta(graph)
        if abs(momenta.target - momenta.reference) > 1e-5 * momenta.reference
    ]
    if not differences:
        return ()
    names_t = alignment.target.trace.ops["name"]
    names_r = alignment.reference.trace.ops["name"]
    first = differences[0]
    ops_t = tuple(str(names_t.iat[momenta.target_op]) for momenta in differences)
    ops_r = tuple(str(names_r.iat[momenta.reference_op]) for momenta in differences)
    momentum_t, momentum_r = f"{first.target:.4g}", f"{first.reference:.4g}"
    n_norms = "" if len(differences) == 1 else f" and {len(differences) - 1} more"
    title = (
        f"{ops_t[0]} vs {ops_r[0]}{n_norms}: momentum {momentum_t} against {momentum_r}; "
        "the running statistics after the step differ"
    )
    text = (
        f"{ops_t[0]} updates its running statistics with momentum {momentum_t}; "
        f"the reference uses {momentum_r}"
    )
    finding = Finding(
        rank=n_findings + 1,
        kind="introduced",
        phase=FORWARD,
        scope="",
        title=title,
        target_ops=ops_t[:MAX_NAMED_OPS],
        reference_ops=ops_r[:MAX_NAMED_OPS],
        slots=(),
        metrics={"error": abs(first.target / first.reference - 1)},
        tolerance=0.0,
        confidence=_CONFIDENCE,
        evidence=(
            f"scalar argument {momentum_t} against {momentum_r}",
            "the other results of the step do not depend on it",
        ),
        causes=(Cause("norm-momentum", text, 0.0, {"momentum": first.target}),),
    )
    return (finding,)


def describe_running_statistics(graph: JointGraph) -> list[str]:
    """Return a sentence if only one side recorded the running statistics after the step."""
    alignment = graph.comparison.alignment
    n_pairs = len(graph.comparison.pairs)
    counts = {}
    for side, flow, nodes in (
        ("target", alignment.target, graph.target_nodes),
        ("reference", alignment.reference, graph.reference_nodes),
    ):
        values = _list_running_statistics(flow)
        counts[side] = sum(nodes[value] >= n_pairs for value in values)
    n_values = sum(counts.values())
    if not n_values or not any(_collect_momenta(graph)):
        return []
    side = max(counts, key=lambda name: counts[name])
    return [
        f"only the {side} recorded the running statistics of batch norms after the step "
        f"({n_values} tensors): their momentum was compared, they were not"
    ]


def _list_running_statistics(flow: Flow) -> list[int]:
    """Return the classes that an op of the forward pass updates in memory."""
    names, phases = flow.list_column("update_of"), flow.list_column("phase")
    return [value for value, name in enumerate(names) if name and phases[value] == FORWARD]


def _collect_momenta(graph: JointGraph) -> list[_Momenta]:
    """Return the momenta of the paired batch norms that run in training on both sides."""
    alignment = graph.comparison.alignment
    momenta = []
    for op_t, op_r in alignment.ops.itertuples(index=False):
        kinds = {alignment.target_kinds[op_t], alignment.reference_kinds[op_r]}
        if kinds != {_KIND}:
            continue
        momentum_t = _find_momentum(alignment.target, op_t)
        momentum_r = _find_momentum(alignment.reference, op_r)
        if momentum_t is not None and momentum_r is not None:
            momenta.append(_Momenta(op_t, op_r, momentum_t, momentum_r))
    return momenta


def _find_momentum(flow: Flow, op: int) -> float | None:
    """Return the momentum among the scalar arguments of a batch norm in training, else None.

    Of its two numbers it is the larger one; the other is epsilon.
    """
    rows = flow.tensors.iloc[flow.get_tensor_ids(op)]
    is_scalar = (rows["constant"] & (rows["size"] <= 1)).to_numpy(dtype=bool)
    scalars = rows[is_scalar]
    is_flag = scalars["dtype"].isin(["bool", "bool_"]).to_numpy(dtype=bool)
    if is_flag.any() and not scalars["max"].to_numpy()[is_flag].any():
        return None
    is_number = scalars["dtype"].str.startswith("float").to_numpy(dtype=bool)
    numbers = np.sort(scalars["max"].to_numpy(dtype=float)[is_number])
    if len(numbers) < 2 or not numbers[-1] >= _MIN_MOMENTUM:
        return None
    return float(numbers[-1])
