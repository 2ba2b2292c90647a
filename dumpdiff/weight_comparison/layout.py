"""Find the order of the rows of a group, by family or by value, and compare all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..model.arrays import Ints
from .distance import Distance, measure_distance
from .families import ModelConfig, Naming
from .family_layouts import (
    check_layout,
    differs_in_rope_order,
    list_expected_orders,
    may_share_layout,
)
from .groups import Group, count_rows, join_members
from .matrix import Matrix
from .row_matches import match_rows
from .row_permutation import (
    SAME,
    RowLayout,
    RowOrder,
    describe_layout,
    invert_order,
    swap_row_axes,
)
from .whole_model import WholeModel
from .zero_centered_norms import is_norm, recenter_norm

#: Share of the wrong rows that must be found in other places for another order to be accepted.
_MIN_FOUND_SHARE = 0.5
_MIN_MOVED_ROWS = 2  #: a single wrong row is not searched in other places
_SAMPLE_ROWS = 64  #: rows that candidate orders are tested on
_ROW_TOLERANCE = 0.05  #: relative distance up to which a row of the sample agrees with an order
_ROPE_NOT_REORDERED = RowOrder(
    "rope",
    "rows of each head as in the reference, though this family keeps them in another RoPE layout",
)
_PADDED = ("embedding", "head")  #: modules whose rows may be padded


@dataclass(frozen=True)
class GroupComparison:
    """A group, compared in the row order that fits best."""

    group: Group
    target: Matrix
    reference: Matrix
    order: Ints  #: target row i is reference row order[i]; -1 if the reference has none
    expected: Ints  #: the order that it should be
    distance: Distance
    layout: RowLayout
    is_correct: bool | None  #: whether the family reads this layout; None if unknown
    #: whether the family reads the arrangement of the components, whatever the row order in each
    is_arrangement_correct: bool | None
    padding: int = 0  #: additional rows of the target; if negative, of the reference
    #: whether the families read other row orders, but the settings do not say which rows these are
    is_order_unknown: bool = False


@dataclass(frozen=True)
class ShapeMismatch:
    """The shapes of the two sides of a group do not fit."""

    reason: str


@dataclass(frozen=True)
class _FusedParts:
    """The components of a fused weight, and the layouts that each side may have."""

    module: str  #: last module of the canonical name: qkv, gate_up_proj, ...
    sizes: list[int]
    names: list[str]
    #: orders that the target may have over the components; the identity if it stores the components
    target_orders: list[Ints]
    reference_orders: list[Ints]


def compare_group(
    group: Group, target: WholeModel, reference: WholeModel, report_bytes: Callable[[int], None]
) -> GroupComparison | ShapeMismatch:
    """Find the order of the rows of a group and compare all of them."""
    target_matrix, reference_matrix = _orient(
        join_members(group.target), join_members(group.reference)
    )
    norm = None
    if is_norm(group.path) and target_matrix.shape == reference_matrix.shape:
        settings = target.config.zero_centered_norms, reference.config.zero_centered_norms
        norm = recenter_norm(target_matrix, reference_matrix, settings)
    if norm is None:
        matrices = target_matrix, reference_matrix
        return _compare_matrices(group, *matrices, target, reference, report_bytes)
    matrices = norm.target, norm.reference
    comparison = _compare_matrices(group, *matrices, target, reference, report_bytes)
    if isinstance(comparison, ShapeMismatch):
        return comparison
    return replace(comparison, layout=RowLayout(SAME, (norm.order,)), is_correct=norm.is_correct)


def _compare_matrices(
    group: Group,
    target_matrix: Matrix,
    reference_matrix: Matrix,
    target: WholeModel,
    reference: WholeModel,
    report_bytes: Callable[[int], None],
) -> GroupComparison | ShapeMismatch:
    n_target_rows, n_reference_rows = target_matrix.shape[0], reference_matrix.shape[0]
    module = get_module(group.path)
    padding = n_target_rows - n_reference_rows
    has_same_width = target_matrix.shape[1] == reference_matrix.shape[1]
    if not has_same_width or (padding and module not in _PADDED):
        target_shape = f"{n_target_rows} x {target_matrix.shape[1]}"
        reference_shape = f"{n_reference_rows} x {reference_matrix.shape[1]}"
        return ShapeMismatch(f"{target_shape} in the target, {reference_shape} in the reference")
    namings = target.naming, reference.naming
    config = _merge_configs(target.config, reference.config)
    fused = _find_fused_components(group, module, n_target_rows, namings, config)
    is_order_unknown = fused is None and not may_share_layout(module, namings)
    if fused is None:
        orders = _list_plain_orders(module, n_target_rows, n_reference_rows, config, namings)
    else:
        orders = _list_fused_orders(fused, is_fused_on_both=not group.fused)
    expected = _select_best_order(target_matrix, reference_matrix, orders)
    distance = measure_distance(target_matrix, reference_matrix, expected, report_bytes)
    order = _find_other_order(target_matrix, reference_matrix, expected, distance)
    is_correct: bool | None
    is_arrangement_correct: bool | None
    if order is None:
        # For weights that are not fused, the last of several orders is the one without RoPE
        # reordering.
        lacks_reordering = fused is None and len(orders) > 1 and expected is orders[-1]
        if lacks_reordering:
            layout = RowLayout(SAME, (_ROPE_NOT_REORDERED,))
        else:
            layout = _describe_group_layout(fused, group, expected)
            if fused is not None and not group.fused and _is_identity(expected):
                layout = RowLayout(SAME, (SAME,))
        order, is_correct, is_arrangement_correct = expected, not lacks_reordering, True
    else:
        distance = measure_distance(target_matrix, reference_matrix, order, report_bytes)
        layout = _describe_group_layout(fused, group, order)
        is_correct, is_arrangement_correct = (None if is_order_unknown else False), True
        if fused is not None:
            if group.fused == "reference":
                namings = namings[1], namings[0]
            arrangement = replace(layout, component_orders=(SAME,) * len(layout.component_orders))
            is_correct = check_layout(module, namings, fused.names, layout, config)
            is_arrangement_correct = check_layout(module, namings, fused.names, arrangement, config)
    return GroupComparison(
        group=group,
        target=target_matrix,
        reference=reference_matrix,
        order=order,
        expected=expected,
        distance=distance,
        layout=layout,
        is_correct=is_correct,
        is_arrangement_correct=is_arrangement_correct,
        padding=padding,
        is_order_unknown=is_order_unknown,
    )


def _find_fused_components(
    group: Group, module: str, n_rows: int, namings: tuple[Naming, Naming], config: ModelConfig
) -> _FusedParts | None:
    """Return the components of a group, which one side stores or a fused module implies."""
    identity = np.arange(n_rows)
    if group.fused:
        sizes = count_rows(group.components)
        names = [get_module(member.path) for member in group.components]
        naming = namings[0] if group.fused == "target" else namings[1]
        orders = list(list_expected_orders(module, naming, sizes, config)) or [identity]
        if group.fused == "target":
            return _FusedParts(module, sizes, names, orders, [identity])
        return _FusedParts(module, sizes, names, [identity], orders)
    implied_components = _list_implied_components(module, n_rows, config)
    if implied_components is None:
        return None
    has_same_layout = namings[0] == namings[1] and group.evidence == "name"
    if has_same_layout and module == "qkv" and not config.heads:
        return None
    sizes, names = implied_components
    target_orders = list(list_expected_orders(module, namings[0], sizes, config))
    reference_orders = list(list_expected_orders(module, namings[1], sizes, config))
    return _FusedParts(
        module, sizes, names, target_orders or [identity], reference_orders or [identity]
    )


def _list_implied_components(
    module: str, n_rows: int, config: ModelConfig
) -> tuple[list[int], list[str]] | None:
    """Return sizes and names of the components that a module implies; None if it implies none."""
    if module == "gate_up_proj" and n_rows % 2 == 0:
        return [n_rows // 2] * 2, ["gate", "up"]
    if module == "qkv" and config.heads and config.groups:
        n_heads = config.heads + 2 * config.groups  # of query, key and value together
        if n_rows % n_heads == 0:
            head_size = n_rows // n_heads
            kv_size = config.groups * head_size
            return [config.heads * head_size, kv_size, kv_size], ["q", "k", "v"]
    return None


def get_module(path: str) -> str:
    """Return the last module of a canonical parameter: q of layers.0.attention.q.weight."""
    module_names = path.split(".")
    return module_names[-2] if len(module_names) > 1 else path


def _orient(target: Matrix, reference: Matrix) -> tuple[Matrix, Matrix]:
    """Return both matrices with the same number of columns, if possible.

    A matrix may be stored transposed, and a vector as a row.
    """
    if target.shape[1] == reference.shape[1]:
        return target, reference
    if target.shape == reference.shape[::-1]:
        return target, reference.T
    has_single_blocks = len(target.blocks) == len(reference.blocks) == 1
    are_vectors = 1 in target.shape and 1 in reference.shape
    if target.size == reference.size and has_single_blocks and are_vectors:
        return _flatten(target), _flatten(reference)
    return target, reference


def _flatten(matrix: Matrix) -> Matrix:
    """Return a vector as a column."""
    return Matrix((matrix.read_raw(slice(0, matrix.shape[0])).reshape(-1, 1),), matrix.dtype)


def _list_plain_orders(
    module: str,
    n_target_rows: int,
    n_reference_rows: int,
    config: ModelConfig,
    namings: tuple[Naming, Naming],
) -> list[Ints]:
    """List the orders of a weight that is not fused.

    If the families differ in their RoPE layout, these are both reorderings and, last, the identity.
    """
    rows = np.arange(n_target_rows)
    identity = np.where(rows < n_reference_rows, rows, -1)
    if not differs_in_rope_order(module, *namings) or n_target_rows != n_reference_rows:
        return [identity]
    head_size = config.head_size
    if not head_size or n_target_rows % head_size:
        return [identity]
    heads, half = n_target_rows // head_size, head_size // 2
    return [swap_row_axes(heads, 2, half), swap_row_axes(heads, half, 2), identity]


def _list_fused_orders(fused: _FusedParts, *, is_fused_on_both: bool) -> list[Ints]:
    """List the orders of a fused weight that the families read, most likely first.

    If both sides are fused and have a layout in common, that is rows in the same places.
    """
    orders = []
    inverse_orders = [invert_order(reference_order) for reference_order in fused.reference_orders]
    for target_order in fused.target_orders:
        orders += [inverse_order[target_order] for inverse_order in inverse_orders]
    if is_fused_on_both:
        orders.sort(key=lambda order: not _is_identity(order))
    return orders


def _is_identity(order: Ints) -> bool:
    return np.array_equal(order, np.arange(len(order)))


def _select_best_order(target: Matrix, reference: Matrix, orders: Sequence[Ints]) -> Ints:
    """Return the order with which most sampled rows agree; the first of equally good ones."""
    if len(orders) == 1:
        return orders[0]
    rows = np.unique(np.linspace(0, target.shape[0] - 1, _SAMPLE_ROWS).astype(np.int64))
    target_values = target.read_values(rows)
    scores = []
    for order in orders:
        has_reference = order[rows] >= 0
        reference_values = reference.read_values(np.maximum(order[rows], 0))
        distances = np.linalg.norm(target_values - reference_values, axis=1)
        limits = _ROW_TOLERANCE * np.linalg.norm(reference_values, axis=1)
        scores.append(int(np.count_nonzero(has_reference & (distances <= limits))))
    return orders[int(np.argmax(scores))]


def _find_other_order(
    target: Matrix, reference: Matrix, order: Ints, distance: Distance
) -> Ints | None:
    """Return an order that explains most of the wrong rows of ``order``; None if there is none."""
    if distance.rounding is not None:
        return None
    wrong_rows = distance.wrong_rows
    wrong_rows = wrong_rows[order[wrong_rows] >= 0]
    if len(wrong_rows) < _MIN_MOVED_ROWS:
        return None
    if target.shape[1] == 1 and not _has_same_elements(target, reference, distance.noise):
        return None
    is_free = np.ones(reference.shape[0], dtype=bool)
    correct_rows = np.setdiff1d(np.flatnonzero(order >= 0), wrong_rows)
    is_free[order[correct_rows]] = False
    matches = match_rows(target, reference, wrong_rows, is_free)
    is_elsewhere = (matches >= 0) & (matches != order[wrong_rows])
    if np.count_nonzero(is_elsewhere) <= _MIN_FOUND_SHARE * len(wrong_rows):
        return None
    other_order = order.copy()
    other_order[wrong_rows] = matches
    return other_order


def _has_same_elements(target: Matrix, reference: Matrix, noise: float) -> bool:
    """Whether two vectors hold the same elements in some order.

    Without this check, similar elements would be found in other places in most vectors.
    """
    if target.shape != reference.shape:
        return False
    target_values = np.sort(target.read_values(slice(0, target.shape[0])).ravel())
    reference_values = np.sort(reference.read_values(slice(0, reference.shape[0])).ravel())
    distances = np.abs(target_values - reference_values)
    return bool(np.all(distances <= noise * np.abs(reference_values)))


def _describe_group_layout(fused: _FusedParts | None, group: Group, order: Ints) -> RowLayout:
    """Describe the layout of the fused side over its components.

    If both sides are fused, the target is described, under the assumption that the reference is
    correct.
    """
    if fused is None:
        return describe_layout(order, [len(order)], [get_module(group.path)])
    if group.fused == "reference":
        inverse = invert_order(order, sum(fused.sizes))
        return describe_layout(inverse, fused.sizes, fused.names)
    layouts = []
    for reference_order in fused.reference_orders:
        order_over_components = np.where(order >= 0, reference_order[order], -1)
        layouts.append(describe_layout(order_over_components, fused.sizes, fused.names))
    for layout in layouts:
        if layout.component_arrangement.kind not in ("blocks", "scattered"):
            return layout
    return layouts[0]


def _merge_configs(target: ModelConfig, reference: ModelConfig) -> ModelConfig:
    """Return the configuration of the target, completed by that of the reference."""
    missing_fields = {
        field.name: getattr(reference, field.name)
        for field in fields(ModelConfig)
        if getattr(target, field.name) is None
    }
    return replace(target, **missing_fields)
