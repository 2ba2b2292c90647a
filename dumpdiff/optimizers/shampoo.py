"""Shampoo: the gradient times inverse roots of the sums of its products with itself.

Sources: Gupta, Koren and Singer, arXiv:1802.09568 (algorithm 2: of k axes, the root of order 2 k);
the documentation of Shampoo in pytorch-optimizer. The state is a sum over the gradients, so the
gradients from the first step on suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import UNIT_ROUNDOFF
from .history import History
from .rule import DECOUPLED, NO_DECAY, HyperparameterValues, UpdateTerms

#: Rounding of an update. It has all singular directions of the gradient in nearly equal size. One
#: that is the fourth root of the roundoff as large as the largest is squared in the sums, whose
#: eigenvalues are exact to the roundoff times the largest: this leaves the square root.
_PRECISION = float(np.sqrt(UNIT_ROUNDOFF["float32"]))
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Shampoo:
    """P_i <- P_i + g_(i) g_(i)^T for each axis i; w moves along g times all P_i^(-1 / 2k)."""

    decay: str = NO_DECAY

    family = "Shampoo"
    elementwise = False
    needs_matrix = False
    starts_from_zero = True
    needs_one_rate = False

    @property
    def name(self) -> str:
        """Shampoo, with its decay."""
        return "Shampoo, decoupled decay" if self.decay == DECOUPLED else "Shampoo"

    @property
    def aspects(self) -> Mapping[str, str]:
        """It has no forms that could differ."""
        return {}

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The first of the sums is epsilon times the identity."""
        return ("epsilon",)

    @property
    def complexity(self) -> int:
        """A decay is one more choice."""
        return int(self.decay != NO_DECAY)

    @property
    def essence(self) -> Shampoo:
        """The rule itself."""
        return self

    @property
    def steps_to_identify(self) -> int:
        """In the first step the update is the orthogonal factor of the gradient."""
        return 2

    @property
    def without_decay(self) -> Shampoo:
        """The same rule without its decay."""
        return replace(self, decay=NO_DECAY)

    @property
    def reductions(self) -> tuple[Shampoo, ...]:
        """The rule without decay."""
        return (self.without_decay,) if self.decay != NO_DECAY else ()

    def compute_terms(
        self, history: History, factors: Floats, values: HyperparameterValues
    ) -> UpdateTerms:
        """Return the preconditioned gradients of a tensor, all of whose elements are known."""
        directions = np.full_like(history.gradients, np.nan)
        gradients: list[Floats] = []
        for step, recorded_gradient in enumerate(history.gradients):
            gradient = (factors[step] * recorded_gradient).reshape(history.shape)
            if not np.isfinite(gradient).all():
                break  # the sums are not finite from here on
            gradients.append(gradient)
            direction = gradient
            for axis in range(gradient.ndim):
                columns = np.concatenate([_unfold(past, axis) for past in gradients], axis=1)
                values_along = _unfold(direction, axis)
                product = precondition(columns, values_along, values["epsilon"], 2 * gradient.ndim)
                direction = _fold(product, axis, direction.shape)
            directions[step] = direction.reshape(-1)
        return UpdateTerms(directions, history.weights[:-1] if self.decay == DECOUPLED else None)

    def estimate_precision(self, values: HyperparameterValues) -> float:
        """Return the relative rounding of an update in float32."""
        return _PRECISION


def _unfold(tensor: Floats, axis: int) -> Floats:
    """Return a tensor as a matrix whose rows run along an axis."""
    rows: Floats = np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)
    return rows


def _fold(rows: Floats, axis: int, shape: tuple[int, ...]) -> Floats:
    """Undo :func:`_unfold` for a tensor of this shape."""
    other_lengths = (*shape[:axis], *shape[axis + 1 :])
    tensor: Floats = np.moveaxis(rows.reshape(shape[axis], *other_lengths), 0, axis)
    return tensor


def precondition(columns: Floats, values: Floats, epsilon: float, order: int) -> Floats:
    """Return (C C^T + epsilon I)^(-1 / order) X for the columns C (d, n) and X (d, m).

    The columns of X must be sums of those of C. Then the eigenvectors of the smaller of C C^T and
    C^T C suffice, however long d is.
    """
    length, n_columns = columns.shape
    if length <= n_columns:
        eigenvalues, vectors = np.linalg.eigh(columns @ columns.T)
    else:
        eigenvalues, weights = np.linalg.eigh(columns.T @ columns)
        is_kept = eigenvalues > max(eigenvalues[-1], 0.0) * n_columns * _EPSILON
        eigenvalues = eigenvalues[is_kept]
        vectors = columns @ (weights[:, is_kept] / np.sqrt(eigenvalues))
    roots = (np.maximum(eigenvalues, 0.0) + epsilon) ** (-1.0 / order)
    result: Floats = np.matmul(vectors * roots, np.matmul(vectors.T, values))
    return result


def list_variants() -> tuple[Shampoo, ...]:
    """Return all variants."""
    return (Shampoo(NO_DECAY), Shampoo(DECOUPLED))
