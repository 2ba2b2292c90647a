"""What the differing norms have in common, and the likely cause of such a difference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.formatting import format_names, format_number
from ..rulebook import Rules
from .parameter_path import FIRST_IN_BACKWARD, LAST_IN_BACKWARD
from .row import Row

Kind = Literal[
    "nonfinite", "factor", "no-gradient", "tied", "precision", "embedding", "vectors", "module",
    "one-layer", "layer", "everything",
]  # fmt: skip

#: The backward pass diverges in a layer if this share of the norms below that layer differs.
_MIN_SHARE_BELOW = 0.7
#: All parameters of a kind, or of the model, differ if this share of them differs.
_MIN_SHARE_OF_ALL = 0.8
#: An inconclusive norm nearer to the head belongs to the same fault only if its difference is at
#: least this share of the typical difference.
_MIN_CONTRAST = 0.1
#: A larger difference of the embedding's norm is not caused by precision: sums in bfloat16 lose
#: less.
_MAX_PRECISION_DIFFERENCE = 0.2
#: The smallest power of two that is taken as a loss scale, not as a count.
_MIN_LOSS_SCALE = 256
#: A factor is a whole number if it is this close to one, relatively.
_WHOLE_NUMBER_TOLERANCE = 2e-3
#: Parameters that are named in a summary, at most.
_MAX_NAMES = 3

_CAUSES: dict[Kind, str] = {
    "nonfinite": "an overflow in the backward pass, at this parameter or before it",
    "no-gradient": "the parameter is frozen, or the backward pass is cut (stop_gradient, detach, a"
    " missing bprop)",
    "tied": "the head shares the embedding's weight on one side; its gradient is then the sum of"
    " both",
    "precision": "one side computes or accumulates the embedding in FP32, the other in BF16; the"
    " rows of frequent tokens are sums of many gradients",
    "embedding": "the gradient of the lookup itself: how rows of one token are summed, padding,"
    " position ids",
    "vectors": "their gradients are sums over all tokens: the dtype or order of that sum, or a cast"
    " of these weights",
    "module": "the gradients that flow through the layers agree, so the gradient of this weight"
    " itself is computed differently",
    "one-layer": "the gradients that flow through the layer agree, so the gradients of these"
    " weights are computed differently",
    "layer": "the backward pass, which runs from the last layer to the first, diverges in layer {}",
    "everything": "the backward pass begins with different values: batch, labels, loss or forward"
    " pass; compare the loss of step 1",
}
_LOSS_SCALE_CAUSE = "the loss scale is still in the gradients of one side"
_CLIP_CAUSE = (
    "one side was recorded after clipping (the factor is then limit / global norm), or divides its"
    " loss by a different number of tokens"
)


@dataclass(frozen=True)
class Pattern:
    """One property that the differing norms have in common."""

    kind: Kind
    summary: str  #: one line for a person
    cause: str  #: the most likely cause of such a difference
    layer: int | None = None  #: where the backward pass diverges, or the only layer that differs


def find_patterns(
    rows: Sequence[Row], factor: float, unpaired: tuple[Sequence[str], Sequence[str]], rules: Rules
) -> tuple[Pattern, ...]:
    """Return the patterns, the most significant first.

    ``unpaired`` are the names of both sides' parameters without a partner.
    """
    return (*_find_value_patterns(rows, factor), *_find_location_patterns(rows, unpaired, rules))


def _build_pattern(kind: Kind, summary: str, layer: int | None = None) -> Pattern:
    return Pattern(kind, summary, _CAUSES[kind].format(layer), layer)


def _find_value_patterns(rows: Sequence[Row], factor: float) -> Iterator[Pattern]:
    """Yield patterns of the values: not finite, one factor, no gradient."""
    for side, other_side in (("target", "reference"), ("reference", "target")):
        finite_rows = [row for row in rows if math.isfinite(row.get_norm(other_side))]
        nonfinite_rows = [row for row in finite_rows if not math.isfinite(row.get_norm(side))]
        if nonfinite_rows:
            first = max(nonfinite_rows, key=_get_backward_order)
            yield _build_pattern(
                "nonfinite",
                f"not finite on the {side} only: {len(nonfinite_rows)} norms, the first in the"
                f" backward pass is {first.label}",
            )
    if factor != 1:
        yield Pattern(
            "factor",
            f"all norms are {_format_factor(factor)} the reference's",
            _explain_factor(factor),
        )
    differing_rows = [row for row in rows if row.state == "differ"]
    for side in ("target", "reference"):
        zero_names = [row.label for row in differing_rows if row.get_norm(side) == 0]
        if zero_names:
            summary = f"no gradient on the {side} for {format_names(zero_names, _MAX_NAMES)}"
            yield _build_pattern("no-gradient", summary)


def _get_backward_order(row: Row) -> int:
    """Return a sort key: larger is earlier in the backward pass, unknown positions are last."""
    return LAST_IN_BACKWARD - 1 if row.depth is None else row.depth


def _find_whole_number(factor: float) -> int:
    """Return the whole number that a factor or its inverse is, 0 if it is none."""
    ratio = max(factor, 1 / factor)
    nearest = round(ratio)
    if nearest > 1 and math.isclose(ratio, nearest, rel_tol=_WHOLE_NUMBER_TOLERANCE):
        return nearest
    return 0


def _format_factor(factor: float) -> str:
    whole_number = _find_whole_number(factor)
    if not whole_number:
        return f"{factor:.5g} times"
    return f"{whole_number} times" if factor > 1 else f"1/{whole_number} of"


def _explain_factor(factor: float) -> str:
    whole_number = _find_whole_number(factor)
    is_power_of_two = whole_number & (whole_number - 1) == 0
    if whole_number >= _MIN_LOSS_SCALE and is_power_of_two:
        return _LOSS_SCALE_CAUSE
    if whole_number:
        return (
            f"a sum instead of a mean over {whole_number}: devices (data parallel), micro-batches"
            " (gradient accumulation), sequences or tokens"
        )
    return _CLIP_CAUSE


def _find_location_patterns(
    rows: Sequence[Row], unpaired: tuple[Sequence[str], Sequence[str]], rules: Rules
) -> Iterator[Pattern]:
    """Yield patterns of the location of differing parameters in the model."""
    yield from _find_first_of_list(rows)
    differing_rows = _select_named_rows(rows, "differ")
    agreeing_rows = _select_named_rows(rows, "agree")
    inconclusive_rows = _select_named_rows(rows, "inconclusive")
    inconclusive_rows = [row for row in inconclusive_rows if math.isfinite(row.relative)]
    if not differing_rows:
        return
    only_embedding = all(row.depth == LAST_IN_BACKWARD for row in differing_rows)
    if _has_tied_head(differing_rows, unpaired, rules):
        yield _build_pattern(
            "tied", "the embedding's norm differs, and only one side has a separate head"
        )
    elif only_embedding and len(agreeing_rows) > len(inconclusive_rows):
        worst = max(row.relative for row in differing_rows)
        yield _build_pattern(
            _classify_embedding(worst),
            f"only the embedding's norm differs, by {format_number(worst)}",
        )
    else:
        if not inconclusive_rows:
            yield from _find_kind_patterns(differing_rows, agreeing_rows)
        yield from _find_layer_patterns(differing_rows, agreeing_rows, inconclusive_rows)


def _select_named_rows(rows: Sequence[Row], state: str) -> list[Row]:
    """Return the rows of one state that have a canonical name."""
    return [row for row in rows if row.path and row.state == state]


def _classify_embedding(difference: float) -> Kind:
    """Return the kind of pattern if only the embedding differs, by this relative difference."""
    return "precision" if difference <= _MAX_PRECISION_DIFFERENCE else "embedding"


def _find_first_of_list(rows: Sequence[Row]) -> Iterator[Pattern]:
    """Yield a pattern if only the first parameter of lists without names differs.

    It is the embedding in every model that has one.
    """
    differing_rows = [row for row in rows if row.state == "differ"]
    if len(differing_rows) != 1 or len(rows) < 2:
        return
    row = differing_rows[0]
    if not row.path and row.target == row.reference == "#1":
        yield _build_pattern(
            _classify_embedding(row.relative),
            "only the first norm of both lists, which have no names, differs, by"
            f" {format_number(row.relative)}: the embedding",
        )


def _has_tied_head(
    differing_rows: Sequence[Row], unpaired: tuple[Sequence[str], Sequence[str]], rules: Rules
) -> bool:
    """Whether the embedding differs and only one side has a head that is not paired."""
    target_paths = set(map(rules.resolve_parameter, unpaired[0]))
    reference_paths = set(map(rules.resolve_parameter, unpaired[1]))
    differing_paths = {row.path for row in differing_rows}
    target_has_head = "head.weight" in target_paths
    reference_has_head = "head.weight" in reference_paths
    return target_has_head != reference_has_head and "embedding.weight" in differing_paths


def _find_kind_patterns(
    differing_rows: Sequence[Row], agreeing_rows: Sequence[Row]
) -> Iterator[Pattern]:
    """Yield patterns of the kinds: only vectors; or one or two weights of every layer."""
    n_differing = len(differing_rows)
    n_vectors = n_differing + sum(row.is_vector for row in agreeing_rows)
    only_vectors = all(row.is_vector for row in differing_rows)
    if n_differing > 1 and only_vectors and 2 * n_differing >= n_vectors:
        yield _build_pattern(
            "vectors", f"only biases and norm weights differ, {n_differing} of {n_vectors}"
        )
    differing_counts = _count_layer_kinds(differing_rows)
    all_counts = _count_layer_kinds([*differing_rows, *agreeing_rows])
    if sum(differing_counts.values()) != n_differing:
        return  # some are outside of the layers
    n_layers = len({row.layer for row in differing_rows})
    is_whole_kind = all(
        count >= _MIN_SHARE_OF_ALL * all_counts[kind] for kind, count in differing_counts.items()
    )
    if len(differing_counts) <= 2 < len(all_counts) and n_layers > 1 and is_whole_kind:
        kinds = " and ".join(sorted(differing_counts))
        yield _build_pattern("module", f"only {kinds} differ, in {n_layers} layers")


def _count_layer_kinds(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row.kind for row in rows if row.layer is not None)


def _find_layer_patterns(
    differing_rows: Sequence[Row], agreeing_rows: Sequence[Row], inconclusive_rows: Sequence[Row]
) -> Iterator[Pattern]:
    """Yield the layer where the backward pass diverges.

    Inconclusive norms are no evidence of agreement.
    """
    depths = [row.depth for row in differing_rows if row.depth is not None]
    if not depths:
        return
    top = max(depths)
    inconclusive_above = _select_above(inconclusive_rows, top)
    if top == FIRST_IN_BACKWARD or inconclusive_above:
        n_different = len(differing_rows) + len(inconclusive_rows)
        differ_everywhere = n_different >= _MIN_SHARE_OF_ALL * (n_different + len(agreeing_rows))
        if (
            n_different > 1
            and differ_everywhere
            and _reaches_head(differing_rows, inconclusive_above)
        ):
            yield _build_pattern("everything", "everywhere, including the head or the final norm")
        return
    rows_below = _select_below([*differing_rows, *agreeing_rows, *inconclusive_rows], top)
    n_differing_below = len(_select_below(differing_rows, top))
    only_top_layer = {row.layer for row in differing_rows} == {top}
    if rows_below and not n_differing_below and only_top_layer:
        kinds = format_names([row.kind for row in differing_rows], _MAX_NAMES)
        yield _build_pattern("one-layer", f"only layer {top} differs: {kinds}", top)
    elif n_differing_below and n_differing_below >= _MIN_SHARE_BELOW * len(rows_below):
        summary = f"from layer {top} down to the embedding, those above it agree"
        agreeing_kinds = sorted(row.kind for row in agreeing_rows if row.layer == top)
        if agreeing_kinds:
            summary += f"; of layer {top} still agree: {format_names(agreeing_kinds, _MAX_NAMES)}"
        yield _build_pattern("layer", summary, top)


def _reaches_head(differing_rows: Sequence[Row], inconclusive_above: Sequence[Row]) -> bool:
    """Whether the head differs, or inconclusive norms near it differ as much as is typical.

    ``inconclusive_above`` are nearer to the head than every differing norm; it is empty only if the
    head or the final norm differs.
    """
    if not inconclusive_above:
        return True
    largest_depth = max(row.depth or 0 for row in differing_rows)
    if largest_depth == FIRST_IN_BACKWARD:
        return True
    differences = [row.relative for row in differing_rows]
    differences_above = [row.relative for row in inconclusive_above]
    min_difference = _MIN_CONTRAST * float(np.median(differences))
    return max(differences_above) >= min_difference


def _select_above(rows: Sequence[Row], depth: int) -> list[Row]:
    """Return the rows that the backward pass reaches before this depth."""
    return [row for row in rows if row.depth is not None and row.depth > depth]


def _select_below(rows: Sequence[Row], depth: int) -> list[Row]:
    """Return the rows that the backward pass reaches after this depth."""
    return [row for row in rows if row.depth is not None and row.depth < depth]
