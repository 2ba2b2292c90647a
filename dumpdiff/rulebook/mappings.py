"""Read mapping files of msprobe's comparer (data, cell, API and layer mappings): pairs of names.

They are recognized by content, so they can be given wherever rule files can. Formats as read in
mindstudio-probe 26.2, core/compare/acc_compare.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from .document import Entry

#: Name of an op and of a slot, as a trace has them: ('Functional.linear.0.forward', 'input.0')
Slot = tuple[str, str]

_CALL = r"\d+\.(?:forward|backward)|(?:forward|backward)\.\d+"
_LEAF = re.compile(
    rf"(?P<op>.+?\.(?:{_CALL}))\.(?P<slot_kind>input|output|parameters)\.(?P<rest>.+)"
)
_GRADIENT = re.compile(r"(?P<op>.+\.parameters_grad(?:\.\d+)?)\.(?P<rest>\D.*)")
_API = re.compile(
    r"(Functional|Torch|Tensor|Mint|MintFunctional|MintDistributed|Distributed|Primitive"
    r"|NPU|Aten|VF|Jit)\.[^.]+"
)
#: An API, or the path of a module, which ends with the name of a class.
_API_OR_MODULE = re.compile(rf"{_API.pattern}|(?:\w+\.)*[A-Z]\w*")
_MODULE = re.compile(
    r"(?P<front>Cell|Module)\.(?P<name>.+)"
    r"\.(?P<rest>(?:forward|backward)\.\d+|parameters_grad(?:\.\d+)?)"
)

#: What a layer mapping calls the model itself; older versions of msprobe called it Cell.
_TOP_LAYER, _OLD_TOP_LAYER = "TopLayer", "Cell"


@dataclass
class NamedPairs:
    """Pairs of names from mapping files, target -> reference; later files override earlier ones."""

    tensors: dict[Slot, Slot] = field(default_factory=dict)
    #: path and class of modules: 'fc2.Dense' -> 'fc2.Linear'
    modules: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  #: 'Functional.abs' -> 'Torch.abs'
    #: class of a module, or TopLayer -> path of a module in it -> path on the reference side
    layers: dict[str, dict[str, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tensors) + len(self.modules) + len(self.kinds) + len(self.layers)

    def convert_path(self, path: str, classes: Mapping[str, str]) -> str:
        """Return the path that a module of the target has on the reference side, by layers.

        ``classes`` has the class of each module by path. In each module the longest path that its
        class renames counts; other names stay.
        """
        words = path.split(".")
        converted: list[str] = []
        start = 0
        while start < len(words):
            name = classes.get(".".join(words[:start]), "") if start else _TOP_LAYER
            renamed = self.layers.get(name, {})
            end = start + 1
            for last in range(len(words), start, -1):
                if ".".join(words[start:last]) in renamed:
                    end = last
                    break
            part = ".".join(words[start:end])
            converted.append(renamed.get(part, part))
            start = end
        return ".".join(converted)

    def list_module_names(self, op: str) -> Iterator[str]:
        """Yield the names that a module call of the target may have on the reference side.

        Nothing is yielded if no mapping contains the module.
        """
        match = _MODULE.fullmatch(op)
        if match is None or match["name"] not in self.modules:
            return
        reference_name = self.modules[match["name"]]
        for front in ("Module", "Cell"):
            yield f"{front}.{reference_name}.{match['rest']}"


def split_module_name(op: str) -> tuple[str, str, str] | None:
    """Return path, class and rest (phase and number) of the record of a module, else None."""
    match = _MODULE.fullmatch(op)
    if match is None:
        return None
    path, _, name = match["name"].rpartition(".")
    return (path, name, match["rest"]) if path else None


def is_mapping(document: Entry, sections: tuple[str, ...]) -> bool:
    """Whether a YAML document is one of msprobe's mappings. A rule file has ``sections``.

    The first row decides: it must name a tensor, an API, or the path and class of a module.
    """
    node = document.node
    if isinstance(node, yaml.SequenceNode):
        return any(isinstance(row, yaml.MappingNode) for row in node.value)
    if not isinstance(node, yaml.MappingNode):
        return False
    if any(key.value in sections for key, _ in node.value):
        return False
    if not all(isinstance(value, yaml.ScalarNode) for _, value in node.value):
        return _is_layer_mapping(document)
    if not node.value:
        return False
    first_key = node.value[0][0].value
    return _parse_slot(first_key) is not None or _API_OR_MODULE.fullmatch(first_key) is not None


def add_mapping(document: Entry, named_pairs: NamedPairs) -> None:
    """Add the pairs of a mapping file.

    Raises RuleError at the first line that does not fit the file's kind.
    """
    if isinstance(document.node, yaml.SequenceNode):
        _add_apis(document, named_pairs)
        return
    if _is_layer_mapping(document):
        _add_layers(document, named_pairs)
        return
    pairs = document.read_pairs()
    first_name = next(key.read_text() for key in pairs)
    if _parse_slot(first_name) is not None:
        for key, value in pairs.items():
            target_slot = _read_slot(key)
            named_pairs.tensors[target_slot] = _read_slot(value)
        return
    names = named_pairs.kinds if _API.fullmatch(first_name) else named_pairs.modules
    for key, value in pairs.items():
        names[key.read_text()] = value.read_text()


def _add_apis(document: Entry, named_pairs: NamedPairs) -> None:
    for node in document.node.value:
        row = Entry(document.file, node)
        fields = {key.read_text(): value for key, value in row.read_pairs().items()}
        if "ms_api" not in fields or "pt_api" not in fields:
            raise row.make_error("expected a row of an msprobe API mapping, with ms_api and pt_api")
        named_pairs.kinds[fields["ms_api"].read_text()] = fields["pt_api"].read_text()


def _add_layers(document: Entry, named_pairs: NamedPairs) -> None:
    """Add what the modules of each class call the modules in them."""
    for key, value in document.read_pairs().items():
        name = _TOP_LAYER if key.read_text() == _OLD_TOP_LAYER else key.read_text()
        paths = named_pairs.layers.setdefault(name, {})
        for path, reference_path in value.read_pairs().items():
            # text in parentheses is a comment
            paths[path.read_text()] = reference_path.read_text().partition("(")[0]


def _is_layer_mapping(document: Entry) -> bool:
    node = document.node
    if not isinstance(node, yaml.MappingNode):
        return False
    return any(key.value in (_TOP_LAYER, _OLD_TOP_LAYER) for key, _ in node.value)


def _read_slot(entry: Entry) -> Slot:
    slot = _parse_slot(entry.read_text())
    if slot is None:
        raise entry.make_error(
            f"'{entry.read_text()}' is not the name of a tensor, "
            "such as Functional.linear.0.forward.input.0"
        )
    return slot


def _parse_slot(name: str) -> Slot | None:
    """Return the op and the slot that the name of a leaf means, None if it is not such a name."""
    leaf = _LEAF.fullmatch(name)
    if leaf is not None:
        slot_kind = "parameter" if leaf["slot_kind"] == "parameters" else leaf["slot_kind"]
        return leaf["op"], f"{slot_kind}.{leaf['rest']}"
    gradient = _GRADIENT.fullmatch(name)
    if gradient is not None:
        return gradient["op"], f"output.{gradient['rest']}"
    return None
