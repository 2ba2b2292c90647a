"""A region: the operators between the last agreement and a value, run again in float64.

It can be run with one change in it: the change spreads to the last value, whatever the other side
recorded in between. Module ``region_builder`` reads regions from a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..model.arrays import AnyArray, Ints
from ..operators import compute_interpretations, compute_outputs
from ..operators.convolution_gradients import CONVOLUTION_GRADIENTS
from ..operators.pooling import PoolingSettings, pool
from .element_places import take_places

#: Beginnings of the kinds of gradients; those of convolutions have the names of their kernels.
_GRADIENT_KINDS = ("grad:", CONVOLUTION_GRADIENTS)


@dataclass(frozen=True, eq=False)
class StepInput:
    """One input of a step, as the step read it; numbers have no axes and no value."""

    value: int  #: class of the value, -1 for an immediate number
    array: AnyArray
    name: str  #: of the parameter, of the producer, or of the argument
    is_parameter: bool
    agrees: bool  #: the other side has the same value
    producer_kind: str = ""  #: canonical kind of the op that computed it, '' if none did
    #: it was given to the run and is no parameter: a part of the batch, or a state
    is_given: bool = False
    #: it was computed with the weight by which the step multiplies it: the state of a recurrence
    is_state: bool = False
    #: places of its elements in the output of the step that computed it; None if the order is equal
    order: Ints | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One operator of a region with its inputs and its output."""

    name: str
    kind: str
    inputs: tuple[StepInput, ...]
    keywords: Mapping[str, AnyArray]
    value: int  #: class of the output
    output: AnyArray  #: as recorded
    interpretation: str = ""  #: the one that gives the recorded output
    #: places of the output's elements among the inputs' elements, for an operator that only moves
    #: them
    places: Ints | None = None
    #: factors of the first input's elements, for dropout: which elements it drops is drawn
    kept: AnyArray | None = None
    is_broadcast: bool = False  #: the input is repeated along axes of one element
    #: of a pooling of windows
    pooling: PoolingSettings | None = None

    def compute(self, inputs: Sequence[AnyArray]) -> AnyArray | None:
        """Return the output on other inputs; None if they do not fit."""
        if self.places is not None:
            return take_places(inputs, self.places, self.output.shape)
        if self.kept is not None:
            return inputs[0].reshape(self.kept.shape) * self.kept
        if self.is_broadcast:
            return np.broadcast_to(inputs[0], self.output.shape)
        if self.pooling is not None:
            return pool(inputs[0], self.kind, self.pooling).reshape(self.output.shape)
        for name, output in self.interpret(inputs):
            if name == self.interpretation:
                return output
        return None

    def interpret(self, inputs: Sequence[AnyArray]) -> Iterator[tuple[str, AnyArray]]:
        """Yield (name, output) of every interpretation of the call on other inputs."""
        shape = self.output.shape
        yield from compute_interpretations(self.kind, inputs, self.keywords, output_shape=shape)
        if self.kind.startswith(_GRADIENT_KINDS):
            for name, outputs in compute_outputs(self.kind, inputs, self.keywords, shape):
                if outputs[0] is not None and outputs[0].size == self.output.size:
                    yield name, outputs[0].reshape(shape)

    def list_arrays(self) -> list[AnyArray]:
        """Return the recorded inputs."""
        return [step_input.array for step_input in self.inputs]


@dataclass(frozen=True, eq=False)
class Region:
    """The steps from agreeing values to one value, in execution order; the last one computes it."""

    steps: tuple[Step, ...]
    #: places of the elements of the compared value in the last step's output; None if all are equal
    order: Ints | None
    shape: tuple[int, ...]  #: of the compared value

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Per step: the numbers of the steps that read its output."""
        readers: list[list[int]] = [[] for _ in self.steps]
        numbers = {step.value: number for number, step in enumerate(self.steps)}
        for number, step in enumerate(self.steps):
            for value in {step_input.value for step_input in step.inputs}:
                if value in numbers:
                    readers[numbers[value]].append(number)
        return tuple(map(tuple, readers))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Per step: the elements that are computed again if its output changes."""
        own_costs = []
        for step in self.steps:
            n_elements = step.output.size + sum(item.array.size for item in step.inputs)
            if step.kind in ("matmul", "addmm", "attention"):
                n_elements += step.output.size * min(
                    item.array.shape[-1] for item in step.inputs[:1]
                )
            if step.kind.startswith(CONVOLUTION_GRADIENTS):
                tensors = [item.array for item in step.inputs if item.array.ndim > 1]
                n_elements += int(np.prod([array.size for array in tensors], dtype=float)) // max(
                    (array.shape[0] for array in tensors), default=1
                )
            own_costs.append(n_elements)
        costs = []
        for number in range(len(self.steps)):
            followers = self.followers[number]
            costs.append(own_costs[number] + sum(own_costs[i] for i in followers))
        return tuple(costs)

    @cached_property
    def followers(self) -> tuple[frozenset[int], ...]:
        """Per step: the numbers of the steps that follow from it."""
        return tuple(map(self._collect_followers, range(len(self.steps))))

    def _collect_followers(self, number: int) -> frozenset[int]:
        followers: set[int] = set()
        front = [number]
        while front:
            for consumer in self.consumers[front.pop()]:
                if consumer not in followers:
                    followers.add(consumer)
                    front.append(consumer)
        return frozenset(followers)

    def is_bottleneck(self, number: int) -> bool:
        """Return whether every other step leads to a step or follows from it."""
        followers = self.followers[number]
        others = set(range(len(self.steps))) - followers - {number}
        return all(number in self.followers[other] for other in others)

    def find_kinds_after(self, number: int) -> set[str]:
        """Return the kinds of the steps that follow from a step."""
        return {self.steps[follower].kind for follower in self.followers[number]}

    def run(self, number: int, output: AnyArray) -> AnyArray | None:
        """Return the compared value if one step had another output; None if it cannot be run."""
        return self.run_changes({number: output})

    def run_changes(self, outputs: Mapping[int, AnyArray]) -> AnyArray | None:
        """Return the compared value if some steps had other outputs; None if it cannot be run."""
        flat_outputs = {
            self.steps[number].value: output.reshape(-1) for number, output in outputs.items()
        }
        followers: set[int] = set()
        for number in outputs:
            followers |= self.followers[number]
        return self._run_steps(sorted(followers - set(outputs)), flat_outputs)

    def run_with_values(self, values: Mapping[int, AnyArray]) -> AnyArray | None:
        """Return the compared value with others in place of some; None if it cannot be run."""
        outputs = {value: array.reshape(-1) for value, array in values.items()}
        numbers = [number for number, step in enumerate(self.steps) if step.value not in values]
        return self._run_steps(numbers, outputs)

    def bypass(self, positions: Mapping[int, int]) -> Region:
        """Return the region with some steps that give back one of their inputs, by its position."""
        copies = {}
        for number, position in positions.items():
            step = self.steps[number]
            places = np.arange(step.output.size)
            copies[number] = replace(step, inputs=(step.inputs[position],), places=places)
        return self.replace_steps(copies)

    def replace_steps(self, steps: Mapping[int, Step]) -> Region:
        """Return the region with other steps in place of some, by their number."""
        new_steps = tuple(steps.get(number, own) for number, own in enumerate(self.steps))
        return replace(self, steps=new_steps)

    def replace_output(self, number: int, output: AnyArray) -> Region | None:
        """Return the region with an output of another shape, which broadcasts where it is read.

        The steps that follow must work element by element, until one has its shape again, and the
        compared value must keep its size. None otherwise.
        """
        steps = list(self.steps)
        steps[number] = replace(steps[number], output=output)
        shapes = {steps[number].value: output.shape}
        for follower in sorted(self.followers[number]):
            step = steps[follower]
            inputs = tuple(_reshape_input(item, shapes) for item in step.inputs)
            if all(item is own for item, own in zip(inputs, step.inputs, strict=True)):
                continue
            shape = _broadcast(inputs)
            if shape is None or _broadcast(step.inputs) != step.output.shape:
                return None
            places = step.places
            if places is not None:  # a copy, or the elements move
                if not np.array_equal(places, np.arange(step.output.size)):
                    return None
                places = np.arange(int(np.prod(shape)))
            if shape != step.output.shape:
                shapes[step.value] = shape
            new_output = np.broadcast_to(step.output.dtype.type(0), shape)
            steps[follower] = replace(step, inputs=inputs, output=new_output, places=places)
        fits = steps[-1].output.size == self.steps[-1].output.size
        return replace(self, steps=tuple(steps)) if fits else None

    @cached_property
    def unchanged(self) -> AnyArray | None:
        """The compared value, computed from the values that enter the region.

        None if it cannot be run.
        """
        return self._run_steps(range(len(self.steps)), {})

    def _run_steps(self, numbers: Iterable[int], outputs: dict[int, AnyArray]) -> AnyArray | None:
        """Return the compared value after the given steps; ``outputs`` holds flat ones by value."""
        with np.errstate(all="ignore"):
            for number in numbers:
                step = self.steps[number]
                new_output = step.compute([_read_input(item, outputs) for item in step.inputs])
                if new_output is None:
                    return None
                outputs[step.value] = new_output.reshape(-1)
        return self.arrange(outputs.get(self.steps[-1].value))

    def arrange(self, flat: AnyArray | None) -> AnyArray | None:
        """Return the last step's output in the layout of the compared value."""
        if flat is None:
            return None
        ordered = flat.reshape(-1) if self.order is None else flat.reshape(-1)[self.order]
        return ordered.reshape(self.shape)


def _reshape_input(step_input: StepInput, shapes: Mapping[int, tuple[int, ...]]) -> StepInput:
    """Return an input of a step with the shape that its value has now."""
    if step_input.value not in shapes or step_input.order is not None:
        return step_input
    array = np.broadcast_to(step_input.array.dtype.type(0), shapes[step_input.value])
    return replace(step_input, array=array)


def _broadcast(inputs: Sequence[StepInput]) -> tuple[int, ...] | None:
    """Return the common shape of the inputs of a step that works element by element, if any."""
    try:
        return np.broadcast_shapes(*(item.array.shape for item in inputs))
    except ValueError:
        return None


def _read_input(step_input: StepInput, outputs: Mapping[int, AnyArray]) -> AnyArray:
    """Return an input of a step, from the outputs that were computed again if it is one."""
    flat = outputs.get(step_input.value)
    if flat is None or step_input.value < 0:
        return step_input.array
    if step_input.order is not None:
        flat = flat[step_input.order]
    return flat.reshape(step_input.array.shape)
