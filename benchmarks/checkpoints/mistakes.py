"""Deliberate mistakes in the weights of one side, and the names that they must get.

Each changes the parts of a model (see :mod:`layouts`) or how they are fused. Held-out mistakes are
not looked at while the comparison is developed: only their totals are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .layouts import (
    CORRECT,
    Fusions,
    Roles,
    concatenate_pair,
    concatenate_qkv,
    fuse_by_group,
)

_STEP = 1e-3  #: of one optimizer step


@dataclass(frozen=True)
class Mistake:
    """A mistake: what it changes in a model that has ``needs``, and its correct names."""

    name: str
    needs: str  #: a role that the model must have
    kinds: tuple[str, ...]  #: the kinds that are correct
    change: Callable[[Roles, Mapping[str, int]], None] | None = None
    fusions: Fusions = CORRECT
    is_held_out: bool = False
    n_layers: int = 1

    def applies_to(self, roles: Roles) -> bool:
        """Return whether a model has what the mistake changes, in as many layers as it needs."""
        return len(_list_layers(roles, self.needs)) >= self.n_layers


def _list_layers(roles: Roles, role: str) -> list[int]:
    """Return the layers that have a weight with this role."""
    return sorted(
        layer for layer, other, leaf in roles.weights if (other, leaf) == (role, "weight")
    )


def _edit(role: str, edit: Callable[[np.ndarray], np.ndarray]) -> Callable[..., None]:
    """Return a change of one weight of the last layer that has it."""

    def change(roles: Roles, numbers: Mapping[str, int]) -> None:
        key = _list_layers(roles, role)[-1], role, "weight"
        roles.weights[key] = edit(roles.weights[key].copy())

    return change


def _exchange_layers(role: str) -> Callable[..., None]:
    """Return the change that a weight of the first two layers is in each other's place."""

    def change(roles: Roles, numbers: Mapping[str, int]) -> None:
        first, second = ((layer, role, "weight") for layer in _list_layers(roles, role)[:2])
        _exchange_keys(roles, first, second)

    return change


def _exchange_roles(role: str, other: str) -> Callable[..., None]:
    """Return the change that two weights of one layer are in each other's place."""

    def change(roles: Roles, numbers: Mapping[str, int]) -> None:
        layer = _list_layers(roles, role)[-1]
        _exchange_keys(roles, (layer, role, "weight"), (layer, other, "weight"))

    return change


def _exchange_keys(roles: Roles, first: tuple[int, str, str], second: tuple[int, str, str]) -> None:
    weights = roles.weights
    weights[first], weights[second] = weights[second], weights[first]


def _undo_rope_order(roles: Roles, numbers: Mapping[str, int]) -> None:
    for layer, role, leaf in list(roles.weights):
        if role in ("q", "k"):
            rows = roles.weights[layer, role, leaf]
            heads = numbers["heads" if role == "q" else "groups"]
            pairs = rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2)
            roles.weights[layer, role, leaf] = pairs.reshape(rows.shape)


def _exchange_rows(rows: np.ndarray) -> np.ndarray:
    rows[[0, -1]] = rows[[-1, 0]]
    return rows


def _exchange_quarters(rows: np.ndarray) -> np.ndarray:
    """Exchange the first two quarters of the rows."""
    size = rows.shape[0] // 4
    return np.concatenate([rows[size : 2 * size], rows[:size], rows[2 * size :]])


def _add_step(rows: np.ndarray) -> np.ndarray:
    signs = np.sign(np.random.default_rng(0).standard_normal(rows.shape))
    return (rows + _STEP * signs).astype(rows.dtype)


def _cut_bits(rows: np.ndarray) -> np.ndarray:
    """Cut float32 to the bits of bfloat16."""
    return (rows.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _clear_rows(rows: np.ndarray) -> np.ndarray:
    rows[rows.shape[0] // 2 :] = 0
    return rows


def _fuse_kqv(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    return fuse_by_group(k, q, v, groups)


def _concatenate_exchanged(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.concatenate([up, gate])


MISTAKES = (
    Mistake(
        "q, k, v one after the other",
        "k",
        ("qkv-order",),
        fusions=Fusions(concatenate_qkv, concatenate_pair),
    ),
    Mistake("RoPE rows in pairs", "k", ("rope",), _undo_rope_order),
    Mistake(
        "gate and up exchanged",
        "gate",
        ("gate-up-order", "swapped"),
        fusions=Fusions(fuse_by_group, _concatenate_exchanged),
    ),
    Mistake("output projection transposed", "out", ("transposed",), _edit("out", np.transpose)),
    Mistake(
        "layers exchanged",
        "down",
        ("swapped",),
        _exchange_layers("down"),
        n_layers=2,
    ),
    Mistake(
        "output projections exchanged",
        "out",
        ("swapped",),
        _exchange_layers("out"),
        n_layers=2,
    ),
    Mistake(
        "quarters of the input projection exchanged",
        "in",
        ("blocks-permuted", "rows-permuted", "rows-shifted", "part-order"),
        _edit("in", _exchange_quarters),
    ),
    Mistake("half of the rows zero", "out", ("rows-zero",), _edit("out", _clear_rows)),
    Mistake(
        "an expert exchanged",
        "expert.1.down",
        ("swapped",),
        _exchange_roles("expert.1.down", "expert.2.down"),
    ),
    Mistake(
        "rows of the router exchanged",
        "router",
        ("blocks-permuted", "rows-permuted"),
        _edit("router", _exchange_rows),
    ),
    Mistake(
        "norm as if never loaded",
        "input_norm",
        ("constant", "zeros"),
        _edit("input_norm", np.ones_like),
    ),
    Mistake(
        "k, q, v by group",
        "k",
        ("qkv-order",),
        fusions=Fusions(_fuse_kqv, concatenate_pair),
        is_held_out=True,
    ),
    Mistake("one optimizer step", "down", ("changed",), _edit("down", _add_step), is_held_out=True),
    Mistake("bits cut off", "out", ("rounding",), _edit("out", _cut_bits), is_held_out=True),
    Mistake(
        "norms of two layers exchanged",
        "input_norm",
        ("swapped",),
        _exchange_layers("input_norm"),
        n_layers=2,
        is_held_out=True,
    ),
    Mistake(
        "convolutions of two layers exchanged",
        "conv",
        ("swapped",),
        _exchange_layers("conv"),
        n_layers=2,
        is_held_out=True,
    ),
)
