"""Forms of entries in msprobe's dump.json: what calls have in common that differ in numbers only.

A network repeats its layers, and its dump repeats the text of their entries up to what was measured
of the tensors: 100,000 calls of a transformer have 61 forms. So what an entry says is looked up
once for each form, and of a call only the measurements are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ...model.dtypes import normalize_dtype
from .. import call_records
from .contents import RecordContents, list_columns
from .dump_json import Json, parse_json

#: Keys of an entry -> kind of slot of the tensors under them, in the order of the table. grad_* are
#: from 1.0.
_SLOT_KINDS = {
    "input_args": "input",
    "input_kwargs": "input",
    "output": "output",
    "input": "input",
    "grad_input": "input",
    "grad_output": "output",
    "parameters": "parameter",
}
_MAX_DEPTH = 16  #: levels of nested lists and dicts in an argument
_MAX_FORMS = 1 << 12  #: whose text is kept; a dump without repetition has one for each call

#: How msprobe prints the end of an entry before another one, and the end of its name.
_LAST_ENTRY_END, _ENTRY_END, _NAME_END = b"\n  }", b"\n  },", b'": '
#: What was measured of a tensor: all that msprobe prints from the maximum to the end of the record.
_MEASUREMENTS = re.compile(rb'"Max": ([^}]*)}')
_CUT = b"\0"  #: takes the place of measurements in the text of a form; no JSON has it
_CONFUSING_CHARACTERS = (_CUT, b"\\")  #: the latter precedes a quote inside a text
#: What says of which form an entry is, and so is printed before the measurements.
_FORM_KEYS = frozenset({"type", "dtype", "shape", "value", "tensor", "peer"})

_normalize_dtype = lru_cache(maxsize=1 << 10)(normalize_dtype)


class Leaf(NamedTuple):
    """A tensor or a number in an entry."""

    slot: str
    slot_kind: str
    record: Json
    is_number: bool = False  #: a Python scalar


@dataclass(frozen=True, eq=False)
class EntryForm:
    """What calls have in common whose entries differ only in what was measured."""

    number: int  #: of its leaves in :class:`FormLeaves`
    n_measurements: int
    entry: Json  #: of any such call; the place of a measurement has its number
    has_recompute_flag: bool
    recompute_flag: Any
    rounding_mode: Any  #: an argument that is no tensor and no number of the trace
    has_gradient_keys: bool  #: the form of 1.0, which may exchange inputs and outputs


@dataclass
class FormLeaves:
    """Columns of the tensors and numbers of every form."""

    starts: list[int] = field(default_factory=lambda: [0])  #: where the leaves of a form begin
    slots: list[str] = field(default_factory=list)
    slot_kinds: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...] | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    constants: list[bool] = field(default_factory=list)
    #: which measurement of a call belongs to the leaf; -1 if ``contents`` has its own
    measurements: list[int] = field(default_factory=list)
    contents: RecordContents = field(default_factory=RecordContents)

    def add_form(self, leaves: Sequence[Leaf], *, is_measured: bool) -> int:
        """Add the leaves of a form and return its number.

        ``is_measured`` says that records have the number of a measurement instead of it.
        """
        for slot, slot_kind, record, is_number in leaves:
            dtype = str(record["dtype"])  # that of a Python scalar is the name of its type
            shape, size = call_records.parse_shape_and_size(record.get("shape"))
            has_measurement = is_measured and not is_number
            self.slots.append(slot)
            self.slot_kinds.append(slot_kind)
            self.dtypes.append(dtype if is_number else _normalize_dtype(dtype))
            self.shapes.append(shape)
            self.sizes.append(size)
            self.constants.append(is_number)
            self.measurements.append(record.get("Max", -1) if has_measurement else -1)
        records = [leaf.record for leaf in leaves]
        self.contents.add(list_columns(records), len(records))
        self.starts.append(len(self.slots))
        return len(self.starts) - 2


@dataclass
class Forms:
    """The forms of the entries of a dump, each described when its first entry is met."""

    leaves: FormLeaves = field(default_factory=FormLeaves)
    _by_text: dict[tuple[bytes, bool], EntryForm] = field(default_factory=dict)

    def find_form(self, text: bytes, *, holds_gradients: bool) -> EntryForm:
        """Return the form with this text, as :func:`split_block` returns it.

        ``holds_gradients`` says that the entry has gradients of parameters by name. Raises
        ValueError if no entry has such a text.
        """
        key = text, holds_gradients
        form = self._by_text.get(key)
        if form is None:
            if len(self._by_text) >= _MAX_FORMS:
                self._by_text.clear()
            form = self._describe_text(text, holds_gradients)
            self._by_text[key] = form
        return form

    def add_form(self, entry: Json, *, holds_gradients: bool, n_measurements: int = 0) -> EntryForm:
        """Return the form of an entry, which may have numbers instead of measurements."""
        leaves = list_leaves(entry, holds_gradients=holds_gradients)
        keywords = entry.get("input_kwargs")
        mode = keywords.get("rounding_mode") if isinstance(keywords, dict) else None
        return EntryForm(
            number=self.leaves.add_form(leaves, is_measured=n_measurements > 0),
            n_measurements=n_measurements,
            entry=entry,
            has_recompute_flag="is_recompute" in entry,
            recompute_flag=entry.get("is_recompute"),
            rounding_mode=mode.get("value") if isinstance(mode, dict) else None,
            has_gradient_keys="grad_input" in entry,
        )

    def _describe_text(self, text: bytes, holds_gradients: bool) -> EntryForm:
        if b'"Max"' in text:
            raise ValueError("a measurement is printed in another way")
        front, *others = text.split(_CUT)
        numbered = [b'"Max": %d}%b' % (number, other) for number, other in enumerate(others)]
        entry = parse_json(b"".join((front, *numbered, b"}")))
        if not isinstance(entry, dict):
            raise ValueError("an entry is an object")
        return self.add_form(entry, holds_gradients=holds_gradients, n_measurements=len(others))


def split_block(block: bytes) -> tuple[list[str], list[bytes], list[bytes]]:
    """Split entries that msprobe printed.

    Return their names, their text up to the last brace without what was measured, and the text of
    all measurements. Raises ValueError if the entries are printed in another way.
    """
    if any(character in block for character in _CONFUSING_CHARACTERS):
        raise ValueError("a quote may be a part of a name")
    pieces = _MEASUREMENTS.split(block.rstrip())
    form_text = _CUT.join(pieces[::2])
    if not form_text.endswith(_LAST_ENTRY_END):
        raise ValueError("the last entry has no end")
    printed_names: list[bytes] = []
    texts: list[bytes] = []
    for entry in form_text[: -len(_LAST_ENTRY_END)].split(_ENTRY_END):
        name, _, text = entry.partition(_NAME_END)
        printed_names.append(name)
        texts.append(text)
    names = parse_json(b'[%b"]' % b'",'.join(printed_names))
    if len(set(names)) != len(texts):
        raise ValueError("two entries with one name, or an entry without a name")
    return names, texts, pieces[1::2]


def parse_measurements(texts: Sequence[bytes]) -> dict[str, list[Any]]:
    """Return the columns of measurements that :func:`split_block` returned.

    Raises ValueError if they are no measurements.
    """
    if not texts:
        return {}
    records = parse_json(b'[{"Max": %b}]' % b'},{"Max": '.join(texts))
    columns = list_columns(records)
    if len(records) != len(texts) or not _FORM_KEYS.isdisjoint(columns):
        raise ValueError("other values follow the measurements of a tensor")
    return columns


def list_leaves(entry: Json, *, holds_gradients: bool = False) -> list[Leaf]:
    """Return every tensor and number of an entry.

    ``holds_gradients`` says that it has gradients of parameters by name.
    """
    leaves: list[Leaf] = []
    if holds_gradients:
        for name, value in entry.items():
            gradient = value[0] if isinstance(value, list) and value else value
            _add_leaves(gradient, f"output.{name}", "output", leaves)
    else:
        for key, slot_kind in _SLOT_KINDS.items():
            if key in entry:
                _add_leaves(entry[key], slot_kind, slot_kind, leaves)
    return leaves


def _add_leaves(value: Any, slot: str, slot_kind: str, leaves: list[Leaf], depth: int = 0) -> None:
    """Add every tensor and number in ``value`` to ``leaves``, with its slot.

    Text, slices and null are skipped.
    """
    if isinstance(value, dict):
        _add_object_leaves(value, slot, slot_kind, leaves, depth)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            item_slot = f"{slot}.{index}"
            if isinstance(item, dict) and "dtype" in item:
                leaves.append(Leaf(item_slot, slot_kind, item))
            elif item is not None and depth < _MAX_DEPTH:
                _add_leaves(item, item_slot, slot_kind, leaves, depth + 1)


def _add_object_leaves(
    value: Json, slot: str, slot_kind: str, leaves: list[Leaf], depth: int
) -> None:
    if "dtype" in value:
        leaves.append(Leaf(slot, slot_kind, value))
    elif type(value.get("tensor")) is dict and "peer" in value:  # an argument of a P2POp
        _add_leaves(value["tensor"], slot, slot_kind, leaves, depth + 1)
    elif "type" not in value:
        if depth < _MAX_DEPTH:
            for key, item in value.items():
                _add_leaves(item, f"{slot}.{key}", slot_kind, leaves, depth + 1)
    elif isinstance(value.get("value"), int | float):
        record = _make_number_record(value["value"])
        leaves.append(Leaf(slot, slot_kind, record, is_number=True))


def _make_number_record(number: float) -> Json:
    """Return a Python scalar as the record of a 0-dimensional tensor."""
    return {"dtype": type(number).__name__, "shape": [], "Max": number, "Min": number}
