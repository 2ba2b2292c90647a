"""Recurrent layers that are one operator on one side: the operator, computed with one change.

The other side may have unrolled the layers into hundreds of operators, or changed how it calls the
same operator. The first steps alone rule out most changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...operators import Call
from ...operators.recurrence import (
    BATCH_FIRST,
    GATE_COUNTS,
    ONE_STEP,
    STEPS_FIRST,
    Direction,
    Recurrence,
    list_recurrences,
    split_steps,
)
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_number
from .recurrence_changes import (
    WEIGHT_NAMES,
    FreeChange,
    RecurrenceChange,
    describe_place,
    list_changes,
    list_free_changes,
)

#: Multiplications of one run of the layers; more take seconds.
_MAX_PRODUCTS = 1e9
#: Steps that are computed first. Two: the first one may begin with a state of zeros.
_FIRST_STEPS = 2
#: Residual of the sample beyond which a change is ruled out, in limits of the case.
_SAMPLE_LIMITS = 10
#: Values that are tried in place of the sequence that the operator reads.
_MAX_SOURCES = 8


def suggest_changed_operator(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the faulty side computes the faithful side's operator with one change."""
    recurrence = _find_recurrence(case.call, case.faithful, case.limit)
    if recurrence is None:
        return
    unchanged = recurrence.compute().reshape(case.faithful.shape)
    sample = _Sample(recurrence, case.faulty, case.faithful)
    for change in (
        *list_changes(recurrence),
        *_fit_changes(recurrence, sample),
        *_list_sources(case, recurrence),
    ):
        predicted = sample.run_change(change, case.limit)
        if predicted is not None:
            yield _make_candidate(change, predicted, unchanged)


def suggest_changed_call(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the faulty side's own operator was called with something else.

    That is visible in its record: no first state, or one weight in two layers. With what the
    faithful side has in its place, the operator gives the faithful side's value.
    """
    recurrence = _find_recurrence(case.faulty_call, case.faulty, case.limit)
    if recurrence is None:
        return
    predicted = recurrence.compute().reshape(case.faulty.shape)
    sample = _Sample(recurrence, case.faithful, case.faulty)
    for change in _list_corrections(case, recurrence):
        unchanged = sample.run_change(change, case.limit)
        if unchanged is not None:
            yield _make_candidate(change, predicted, unchanged)


def _make_candidate(
    change: RecurrenceChange, predicted: AnyArray, unchanged: AnyArray
) -> Candidate:
    return Candidate(
        predicted,
        change.description,
        change.contrast,
        parameters=change.parameters,
        unchanged=unchanged,
        cause=change.cause,
    )


def _find_recurrence(call: Call | None, value: Floats, limit: float) -> Recurrence | None:
    """Return the recurrence whose output is ``value``; None if the call has none."""
    if call is None or call.kind not in GATE_COUNTS:
        return None
    for _, recurrence in list_recurrences(call):
        if recurrence.n_products > _MAX_PRODUCTS:
            return None
        if compute_residual(recurrence.compute(), value) <= limit:
            return recurrence
    return None


class _Sample:
    """A part of a recurrence that costs little: one sequence, and its first steps if they suffice.

    The sequence is the one in which the two sides differ most.
    """

    def __init__(self, recurrence: Recurrence, expected: Floats, own: Floats) -> None:
        self.expected = expected
        self._steps = slice(_FIRST_STEPS if self._is_forward(recurrence) else None)
        difference = self._read_rows(recurrence, expected - own)
        self._row = int(np.argmax(np.linalg.norm(difference, axis=(0, 2))))
        self.values = self._read_rows(recurrence, expected)[self._steps, self._row]

    def take(self, recurrence: Recurrence) -> Recurrence:
        """Return the recurrence of the sample, with the steps first."""
        rows = slice(self._row, self._row + 1)
        steps = self._steps if self._is_forward(recurrence) else slice(None)
        return replace(
            recurrence,
            x=recurrence.x[steps, rows],
            states=tuple(state[:, rows] for state in recurrence.states),
            layout=STEPS_FIRST,
        )

    def compute(self, recurrence: Recurrence) -> Floats:
        """Return the outputs of the sample (steps, outputs)."""
        outputs: Floats = self.take(recurrence).compute()[: len(self.values), 0]
        return outputs

    def run_change(self, change: RecurrenceChange, limit: float) -> AnyArray | None:
        """Return all outputs with a change; None if those of the sample differ."""
        outputs = self.compute(change.recurrence)
        if not compute_residual(outputs, self.values) <= _SAMPLE_LIMITS * limit:
            return None
        return change.recurrence.compute().reshape(self.expected.shape)

    @staticmethod
    def _is_forward(recurrence: Recurrence) -> bool:
        """Return whether the first outputs follow from the first steps alone."""
        return recurrence.directions == (Direction(),)

    @staticmethod
    def _read_rows(recurrence: Recurrence, value: Floats) -> Floats:
        """Return a value of the operator's layout as (steps, batch, outputs)."""
        n_steps, batch = recurrence.x.shape[:2]
        shape = (batch, n_steps, -1) if recurrence.layout == BATCH_FIRST else (n_steps, batch, -1)
        layout = STEPS_FIRST if recurrence.layout == ONE_STEP else recurrence.layout
        rows: Floats = split_steps(value.reshape(shape), layout)
        return rows


def _fit_changes(recurrence: Recurrence, sample: _Sample) -> Iterator[RecurrenceChange]:
    """Solve for the number of each change that has one."""
    for free_change in list_free_changes(recurrence):

        def run(number: float, free_change: FreeChange = free_change) -> Floats:
            return sample.compute(free_change.apply(number, recurrence).recurrence)

        number = fit_number(run, free_change.start, sample.values)
        if number is not None:
            yield free_change.apply(number, recurrence)


def _list_sources(case: FaultCase, recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Read another agreeing value of the shape of the sequence."""
    x = split_steps(recurrence.x, recurrence.layout) if recurrence.layout != ONE_STEP else None
    if x is None:
        return
    for operand in case.find_other_values(x.shape)[:_MAX_SOURCES]:
        if not operand.is_floating or np.array_equal(operand.array, x):
            continue
        source = split_steps(operand.array, recurrence.layout)
        is_reversed = any(
            np.array_equal(np.flip(operand.array, axis), x) for axis in range(x.ndim - 1)
        )
        yield RecurrenceChange(
            replace(recurrence, x=source),
            "scan-direction" if is_reversed else "input-source",
            f"{recurrence.kind} of {operand.name}",
            "reads it from its end" if is_reversed else "reads another value",
        )


# ---- what the record of the faulty side shows


def _list_corrections(case: FaultCase, recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    yield from _list_given_states(case, recurrence)
    yield from _list_repeated_weights(case, recurrence)


def _list_given_states(case: FaultCase, recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Begin with states of this shape that the faithful side has."""
    if recurrence.has_states:
        return
    shape = recurrence.states[0].shape
    candidates = [
        operand
        for operand in (*case.operands, *case.find_other_values(shape))
        if operand.shape == shape and operand.is_floating and np.any(operand.array)
    ]
    for operands in permutations(candidates, len(recurrence.states)):
        if len({id(operand) for operand in operands}) < len(operands):
            continue
        yield RecurrenceChange(
            replace(
                recurrence,
                states=tuple(operand.array for operand in operands),
                has_states=True,
            ),
            "hidden-state-reset",
            "an initial state of zeros",
            "begins with the state that it is given",
        )


def _list_repeated_weights(case: FaultCase, recurrence: Recurrence) -> Iterator[RecurrenceChange]:
    """Take a parameter of the faithful side in place of a weight that is in two layers."""
    for own, weights in enumerate(recurrence.layers):
        for other, other_weights in enumerate(recurrence.layers):
            for attribute, name in WEIGHT_NAMES.items():
                array = getattr(weights, attribute)
                is_repeated = np.array_equal(array, getattr(other_weights, attribute))
                if own == other or not is_repeated or not np.any(array):
                    continue
                place, other_place = (describe_place(recurrence, number) for number in (own, other))
                for operand in case.find_parameters(array.size):
                    if operand.shape != array.shape or np.array_equal(operand.array, array):
                        continue
                    layers = list(recurrence.layers)
                    layers[own] = replace(weights, **{attribute: operand.array})
                    yield RecurrenceChange(
                        replace(recurrence, layers=tuple(layers)),
                        "weight-swapped",
                        f"{name} of {other_place} in the place of that of {place}",
                        f"has {operand.parameter}",
                    )


HYPOTHESES = (
    Hypothesis("hidden-state-reset", suggest_changed_call),
    Hypothesis("hidden-state-reset", suggest_changed_operator),
)
