"""Mapping files of msprobe's comparer (data, cell and API mappings) as names that someone says belong together.

Recognised by content, so that they can be given wherever rule files can. Formats as read in mindstudio-probe 26.2,
core/compare/acc_compare.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from .document import Entry

Slot = tuple[
    str, str
]  #: name of an op and of a slot, as a trace has them: ('Functional.linear.0.forward', 'input.0')

_CALL = r"\d+\.(?:forward|backward)|(?:forward|backward)\.\d+"
_LEAF = re.compile(rf"(?P<op>.+?\.(?:{_CALL}))\.(?P<role>input|output|parameters)\.(?P<rest>.+)")
_GRADIENT = re.compile(r"(?P<op>.+\.parameters_grad(?:\.\d+)?)\.(?P<rest>\D.*)")
_API = re.compile(
    r"(Functional|Torch|Tensor|Mint|MintFunctional|MintDistributed|Distributed|Primitive|NPU|Aten|VF|Jit)\.[^.]+"
)
_API_OR_CLASS = re.compile(
    rf"{_API.pattern}|(?:\w+\.)*[A-Z]\w*"
)  #: a path ends with the name of a class
_MODULE = re.compile(
    r"(?P<front>Cell|Module)\.(?P<name>.+)\.(?P<rest>(?:forward|backward)\.\d+|parameters_grad(?:\.\d+)?)"
)


@dataclass
class NamedPairs:
    """What mapping files say, target's names first; later files win."""

    tensors: dict[Slot, Slot] = field(default_factory=dict)
    modules: dict[str, str] = field(
        default_factory=dict
    )  #: path and class: 'fc2.Dense' -> 'fc2.Linear'
    kinds: dict[str, str] = field(default_factory=dict)  #: 'Functional.abs' -> 'Torch.abs'

    def __len__(self) -> int:
        return len(self.tensors) + len(self.modules) + len(self.kinds)

    def list_module_names(self, op: str) -> Iterator[str]:
        """Names that a module call of the target may have on the other side; none if nothing is said of it."""
        found = _MODULE.fullmatch(op)
        if found is not None and (other := self.modules.get(found["name"])) is not None:
            yield from (f"{front}.{other}.{found['rest']}" for front in ("Module", "Cell"))


def is_mapping(document: Entry, sections: tuple[str, ...]) -> bool:
    """Whether a YAML document is one of msprobe's mappings and no rule file, which has ``sections``.

    The first row decides: what names neither a tensor nor an API nor a module's path and class is no mapping.
    """
    node = document.node
    if isinstance(node, yaml.SequenceNode):
        return any(isinstance(row, yaml.MappingNode) for row in node.value)
    if not isinstance(node, yaml.MappingNode) or any(
        key.value in sections for key, _ in node.value
    ):
        return False
    if not all(isinstance(value, yaml.ScalarNode) for _, value in node.value):
        return _is_layers(document)
    return any(
        found
        for key, _ in node.value[:1]
        for found in (_slot(key.value), _API_OR_CLASS.fullmatch(key.value))
    )


def add_mapping(document: Entry, into: NamedPairs) -> None:
    """Add what a mapping file says. Raises RuleError at the first line that does not fit the file's kind."""
    if isinstance(document.node, yaml.SequenceNode):
        _add_apis(document, into)
        return
    if _is_layers(document):
        raise document.make_error(
            "an msprobe layer mapping says too little; give the data_mapping_*.yaml that msprobe compare -lm writes"
        )
    pairs = document.read_pairs()
    first = next(key.read_text() for key in pairs)
    if _slot(first) is not None:
        for key, value in pairs.items():
            slot = _leaf(key)
            into.tensors[slot] = _leaf(value)
    else:
        said = into.kinds if _API.fullmatch(first) else into.modules
        said.update((key.read_text(), value.read_text()) for key, value in pairs.items())


def _add_apis(document: Entry, into: NamedPairs) -> None:
    for node in document.node.value:
        row = Entry(document.file, node)
        fields = {key.read_text(): value for key, value in row.read_pairs().items()}
        if not {"ms_api", "pt_api"} <= set(fields):
            raise row.make_error("expected a row of an msprobe API mapping, with ms_api and pt_api")
        into.kinds[fields["ms_api"].read_text()] = fields["pt_api"].read_text()


def _is_layers(document: Entry) -> bool:
    node = document.node
    return isinstance(node, yaml.MappingNode) and any(
        key.value == "TopLayer" for key, _ in node.value
    )


def _leaf(entry: Entry) -> Slot:
    found = _slot(entry.read_text())
    if found is None:
        raise entry.make_error(
            f"'{entry.read_text()}' is no tensor's name, such as Functional.linear.0.forward.input.0"
        )
    return found


def _slot(name: str) -> Slot | None:
    """The op and the slot that a leaf's name means; None if it is none."""
    if (found := _LEAF.fullmatch(name)) is not None:
        role = "parameter" if found["role"] == "parameters" else found["role"]
        return found["op"], f"{role}.{found['rest']}"
    if (found := _GRADIENT.fullmatch(name)) is not None:
        return found["op"], f"output.{found['rest']}"
    return None
