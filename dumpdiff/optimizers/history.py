"""What one parameter did: its weights before and after each step, and the gradients it was moved by.

Everything here is flat and in float64. A large parameter is known by a sample of its elements, drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.dtypes import UNIT_ROUNDOFF

#: Elements of a parameter that are looked at: 1 MB of a parameter in three steps, so that a model of a thousand
#: parameters fits. The search for unknown numbers takes THIN of them.
SAMPLE_SIZE, SEARCH_SAMPLE_SIZE = 1 << 14, 1 << 11
#: A matrix of at most so many elements is kept whole, since an update that orthogonalises needs all of them.
LARGEST_MATRIX = 1 << 20

_MANY, _SEVERAL = 1000, 8  #: of so many weights so many must differ, or their type cannot be seen

#: A uniform rounding error of at most h has a standard deviation of h / sqrt(3); two of them are made when a weight
#: is first decayed and then moved.
_ROUNDINGS = np.sqrt(2 / 3)


@dataclass(frozen=True, eq=False)
class History:
    """One parameter through n steps; N elements of it."""

    name: str
    shape: tuple[int, ...]  #: of the whole parameter
    weights: Floats  #: (n + 1, N): before the first step, after each
    gradients: Floats  #: (n, N): what the run recorded for each step
    first_moment: Floats | None = (
        None  #: (N,): first moment, or momentum buffer, before the first step; None for zeros
    )
    second_moment: Floats | None = None  #: (N,): second moment before the first step; None for zeros
    previous_steps: int = 0  #: steps that the optimizer had made before the first of these
    stored_dtype: str = "float32"  #: the type that the weights are kept in
    full_norms: Floats | None = None  #: (n,): L2 norm of the whole gradient of each step

    @property
    def n_steps(self) -> int:
        """How many updates are known."""
        return len(self.gradients)

    @property
    def is_complete(self) -> bool:
        """All elements are here, in order."""
        return self.weights.shape[1] == int(np.prod(self.shape))

    @property
    def is_narrow(self) -> bool:
        """The weights are kept in fewer bits than an optimizer computes in."""
        return UNIT_ROUNDOFF[self.stored_dtype] > UNIT_ROUNDOFF["float32"]

    @cached_property
    def updates(self) -> Floats:
        """(n, N): weight before minus weight after, of each step."""
        return self.weights[:-1] - self.weights[1:]

    @cached_property
    def half_ulp(self) -> Floats:
        """(n, N): half the distance of the weight after to its neighbour in the type that it is kept in."""
        return compute_half_ulp(self.weights[1:], self.stored_dtype)

    @cached_property
    def noise(self) -> Floats:
        """(n, N): standard deviation of what rounding adds to :attr:`moved`."""
        noise: Floats = _ROUNDINGS * self.half_ulp + UNIT_ROUNDOFF["float32"] * np.abs(self.updates)
        return noise

    @cached_property
    def norms(self) -> Floats:
        """(n,): L2 norm of each step's gradient, of all elements where known."""
        norms: Floats = (
            np.linalg.norm(self.gradients, axis=1) if self.full_norms is None else self.full_norms
        )
        return norms

    @cached_property
    def sample(self) -> History:
        """At most SAMPLE elements of it, which is all that a rule for single elements has to see."""
        size = self.weights.shape[1]
        return self if size <= SAMPLE_SIZE else self.select(draw_sample(np.arange(size), SAMPLE_SIZE))

    def take_search_sample(self) -> History:
        """At most THIN elements of it, evenly spread over those that moved."""
        few = self.sample
        return (
            few
            if few.weights.shape[1] <= SEARCH_SAMPLE_SIZE
            else few.select(draw_sample(np.flatnonzero(few.updates.any(axis=0)), SEARCH_SAMPLE_SIZE))
        )

    def select(self, elements: Ints) -> History:
        """These elements of it."""
        return replace(
            self,
            weights=self.weights[:, elements],
            gradients=self.gradients[:, elements],
            first_moment=None if self.first_moment is None else self.first_moment[elements],
            second_moment=None if self.second_moment is None else self.second_moment[elements],
            full_norms=self.norms,
        )


def build_history(
    name: str,
    weights: Sequence[AnyArray],
    gradients: Sequence[AnyArray],
    first: AnyArray | None = None,
    second: AnyArray | None = None,
    done: int = 0,
    whole: bool = True,
) -> History:
    """A history from whole arrays; n + 1 weights and n gradients, all of one size (raises ValueError if not).

    Unless ``whole``, also of a small matrix only a sample is kept.
    """
    sizes = {
        array.size
        for array in (*weights, *gradients, *(m for m in (first, second) if m is not None))
    }
    if len(sizes) != 1 or len(weights) != len(gradients) + 1 or not gradients:
        raise ValueError(
            f"{name}: {len(weights)} weights and {len(gradients)} gradients of {sorted(sizes)} elements"
        )
    shape = tuple(weights[0].shape)
    size = sizes.pop()
    keep = LARGEST_MATRIX if whole and len(shape) == 2 else SAMPLE_SIZE
    at = np.arange(size) if size <= keep else draw_sample(np.arange(size), SAMPLE_SIZE)
    taken = [_take(array, at) for array in weights]
    return History(
        name,
        shape,
        np.stack(taken),
        np.stack([_take(array, at) for array in gradients]),
        None if first is None else _take(first, at),
        None if second is None else _take(second, at),
        done,
        detect_stored_dtype(np.stack(taken[1:]), weights[-1].dtype.name),
        np.array([compute_norm(array) for array in gradients]),
    )


def compute_half_ulp(values: Floats, dtype: str) -> Floats:
    """Half the distance of each value to its neighbour in a type; 0 of zero."""
    _, exponent = np.frexp(values)
    half: Floats = np.ldexp(UNIT_ROUNDOFF[dtype], exponent - 1) * (values != 0)
    return half


def draw_sample(elements: Ints, most: int) -> Ints:
    """At most so many of these, drawn without pattern and the same each time, in order."""
    if len(elements) <= most:
        return elements
    places = np.unique(
        np.random.default_rng(0).integers(0, len(elements), most)
    )  # a few fall together
    drawn: Ints = elements[places]
    return drawn


def detect_stored_dtype(weights: Floats, dtype: str) -> str:
    """The narrowest type that holds all of these values, if that can be no coincidence; else ``dtype``.

    Weights in bfloat16 are often saved, and always loaded, in a wider type.
    """
    if dtype not in UNIT_ROUNDOFF:
        return "float32"
    values = weights[weights != 0]
    if dtype != "float16" and len(np.unique(values[:_MANY])) >= _SEVERAL:
        single = values.astype(np.float32)
        if np.array_equal(single, values) and not (single.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        with np.errstate(over="ignore"):
            if np.array_equal(values.astype(np.float16), values):
                return "float16"
    return dtype


def compute_norm(array: AnyArray, block: int = 1 << 20) -> float:
    """L2 norm in float64, block by block: the array may be mapped and large."""
    flat = np.ravel(array)
    parts = (flat[at : at + block].astype(np.float64) for at in range(0, flat.size, block))
    return float(np.sqrt(sum(float(np.vdot(part, part)) for part in parts)))


def _take(array: AnyArray, at: Ints) -> Floats:
    return np.asarray(np.ravel(array)[at], dtype=np.float64)
