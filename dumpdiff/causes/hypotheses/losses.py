"""The loss: labels moved, another mean, another set of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import FORWARD
from ...operators.losses import compute_token_losses
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import Operand, FaultCase

_SHIFTS = (1, -1, 2, -2)


def labels_moved(s: FaultCase) -> Iterator[Candidate]:
    """Whole numbers that are those of the other side, moved along the last axis; what the ends hold is not judged."""
    if not s.is_source or not s.is_discrete or s.faithful.ndim < 1 or s.faithful.shape[-1] < 4:
        return
    for shift in _SHIFTS:
        made = np.roll(s.faithful, shift, axis=-1)
        ends = np.s_[..., :shift] if shift > 0 else np.s_[..., shift:]
        made[ends] = s.faulty[ends]
        for kept in (
            made,
            np.where(s.faulty < 0, s.faulty, made),
        ):  # ignored labels are negative
            yield Candidate(
                kept,
                f"labels moved by {shift}",
                "",
                {"shift": float(shift)},
                s.faithful,
                "label-shift",
            )
    order = _order(s.faithful, s.faulty)
    if order is not None:
        said = f"the rows of the batch in the order {order}"
        yield Candidate(s.faithful[order], said, "", {}, s.faithful, "row-shift")


def _order(plain: AnyArray, other: AnyArray) -> list[int] | None:
    """order with other[i] = plain[order[i]]."""
    if plain.ndim < 2 or len(plain) > 4096:
        return None
    places = {row.tobytes(): i for i, row in enumerate(plain)}
    order = [places.get(row.tobytes(), -1) for row in other]
    return order if sorted(order) == list(range(len(plain))) else None


def tokens_counted(s: FaultCase) -> Iterator[Candidate]:
    """A mask of zeros and ones over the tokens that differs: another set of tokens counts."""
    if not s.is_source or s.faithful.size < 4:
        return
    flags = [set(np.unique(v).tolist()) <= {0.0, 1.0} for v in (s.faithful, s.faulty)]
    square = s.faithful.ndim >= 2 and s.faithful.shape[-1] == s.faithful.shape[-2]
    if all(flags) and not square:
        share = float(s.faulty.mean() - s.faithful.mean())
        more = "more" if share > 0 else "fewer"
        said = f"{more} tokens counted ({int(s.faulty.sum())} against {int(s.faithful.sum())})"
        yield Candidate(s.faulty.copy(), said, "", {}, s.faithful, "loss-reduction")


def other_loss(s: FaultCase) -> Iterator[Candidate]:
    """Cross-entropy of logits and labels among the operands: labels moved, summed, averaged over other tokens."""
    if not s.is_forward_value or not s.is_near_loss:
        return
    for logits, labels in _pairs(s):
        each = compute_token_losses(logits, labels)
        weights = [np.ones(each.shape), *_masks(s.operands, each.size)]
        for plain, form in _forms(each, weights):
            if not s.matches_faithful(plain):
                continue
            for made, other in _forms(each, weights):
                if made.size == plain.size and other != form:
                    yield Candidate(made, other, f"has {form}", {}, plain, "loss-reduction")
            for shift in _SHIFTS:
                moved = {
                    name: made
                    for made, name in _forms(compute_token_losses(logits, np.roll(labels, shift)), weights)
                }[form]
                yield Candidate(moved, f"labels moved by {shift}", "", {"shift": float(shift)}, plain,
                                "label-shift")  # fmt: skip
            return


def other_tokens(s: FaultCase) -> Iterator[Candidate]:
    """The loss from losses per token that agree: over other tokens, summed, averaged over another number."""
    if not s.is_forward_value or s.faithful.size != 1:
        return
    for o in s.operands:
        each = o.array.reshape(-1)
        if not o.agrees or o.array.dtype.kind != "f" or len(o.shape) > 2 or each.size < 3:
            continue
        own = [np.ones(each.shape), *_masks(s.operands, each.size)]
        for plain, form in _forms(each, own):
            if plain.size != 1 or not s.matches_faithful(plain):
                continue
            for made, other in _forms(each, [*own, *_masks(s.faulty_operands, each.size)]):
                yield Candidate(made, other, f"has {form}", {}, plain, "loss-reduction")
            return


def _pairs(s: FaultCase) -> Iterator[tuple[AnyArray, AnyArray]]:
    for labels in s.operands:
        if labels.array.dtype.kind not in "iu" or not labels.shape:
            continue
        for logits in s.operands:
            x = logits.array
            if (
                x.dtype.kind == "f"
                and x.ndim >= 2
                and int(np.prod(x.shape[:-1])) == labels.array.size
            ):
                yield x.reshape(-1, x.shape[-1]), labels.array.reshape(-1)


def _masks(operands: Sequence[Operand], tokens: int) -> Iterator[Floats]:
    for o in operands:
        if (
            o.array.size == tokens
            and o.array.dtype.kind in "bf"
            and set(np.unique(o.array).tolist()) <= {0.0, 1.0}
        ):
            yield o.array.reshape(-1).astype(np.float64)


def _forms(each: Floats, weights: list[Floats]) -> Iterator[tuple[Floats, str]]:
    yield each, "a loss per token"
    for number, weight in enumerate(weights):
        which = "all tokens" if number == 0 else "the tokens that count"
        total = np.asarray((each * weight).sum())
        yield total, f"the sum over {which}"
        yield np.asarray(total / weight.sum()), f"the mean over {which}"
        if number:
            yield (
                np.asarray(total / weight.size),
                "the sum over the tokens that count, divided by all",
            )


def added(s: FaultCase) -> Iterator[Candidate]:
    """t = r + log n: the vocabulary counted n times; t = n r with n tokens: no mean was taken."""
    if not s.is_forward_value or not (s.is_near_loss or s.faithful.size == 1):
        return
    for times in (2, 4, 8):
        said = f"log {times} too much, as if the vocabulary were gathered {times} times"
        yield Candidate(s.faithful + np.log(times), said, "", {}, s.faithful, "loss-reduction")
    counts = {int(o.array.size) for o in s.operands if o.array.dtype.kind in "iu"}
    counts |= {
        int(o.array.sum())
        for o in s.operands
        if o.array.size > 1 and set(np.unique(o.array[..., :64])) <= {0, 1}
    }
    for count in sorted(counts - {0, 1, 2}):
        said = f"the sum over {count} tokens, not their mean"
        yield Candidate(
            s.faithful * count, said, "", {"tokens": float(count)}, s.faithful, "loss-reduction"
        )
        yield Candidate(
            s.faithful / count,
            "a mean taken twice",
            "",
            {"tokens": float(count)},
            s.faithful,
            "loss-reduction",
        )


def tokens_in_gradient(s: FaultCase) -> Iterator[Candidate]:
    """Rows without a gradient are tokens that do not count: t = c r with c the ratio of how many do."""
    if s.phase == FORWARD or not s.is_near_loss or s.faithful.ndim < 2:
        return
    ours, theirs = (v.reshape(-1, v.shape[-1]) for v in (s.faulty, s.faithful))
    counted, expected = np.any(ours != 0, axis=1), np.any(theirs != 0, axis=1)
    numbers = int(counted.sum()), int(expected.sum())
    if min(numbers) < 2:
        return
    choices = (
        [numbers[1] / numbers[0]]
        if numbers[0] != numbers[1]
        else [float(numbers[0]), 1 / numbers[0]]
    )
    for c in choices:
        made = np.where((counted & expected)[:, None], c * theirs, ours)
        said = f"a mean over {numbers[0]} tokens where the {s.faithful_role} takes {numbers[1]}"
        said = (
            said
            if len(choices) == 1
            else ("the sum over the tokens" if c > 1 else "a mean taken twice")
        )
        yield Candidate(
            made.reshape(s.faithful.shape),
            said,
            "",
            {"tokens": float(numbers[0])},
            s.faithful,
            "loss-reduction",
        )


HYPOTHESES = (
    Hypothesis("loss-reduction", tokens_in_gradient),
    Hypothesis("label-shift", labels_moved),
    Hypothesis("loss-reduction", tokens_counted),
    Hypothesis("loss-reduction", other_loss),
    Hypothesis("loss-reduction", other_tokens),
    Hypothesis("loss-reduction", added),
)
