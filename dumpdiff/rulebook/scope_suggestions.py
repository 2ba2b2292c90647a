"""Which scope patterns would give two names of one parameter the same canonical name."""

from __future__ import annotations

import re

from . import Rules
from .names import split_segments

#: One line of the section ``scopes``: (where: ('block', 'modules') or ('leaves',) say; canonical path; pattern).
Line = tuple[tuple[str, ...], str, str]

_LEAVES = ("weight", "bias")  # as most frameworks spell them
_BLOCK = re.compile(r"layers\.(\d+)\.(.+)")


def infer_scope_lines(target: str, reference: str, rules: Rules) -> tuple[Line, ...]:
    """What is missing for both names to become one; () if nothing is, or if it cannot be told.

    The side that more rules know keeps its canonical name, the reference's if both are known alike.
    """
    paths = rules.resolve_parameter(target), rules.resolve_parameter(reference)
    known, unknown = (0, 1) if _known(target, rules) > _known(reference, rules) else (1, 0)
    module, _, leaf = paths[known].rpartition(".")
    name = split_segments((target, reference)[unknown])
    if paths[0] == paths[1] or not module or len(name) < 2:
        return ()
    leaves: tuple[Line, ...] = ((("leaves",), leaf, name[-1]),)
    if rules.resolve_parameter(f"layers.0.mlp.{name[-1]}") == f"layers.0.mlp.{leaf}":
        leaves = ()
    if paths[unknown].rpartition(".")[0] == module:
        return leaves
    lines: tuple[Line, ...] = ()
    if (block := _BLOCK.fullmatch(module)) is not None:
        lines = _below_a_block(
            name[:-1], block[1], block[2], begins=not _BLOCK.fullmatch(paths[unknown])
        )
    elif not any(map(str.isdigit, module.split("."))):
        lines = ((("model", "modules"), module, ".".join(name[:-1])),)
    return (*lines, *leaves) if lines else ()


def _known(name: str, rules: Rules) -> int:
    """How many rules had a say in a parameter's name, and whether its last segment is a usual one."""
    fired = next(
        len(reading.rules) for reading in rules.explain_name(name) if reading.reading == "parameter"
    )
    return fired + (rules.resolve_parameter(name).rpartition(".")[2] in _LEAVES)


def _below_a_block(
    module: tuple[str, ...], number: str, path: str, begins: bool
) -> tuple[Line, ...]:
    """Lines that make a module of block ``number`` the canonical ``path``; with ``begins`` also where blocks begin."""
    if number not in module[1:-1]:
        return ()
    at = module.index(number, 1)
    below = module[at + 1 :]
    numbers = [segment for segment in path.split(".") if segment.isdigit()]
    if numbers != [segment for segment in below if segment.isdigit()] or len(numbers) > 1:
        return ()  # other experts, or none
    canonical, pattern = (
        ".".join("{expert}" if segment.isdigit() else segment for segment in segments)
        for segments in (path.split("."), below)
    )
    block: tuple[Line, ...] = (
        ((("layers",), "layers.{layer}", f"{module[at - 1]}.{{layer}}"),) if begins else ()
    )
    return (*block, (("block", "modules"), canonical, pattern))
