"""The value of a row on one side: what is set, else the default, and where it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from . import values
from .settings import FRAMEWORK_NAMES, Settings, SettingValue
from .table import Table

#: set: written somewhere. derived: follows from something written. default: not written. fixed: the
#: framework has no option and always does this. unknown: cannot be determined. unstated: files of
#: this kind do not say it. absent: the framework has no such feature.
ValueOrigin = Literal["set", "derived", "default", "fixed", "unknown", "unstated", "absent"]
_Value = TypeVar("_Value")


class UnknownValueError(Exception):
    """The value cannot be determined; the message says why."""


@dataclass(frozen=True)
class RowValue:
    """The value of one side."""

    value: Any
    origin: ValueOrigin
    names: tuple[str, ...] = ()  #: the options that were set, as this framework calls them
    places: tuple[str, ...] = ()  #: file:line of each
    reason: str = ""  #: why it is unknown

    @property
    def is_known(self) -> bool:
        """Whether there is a value, which may be that there is no such feature."""
        return self.origin not in ("unknown", "unstated")

    @property
    def is_written(self) -> bool:
        """Whether a file sets the value, or an option from which it follows."""
        return self.origin in ("set", "derived") or bool(self.names)


class SettingsLookup:
    """Finds the names of rows in the settings of one side.

    ``used`` collects the settings that were read: they are the evidence for the value.
    """

    def __init__(self, settings: Settings, table: Table) -> None:
        self.settings, self.table = settings, table
        self.used: dict[str, SettingValue] = {}

    def is_set(self, *names: str) -> bool:
        """Return whether one of the names is written with a value other than none."""
        for name in names:
            key = self._find_key(name)
            if key is not None and not values.is_nothing(self.settings.values[key].value):
                return True
        return False

    def get_raw(self, *names: str) -> Any:
        """Return the first of ``names`` that is set, else the first default; None is a value.

        Raises UnknownValueError if neither is known.
        """
        for name in names:
            key = self._find_key(name)
            if key is None:
                continue
            setting = self.settings.values[key]
            self.used[key] = setting
            if setting.doubt:
                raise UnknownValueError(setting.doubt)
            return None if values.is_nothing(setting.value) else setting.value
        return self._get_default(names)

    def get_integer(self, *names: str) -> int | None:
        """Return a whole number, None if none is set. Raises UnknownValueError."""
        return self._convert(values.parse_integer, "integer", names)

    def get_number(self, *names: str) -> float | None:
        """Return a number, None if none is set. Raises UnknownValueError."""
        return self._convert(values.parse_number, "number", names)

    def get_boolean(self, *names: str) -> bool:
        """Return a truth value, false if none is set. Raises UnknownValueError."""
        return bool(self._convert(values.parse_boolean, "boolean", names))

    def get_text(self, *names: str) -> str | None:
        """Return a word in lower case, None if none is set. Raises UnknownValueError."""
        return self._convert(values.parse_text, "text", names)

    def get_dtype(self, *names: str) -> str | None:
        """Return the name of a dtype, None if none is set. Raises UnknownValueError."""
        return self._convert(values.parse_dtype, "dtype", names)

    def _convert(
        self, parse: Callable[[Any], _Value], kind: str, names: tuple[str, ...]
    ) -> _Value | None:
        value = self.get_raw(*names)
        if value is None:
            return None
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError):
            key = names[0].rpartition(".")[2]
            raise UnknownValueError(f"{key} is {value!r}, which is no {kind}") from None

    def _find_key(self, name: str) -> str | None:
        for key in self.table.list_keys(name, self.settings.framework):
            if key in self.settings.values:
                return key
        return None

    def _get_default(self, names: tuple[str, ...]) -> Any:
        framework = self.settings.framework
        has_all_values = self.settings.effective or self.settings.model
        option = names[0].replace("-", "_")
        if framework == "swift" and not has_all_values and option in self.table.from_model:
            raise UnknownValueError("not set: Megatron-SWIFT takes it from the model's config.json")
        for name in names:
            default = self.table.find_default(name, self.settings)
            if default is not None:
                if default.changed:
                    raise UnknownValueError(default.changed)
                return default.value
        raise UnknownValueError(
            f"not set, and the default of {FRAMEWORK_NAMES[framework]} is not known"
        )
