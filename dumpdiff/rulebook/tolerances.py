"""Tolerances: how far two correct runs may differ, by dtype, operator and reduction length.

tolerance = units * u + spread * sqrt(n) * u_sum, relative to the scale of the tensor. u is the unit
roundoff of the coarser dtype, n the reduction length, u_sum the unit roundoff of the sums inside
the operator. Types shorter than the accumulator have fewer units. Values, reasons and sources are
in ``rules/tolerances.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..model.dtypes import UNIT_ROUNDOFF, get_unit_roundoff
from .document import Entry, Place, collect_fields
from .operators import GRADIENT

GROWTHS = ("none", "sqrt")

_UNIT_NAMES = ("base_units", "short_base_units", "spread")


@dataclass(frozen=True)
class ClassTolerance:
    """The effect of an operator class, or of one kind, on errors."""

    conditioning: float  #: factor by which a correct operator may amplify the error of its inputs
    growth: str  #: 'sqrt': rounding errors of a sum of n terms accumulate; 'none'
    units: float  #: like ``Units.base_units``, where frameworks compute less exactly; else 0
    place: Place


@dataclass(frozen=True)
class Units:
    """The numbers that are the same for every class."""

    base_units: float  #: unit roundoffs by which an agreeing pair may differ, for any operator
    short_base_units: float  #: the same for dtypes coarser than the accumulator
    spread: float  #: standard deviations of accumulated rounding errors that are allowed
    sum_roundoff: float  #: unit roundoff of the accumulator in which short types are summed


class ToleranceRules:
    """Tolerances of classes, and of kinds that differ from their class."""

    def __init__(self, sources: Sequence[Sequence[Entry]]) -> None:
        numbers: dict[str, float] = {}
        accumulator = ""
        self.classes: dict[str, ClassTolerance] = {}
        self.kinds: dict[str, ClassTolerance] = {}
        self._kind_entries: list[Entry] = []
        for source in sources:
            fields = collect_fields(source, (*_UNIT_NAMES, "accumulator", "classes", "kinds"))
            for name in _UNIT_NAMES:
                for entry in fields[name]:
                    numbers[name] = _get_value(entry).read_number()
            for entry in fields["accumulator"]:
                accumulator = _get_value(entry).read_choice(UNIT_ROUNDOFF, "dtype")
            for section in fields["classes"]:
                _read_section(section, self.classes)
            for section in fields["kinds"]:
                self._kind_entries += _read_section(section, self.kinds)
        self.units = Units(
            numbers["base_units"],
            numbers["short_base_units"],
            numbers["spread"],
            get_unit_roundoff(accumulator),
        )

    def check_kinds(self, kinds: Collection[str]) -> None:
        """Raise RuleError if a tolerance is given for a kind that does not exist.

        A gradient, ``grad:tanh``, may have its own, else it has that of its class.
        """
        for entry in self._kind_entries:
            if entry.read_text().removeprefix(GRADIENT) not in kinds:
                entry.read_choice(kinds, "operator kind")

    def get_tolerance(self, kind: str, kind_class: str) -> ClassTolerance:
        """Return the tolerance of the kind, else that of its class."""
        return self.kinds.get(kind) or self.classes[kind_class]

    def compute_growth(self, rule: ClassTolerance, reduction_length: int) -> float:
        """Return the allowed error of a sum of ``reduction_length`` terms.

        The unit is the unit roundoff of the accumulator.
        """
        if rule.growth == "none" or reduction_length <= 1:
            return 0.0
        return self.units.spread * math.sqrt(reduction_length)

    def compute_tolerance(
        self, rule: ClassTolerance, dtype_a: str, dtype_b: str, reduction_length: int
    ) -> float:
        """Return the relative tolerance of a pair of dtypes.

        0 if both are exact (integers, bools).
        """
        roundoff = max(get_unit_roundoff(dtype_a), get_unit_roundoff(dtype_b))
        sum_roundoff = min(roundoff, self.units.sum_roundoff)
        is_short = roundoff > sum_roundoff
        exact_units = max(self.units.base_units, rule.units)
        units = self.units.short_base_units if is_short else exact_units
        return units * roundoff + self.compute_growth(rule, reduction_length) * sum_roundoff


def _get_value(entry: Entry) -> Entry:
    """Return the value of ``{value, reason, source}``. A number without a source is an error."""
    return entry.read_fields(("value", "reason", "source"), ("value", "source"))["value"]


def _read_section(section: Entry, tolerances: dict[str, ClassTolerance]) -> list[Entry]:
    """Add the tolerances of a section to ``tolerances``, and return the entries of their names."""
    keys = []
    for key, body in section.read_pairs().items():
        name = key.read_text()
        tolerances[name] = _read_tolerance(key, body, tolerances.get(name))
        keys.append(key)
    return keys


def _read_tolerance(key: Entry, body: Entry, earlier: ClassTolerance | None) -> ClassTolerance:
    """Return a tolerance; fields that are not given keep the value of an earlier source."""
    required = ("source",) if earlier else ("conditioning", "source")
    names = ("conditioning", "growth", "units", "reason", "source")
    fields = body.read_fields(names, required)
    conditioning = earlier.conditioning if earlier else 1.0
    growth = earlier.growth if earlier else "none"
    if "conditioning" in fields:
        conditioning = fields["conditioning"].read_number()
    if conditioning < 1:
        raise fields["conditioning"].make_error(
            f"conditioning is an amplification, 1 or more, found {conditioning:g}"
        )
    if "growth" in fields:
        growth = fields["growth"].read_choice(GROWTHS, "growth")
    units = earlier.units if earlier else 0.0
    if "units" in fields:
        units = fields["units"].read_number()
    return ClassTolerance(conditioning, growth, units, key.place)
