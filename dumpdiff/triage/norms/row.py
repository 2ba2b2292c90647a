"""One parameter of both sides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from ...wording import number
from .couples import By

#: unclear: beyond what float32 does, within what the whole pair does; coarse: too few digits to tell anything.
State = Literal["agree", "differ", "unclear", "coarse"]

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
FIRST_BACK, LAST_BACK = 1 << 30, -1  #: depth of the head and the final norm, and of the embeddings


def layer_of(path: str) -> int | None:
    """The number of the layer in a canonical name, None if there is none."""
    match = _LAYER.search(path)
    return int(match[1]) if match else None


def depth_of(path: str) -> int | None:
    """A parameter's place in the model: the backward pass goes from the largest to the least. None if nobody knows."""
    layer = layer_of(path)
    if layer is not None:
        return layer
    if "embedding" in path:
        return LAST_BACK
    return FIRST_BACK if path.startswith(("head.", "final_norm.")) else None


def kind_of(path: str) -> str:
    """A canonical name without the layer: ``attention.q.weight``."""
    return _LAYER.sub(lambda match: "" if match.start() == 0 else ".", path)


@dataclass(frozen=True)
class Row:
    """A parameter's gradient norms, the roots; of a fused parameter the parts' together."""

    path: str  #: canonical name, '' if unknown
    target: str  #: name, or '#3' for the third of a list; parts with ' + ' between
    reference: str
    target_norm: float
    reference_norm: float
    relative: float  #: difference relative to the reference, after a factor that all have; infinite where that is 0
    tolerance: float
    state: State
    by: By

    def norm(self, side: str) -> float:
        """The norm of the 'target' or the 'reference'."""
        return self.target_norm if side == "target" else self.reference_norm

    @property
    def label(self) -> str:
        """The canonical name, else what the reference calls it."""
        return self.path or (self.reference if self.target.startswith("#") else self.target)

    @property
    def said(self) -> str:
        """One line for a person."""
        off = "" if math.isinf(self.relative) else f", off by {number(self.relative)}"
        return f"{self.label}: {self.target_norm:.5g} against {self.reference_norm:.5g}{off}"

    @property
    def beyond(self) -> float:
        """How many times the tolerance it is off; what cannot be told comes after what differs."""
        if math.isnan(self.relative):
            return math.inf
        rank = {"differ": 2e9, "unclear": 1e9}.get(self.state, 0.0)
        return rank + min(self.relative / max(self.tolerance, 1e-300), 1e8)

    @property
    def layer(self) -> int | None:
        """The number of its layer, None if it is in none."""
        return layer_of(self.path)

    @property
    def depth(self) -> int | None:
        """Its place in the model, see :func:`depth_of`."""
        return depth_of(self.path)

    @property
    def kind(self) -> str:
        """Its name without the layer, see :func:`kind_of`."""
        return kind_of(self.path)

    @property
    def vector(self) -> bool:
        """Whether it is a bias or the weight of a norm, which have one axis."""
        module, _, leaf = self.path.rpartition(".")
        return leaf == "bias" or module.endswith("norm")
