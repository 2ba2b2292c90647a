"""What is known about one finding: the two outputs that part, and what the faithful side made its own from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray, Floats, Ints
from ..model.dtypes import MASK, is_discrete
from ..model.finding import Finding
from ..model.trace import FORWARD
from ..operators import Call, compute_interpretations

_SAMPLE = 64  # elements


@dataclass(frozen=True, eq=False)
class Operand:
    """A value that the faithful side's output may have been made from; the array is read when first asked for."""

    name: str  #: of the parameter, else of the op that made it
    kind: str  #: canonical kind of that op, '' if nothing computed it
    parameter: str  #: name of the parameter it is, '' if none
    agrees: bool  #: the other side has the same value
    shape: tuple[int, ...]
    load: Callable[[], AnyArray]

    @cached_property
    def array(self) -> AnyArray:
        """float64 where it is floating, else as recorded."""
        array = self.load()
        return array if array.dtype.kind in "iub" else array.astype(np.float64)


@dataclass(frozen=True, eq=False)
class FaultCase:
    """One finding, seen with one side as the faithful one and the other as the one that departs from it."""

    finding: Finding
    faulty_role: str  #: 'target' or 'reference'
    faulty: Floats  #: what the departing side has, in the layout of ``plain``
    faithful: Floats  #: what the faithful side has
    operands: tuple[Operand, ...]  #: of the faithful side, the nearest first
    faulty_operands: tuple[Operand, ...]  #: the same of the departing side
    numbers: tuple[float, ...]  #: immediate numbers that its ops were given
    kinds: tuple[
        str, ...
    ]  #: canonical kinds of the faithful side's ops, from the last agreement on
    consumer_kinds: frozenset[
        str
    ]  #: canonical kinds of the ops that read its value, and of those that read theirs
    tolerance: float  #: relative L2 below which two such values are taken to agree: what is left must be noise
    dtype: str
    call: Call | None = None  #: the faithful side's last op, with its inputs
    is_near_loss: bool = False  #: a loss is among the forward ops that the value depends on directly
    parameters: tuple[
        Operand, ...
    ] = ()  #: the faithful side's parameters of this shape, for findings in a parameter

    @property
    def phase(self) -> str:
        """forward, backward or optimizer."""
        return self.finding.phase

    @property
    def is_source(self) -> bool:
        """A parameter, a table or the batch: nothing computed it."""
        return self.finding.is_given or self.finding.kind == "input"

    @property
    def is_forward_value(self) -> bool:
        """A floating value that a forward op computed."""
        return self.phase == FORWARD and not self.is_source and not self.is_discrete

    @property
    def is_discrete(self) -> bool:
        """Whole numbers or a mask."""
        return is_discrete(self.dtype)

    @property
    def faithful_role(self) -> str:
        """The faithful side."""
        return "reference" if self.faulty_role == "target" else "target"

    @cached_property
    def error(self) -> float:
        """How far the two sides are apart: relative L2, or Inf where their masks differ."""
        return compute_residual(self.faulty, self.faithful)

    def find_same_size_operands(self) -> Iterator[Operand]:
        """Floating operands of the output's size."""
        return (
            o
            for o in self.operands
            if int(np.prod(o.shape)) == self.faithful.size and o.array.dtype.kind == "f"
        )

    def list_shared_operands(self) -> tuple[Operand, ...]:
        """The operands, and what the departing side has beside them that agrees: the faithful side has that too."""
        return (*self.operands, *(o for o in self.faulty_operands if o.agrees))

    def find_vector_operands(self) -> Iterator[Operand]:
        """Floating operands of one axis, as long as the output's last (or as its channels: axis 1 of 4)."""
        lengths = {self.faithful.shape[-1:]} | (
            {self.faithful.shape[1:2]} if self.faithful.ndim == 4 else set()
        )
        return (o for o in self.operands if o.shape in lengths and o.array.dtype.kind == "f")

    def find_matrix_operands(self) -> Iterator[Operand]:
        """Floating operands of two axes."""
        return (o for o in self.operands if len(o.shape) == 2 and o.array.dtype.kind == "f")

    def matches_faithful(self, made: AnyArray) -> bool:
        """``made`` is the faithful side's value, to the noise; what a few elements already rule out costs no more."""
        if made.size != self.faithful.size:
            return False
        places, values, reach = self._sample
        some = made.reshape(-1)[places]
        with np.errstate(invalid="ignore"):
            gap = np.where(some == values, 0.0, some - values)
        return bool(np.linalg.norm(gap) <= reach) and compute_residual(made, self.faithful) <= self.limit

    @cached_property
    def _sample(self) -> tuple[Ints, Floats, float]:
        """Places, the value there, and how far all elements together may be off; masked elements are not among them."""
        flat = self.faithful.reshape(-1)
        seen = np.flatnonzero(~find_masked(flat) & np.isfinite(flat))
        places = seen[:: max(1, len(seen) // _SAMPLE)]
        return places, flat[places], self.limit * float(np.linalg.norm(flat[seen])) * (1 + 1e-9)

    def repeat_call(self, inputs: Sequence[AnyArray]) -> AnyArray | None:
        """The faithful side's last op on other inputs, read as it fits its own; None if it fits in no reading."""
        if self.call is None:
            return None
        kind, named, shape = self.call.kind, self.call.keywords, self.call.output_shape
        for name, made in compute_interpretations(kind, self.call.inputs, named, output_shape=shape):
            if self.matches_faithful(made):
                other = dict(compute_interpretations(kind, inputs, named, output_shape=shape)).get(name)
                return None if other is None else other.reshape(self.faithful.shape)
        return None

    @cached_property
    def limit(self) -> float:
        """What an explanation may leave: the tolerance, twice since operands of the other side bring their noise.

        Never more than a tenth of what it has to explain.
        """
        return min(2 * self.tolerance, 0.1 * self.error)


ZERO, ONE = np.zeros(()), np.ones(())  #: no bias, no weight: arrays of no axes


def find_masked(array: AnyArray) -> AnyArray:
    """True where an element says 'not seen': minus infinity, or a masking constant beyond anything computed."""
    flags: AnyArray = array < -0.5 * MASK
    return flags


def compute_residual(made: AnyArray, like: AnyArray) -> float:
    """||made - like|| / ||like|| where neither is masked; Inf if sizes, masks or NaN differ."""
    if made.size != like.size:
        return float("inf")
    a, b = made.reshape(-1), like.reshape(-1)
    with np.errstate(all="ignore"):
        hidden = find_masked(a)
        if not np.array_equal(hidden, find_masked(b)):
            return float("inf")
        if hidden.any():
            a, b = a[~hidden], b[~hidden]
        difference, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if np.isnan(difference) or np.isnan(size):
        return float("inf")
    return difference / size if size else (0.0 if difference == 0 else float("inf"))
