"""The running statistics of batch norms: state that the forward pass updates and does not use.

In training a batch norm computes with the statistics of the batch, so a wrong momentum changes no
other value of the step. PyTorch's recorders do not record running statistics after the call, so
they can rarely be compared; the momentum is an argument of the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..comparison.scalars import collect_scalars
from ..graph import Flow
from ..model.finding import Cause, Finding
from ..model.trace import FORWARD
from ..rulebook import Rules
from .joint_graph import JointGraph
from .locations import MAX_NAMED_OPS

_KIND = "batch_norm"
_ARGUMENT = "momentum"
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


def find_momentum_differences(
    graph: JointGraph, rules: Rules, n_findings: int
) -> tuple[Finding, ...]:
    """Return a finding if batch norms have another momentum; its rank is ``n_findings`` + 1."""
    alignment = graph.comparison.alignment
    differences = [
        momenta
        for momenta in _collect_momenta(graph, rules)
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
            f"scalar argument {_ARGUMENT} {momentum_t} against {momentum_r}",
            "the other results of the step do not depend on it",
        ),
        causes=(Cause("norm-momentum", text, 0.0, {"momentum": first.target}),),
    )
    return (finding,)


def describe_running_statistics(graph: JointGraph, rules: Rules) -> list[str]:
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
    if not n_values or not any(_collect_momenta(graph, rules)):
        return []
    side = max(counts, key=lambda name: counts[name])
    return [
        f"only the {side} recorded the running statistics of batch norms after the step "
        f"({n_values} tensors): their momentum was compared, they were not"
    ]


def _list_running_statistics(flow: Flow) -> list[int]:
    """Return the classes that an op of the forward pass updates in memory."""
    phases = flow.list_column("phase")
    values = np.flatnonzero(flow.classes["update_of"].to_numpy() != "").tolist()
    return [value for value in values if phases[value] == FORWARD]


def _collect_momenta(graph: JointGraph, rules: Rules) -> list[_Momenta]:
    """Return the momenta of the paired batch norms that run in training on both sides."""
    alignment = graph.comparison.alignment
    momenta_t = _find_momenta(alignment.target, alignment.target_kinds, rules)
    momenta_r = _find_momenta(alignment.reference, alignment.reference_kinds, rules)
    if not momenta_t or not momenta_r:
        return []
    partners = alignment.op_partners
    return [
        _Momenta(op_t, partners[op_t], momentum, momenta_r[partners[op_t]])
        for op_t, momentum in sorted(momenta_t.items())
        if partners.get(op_t) in momenta_r
    ]


def _find_momenta(flow: Flow, kinds: Sequence[str], rules: Rules) -> dict[int, float]:
    """Return batch norm in training -> its momentum, by its name in the signature of the op.

    Of two numbers without a name it is the larger one; the other is epsilon.
    """
    momenta: dict[int, float] = {}
    if _KIND not in kinds:
        return momenta
    for op, scalars in collect_scalars(flow, rules).items():
        if kinds[op] != _KIND or not _is_training(flow, op):
            continue
        named_numbers = {scalar.argument: scalar.number for scalar in scalars}
        numbers = sorted(scalar.number for scalar in scalars)
        if _ARGUMENT in named_numbers:
            momenta[op] = named_numbers[_ARGUMENT]
        elif "" in named_numbers and len(numbers) > 1 and numbers[-1] >= _MIN_MOMENTUM:
            momenta[op] = numbers[-1]
    return momenta


def _is_training(flow: Flow, op: int) -> bool:
    """Return whether no flag of the op says that it does not run in training."""
    rows = flow.tensors.iloc[flow.get_tensor_ids(op)]
    is_flag = (rows["constant"] & rows["dtype"].isin(["bool", "bool_"])).to_numpy(dtype=bool)
    return not is_flag.any() or bool(rows["max"].to_numpy()[is_flag].any())
