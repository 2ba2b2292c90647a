"""How far two correct runs may part, by dtype, operator and reduction length.

tolerance = units * u + spread * sqrt(n) * u_sum, relative to the scale of the tensor: u is the unit roundoff of
the coarser dtype, u_sum that of the sums inside the operator, and units are fewer for types shorter than the
accumulator. Values, reasons and sources: ``rules/tolerances.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..model.dtypes import UNIT_ROUNDOFF, unit_roundoff
from .document import Entry, Place, collect_fields

GROWTHS = ("none", "sqrt")


@dataclass(frozen=True)
class ClassTolerance:
    """What an operator class, or one kind, does to errors."""

    conditioning: (
        float  #: by how much an operator may enlarge the error of its inputs without being at fault
    )
    growth: str  #: 'sqrt': rounding errors of a sum of n terms accumulate; 'none'
    place: Place


@dataclass(frozen=True)
class Units:
    """The figures that hold for every class."""

    base_units: float  #: unit roundoffs that an agreeing pair may part, whatever the operator
    short_base_units: float  #: the same for dtypes coarser than the accumulator
    spread: float  #: standard deviations of accumulated rounding errors that are allowed
    sum_roundoff: float  #: unit roundoff of the accumulator that short types are summed in


class ToleranceRules:
    """Tolerances of classes and, where a kind is unlike its class, of kinds."""

    def __init__(self, sources: Sequence[Sequence[Entry]]) -> None:
        numbers: dict[str, float] = {}
        accumulator = ""
        self.classes: dict[str, ClassTolerance] = {}
        self.kinds: dict[str, ClassTolerance] = {}
        self._named_kinds: list[Entry] = []
        for source in sources:
            fields = collect_fields(
                source,
                ("base_units", "short_base_units", "spread", "accumulator", "classes", "kinds"),
            )
            for name in ("base_units", "short_base_units", "spread"):
                for entry in fields[name]:
                    numbers[name] = _value(entry).read_number()
            for entry in fields["accumulator"]:
                accumulator = _value(entry).read_choice(UNIT_ROUNDOFF, "dtype")
            for name, table in (("classes", self.classes), ("kinds", self.kinds)):
                for section in fields[name]:
                    for key, body in section.read_pairs().items():
                        table[key.read_text()] = _read(key, body, table.get(key.read_text()))
                        if name == "kinds":
                            self._named_kinds.append(key)
        self.units = Units(
            numbers["base_units"],
            numbers["short_base_units"],
            numbers["spread"],
            unit_roundoff(accumulator),
        )

    def check_kinds(self, kinds: Collection[str]) -> None:
        """Raises RuleError when a tolerance is given for a kind that does not exist."""
        for key in self._named_kinds:
            key.read_choice(kinds, "operator kind")

    def get_tolerance(self, kind: str, kind_class: str) -> ClassTolerance:
        """That of the kind if it has one of its own, else that of its class."""
        return self.kinds.get(kind) or self.classes[kind_class]

    def compute_growth(self, rule: ClassTolerance, reduction_length: int) -> float:
        """Unit roundoffs of the accumulator that a sum of so many terms may be off."""
        if rule.growth == "none" or reduction_length <= 1:
            return 0.0
        return self.units.spread * math.sqrt(reduction_length)

    def compute_tolerance(
        self, rule: ClassTolerance, dtype_a: str, dtype_b: str, reduction_length: int
    ) -> float:
        """Relative tolerance of a pair of such dtypes; 0 when both are exact (integers, bools)."""
        coarse = max(unit_roundoff(dtype_a), unit_roundoff(dtype_b))
        inside = min(coarse, self.units.sum_roundoff)
        units = self.units.short_base_units if coarse > inside else self.units.base_units
        return units * coarse + self.compute_growth(rule, reduction_length) * inside


def _value(entry: Entry) -> Entry:
    """``{value, reason, source}``: a figure is never given without its source."""
    return entry.read_fields(("value", "reason", "source"), ("value", "source"))["value"]


def _read(key: Entry, body: Entry, old: ClassTolerance | None) -> ClassTolerance:
    fields = body.read_fields(
        ("conditioning", "growth", "reason", "source"),
        ("source",) if old else ("conditioning", "source"),
    )
    conditioning = (
        fields["conditioning"].read_number()
        if "conditioning" in fields
        else old.conditioning
        if old
        else 1.0
    )
    if conditioning < 1:
        raise fields["conditioning"].make_error(
            f"conditioning is an amplification, 1 or more, found {conditioning:g}"
        )
    growth = (
        fields["growth"].read_choice(GROWTHS, "growth")
        if "growth" in fields
        else old.growth
        if old
        else "none"
    )
    return ClassTolerance(conditioning, growth, key.place)
