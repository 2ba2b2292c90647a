"""What is kept of the entries of msprobe's dump.json: a small part of what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress, count

from ..call_records import is_communication
from .contents import RecordContents
from .dump_json import Json, parse_entries
from .forms import EntryForm, FormLeaves, Forms, parse_measurements, split_block
from .names import PARAMETER_GRADIENTS, Call, parse_name, parse_saved_name


@dataclass
class Entries:
    """The calls of a dump in order, and what their entries hold."""

    ids: dict[str, int] = field(default_factory=dict)  #: name of each call -> its number
    calls: list[Call] = field(default_factory=list)
    forms: list[int] = field(default_factory=list)  #: of each call, in ``leaves``
    first_measurements: list[int] = field(default_factory=list)  #: of each call
    leaves: FormLeaves = field(default_factory=FormLeaves)
    measurements: RecordContents = field(default_factory=RecordContents)
    communications: dict[str, Json] = field(default_factory=dict)  #: entries of such calls
    recompute_flags: dict[str, bool] = field(default_factory=dict)  #: where they are recorded
    unknown_names: list[str] = field(default_factory=list)  #: of what is no call
    has_recompute_flag: bool = False
    may_be_swapped: bool = False  #: inputs and outputs of backward calls, only by 1.0

    def reorder_calls(self, names: list[str]) -> Entries:
        """Return the same with the calls in another order."""
        order = [self.ids[name] for name in names]
        return replace(
            self,
            ids={name: index for index, name in enumerate(names)},
            calls=[self.calls[index] for index in order],
            forms=[self.forms[index] for index in order],
            first_measurements=[self.first_measurements[index] for index in order],
        )


def collect_entries(header: Json, blocks: Iterable[bytes | Json]) -> Entries:
    """Return what is kept of entries, which come some at a time, printed by msprobe or parsed.

    Raises ValueError if they are no JSON, or a call has two entries.
    """
    collector = _Collector()
    is_debug = header.get("level") == "debug"
    for block in blocks:
        if is_debug:
            collector.add_saved_values(parse_entries(block) if isinstance(block, bytes) else block)
        elif isinstance(block, bytes):
            collector.add_text(block)
        else:
            collector.add_entries(block)
    return collector.entries


class _Collector:
    """Adds entries to what is kept."""

    def __init__(self) -> None:
        self.forms = Forms()
        self.entries = Entries(leaves=self.forms.leaves)

    def add_text(self, block: bytes) -> None:
        """Add entries that msprobe printed."""
        try:
            names, texts, measurement_texts = split_block(block)
            calls = list(map(parse_name, names))
            forms = [
                self.forms.find_form(text, holds_gradients=_is_gradient(call))
                for text, call in zip(texts, calls, strict=True)
            ]
            measurements = parse_measurements(measurement_texts)
            if sum(form.n_measurements for form in forms) != len(measurement_texts):
                raise ValueError("a measurement is outside of the entries")
        except ValueError:
            self.add_entries(parse_entries(block))
        else:
            self._add_calls(names, calls, forms)
            self.entries.measurements.add(measurements, len(measurement_texts))

    def add_entries(self, block: Json) -> None:
        """Add parsed entries."""
        names, calls, forms = [], [], []
        for name, entry in block.items():
            if not isinstance(entry, dict):
                self.entries.unknown_names.append(name)
                continue
            call = parse_name(name)
            names.append(name)
            calls.append(call)
            forms.append(self.forms.add_form(entry, holds_gradients=_is_gradient(call)))
        self._add_calls(names, calls, forms)

    def add_saved_values(self, block: Json) -> None:
        """Add values that were saved by hand."""
        saved_values = {name: value for name, value in block.items() if value is not None}
        calls = list(map(parse_saved_name, saved_values))
        forms = [
            self.forms.add_form({"output": value}, holds_gradients=False)
            for value in saved_values.values()
        ]
        self._add_calls(list(saved_values), calls, forms)

    def _add_calls(
        self, names: Sequence[str], calls: Sequence[Call | None], forms: Sequence[EntryForm]
    ) -> None:
        """Add calls; their measurements follow those that were added."""
        entries = self.entries
        if not entries.ids.keys().isdisjoint(names):
            raise ValueError("a call has two entries")
        first_measurements = list(
            accumulate((form.n_measurements for form in forms), initial=len(entries.measurements))
        )
        is_call = [call is not None for call in calls]
        entries.unknown_names += [
            name for name, call in zip(names, calls, strict=True) if call is None
        ]
        entries.has_recompute_flag |= any(form.has_recompute_flag for form in set(forms))
        names = list(compress(names, is_call))
        known_calls = [call for call in calls if call is not None]
        forms = list(compress(forms, is_call))
        entries.ids.update(zip(names, count(len(entries.calls)), strict=False))
        entries.calls += map(_name_rounded_division, known_calls, forms)
        entries.forms += [form.number for form in forms]
        entries.first_measurements += compress(first_measurements, is_call)
        entries.may_be_swapped |= any(form.has_gradient_keys for form in set(forms))
        for name, call, form in zip(names, known_calls, forms, strict=True):
            if isinstance(form.recompute_flag, bool):
                entries.recompute_flags[name] = form.recompute_flag
            if is_communication(call.kind):
                entries.communications[name] = form.entry


def _is_gradient(call: Call | None) -> bool:
    return call is not None and call.entry_type == PARAMETER_GRADIENTS


def _name_rounded_division(call: Call, form: EntryForm) -> Call:
    """Return a call of ``div`` with ``rounding_mode`` as one of the function that it is."""
    if form.rounding_mode not in ("floor", "trunc"):
        return call
    family = call.kind.rpartition(".")[0]
    return call._replace(kind=f"{family}.{form.rounding_mode}_divide")
