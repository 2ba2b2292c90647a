"""A fault case: one finding, with one side assumed to be faulty and the other to be faithful."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from operator import or_

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import MASK_MAGNITUDE, is_discrete
from ..model.finding import Finding
from ..model.scaled_sums import compute_norm
from ..model.trace import FORWARD
from ..operators import Call, compute_interpretations
from ..operators.call import Interpretations
from ..operators.elementwise import ROUNDINGS
from .gradient_paths import GradientPaths
from .moved_steps import MovedStep
from .region import Region
from .routing import Routing
from .scalings import Scaling, describe_scalings, select_scalings

#: Elements of the sample that rules out most arrays before all elements are compared.
_SAMPLE = 64
#: Residual that an explanation may leave, in tolerances or in errors of the inputs: two, because
#: operands of the other side bring their own noise ...
_LIMIT_TOLERANCES = 2
#: ... and never more than this share of the error that is to be explained.
_LIMIT_ERROR_SHARE = 0.1
#: An element below this share of the smallest masking constant is masked.
_MASK_SHARE = 0.5
#: Relative L2 between the sorted elements of one value in two layouts, or on both sides: rounding.
_SAME_ELEMENTS_DISTANCE = 1e-5

#: Kinds of the ops that take a part of a value.
_SELECTING_KINDS = {"slice", "split", "unbind", "reshape", "squeeze", "expand_dims"}
#: Arrays without axes, for "no bias" and "no weight".
ZERO, ONE = np.zeros(()), np.ones(())


@dataclass(frozen=True, eq=False)
class Operand:
    """A value from which an output may have been computed; its array is read on first use."""

    name: str  #: of the parameter, else of the op that produced it
    kind: str  #: canonical kind of that op, '' if no op produced it
    parameter: str  #: name of the parameter it is, '' if none
    agrees: bool  #: the other side has the same value
    shape: tuple[int, ...]
    load: Callable[[], AnyArray]
    #: returns the recorded scalings between the value and the last agreement upstream
    load_scalings: Callable[[], Sequence[Scaling]] = tuple
    value: int = -1  #: class of the value; -1 if unknown

    @cached_property
    def array(self) -> AnyArray:
        """The array, in float64 if it is floating, else as recorded."""
        array = self.load()
        return array if array.dtype.kind in "iub" else array.astype(np.float64)

    @property
    def is_floating(self) -> bool:
        """Whether the array holds floating point numbers."""
        return self.array.dtype.kind == "f"


@dataclass(frozen=True, eq=False)
class FaultCase:
    """The values of one finding; ``faulty_side`` names the side that is assumed to be faulty.

    The faithful side's value is recomputed from its operands to find out how it was computed; the
    same arithmetic with one change must then give the faulty side's value.
    """

    finding: Finding
    faulty_side: str  #: 'target' or 'reference'
    faulty: Floats  #: value of the faulty side, in the layout of ``faithful``
    faithful: Floats  #: value of the faithful side
    operands: tuple[Operand, ...]  #: of the faithful side, the nearest first
    faulty_operands: tuple[Operand, ...]  #: of the faulty side, the nearest first
    numbers: tuple[float, ...]  #: immediate numbers among the inputs of the faithful side's ops
    #: canonical kinds of the faithful side's ops since the last agreement
    kinds: tuple[str, ...]
    #: canonical kinds of the faulty side's ops since the last agreement
    faulty_kinds: tuple[str, ...]
    #: canonical kinds of the consumers of the value, and of their consumers
    consumer_kinds: frozenset[str]
    tolerance: float  #: relative L2 below which two such values agree
    dtype: str
    call: Call | None = None  #: the faithful side's last op, with its inputs
    faulty_call: Call | None = None  #: the faulty side's last op, with its inputs
    #: immediate numbers among the inputs of the faulty side's ops
    faulty_numbers: tuple[float, ...] = ()
    #: a loss is among the forward ops that the value depends on directly
    is_near_loss: bool = False
    #: a decayed weight: the rest of its update has one length on both sides; None if unknown
    has_equal_step: bool | None = None
    #: the faithful side's parameters of this size, for findings in a parameter
    parameters: tuple[Operand, ...] = ()
    #: recorded scalings between the value and the last agreement upstream, of either side
    faulty_scalings: Sequence[Scaling] = ()
    faithful_scalings: Sequence[Scaling] = ()
    #: routing of the faithful and of the faulty side, if the values are the weights of experts
    routing: Routing | None = None
    faulty_routing: Routing | None = None
    #: returns the agreeing values of a shape that the faithful side holds before this one
    find_other_values: Callable[[tuple[int, ...]], Sequence[Operand]] = lambda _: ()
    #: returns the agreeing values of the faithful side that a value may be a part of
    find_wholes: Callable[[int], Sequence[Operand]] = lambda _: ()
    #: returns a value of the faithful side in the layout in which it was computed; None if unknown
    load_value: Callable[[int], AnyArray | None] = lambda _: None
    #: returns the agreeing gradients of its size that the faithful side holds before this one
    find_other_gradients: Callable[[], Sequence[Operand]] = tuple
    #: returns the labels and constants of both sides that have a size
    find_given_values: Callable[[int], Sequence[Operand]] = lambda _: ()
    #: returns the faithful side's parameters of a size
    find_parameters: Callable[[int], Sequence[Operand]] = lambda _: ()
    #: returns whether a value of the faithful side was computed from another one, by their classes
    depends_on: Callable[[int, int], bool] = lambda _value, _other: True
    #: returns whether an op of a kind of the faulty side combines its partner of an agreeing value
    #: with zeros or ones of a size that change nothing
    combines_neutral: Callable[[int, int, str], bool] = lambda _value, _size, _kind: False
    #: returns an op that some values of the faithful side need, and another one does not, and that
    #: the faulty side applies to another value
    find_moved_step: Callable[[Sequence[int], int], MovedStep | None] = lambda _omitted, _kept: None
    #: returns the op of a kind that the faulty side applies after the value, and the faithful side
    #: does not; with a value of the faithful side whose partner it reads, -1 for any
    find_later_op: Callable[[str, int], str] = lambda _kind, _operand: ""
    #: returns the parameters of an op of either side and of one of the faithful side, by their
    #: names, if both compute one thing with other parameters
    find_exchanged_weights: Callable[[str, str], tuple[str, str] | None] = lambda _name, _own: None
    #: returns among how many calls the weights changed places, of an op of the faithful side and
    #: others of its kind; 0 if they did not
    count_exchanged_calls: Callable[[str], int] = lambda _name: 0
    #: returns (kind, its other operands) of the faithful side's ops that read the value
    load_consumers: Callable[[], Sequence[tuple[str, Sequence[Operand]]]] = tuple
    #: returns the operators of the faithful side since the last agreement; None if unknown
    load_region: Callable[[], Region | None] = lambda: None
    #: returns the same, with more operators
    load_long_region: Callable[[], Region | None] = lambda: None
    #: returns those of the faulty side
    load_faulty_region: Callable[[], Region | None] = lambda: None
    #: returns the paths along which a gradient flows back, of either side, the faithful one first
    load_gradient_paths: Callable[[], Sequence[GradientPaths]] = tuple

    @cached_property
    def region(self) -> Region | None:
        """The operators of the faithful side since the last agreement, to be run again."""
        return self.load_region()

    @cached_property
    def long_region(self) -> Region | None:
        """The region with more operators, in which a single change may be tried."""
        return self.load_long_region()

    @cached_property
    def faulty_region(self) -> Region | None:
        """The operators of the faulty side since the last agreement."""
        return self.load_faulty_region()

    @cached_property
    def gradient_paths(self) -> Sequence[GradientPaths]:
        """The paths along which the gradient flows back, of either side."""
        return self.load_gradient_paths()

    @cached_property
    def trial_numbers(self) -> Iterator[int]:
        """Numbers the changes of the region that are tried, of all kinds."""
        return count(1)

    @property
    def phase(self) -> str:
        """forward, backward or optimizer."""
        return self.finding.phase

    @property
    def is_source(self) -> bool:
        """Whether no op computed the value: a parameter, a constant or the batch."""
        return self.finding.is_given or self.finding.kind == "input"

    @cached_property
    def is_of_batch(self) -> bool:
        """Whether the value is an input of both runs, or a part of one that an op takes."""
        sides = ((self.region, self.call), (self.faulty_region, self.faulty_call))
        are_given = [region is None and call is None for region, call in sides]
        are_parts = [region is not None and _takes_part(region) for region, _ in sides]
        is_part = any(are_parts) and all(map(or_, are_given, are_parts))
        return self.finding.kind == "input" or (self.phase == FORWARD and is_part)

    @property
    def is_of_loss(self) -> bool:
        """Whether the value is a loss, or near one."""
        return self.is_near_loss or self.faithful.size == 1

    @property
    def is_forward_value(self) -> bool:
        """Whether the value is floating and a forward op computed it."""
        return self.phase == FORWARD and not self.is_source and not self.is_discrete

    @property
    def is_discrete(self) -> bool:
        """Whether the value holds whole numbers or a mask."""
        return is_discrete(self.dtype)

    @property
    def faithful_side(self) -> str:
        """'target' or 'reference': the side that is assumed to be faithful."""
        return "reference" if self.faulty_side == "target" else "target"

    @cached_property
    def error(self) -> float:
        """Relative L2 between the two sides, or Inf where their masks differ."""
        return compute_residual(self.faulty, self.faithful)

    @cached_property
    def limit(self) -> float:
        """The largest residual that an explanation may leave.

        The inputs of the two sides may agree to less than the tolerance of the value.
        """
        noise = self.tolerance
        if noise > 0:
            noise = np.fmax(noise, self.finding.metrics.get("input_error", np.nan))
        return min(_LIMIT_TOLERANCES * float(noise), _LIMIT_ERROR_SHARE * self.error)

    def find_same_size_operands(self) -> Iterator[Operand]:
        """Yield floating operands of the output's size."""
        size = self.faithful.size
        for operand in self.operands:
            operand_size = int(np.prod(operand.shape))
            if operand_size == size and operand.is_floating:
                yield operand

    def find_same_size_arrays(self) -> Iterator[AnyArray]:
        """Yield the arrays of floating operands of the output's size, in the output's shape."""
        for operand in self.find_same_size_operands():
            yield operand.array.reshape(self.faithful.shape)

    def list_shared_operands(self) -> tuple[Operand, ...]:
        """Return the operands, and those of the faulty side that agree: both sides have these."""
        agreeing = [operand for operand in self.faulty_operands if operand.agrees]
        return (*self.operands, *agreeing)

    def find_vector_operands(self) -> Iterator[Operand]:
        """Yield floating operands of one axis, as long as the output's last axis.

        For an output of four axes also those as long as its channels (axis 1).
        """
        shape = self.faithful.shape
        vector_shapes = {shape[-1:]}
        if len(shape) == 4:
            vector_shapes.add(shape[1:2])
        for operand in self.operands:
            if operand.shape in vector_shapes and operand.is_floating:
                yield operand

    def find_matrix_operands(self) -> Iterator[Operand]:
        """Yield floating operands of two axes."""
        for operand in self.operands:
            n_axes = len(operand.shape)
            if n_axes == 2 and operand.is_floating:
                yield operand

    def matches_faithful(self, array: AnyArray) -> bool:
        """Return whether ``array`` is the faithful side's value, up to noise.

        A sample of the elements rules out most arrays at little cost.
        """
        if array.size != self.faithful.size:
            return False
        rows, values, max_distance = self._sample
        sample = array.reshape(-1)[rows]
        with np.errstate(invalid="ignore"):
            difference = np.where(sample == values, 0.0, sample - values)
        if not np.linalg.norm(difference) <= max_distance:
            return False
        return compute_residual(array, self.faithful) <= self.limit

    @cached_property
    def _sample(self) -> tuple[Ints, Floats, float]:
        """Rows of unmasked elements, their values, and the largest L2 of all elements together."""
        flat = self.faithful.reshape(-1)
        usable_rows = np.flatnonzero(~find_masked(flat) & np.isfinite(flat))
        rows = usable_rows[:: max(1, len(usable_rows) // _SAMPLE)]
        max_distance = self.limit * float(np.linalg.norm(flat[usable_rows])) * (1 + 1e-9)
        return rows, flat[rows], max_distance

    @cached_property
    def consumers(self) -> Sequence[tuple[str, Sequence[Operand]]]:
        """(kind, other operands) of the faithful side's ops that read the value."""
        return self.load_consumers()

    def list_consumer_kinds(self) -> set[str]:
        """Return the kinds of the ops that read the value, without those that follow."""
        return {kind for kind, _ in self.consumers}

    @cached_property
    def is_quantization_scale(self) -> bool:
        """Whether something larger is divided by the value, and rounded."""
        if not self.consumer_kinds & ROUNDINGS.keys():
            return False
        size = self.faithful.size
        return any(
            kind in ("mul", "div") and any(np.prod(operand.shape) > size for operand in operands)
            for kind, operands in self.consumers
        )

    def repeat_call(self, inputs: Sequence[AnyArray]) -> AnyArray | None:
        """Return the output of the faithful side's last op on other inputs.

        The interpretation that gives the faithful side's value is used; None if none does.
        """
        if self.call is None or self._interpretation is None:
            return None
        for name, output in self._interpret_call(inputs):
            if name == self._interpretation:
                return output.reshape(self.faithful.shape)
        return None

    @cached_property
    def _interpretation(self) -> str | None:
        """The interpretation of the last op that gives the faithful side's value; None if none."""
        if self.call is not None:
            for name, output in self._interpret_call(self.call.inputs):
                if self.matches_faithful(output):
                    return name
        return None

    def _interpret_call(self, inputs: Sequence[AnyArray]) -> Interpretations:
        """Yield (name, output) of every interpretation of the last op on these inputs."""
        if self.call is not None:
            kind, keywords, shape = self.call.kind, self.call.keywords, self.call.output_shape
            yield from compute_interpretations(kind, inputs, keywords, output_shape=shape)

    def describe_own_scalings(self, factor: float, in_softmax: bool = False) -> str:
        """Return which recorded numbers make ``factor`` = faulty / faithful; '' if none do.

        ``in_softmax``: it is a factor of the scores from which the value was computed.
        """
        faulty = select_scalings(self.faulty_scalings, in_softmax)
        faithful = select_scalings(self.faithful_scalings, in_softmax)
        return self.describe_scalings(factor, faulty, faithful)

    def describe_scalings(
        self, factor: float, faulty: Sequence[Scaling], faithful: Sequence[Scaling]
    ) -> str:
        """Return which of these numbers make ``factor`` = faulty / faithful; '' if none do."""
        if not factor:
            return ""
        if self.faulty_side == "target":
            return describe_scalings(faulty, faithful, factor)
        return describe_scalings(faithful, faulty, 1 / factor)


def _takes_part(region: Region) -> bool:
    """Return whether a region only takes a part of what was given to the run."""
    return all(
        step.kind in _SELECTING_KINDS and any(item.is_given for item in step.inputs)
        for step in region.steps
    )


def find_masked(array: AnyArray) -> Flags:
    """Return true for masked elements: minus infinity, or a large negative masking constant."""
    is_masked: Flags = array < -_MASK_SHARE * MASK_MAGNITUDE
    return is_masked


def compute_residual(array: AnyArray, expected: AnyArray) -> float:
    """Return ||array - expected|| / ||expected|| over unmasked elements.

    Infinite if sizes or masks differ, or if there is a NaN.
    """
    if array.size != expected.size:
        return float("inf")
    a, b = array.reshape(-1), expected.reshape(-1)
    with np.errstate(all="ignore"):
        is_masked = find_masked(a)
        if not np.array_equal(is_masked, find_masked(b)):
            return float("inf")
        if is_masked.any():
            a, b = a[~is_masked], b[~is_masked]
        difference, size = compute_norm(a - b), compute_norm(b)
    if np.isnan(difference) or np.isnan(size):
        return float("inf")
    if size:
        return difference / size
    return 0.0 if difference == 0 else float("inf")


def have_same_elements(array: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays hold the same numbers in any order: another layout of one value.

    They may be the values of both sides, so rounding does not count.
    """
    if array.size != other.size:
        return False
    sorted_array, sorted_other = np.sort(array, axis=None), np.sort(other, axis=None)
    return compute_residual(sorted_array, sorted_other) <= _SAME_ELEMENTS_DISTANCE
