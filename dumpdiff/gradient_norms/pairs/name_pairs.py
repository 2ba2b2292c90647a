"""Pairs by name: equal names, names of the same meaning, a fused parameter and its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...optimizers.inputs import strip_wrappers
from ...rulebook import Rules
from ..norms import Norms
from .match import PairEvidence, ParameterPair

_EXPERT_STACK = re.compile(
    r"^(.*\bmlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)


def map_canonical_names(side: Norms, rules: Rules) -> dict[str, int]:
    """Map canonical names to indices; a name that no rule recognizes is kept.

    Of several parameters with one canonical name, the first counts.
    """
    names = [strip_wrappers(name) for name in side.names]
    canonical_names = rules.resolve_parameters(names)
    indices: dict[str, int] = {}
    for index, name in enumerate(names):
        if name:
            indices.setdefault(canonical_names.get(name, name), index)
    return indices


def pair_by_name(
    sides: tuple[Norms, Norms], indices: tuple[dict[str, int], dict[str, int]], rules: Rules
) -> list[ParameterPair]:
    """Pair parameters of the same canonical name, then fused parameters with all their parts.

    ``indices`` are the results of :func:`map_canonical_names` for both sides.
    """
    pairs: list[ParameterPair] = []
    paired: tuple[set[int], set[int]] = set(), set()
    for path, target_index in indices[0].items():
        reference_index = indices[1].get(path)
        if reference_index is None:
            continue
        target_name = strip_wrappers(sides[0].names[target_index])
        reference_name = strip_wrappers(sides[1].names[reference_index])
        evidence: PairEvidence = "name" if target_name == reference_name else "rule"
        pairs.append(ParameterPair(path, (target_index,), (reference_index,), evidence))
        paired[0].add(target_index)
        paired[1].add(reference_index)
    for fused_side, split_side in ((0, 1), (1, 0)):
        unpaired = {
            name: index
            for name, index in indices[split_side].items()
            if index not in paired[split_side]
        }
        for path, index in indices[fused_side].items():
            if index in paired[fused_side]:
                continue
            part_names = _find_parts(path, unpaired, rules)
            if not part_names:
                continue
            parts = tuple(unpaired.pop(name) for name in part_names)
            if fused_side == 0:
                pairs.append(ParameterPair(path, (index,), parts, "parts"))
            else:
                pairs.append(ParameterPair(path, parts, (index,), "parts"))
            paired[fused_side].add(index)
            paired[split_side].update(parts)
    return pairs


def _find_parts(path: str, unpaired: Mapping[str, int], rules: Rules) -> tuple[str, ...]:
    """Return names of the other side that together hold what ``path`` holds; () if none do."""
    for candidate_names in (*rules.split_path(path), _list_experts(path, unpaired)):
        part_names: list[str] = []
        for name in candidate_names:
            names = (name,) if name in unpaired else _find_parts(name, unpaired, rules)
            if not names:
                break
            part_names += names
        else:
            if part_names:
                return tuple(part_names)
    return ()


def _list_experts(path: str, unpaired: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the single experts of a stack; () if ``path`` is no stack of experts."""
    match = _EXPERT_STACK.match(path)
    if match is None:
        return ()
    prefix, projection, leaf = match.groups()
    expert_name = re.compile(re.escape(prefix) + r"(\d+)\.")
    expert_matches = [expert_name.match(name) for name in unpaired]
    numbers = sorted({int(match[1]) for match in expert_matches if match is not None})
    return tuple(f"{prefix}{number}.{projection}.{leaf}" for number in numbers)
