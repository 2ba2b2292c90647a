"""Write mapping files for ``msprobe compare`` from an alignment; people write them by hand today.

There are three kinds (source: mindstudio-probe 26.2, core/compare/acc_compare.py). ``data`` names
every tensor, and msprobe compares only its pairs. ``cell`` and ``api`` name modules and APIs, and
msprobe compares their tensors with equal call numbers and slots. These two files contain only names
for which that is correct.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ...alignment import Alignment
from ...model.errors import DumpError
from ...rulebook import Rules
from .names import Names, collect_names
from .version import Version, format_version

MappingKind = Literal["data", "cell", "api"]
OPTIONS: Mapping[MappingKind, str] = {
    "data": "-dm",
    "cell": "-cm",
    "api": "-am",
}  #: kind -> option of msprobe compare

#: Suffix of a name that does not exist. A name that is not in the mapping would be paired by name.
NO_PARTNER = ".no_partner"

_CELL = re.compile(
    r"(?P<front>Cell\.|Module\.)(?P<name>.+)"
    r"(?P<rest>\.(?:(?:forward|backward)\.\d+|parameters_grad.*))"
)
_API = re.compile(r"(?P<front>)(?P<name>\w+\.[^.]+)(?P<rest>\..*(?:forward|backward))")
_CALL = re.compile(r"\w+\.(?P<name>.+)\.(?:forward|backward)")
_PLAIN = re.compile(r"[A-Za-z_][\w.]*")


Slots = Mapping[str, tuple[str, ...]]  #: input, output -> numbers of the slots


@dataclass(frozen=True)
class MsprobeMapping:
    """One mapping file."""

    kind: MappingKind
    pairs: Mapping[str, str]  #: target's name -> the name by which msprobe finds the reference's
    #: target's names without partner that msprobe must not pair by name
    unpaired: tuple[str, ...]
    notes: tuple[str, ...]  #: sentences about what the file contains and leaves out
    slots: Mapping[str, Slots]  #: API -> its slots; {} for other kinds

    def to_yaml(self) -> str:
        """Return the YAML file, with its notes as comments."""
        lines = [f"# {note}" for note in self.notes]
        if self.kind == "api":
            lines += [
                _build_api_row(name, other, self.slots[name]) for name, other in self.pairs.items()
            ]
        else:
            rows = [*self.pairs.items(), *((name, name + NO_PARTNER) for name in self.unpaired)]
            lines += [f"{_quote_yaml(name)}: {_quote_yaml(other)}" for name, other in rows]
        return "\n".join(lines) + "\n"


def build_mapping(
    alignment: Alignment, rules: Rules, kind: MappingKind = "data", version: Version | None = None
) -> MsprobeMapping:
    """Return the mapping of ``kind`` for a version of msprobe, by default that of the reference.

    Raises DumpError if a side is not a dump of msprobe, if nothing can be paired, or if ``kind`` is
    ``api`` and the target is not from MindSpore.
    """
    names = collect_names(alignment, rules, version)
    target = alignment.target.trace.source
    if kind == "api" and target.framework != "mindspore":
        raise DumpError(
            f"{target.path}: msprobe accepts API mappings only for MindSpore targets; "
            "use --kind data"
        )
    pairs, unpaired_names, notes = {
        "data": _build_data_mapping,
        "cell": _build_cell_mapping,
        "api": _build_api_mapping,
    }[kind](names)
    if not pairs:
        raise DumpError(
            f"{target.path}: a mapping of kind {kind} cannot pair anything correctly; "
            "use --kind data"
        )
    program = f"mindstudio-probe {format_version(names.version)}"
    title = f"For msprobe compare {OPTIONS[kind]} ({program}), written by dumpdiff."
    slots = _group_slots(names, pairs) if kind == "api" else {}
    return MsprobeMapping(kind, pairs, unpaired_names, (title, *notes), slots)


_MappingParts = tuple[dict[str, str], tuple[str, ...], list[str]]


def _build_data_mapping(names: Names) -> _MappingParts:
    leaves = [leaf for entry in names.target.values() for leaf in entry]
    unpaired_names = tuple(
        leaf for leaf in leaves if leaf not in names.pairs and leaf in names.reference
    )
    notes = [
        f"{len(names.pairs)} of the target's {names.n_recorded} tensors and numbers have a partner."
    ]
    if names.n_reshaped:
        notes.append(
            f"{names.n_reshaped} have a partner of another shape, which msprobe cannot compare: "
            "left out."
        )
    if unpaired_names:
        notes.append(
            f"{len(unpaired_names)} (ending in {NO_PARTNER}) only share a name: not paired."
        )
    return names.pairs, unpaired_names, notes


def _build_cell_mapping(names: Names) -> _MappingParts:
    """Return pairs of modules by name.

    msprobe also replaces a name inside longer names, so every module is listed. For APIs too it
    treats the text between the first dot and the phase as the name of a module. Therefore calls
    that it would pair by name without evidence are marked as unpaired in the same way.
    """
    pairs, refused = _pair_by_name(names, _CELL, "Module.")
    cells: dict[str, None] = {}
    calls: dict[str, None] = {}
    for entry, leaves in names.target.items():
        if (cell := _CELL.fullmatch(entry)) is not None:
            cells[cell["name"]] = None
        elif (call := _CALL.fullmatch(entry)) is not None and any(
            leaf in names.reference and names.pairs.get(leaf) != leaf for leaf in leaves
        ):
            calls[call["name"]] = None
    notes = [
        f"{len(pairs)} of the target's {len(cells)} modules, {len(calls)} calls of APIs "
        f"marked as unpaired ({NO_PARTNER})."
    ]
    return pairs, tuple(name for name in (*cells, *calls) if name not in pairs), [*notes, *refused]


def _build_api_mapping(names: Names) -> _MappingParts:
    pairs, refused = _pair_by_name(names, _API, "")
    notes = [
        f"{len(pairs)} APIs whose calls have the same numbers. "
        "msprobe may pair others by its own table."
    ]
    return pairs, (), [*notes, *refused]


def _group_slots(names: Names, apis: Mapping[str, str]) -> dict[str, Slots]:
    """Return API -> input, output -> the slots of its calls."""
    slots: dict[str, dict[str, dict[str, None]]] = {
        api: {"input": {}, "output": {}} for api in apis
    }
    for entry, leaves in names.target.items():
        match = _API.fullmatch(entry)
        if match is None or match["name"] not in apis:
            continue
        for leaf in leaves:
            place, _, slot = leaf.removeprefix(f"{entry}.").partition(".")
            if place in ("input", "output"):
                slots[match["name"]][place][slot] = None
    return {
        api: {place: tuple(match) for place, match in places.items()}
        for api, places in slots.items()
    }


def _pair_by_name(
    names: Names, pattern: re.Pattern[str], front: str
) -> tuple[dict[str, str], list[str]]:
    """Return target's name -> reference's name, and a note if names were refused.

    A name is refused if it would pair any wrong tensors. ``pattern`` splits an entry; msprobe looks
    for ``front``, the reference's name and the unchanged rest.
    """
    calls: dict[str, list[tuple[str, str]]] = defaultdict(list)  # name -> (entry, rest)
    partner_counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry, leaves in names.target.items():
        entry_match = pattern.fullmatch(entry)
        if entry_match is None:
            continue
        calls[entry_match["name"]].append((entry, entry_match["rest"]))
        for leaf in leaves:
            partner_match = pattern.match(names.pairs.get(leaf, ""))
            if partner_match is not None and partner_match["front"] in ("", front):
                partner_counts[entry_match["name"]][partner_match["name"]] += 1
    pairs, n_refused = {}, 0
    for name, counts in partner_counts.items():
        partner = counts.most_common(1)[0][0]
        leaf_pairs = [
            pair
            for entry, suffix in calls[name]
            for pair in _pair_leaves(names, entry, f"{front}{partner}{suffix}")
        ]
        if any(names.is_wrong_pair(*pair) for pair in leaf_pairs):
            n_refused += 1
        elif any(names.pairs.get(leaf) == partner_leaf for leaf, partner_leaf in leaf_pairs):
            pairs[name] = partner
    note = (
        f"{n_refused} more cannot be paired by name, because numbers or slots differ; "
        "use --kind data."
    )
    return pairs, [note] if n_refused else []


def _pair_leaves(names: Names, entry: str, reference_entry: str) -> Iterator[tuple[str, str]]:
    """Return each leaf of an entry, with the name that msprobe looks for."""
    return ((leaf, reference_entry + leaf.removeprefix(entry)) for leaf in names.target[entry])


def _build_api_row(name: str, other: str, slots: Slots) -> str:
    """Return one row of the file.

    msprobe compares the listed slots. It checks the length of ``ms_outputs`` and reads
    ``ms_output``.
    """
    lists = [
        f"{side}_{key}: {json.dumps(list(slots.get(place, ())))}"
        for place, keys in (("input", ("args",)), ("output", ("outputs", "output")))
        for key in keys
        for side in ("ms", "pt")
    ]
    empty = [
        f"{side}_{key}: []" for key in ("parameters", "parameters_grad") for side in ("ms", "pt")
    ]
    fields = [f"ms_api: {_quote_yaml(name)}", f"pt_api: {_quote_yaml(other)}", *lists, *empty]
    return f"- {{{', '.join(fields)}}}"


def _quote_yaml(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)
