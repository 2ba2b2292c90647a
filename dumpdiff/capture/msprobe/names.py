"""Names of the tensors of two dumps as ``msprobe compare`` uses them, and pairs of such names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...alignment import Alignment
from ...model.errors import DumpError
from ...model.trace import Trace
from ...readers import msprobe
from ...readers.msprobe.leaves import list_leaf_names, list_lookup_names, read_entry_leaves
from ...rulebook import Rules
from .correspondence import build_correspondence, select_certain_pairs
from .version import Version, get_version


@dataclass(frozen=True)
class Names:
    """Two dumps by name: entries are calls, leaves are their tensors and other arguments."""

    version: Version  #: version of the msprobe that compares them
    target: dict[str, tuple[str, ...]]  #: entry -> its leaves, in the order of the dump
    reference: dict[str, str]  #: the name by which msprobe finds a leaf -> the leaf
    pairs: dict[str, str]  #: target's leaf -> the name by which msprobe finds the reference's
    n_recorded: int  #: number of the target's leaves that are tensors or numbers
    n_reshaped: int  #: number of leaves whose only partners have another shape
    #: both sides: leaf -> number of its value, equal for paired values, -1 for others
    values: tuple[dict[str, int], dict[str, int]]

    def is_wrong_pair(self, leaf: str, name: str) -> bool:
        """Return whether msprobe would compare a target's leaf with a wrong value by this name."""
        other = self.reference.get(name)
        if other is None or self.pairs.get(leaf) == name:
            return False
        target_value, reference_value = self.values[0].get(leaf, -1), self.values[1].get(other, -1)
        return target_value != reference_value and max(target_value, reference_value) >= 0


def collect_names(alignment: Alignment, rules: Rules, version: Version | None = None) -> Names:
    """Return the names of both sides for a version of msprobe, by default that of the reference.

    Raises DumpError if a side is not a dump of msprobe.
    """
    traces = alignment.target.trace, alignment.reference.trace
    files = _get_dump_file("target", traces[0]), _get_dump_file("reference", traces[1])
    version = version or get_version(traces[1].source)
    reference = _group_by_compared_name(read_entry_leaves(files[1]), version)
    lookup_names = {leaf: name for name, leaf in reference.items()}
    leaves = list_leaf_names(traces[0]), list_leaf_names(traces[1])
    correspondence = build_correspondence(alignment, rules)
    partners = (
        (leaves[0][row], lookup_names.get(leaves[1][other], ""))
        for row, other in correspondence.tensors.items()
    )
    return Names(
        version,
        read_entry_leaves(files[0]),
        reference,
        {leaf: name for leaf, name in partners if name},
        len(leaves[0]),
        len(correspondence.reshaped),
        _collect_values(alignment, *leaves),
    )


def _group_by_compared_name(
    entries: dict[str, tuple[str, ...]], version: Version
) -> dict[str, str]:
    """Return the name by which msprobe finds a leaf -> the leaf."""
    return {
        name + leaf.removeprefix(entry): leaf
        for entry, name in list_lookup_names(entries, version).items()
        for leaf in entries[entry]
    }


def _collect_values(
    alignment: Alignment, target_leaves: list[str], reference_leaves: list[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return leaf -> number of its value for both sides: the target's if paired, else -1."""
    pairs = select_certain_pairs(alignment)
    number = dict(zip(pairs["reference"].tolist(), pairs["target"].tolist(), strict=True))
    paired = set(number.values())
    return (
        {
            leaf: value if value in paired else -1
            for leaf, value in zip(
                target_leaves, alignment.target.tensor_class.tolist(), strict=True
            )
        },
        {
            leaf: number.get(value, -1)
            for leaf, value in zip(
                reference_leaves, alignment.reference.tensor_class.tolist(), strict=True
            )
        },
    )


def _get_dump_file(side: str, trace: Trace) -> Path:
    source = trace.source
    if source.format != msprobe.FORMAT:
        raise DumpError(
            f"{source.path}: the {side} is a dump of {source.format}; "
            "msprobe compares only its own dumps"
        )
    return Path(source.path) / "dump.json"
