"""What ``msprobe compare`` calls the tensors of two dumps, and which names of one side are which of the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...alignment import Alignment
from ...errors import DumpError
from ...readers import msprobe
from ...readers.msprobe.leaves import entries_of, leaf_names, sought_names
from ...rules import Rules
from ...trace import Trace
from .correspondence import correspondence, sure_pairs
from .version import Version, version_of


@dataclass(frozen=True)
class Names:
    """Two dumps by name: entries are calls, leaves their tensors and other arguments."""

    version: Version  #: of the msprobe that is to compare them
    target: dict[str, tuple[str, ...]]  #: entry -> its leaves, in the order of the dump
    reference: dict[str, tuple[str, ...]]
    pairs: dict[str, str]  #: target's leaf -> the name by which msprobe finds the reference's
    recorded: int  #: leaves of the target that are tensors or numbers
    reshaped: int  #: of these, without a partner of their shape, but with one of another
    _values: tuple[dict[str, int], dict[str, int]]  #: leaf -> value, paired values numbered alike; others negative

    @cached_property
    def entries(self) -> dict[str, str]:
        """The name by which msprobe finds an entry of the reference -> the entry."""
        return {name: entry for entry, name in sought_names(self.reference, self.version).items()}

    @cached_property
    def leaves(self) -> dict[str, str]:
        """The name by which msprobe finds a leaf of the reference -> the leaf."""
        return {
            name + leaf.removeprefix(entry): leaf
            for name, entry in self.entries.items()
            for leaf in self.reference[entry]
        }

    def wrong(self, leaf: str, name: str) -> bool:
        """Whether msprobe, looking for ``name``, would compare a leaf of the target with another value than its own."""
        other = self.leaves.get(name)
        if other is None or self.pairs.get(leaf) == name:
            return False
        ours, theirs = self._values[0].get(leaf, -1), self._values[1].get(other, -1)
        return ours != theirs and max(ours, theirs) >= 0


def names_of(alignment: Alignment, rules: Rules, version: Version | None = None) -> Names:
    """The names of both sides, for msprobe of a version; by default of the one that wrote the reference.

    Raises DumpError if a side is no dump of msprobe.
    """
    traces = alignment.target.trace, alignment.reference.trace
    files = _dump("target", traces[0]), _dump("reference", traces[1])
    found = correspondence(alignment, rules)
    leaves = leaf_names(traces[0]), leaf_names(traces[1])
    pairs = sure_pairs(alignment)
    number = dict(zip(pairs["reference"].tolist(), pairs["target"].tolist(), strict=True))
    paired = set(number.values())
    values = (
        [value if value in paired else -1 for value in alignment.target.tensor_class.tolist()],
        [number.get(value, -1) for value in alignment.reference.tensor_class.tolist()],
    )
    names = Names(
        version or version_of(traces[1].source),
        entries_of(files[0]),
        entries_of(files[1]),
        {},
        len(leaves[0]),
        len(found.reshaped),
        (dict(zip(leaves[0], values[0], strict=True)), dict(zip(leaves[1], values[1], strict=True))),
    )
    sought = {leaf: name for name, leaf in names.leaves.items()}
    partners = ((leaves[0][row], sought.get(leaves[1][other])) for row, other in found.tensors.items())
    names.pairs.update((leaf, name) for leaf, name in partners if name is not None)
    return names


def _dump(role: str, trace: Trace) -> Path:
    source = trace.source
    if source.format != msprobe.FORMAT:
        raise DumpError(f"{source.path}: the {role} is a dump of {source.format}; msprobe compares none but its own")
    return Path(source.path) / "dump.json"
