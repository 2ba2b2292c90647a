"""What holds in every correct run, and where a run contradicts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

#: Invariant -> what it says. The names are published in the JSON of ``dumpdiff check``.
INVARIANTS: Mapping[str, str] = {
    "equal outputs": "all ranks of a collective get the same",
    "reduction": "the output of a reduction is the sum (mean, max) of the inputs",
    "gathered": "what is gathered is the concatenation of what each rank gave",
    "scattered": "each rank gets its part of the sum, or of what the root gave",
    "broadcast": "all ranks get what the root gave",
    "exchanged": "what a rank gets from another is what the other gave to it",
    "received": "what is received is what was sent",
    "read": "what a collective or transfer brought is read",
    "reduced once": "a reduction does not add copies of one value",
    "same calls": "sibling ranks make the same calls",
    "same dtype": "sibling ranks use the same dtypes",
    "replicated": "a value that is replicated is equal on the ranks of the group",
    "deterministic": "equal inputs give equal outputs",
    "parameter": "a parameter is replicated in all layers, or sharded in all layers",
    "gradient": "gradients of replicated parameters are equal after their reduction",
    "new parameter": "parameters that are equal before the step are equal after it",
    "gradient norm": "the reported gradient norm is the norm of all shards, each counted once",
    "loss": "the loss is equal on tensor-parallel ranks",
    "batch": "data-parallel ranks compute different samples",
    "tokens": "each token is routed once and combined once",
    "finite": "no value is NaN or infinite",
    "zero gradient": "no parameter has a gradient of zeros where its like have none",
    "next step": "a step begins with the parameters that the step before left",
}


@dataclass(frozen=True)
class Violation:
    """One contradiction: an invariant, where it does not hold, and both values."""

    invariant: str  #: key of :data:`INVARIANTS`
    step: int | None
    ranks: tuple[int, ...]  #: the ranks that contradict each other, or the one that is wrong
    op: str  #: the dump's own name of the op, on the first of the ranks
    slot: str
    scope: str  #: module or parameter, '' if unknown
    recorded: str  #: what the dump holds
    expected: str  #: what it contradicts
    group: str = ""  #: kind and members of the group, '' if it is not about one
    #: further places that follow from this one, or that show the same
    n_further: int = 0

    @property
    def message(self) -> str:
        """One clause that names the place and both values."""
        place = self.scope or self.op
        more = f" (and {self.n_further:,} more places)" if self.n_further else ""
        return f"{place}: {self.recorded}, but {self.expected}{more}"


@dataclass(frozen=True)
class InvariantCheck:
    """One invariant: how often it could be checked, and where it does not hold."""

    name: str  #: key of :data:`INVARIANTS`
    checked: int
    violations: tuple[Violation, ...] = ()
    #: why it could not be checked -> how often
    unchecked: Mapping[str, int] = field(default_factory=dict)


def merge_violations(violations: Iterable[Violation]) -> list[Violation]:
    """Return one violation for those of one invariant and place that several groups show.

    If a rank is in all of them, it is the one that is wrong.
    """
    merged: dict[tuple[str, str, str], Violation] = {}
    for violation in violations:
        place = (violation.invariant, violation.scope, f"{violation.op} {violation.slot}")
        earlier = merged.get(place)
        if earlier is None:
            merged[place] = violation
            continue
        common_ranks = tuple(rank for rank in earlier.ranks if rank in violation.ranks)
        if common_ranks:
            merged[place] = replace(earlier, ranks=common_ranks)
        elif len(violation.ranks) < len(earlier.ranks):
            merged[place] = violation
    return list(merged.values())
