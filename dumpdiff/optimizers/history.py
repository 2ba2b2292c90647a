"""The record of one parameter: weights before and after each step, and the gradients of the steps.

All arrays are flat and in float64. Of a large parameter only a sample of the elements is kept,
drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.dtypes import UNIT_ROUNDOFF

#: Elements of a parameter that are used: 1 MB per parameter and three steps, so that a model of a
#: thousand parameters fits into memory.
SAMPLE_SIZE = 1 << 14
#: Elements of a parameter that the search for hyperparameters uses.
SEARCH_SAMPLE_SIZE = 1 << 11
#: Elements of a parameter that show whether a rule is hopeless.
SCREENING_SAMPLE_SIZE = 1 << 8
#: A matrix of at most this many elements is kept completely, because an update that
#: orthogonalizes needs all of them.
LARGEST_MATRIX = 1 << 20

#: The stored dtype is detected if the first _CHECKED_VALUES values have _DISTINCT_VALUES
#: different ones. Fewer may be in a narrow dtype by coincidence.
_CHECKED_VALUES, _DISTINCT_VALUES = 1000, 8

#: A uniform rounding error of at most h has a standard deviation of h / sqrt(3). Two of them
#: occur if a weight is first decayed and then moved.
_ROUNDINGS = np.sqrt(2 / 3)


@dataclass(frozen=True, eq=False)
class History:
    """One parameter in n steps, with N of its elements."""

    name: str
    shape: tuple[int, ...]  #: of the full parameter
    weights: Floats  #: (n + 1, N): before the first step, then after each
    gradients: Floats  #: (n, N): as the run recorded them
    #: (N,): first moment, or momentum buffer, before the first step; None for zeros.
    first_moment: Floats | None = None
    second_moment: Floats | None = None  #: (N,): before the first step; None for zeros
    previous_steps: int = 0  #: steps of the optimizer before the first of these
    stored_dtype: str = "float32"  #: the type in which the weights are kept
    full_norms: Floats | None = None  #: (n,): L2 norm of the full gradient of each step

    @property
    def n_steps(self) -> int:
        """Number of updates."""
        return len(self.gradients)

    @property
    def is_complete(self) -> bool:
        """Whether it has all elements, in order."""
        return self.weights.shape[1] == int(np.prod(self.shape))

    @property
    def is_narrow(self) -> bool:
        """Whether the weights are kept in fewer bits than an optimizer computes in."""
        return UNIT_ROUNDOFF[self.stored_dtype] > UNIT_ROUNDOFF["float32"]

    @cached_property
    def updates(self) -> Floats:
        """(n, N): weight before minus weight after, of each step."""
        return self.weights[:-1] - self.weights[1:]

    @cached_property
    def half_ulp(self) -> Floats:
        """(n, N): half the spacing at the weight after each step, in the stored dtype."""
        return compute_half_ulp(self.weights[1:], self.stored_dtype)

    @cached_property
    def noise(self) -> Floats:
        """(n, N): standard deviation of the rounding errors in :attr:`updates`."""
        update_rounding = UNIT_ROUNDOFF["float32"] * np.abs(self.updates)
        noise: Floats = _ROUNDINGS * self.half_ulp + update_rounding
        return noise

    @cached_property
    def noise_squares(self) -> Floats:
        """(n,): sum of the squares of :attr:`noise` over the elements, of each step."""
        squares: Floats = np.einsum("ij,ij->i", self.noise, self.noise)
        return squares

    @cached_property
    def update_squares(self) -> Floats:
        """(n,): sum of the squares of :attr:`updates` over the elements, of each step."""
        squares: Floats = np.einsum("ij,ij->i", self.updates, self.updates)
        return squares

    @cached_property
    def norms(self) -> Floats:
        """(n,): L2 norm of each step's gradient, of all elements if known."""
        if self.full_norms is not None:
            return self.full_norms
        norms: Floats = np.linalg.norm(self.gradients, axis=1)
        return norms

    @cached_property
    def sample(self) -> History:
        """At most SAMPLE_SIZE elements of it, which is enough for an elementwise rule."""
        size = self.weights.shape[1]
        if size <= SAMPLE_SIZE:
            return self
        return self.select(draw_sample(np.arange(size), SAMPLE_SIZE))

    def take_search_sample(self) -> History:
        """Return at most SEARCH_SAMPLE_SIZE elements, drawn from those that moved."""
        sample = self.sample
        if sample.weights.shape[1] <= SEARCH_SAMPLE_SIZE:
            return sample
        return sample.select_moving(SEARCH_SAMPLE_SIZE)

    def select_moving(self, size: int) -> History:
        """Return at most ``size`` of the elements that moved, drawn at random."""
        moving = np.flatnonzero(self.updates.any(axis=0))
        return self.select(draw_sample(moving, size))

    def select(self, elements: Ints) -> History:
        """Return these elements of it."""
        first, second = self.first_moment, self.second_moment
        return replace(
            self,
            weights=self.weights[:, elements],
            gradients=self.gradients[:, elements],
            first_moment=None if first is None else first[elements],
            second_moment=None if second is None else second[elements],
            full_norms=self.norms,
        )


def build_history(
    name: str,
    weights: Sequence[AnyArray],
    gradients: Sequence[AnyArray],
    first_moment: AnyArray | None = None,
    second_moment: AnyArray | None = None,
    previous_steps: int = 0,
    keep_matrix: bool = True,
) -> History:
    """Return a history of full arrays: n + 1 weights and n gradients, all of one size.

    A matrix of at most LARGEST_MATRIX elements is kept completely if ``keep_matrix``. Raises
    ValueError if the numbers or sizes of the arrays do not fit.
    """
    moments = [moment for moment in (first_moment, second_moment) if moment is not None]
    sizes = {array.size for array in (*weights, *gradients, *moments)}
    if len(sizes) != 1 or len(weights) != len(gradients) + 1 or not gradients:
        raise ValueError(
            f"{name}: {len(weights)} weights and {len(gradients)} gradients of "
            f"{sorted(sizes)} elements"
        )
    shape = tuple(weights[0].shape)
    size = sizes.pop()
    limit = LARGEST_MATRIX if keep_matrix and len(shape) == 2 else SAMPLE_SIZE
    elements = np.arange(size)
    if size > limit:
        elements = draw_sample(elements, SAMPLE_SIZE)
    sampled_weights = np.stack([_take_elements(array, elements) for array in weights])
    sampled_gradients = np.stack([_take_elements(array, elements) for array in gradients])
    return History(
        name,
        shape,
        sampled_weights,
        sampled_gradients,
        None if first_moment is None else _take_elements(first_moment, elements),
        None if second_moment is None else _take_elements(second_moment, elements),
        previous_steps,
        detect_stored_dtype(sampled_weights[1:], weights[-1].dtype.name),
        np.array([compute_norm(array) for array in gradients]),
    )


def compute_half_ulp(values: Floats, dtype: str) -> Floats:
    """Return half the spacing of a type at each value; 0 at zero."""
    _, exponent = np.frexp(values)
    half: Floats = np.ldexp(UNIT_ROUNDOFF[dtype], exponent - 1) * (values != 0)
    return half


def draw_sample(elements: Ints, size: int) -> Ints:
    """Return at most ``size`` of these, in order: drawn at random, the same ones each time."""
    if len(elements) <= size:
        return elements
    positions = np.random.default_rng(0).integers(0, len(elements), size)
    sample: Ints = elements[np.unique(positions)]  # a few positions occur twice
    return sample


def detect_stored_dtype(weights: Floats, dtype: str) -> str:
    """Return the narrowest type that holds all values, or ``dtype`` if that may be coincidence.

    Weights in bfloat16 are often saved, and always loaded, in a wider type.
    """
    if dtype not in UNIT_ROUNDOFF:
        return "float32"
    values = weights[weights != 0]
    n_distinct = len(np.unique(values[:_CHECKED_VALUES]))
    if dtype == "float16" or n_distinct < _DISTINCT_VALUES:
        return dtype
    single = values.astype(np.float32)
    low_bits = single.view(np.uint32) & 0xFFFF
    if np.array_equal(single, values) and not low_bits.any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        is_float16 = np.array_equal(values.astype(np.float16), values)
    return "float16" if is_float16 else dtype


def adopt_narrow_dtype(histories: Sequence[History]) -> list[History]:
    """Return the histories; those with too few values to detect a type have that of the others.

    This is only done if the others have one narrow type, and it holds all values.
    """
    narrow_dtypes = {history.stored_dtype for history in histories if history.is_narrow}
    if len(narrow_dtypes) != 1:
        return list(histories)
    (narrow_dtype,) = narrow_dtypes
    adopted_histories = []
    for history in histories:
        rounded = _round_to(history.weights, narrow_dtype)
        has_narrow_values = not history.is_narrow and np.array_equal(rounded, history.weights)
        adopted = replace(history, stored_dtype=narrow_dtype) if has_narrow_values else history
        adopted_histories.append(adopted)
    return adopted_histories


def _round_to(values: Floats, dtype: str) -> Floats:
    """Return the values rounded to multiples of their spacing in a type."""
    spacing = 2.0 * compute_half_ulp(values, dtype)
    rounded: Floats = np.round(values / np.where(spacing > 0, spacing, 1.0)) * spacing
    return rounded


def compute_norm(array: AnyArray, block: int = 1 << 20) -> float:
    """Return the L2 norm in float64, block by block, because the array may be mapped and large."""
    flat = np.ravel(array)
    square_sum = 0.0
    for start in range(0, flat.size, block):
        values = flat[start : start + block].astype(np.float64)
        square_sum += float(np.vdot(values, values))
    return float(np.sqrt(square_sum))


def _take_elements(array: AnyArray, elements: Ints) -> Floats:
    return np.asarray(np.ravel(array)[elements], dtype=np.float64)
