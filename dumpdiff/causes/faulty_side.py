"""Which side departs from its own arithmetic: each side's last op again, in float64, from its own inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..operators import recompute
from .fault_case import FaultCase, compute_residual


def recompute_last_ops(situations: Sequence[FaultCase]) -> Mapping[str, float]:
    """Role -> relative L2 between what a side recorded and what its last op makes of its recorded inputs.

    Only where both sides end in the same kind of op, and it can be recomputed on both: an op that is read wrongly, as
    one whose record leaves out an attribute, would else be taken for a wrong result.
    """
    calls = {s.faithful_role: s.call for s in situations if s.call is not None}
    if len(calls) < 2 or len({call.kind for call in calls.values()}) > 1:
        return {}
    found = {}
    for s in situations:
        if s.call is not None:
            made = recompute(s.call.kind, s.call.inputs, s.call.keywords, recorded_output=s.faithful)
            if made is not None:
                found[s.faithful_role] = compute_residual(made, s.faithful)
    return found if len(found) == 2 else {}


def find_faulty_side(found: Mapping[str, float], tolerance: float) -> str:
    """target, reference or both; '' if neither departs by more than the noise, or nothing could be recomputed."""
    wrong = [role for role in ("target", "reference") if found.get(role, 0.0) > 2 * tolerance]
    return "both" if len(wrong) == 2 else wrong[0] if wrong else ""
