"""Steps with all the parameters of another module: a copy of the wrong layer, or its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....model.arrays import AnyArray
from ...fault_case import FaultCase
from ...region import Region, StepInput
from .change import Change

#: Modules that are tried in place of one.
_MAX_MODULES = 16


def list_other_modules(case: FaultCase, region: Region) -> Iterator[Change]:
    """Take weight and bias of another module, of the same shapes.

    Where one of them alone is of another module, the value is that of neither.
    """
    for module, (number, own) in _group_parameters(region).items():
        if len(own) < 2:
            continue
        for other_module in _list_other_modules(case, module, own):
            replaced = _load_parameters(case, other_module, own)
            if len(replaced) == len(own):
                yield Change(
                    number,
                    region.steps[number].output,
                    "weight-swapped",
                    f"{' and '.join(own)} of {other_module}",
                    f"has those of {module}",
                    replaced_values=replaced,
                )


def _group_parameters(region: Region) -> dict[str, tuple[int, dict[str, StepInput]]]:
    """Return module -> (first step that reads a parameter of it, last part of a name -> input)."""
    groups: dict[str, tuple[int, dict[str, StepInput]]] = {}
    for number, step in enumerate(region.steps):
        for item in step.inputs:
            if item.is_parameter and item.value >= 0 and "." in item.name:
                module, _, leaf = item.name.rpartition(".")
                groups.setdefault(module, (number, {}))[1][leaf] = item
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
