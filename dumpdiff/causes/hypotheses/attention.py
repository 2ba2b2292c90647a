"""Attention: the mask, the axis of the softmax, the scale, in parts and as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from ...model.arrays import AnyArray, Flags
from ...model.trace import FORWARD
from ...operators.attention import attention, make_causal_mask, repeat_groups
from ...operators.softmax import softmax
from ..parameter_fit import minimize
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase, find_masked, compute_residual

_LOWEST = -1e30
_COSTLY = (
    3e7  #: products of a score matrix beyond which whole attention is not tried in every order
)
_DIAGONALS = (0, 2, 3, -1)


def pattern(array: AnyArray) -> Flags | None:
    """What is hidden (true: not seen) in masked scores, probabilities or a mask of zeros and ones; None of others."""
    if array.ndim < 2 or array.shape[-1] < 2:
        return None
    hidden: Flags = find_masked(array)
    if hidden.any():
        return hidden
    values = array.reshape(-1)
    if values.min() >= 0 and values.max() <= 1:
        zero: Flags = array == 0
        return zero
    return hidden


def mask(s: FaultCase) -> Iterator[Candidate]:
    """Another part of the scores is hidden: none of it, or beyond another diagonal."""
    theirs = pattern(s.faithful)
    if (
        s.phase != FORWARD
        or theirs is None
        or theirs.ndim < 2
        or theirs.shape[-1] != theirs.shape[-2]
    ):
        return
    flat = theirs.reshape(-1, *theirs.shape[-2:])
    if not (flat.any() or (1 - flat).all()) or not np.array_equal(flat[0], flat[-1]):
        return
    length = theirs.shape[-1]
    first = next(
        (
            d
            for d in range(-length, length + 1)
            if np.array_equal(flat[0], make_causal_mask(length, length, d))
        ),
        None,
    )
    keeps = first is None and next(
        (d for d in range(-2, 4) if np.array_equal(~flat[0], make_causal_mask(length, length, d))), None
    )
    choices = [("no mask at all", "mask-missing", np.zeros_like(flat[0]))]
    base = first if first is not None else keeps if keeps not in (None, False) else None
    if base is not None and base is not False:
        choices += [
            (
                f"causal mask moved by {d} diagonal{'s' * (abs(d) > 1)}",
                "mask-shifted",
                make_causal_mask(length, length, int(base) + d),
            )
            for d in (1, -1, 2, -2)
        ]
    if first is None and keeps not in (None, False):
        choices = [(said, cause, ~hidden) for said, cause, hidden in choices]
    for said, cause, hidden in choices:
        for made in _with_mask(s, theirs, np.broadcast_to(hidden, theirs.shape)):
            yield Candidate(made, said, "", {}, s.faithful, cause)


def _with_mask(s: FaultCase, theirs: Flags, hidden: Flags) -> Iterator[AnyArray]:
    """The faithful side's array with another mask, for each thing that it may be."""
    low = find_masked(s.faithful)
    if low.any() or find_masked(s.faulty).any():
        for o in s.find_same_size_operands():  # masked scores: the scores are an operand
            scores = o.array.reshape(s.faithful.shape)
            if (
                not find_masked(scores).any()
                and compute_residual(np.where(theirs, _LOWEST, scores), s.faithful) <= s.limit
            ):
                yield np.where(hidden, _LOWEST, scores)
        yield np.where(hidden, _LOWEST, 0.0)  # the mask itself, as numbers to add
        return
    if set(np.unique(s.faithful[..., :2, :])) <= {0.0, 1.0} and set(np.unique(s.faithful)) <= {0.0, 1.0}:
        yield np.where(
            hidden, 0.0, 1.0
        )  # a mask of zeros and ones; pattern() took zeros for hidden
        return
    for o in s.find_same_size_operands():  # probabilities
        scores = o.array.reshape(s.faithful.shape)
        for logits in (scores, np.where(theirs, _LOWEST, scores)):
            if s.matches_faithful(softmax(logits)):
                yield softmax(np.where(hidden, _LOWEST, scores))


def axis(s: FaultCase) -> Iterator[Candidate]:
    """softmax along another axis."""
    if not s.is_forward_value or s.faithful.ndim < 2 or s.faithful.min() < 0:
        return
    for o in s.find_same_size_operands():
        x = o.array.reshape(s.faithful.shape)
        made = [softmax(x, each) for each in range(x.ndim)]
        for each, plain in enumerate(made):
            if s.matches_faithful(plain):
                for other, changed in enumerate(made):
                    if other != each:
                        said, instead = (
                            f"softmax along axis {other - x.ndim}",
                            f"has axis {each - x.ndim}",
                        )
                        yield Candidate(
                            changed, said, instead, {"axis": float(other - x.ndim)}, plain
                        )
                sigmoid = 1 / (1 + np.exp(-x))
                cause = "router-normalisation" if "topk" in s.consumer_kinds else "activation-kind"
                yield Candidate(sigmoid, "sigmoid", "has softmax", {}, plain, cause)
                return


def whole(s: FaultCase) -> Iterator[Candidate]:
    """softmax(q k^T scale + mask) v from q, k and v."""
    if not s.is_forward_value or s.faithful.ndim < 3 or "attention" not in s.finding.scope:
        return
    parts = [
        o.array
        for o in s.operands
        if o.array.ndim == s.faithful.ndim and _like_heads(o.array, s.faithful)
    ][:4]
    cost = float(s.faithful.size) * s.faithful.shape[-2]
    orders = (
        list(permutations(range(len(parts)), 3))
        if cost < _COSTLY / 100
        else [(0, 1, 2), (2, 1, 0), (1, 0, 2)]
    )
    for order in orders if cost < _COSTLY else []:
        if max(order) >= len(parts):
            continue
        q, k, v = (parts[i] for i in order)
        if q.shape != s.faithful.shape or k.shape != v.shape:
            continue
        k, v = repeat_groups(k, q.shape[-3]), repeat_groups(v, q.shape[-3])
        length, scale = (q.shape[-2], k.shape[-2]), q.shape[-1] ** -0.5
        for first in (1, None):
            for used in (scale, 1.0):
                hidden = None if first is None else make_causal_mask(*length, first)
                plain = attention(q, k, v, used, hidden)
                if s.matches_faithful(plain):
                    yield from _changed(s, q, k, v, used, hidden, plain)
                    return


def _like_heads(array: AnyArray, plain: AnyArray) -> bool:
    """(..., heads or groups of them, length, size) beside (..., heads, length, size)."""
    return (
        array.dtype.kind == "f"
        and array.shape[-2:] == plain.shape[-2:]
        and array.shape[:-3] == plain.shape[:-3]
        and plain.shape[-3] % array.shape[-3] == 0
    )


def _changed(
    s: FaultCase,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    scale: float,
    hidden: Flags | None,
    plain: AnyArray,
) -> Iterator[Candidate]:
    length = (q.shape[-2], k.shape[-2])

    def cost(x: float) -> float:
        return float(np.linalg.norm(attention(q, k, v, float(np.exp(x)), hidden) - s.faulty))

    ours = float(np.exp(minimize(cost, np.log(scale) + np.linspace(-4, 4, 17), rounds=45)))
    made = attention(q, k, v, ours, hidden)
    yield Candidate(
        made, f"scale = {ours:.4g}", f"uses {scale:.4g}", {"scale": ours}, plain, "scale"
    )
    if hidden is not None:
        yield Candidate(attention(q, k, v, scale), "no mask at all", "", {}, plain, "mask-missing")
        for d in _DIAGONALS:
            made = attention(q, k, v, scale, make_causal_mask(*length, d))
            yield Candidate(
                made, f"causal mask moved by {d - 1} diagonals", "", {}, plain, "mask-shifted"
            )
    else:
        yield Candidate(
            attention(q, k, v, scale, make_causal_mask(*length)),
            "a causal mask",
            "has none",
            {},
            plain,
            "mask-shifted",
        )
    yield Candidate(
        attention(q, k, v, scale, hidden, -2),
        "softmax along axis -2",
        "",
        {},
        plain,
        "softmax-axis",
    )


HYPOTHESES = (
    Hypothesis("mask-missing", mask),
    Hypothesis("softmax-axis", axis),
    Hypothesis("scale", whole),
)
