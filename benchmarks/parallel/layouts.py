"""Layouts: how a run is spread over processes, written like ``tp2-sp-dp2``.

Ranks are ordered as in Megatron-LM: tensor parallel fastest, then context, data, pipeline. Experts
are spread over the data-parallel ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism, and how the batch is processed."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1  #: model chunks of each pipeline rank, as in Megatron-LM's interleaved schedule
    ep: int = 1
    acc: int = 1  #: micro-batches that are accumulated
    sp: bool = False  #: sequence parallel regions between the tensor-parallel layers
    flat: bool = False  #: gradients are reduced in one flat buffer

    @property
    def n_ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def n_stages(self) -> int:
        """Return the number of pipeline stages, of all model chunks."""
        return self.pp * self.vpp

    @property
    def name(self) -> str:
        """Return the shortest text of the layout."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                words += [field.name] if value else []
            elif value > 1:
                words.append(f"{field.name}{value}")
        return "-".join(words) or "tp1"

    def locate(self, rank: int) -> dict[str, int]:
        """Return the rank within tp, cp, dp, pp."""
        place = {}
        for kind in ("tp", "cp", "dp", "pp"):
            rank, place[kind] = divmod(rank, getattr(self, kind))
        return place

    def list_groups(self, *kinds: str) -> list[tuple[int, ...]]:
        """Return the groups of ranks that differ in these kinds only, each in order."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.n_ranks):
            place = self.locate(rank)
            key = tuple(place[kind] for kind in place if kind not in kinds)
            groups.setdefault(key, []).append(rank)
        return [tuple(members) for members in groups.values()]


def parse_layout(text: str) -> Layout:
    """Return the layout of a text like ``tp2-sp-dp2``; raises ValueError."""
    values: dict[str, int | bool] = {}
    for word in text.split("-"):
        match = re.fullmatch(r"(tp|cp|dp|pp|vpp|ep|acc)(\d+)|(sp|flat)", word)
        if not match:
            raise ValueError(f"no layout: {text!r}")
        if match[3]:
            values[match[3]] = True
        else:
            values[match[1]] = int(match[2])
    return Layout(**values)
