"""Where a fault is put in: which ranks and which layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Injection:
    """A fault of one recording; ``name`` '' is a correct run."""

    name: str = ""
    ranks: tuple[int, ...] = ()  #: () is all ranks
    layer: int = -1  #: -1 where the fault belongs to no layer

    def is_active(self, fault: str, rank: int, layer: int = -1) -> bool:
        """Return whether this is the fault, on this rank and in this layer."""
        is_here = not self.ranks or rank in self.ranks
        return self.name == fault and is_here and layer == self.layer


def parse_injection(text: str) -> Injection:
    """Return the injection of a text like ``eps@1/0,2``: name, layer, ranks."""
    place, _, ranks = text.partition("/")
    name, _, layer = place.partition("@")
    return Injection(
        name, tuple(int(rank) for rank in ranks.split(",") if rank), int(layer) if layer else -1
    )
