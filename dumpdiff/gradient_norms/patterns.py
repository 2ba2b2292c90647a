"""What the norms that differ have in common, and what makes such a difference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.formatting import number
from ..rulebook import Rules
from .parameter_place import FIRST_BACK, LAST_BACK
from .row import Row

Kind = Literal[
    "nonfinite", "factor", "no-gradient", "tied", "precision", "embedding", "vectors", "module", "one-layer", "layer",
    "everything",
]  # fmt: skip

_MOST = 0.7  #: share of the norms below a layer that differ, for the backward pass to depart there
_NEARLY = 0.8  #: share of a kind, or of all, that differs, for it to be that kind, or all
_CONTRAST = 0.1  #: norms nearer the head than this share of the typical difference are not of the same fault
_LOW = 0.2  #: beyond this, no precision makes the norm of an embedding's gradient differ: sums in bfloat16 lose less
_LOSS_SCALE = 256  #: least power of two that is rather a loss scale than a count

_CAUSES: dict[Kind, str] = {
    "nonfinite": "an overflow on the way back, there or above",
    "no-gradient": "frozen, or the way back is cut (stop_gradient, detach, a missing bprop)",
    "tied": "the head shares the embedding's weight on one side, whose gradient is then the sum of both",
    "precision": "one side computes or accumulates the embedding in FP32, the other in BF16; the rows of frequent"
    " tokens are sums of many gradients",
    "embedding": "the gradient of the lookup itself: how rows of one token are summed, padding, position ids",
    "vectors": "their gradients are sums over all tokens: the dtype or order of that sum, or a cast of these weights",
    "module": "what goes back through the layers agrees, so the gradient of this weight itself is computed otherwise",
    "one-layer": "what goes back through the layer agrees, so the gradient of these weights is computed otherwise",
    "layer": "the backward pass, which runs from the last layer to the first, departs in layer {}",
    "everything": "the backward pass begins with other values: batch, labels, loss or forward pass; compare the loss of"
    " step 1",
}


@dataclass(frozen=True)
class Pattern:
    """One thing that the differing norms have in common."""

    kind: Kind
    said: str  #: one line for a person
    cause: str  #: what most likely makes such a difference
    layer: int | None = None  #: where the backward pass departs, or the only layer that differs


def patterns(
    rows: Sequence[Row], factor: float, alone: tuple[Sequence[str], Sequence[str]], rules: Rules
) -> tuple[Pattern, ...]:
    """Patterns, the most telling first; ``alone`` are parameters of both sides without a partner."""
    return (*_of_values(rows, factor), *_of_places(rows, alone, rules))


def _pattern(kind: Kind, said: str, layer: int | None = None) -> Pattern:
    return Pattern(kind, said, _CAUSES[kind].format(layer), layer)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of_values(rows: Sequence[Row], factor: float) -> Iterator[Pattern]:
    """What the numbers themselves say."""
    for side, other in (("target", "reference"), ("reference", "target")):
        lost = [
            row
            for row in rows
            if not math.isfinite(row.norm(side)) and math.isfinite(row.norm(other))
        ]
        if lost:
            first = max(lost, key=lambda row: -2 if row.depth is None else row.depth)
            said = f"not finite on the {side} alone: {len(lost)} norms, the first on the way back {first.label}"
            yield _pattern("nonfinite", said)
    if factor != 1:
        yield Pattern(
            "factor", f"all norms are {_times(factor)} the reference's", _cause_of(factor)
        )
    for side in ("target", "reference"):
        gone = [row.label for row in rows if row.state == "differ" and row.norm(side) == 0]
        if gone:
            yield _pattern("no-gradient", f"no gradient on the {side} for {_few(gone)}")


def _whole(factor: float) -> int:
    """The whole number that a factor, or one divided by it, is; 0 if it is none."""
    up = max(factor, 1 / factor)
    near = round(up)
    return near if near > 1 and math.isclose(up, near, rel_tol=2e-3) else 0


def _times(factor: float) -> str:
    whole = _whole(factor)
    if not whole:
        return f"{factor:.5g} times"
    return f"{whole} times" if factor > 1 else f"1/{whole} of"


def _cause_of(factor: float) -> str:
    whole = _whole(factor)
    if whole >= _LOSS_SCALE and whole & (whole - 1) == 0:
        return "the loss scale is still in the gradients of one side"
    if whole:
        counted = (
            "devices (data parallel), micro-batches (gradient accumulation), sequences or tokens"
        )
        return f"a sum in place of a mean over {whole}: {counted}"
    return (
        "one side was taken after clipping (then the factor is limit / global norm), or divides its loss by another"
        " number of tokens"
    )


def _of_places(
    rows: Sequence[Row], alone: tuple[Sequence[str], Sequence[str]], rules: Rules
) -> Iterator[Pattern]:
    """Where in the model the differing ones are."""
    yield from _first_alone(rows)
    off = [row for row in rows if row.state == "differ" and row.path]
    fine = [row for row in rows if row.state == "agree" and row.path]
    unclear = [
        row for row in rows if row.state == "unclear" and row.path and math.isfinite(row.relative)
    ]
    if not off:
        return
    if _tied(off, alone, rules):
        yield _pattern(
            "tied", "the embedding's norm differs, and only one side has a head of its own"
        )
    elif all(row.depth == LAST_BACK for row in off) and len(fine) > len(unclear):
        worst = max(row.relative for row in off)
        kind: Kind = "precision" if worst <= _LOW else "embedding"
        yield _pattern(kind, f"only the embedding's norm differs, by {number(worst)}")
    else:
        if not unclear:
            yield from _by_kind(off, fine)
        yield from _by_layer(off, fine, unclear)


def _first_alone(rows: Sequence[Row]) -> Iterator[Pattern]:
    """Of lists without names the first parameter is the embedding, in every model that has one."""
    off = [row for row in rows if row.state == "differ"]
    if len(off) == 1 < len(rows) and not off[0].path and off[0].target == off[0].reference == "#1":
        kind: Kind = "precision" if off[0].relative <= _LOW else "embedding"
        worst = number(off[0].relative)
        yield _pattern(
            kind,
            f"only the first norm of both lists, which have no names, differs, by {worst}: the embedding",
        )


def _tied(off: Sequence[Row], alone: tuple[Sequence[str], Sequence[str]], rules: Rules) -> bool:
    heads = [any(rules.parameter(name) == "head.weight" for name in side) for side in alone]
    return heads[0] != heads[1] and any(row.path == "embedding.weight" for row in off)


def _by_kind(off: Sequence[Row], fine: Sequence[Row]) -> Iterator[Pattern]:
    """Biases and norms alone; or one or two weights of every layer."""
    vectors = len(off) + sum(row.vector for row in fine)
    if len(off) > 1 and all(row.vector for row in off) and 2 * len(off) >= vectors:
        yield _pattern("vectors", f"only biases and norm weights differ, {len(off)} of {vectors}")
    kinds = Counter(row.kind for row in off if row.layer is not None)
    total = Counter(row.kind for row in (*off, *fine) if row.layer is not None)
    layers = {row.layer for row in off}
    whole = all(count >= _NEARLY * total[kind] for kind, count in kinds.items())
    if (
        sum(kinds.values()) == len(off)
        and len(kinds) <= 2 < len(total)
        and len(layers) > 1
        and whole
    ):
        yield _pattern(
            "module", f"only {' and '.join(sorted(kinds))} differ, in {len(layers)} layers"
        )


def _by_layer(off: Sequence[Row], fine: Sequence[Row], unclear: Sequence[Row]) -> Iterator[Pattern]:
    """From where on the way back. Norms that cannot be told apart from rounding are no evidence of agreement."""
    top = max((row.depth for row in off if row.depth is not None), default=None)
    if top is None:
        return
    doubtful = [row for row in unclear if row.depth is not None and row.depth > top]
    if top == FIRST_BACK or doubtful:
        apart = len(off) + len(unclear)
        typical = float(np.median([row.relative for row in off]))
        near = top == FIRST_BACK or max(row.relative for row in doubtful) >= _CONTRAST * typical
        if near and apart >= _NEARLY * (apart + len(fine)) and apart > 1:
            yield _pattern("everything", "everywhere, the head's or the final norm's too")
        return
    below = [row for row in (*off, *fine, *unclear) if row.depth is not None and row.depth < top]
    wrong = [row for row in below if row.state == "differ"]
    if not wrong and below and {row.layer for row in off} == {top}:
        yield _pattern(
            "one-layer", f"only layer {top} differs: {_few([row.kind for row in off])}", top
        )
    elif wrong and len(wrong) >= _MOST * len(below):
        right = sorted(row.kind for row in fine if row.layer == top)
        still = f"; of layer {top} still right: {_few(right)}" if right else ""
        yield _pattern(
            "layer", f"from layer {top} down to the embedding, those above it agree{still}", top
        )
