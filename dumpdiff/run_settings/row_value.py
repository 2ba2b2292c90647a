"""One side's value of a row: what is set, else what silence means, and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from . import values
from .settings import SPOKEN, Given, Settings
from .table import Table

#: set: written somewhere; derived: follows from something written; default: nobody said anything; fixed: the
#: framework has no option and always does this; unknown: cannot be told; absent: the framework has no such thing.
How = Literal["set", "derived", "default", "fixed", "unknown", "absent"]
_T = TypeVar("_T")


class Silent(Exception):
    """The value cannot be told; the message says why."""


@dataclass(frozen=True)
class Seen:
    """One side of a comparison."""

    value: Any
    how: How
    names: tuple[str, ...] = ()  #: the options that were set, as they are called there
    places: tuple[str, ...] = ()  #: file:line of each
    why: str = ""  #: why it is unknown


class Reading:
    """Looks up names of rows in one side's settings, and remembers which were set: they are the evidence."""

    def __init__(self, settings: Settings, table: Table) -> None:
        self.settings, self.table = settings, table
        self.used: dict[str, Given] = {}

    def is_set(self, *names: str) -> bool:
        """Whether one of the names is written with a value that is not none."""
        return any(
            (found := self._find(name)) is not None and not values.is_nothing(found[1].value)
            for name in names
        )

    def raw(self, *names: str) -> Any:
        """The first of ``names`` that is set, else the default of the first that has one; None is a value.

        Raises Silent if neither is known.
        """
        for name in names:
            if (found := self._find(name)) is not None:
                key, given = found
                self.used[key] = given
                if given.doubt:
                    raise Silent(given.doubt)
                return None if values.is_nothing(given.value) else given.value
        return self._default(names)

    def integer(self, *names: str) -> int | None:
        """A whole number, or None where none is set. Raises Silent."""
        return self._as(values.integer, names)

    def number(self, *names: str) -> float | None:
        """A number, or None where none is set. Raises Silent."""
        return self._as(values.number, names)

    def boolean(self, *names: str) -> bool:
        """A truth value, false where none is set. Raises Silent."""
        return bool(self._as(values.boolean, names))

    def text(self, *names: str) -> str | None:
        """A word in lower case, or None where none is set. Raises Silent."""
        return self._as(values.text, names)

    def dtype(self, *names: str) -> str | None:
        """The name of a dtype, or None where none is set. Raises Silent."""
        return self._as(values.dtype, names)

    def _as(self, convert: Callable[[Any], _T], names: tuple[str, ...]) -> _T | None:
        value = self.raw(*names)
        try:
            return None if value is None else convert(value)
        except (TypeError, ValueError, OverflowError):
            raise Silent(
                f"{names[0].rpartition('.')[2]} is {value!r}, which is no {convert.__name__}"
            ) from None

    def _find(self, name: str) -> tuple[str, Given] | None:
        for key in self.table.candidates(name, self.settings.framework):
            if key in self.settings.values:
                return key, self.settings.values[key]
        return None

    def _default(self, names: tuple[str, ...]) -> Any:
        framework = self.settings.framework
        told = self.settings.effective or self.settings.model
        if (
            framework == "swift"
            and not told
            and names[0].replace("-", "_") in self.table.from_model
        ):
            raise Silent("not set: Megatron-SWIFT takes it from the model's config.json")
        for name in names:
            default = self.table.default(name, self.settings)
            if default is not None:
                if default.changed:
                    raise Silent(default.changed)
                return default.value
        raise Silent(f"not set, and the default of {SPOKEN[framework]} is not known")
