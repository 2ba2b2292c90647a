"""Steps with all the parameters of another module: a copy of the wrong layer, or its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations

from ....model.arrays import AnyArray
from ....model.formatting import format_names
from ...fault_case import FaultCase
from ...region import Region, StepInput
from .change import Change

#: Modules that are tried in place of one.
_MAX_MODULES = 16
#: Parameters that a sentence lists.
_N_LISTED = 4


def list_other_modules(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take all parameters of another module, of the same names and shapes.

    Where only one of them is of another module, the value is that of neither.
    """
    for module, (number, own) in _group_parameters(region).items():
        for other_module in _list_other_modules(case, module, own):
            replaced = _load_parameters(case, other_module, own)
            if len(replaced) == len(own):
                yield Change(
                    number,
                    region.steps[number].output,
                    "weight-swapped",
                    f"{format_names(list(own), _N_LISTED)} of {other_module}",
                    f"has those of {module}",
                    replaced_values=replaced,
                )


def list_exchanged_modules(_case: FaultCase, region: Region) -> Iterator[Change]:
    """Exchange all parameters of two modules, of the same names and shapes."""
    for (module, (number, own)), (other_module, (_, other)) in combinations(
        _group_parameters(region).items(), 2
    ):
        shapes, other_shapes = (
            {leaf: item.array.shape for leaf, item in members.items()} for members in (own, other)
        )
        if shapes != other_shapes:
            continue
        pairs = [(own[leaf], other[leaf]) for leaf in own]
        pairs += [(second, first) for first, second in pairs]
        yield Change(
            number,
            region.steps[number].output,
            "weight-swapped",
            f"{format_names(list(own), _N_LISTED)} of {module} and of {other_module} exchanged",
            replaced_values={item.value: source.array for item, source in pairs},
        )


def _group_parameters(region: Region) -> dict[str, tuple[int, dict[str, StepInput]]]:
    """Return module -> (first step that reads a parameter of it, rest of a name -> input).

    Those with most parameters come first; of those with the same ones, only the innermost counts.
    """
    parameters: dict[str, tuple[int, StepInput]] = {}
    for number, step in enumerate(region.steps):
        for item in step.inputs:
            if item.is_parameter and item.value >= 0:
                parameters.setdefault(item.name, (number, item))
    members: defaultdict[str, list[str]] = defaultdict(list)
    for name in parameters:
        parts = name.split(".")
        for n_parts in range(1, len(parts)):
            members[".".join(parts[:n_parts])].append(name)
    modules = {tuple(names): module for module, names in sorted(members.items())}
    groups: dict[str, tuple[int, dict[str, StepInput]]] = {}
    for names, module in sorted(modules.items(), key=lambda entry: -len(entry[0])):
        if len(names) > 1:
            own = {name[len(module) + 1 :]: parameters[name][1] for name in names}
            groups[module] = min(parameters[name][0] for name in names), own
    return groups


def _list_other_modules(case: FaultCase, module: str, own: Mapping[str, StepInput]) -> list[str]:
    """Return other modules with a parameter of the name and shape of the largest of one."""
    leaf, largest = max(own.items(), key=lambda entry: entry[1].array.size)
    names = [
        operand.name.removesuffix(f".{leaf}")
        for operand in case.find_parameters(largest.array.size)
        if operand.shape == largest.array.shape and operand.name.endswith(f".{leaf}")
    ]
    return [name for name in names if name != module][:_MAX_MODULES]


def _load_parameters(
    case: FaultCase, module: str, own: Mapping[str, StepInput]
) -> dict[int, AnyArray]:
    """Return value class -> the parameter of another module that takes its place."""
    return {
        item.value: operand.array
        for leaf, item in own.items()
        for operand in case.find_parameters(item.array.size)
        if operand.name == f"{module}.{leaf}" and operand.shape == item.array.shape
    }
