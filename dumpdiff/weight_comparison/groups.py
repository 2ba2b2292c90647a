"""Which parameters of one side hold what which of the other do: one and one, or a fused one and its parts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..rulebook import Rules
from .family_layouts import has_transposed_experts, is_stored_transposed
from .matrix import Matrix, stack_rows
from .whole_model import WholeModel, Tensor

_EXPERTS = re.compile(
    r"^(.*\bmlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)
_ONE_EXPERT = re.compile(
    r"^(.*\bmlp\.experts\.)(\d+)\.(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)


@dataclass(frozen=True)
class Member:
    """A parameter of one side, or one expert of a stacked one, as a matrix of [out, in]."""

    name: str
    path: str  #: canonical
    matrix: Matrix
    transposed: bool = False  #: it is stored as [in, out]
    expert: int | None = None  #: of a stack

    @property
    def label(self) -> str:
        """The name, and which of a stack."""
        return self.name if self.expert is None else f"{self.name}[{self.expert}]"


@dataclass(frozen=True)
class Group:
    """Members of both sides that together hold the same; the reference's, or the target's, may be the parts of one."""

    target: tuple[Member, ...]
    reference: tuple[Member, ...]
    evidence: str  #: name, rule, value

    @property
    def fused(self) -> str:
        """Which side holds in one what the other holds in parts: 'target', 'reference' or ''."""
        if len(self.target) == len(self.reference):
            return ""
        return "target" if len(self.target) == 1 else "reference"

    @property
    def parts(self) -> tuple[Member, ...]:
        """The members of the side that has more."""
        return self.reference if len(self.reference) >= len(self.target) else self.target

    @property
    def path(self) -> str:
        """Canonical name of the whole."""
        return (self.target if len(self.target) <= len(self.reference) else self.reference)[0].path


def join_members(members: Iterable[Member]) -> Matrix:
    """The matrices of members, one below the other."""
    return stack_rows([member.matrix for member in members])


def group_by_name(target: WholeModel, reference: WholeModel) -> tuple[list[Group], list[Member], list[Member]]:
    """What belongs together by name, and what is left over on either side (optimizer states and counters are not)."""
    found: list[Group] = []
    named = collect_members(target, reference), collect_members(reference, target)
    taken: tuple[set[str], set[str]] = set(), set()
    for path, member in named[0].items():
        other = named[1].get(path)
        if other is not None:
            same = member.name == other.name
            found.append(Group((member,), (other,), "name" if same else "rule"))
            taken[0].add(path)
            taken[1].add(path)
    for one, many in ((0, 1), (1, 0)):
        for path, member in named[one].items():
            if path in taken[one]:
                continue
            free = {key: value for key, value in named[many].items() if key not in taken[many]}
            names = _split(path, free, target.rules)
            parts = tuple(free[name] for name in names)
            if len(parts) > 1 and sum(p.matrix.size for p in parts) == member.matrix.size:
                taken[one].add(path)
                taken[many].update(names)
                found.append(
                    Group((member,), parts, "rule") if one == 0 else Group(parts, (member,), "rule")
                )
    left = [
        [member for path, member in named[side].items() if path not in taken[side]]
        for side in (0, 1)
    ]
    return found, left[0], left[1]


def _split(path: str, other: dict[str, Member], rules: Rules) -> tuple[str, ...]:
    """The names of the other side that together are ``path``; () if there are none."""
    for names in rules.split_path(path):
        parts = [(name,) if name in other else _split(name, other, rules) for name in names]
        if all(parts):
            return tuple(name for part in parts for name in part)
    return ()


def collect_members(side: WholeModel, other: WholeModel) -> dict[str, Member]:
    """Canonical name -> member; stacked experts one by one where the other side has them so, or in other shapes."""
    unique = {name: path for path, name in side.canonical.items()}
    found: dict[str, Member] = {}
    for name, tensor in side.tensors.items():
        path = unique.get(name, name)
        if is_state(path, tensor):
            continue
        stacked = _EXPERTS.match(path)
        count = _experts(side, other, stacked[1]) if stacked else 0
        if (
            stacked
            and count
            and (slices := list(_slices(side, tensor, stacked[2], stacked[3], count)))
        ):
            for expert, (matrix, transposed) in enumerate(slices):
                key = f"{stacked[1]}{expert}.{stacked[2]}.{stacked[3]}"
                found[key] = Member(name, key, matrix, transposed, expert)
            continue
        transposed = len(tensor.shape) == 2 and is_stored_transposed(side.family, name)
        found[path] = Member(
            name, path, tensor.matrix.T if transposed else tensor.matrix, transposed
        )
    return found


def _experts(side: WholeModel, other: WholeModel, stem: str) -> int:
    """How many experts a layer has: as named one by one on either side, stacked in three axes, or in the settings."""
    for one in (other, side):
        numbered = [
            int(m[2]) for path in one.canonical if (m := _ONE_EXPERT.match(path)) and m[1] == stem
        ]
        if numbered:
            return max(numbered) + 1
    for one in (side, other):
        for path, name in one.canonical.items():
            if (m := _EXPERTS.match(path)) and m[1] == stem and len(one.tensors[name].shape) == 3:
                return one.tensors[name].shape[0]
    return side.config.experts or other.config.experts or 0


def _slices(
    side: WholeModel, tensor: Tensor, module: str, leaf: str, count: int
) -> Iterator[tuple[Matrix, bool]]:
    """The experts of a stack, each as [out, in] and whether it is stored as [in, out]; none if shapes do not fit.

    Stacks have three axes, or the first two joined; GroupedMLP's ``weight1`` has [H, E * 2I] for the bytes of
    [E, H, 2I] (megatron/core/transformer/moe/experts.py).
    """
    raw = tensor.stack
    if raw is None or raw.size % count:
        return
    if leaf == "bias":
        for part in raw.reshape(count, -1):
            yield Matrix.from_array(part, tensor.dtype), False
        return
    if len(raw.shape) == 3 and raw.shape[0] == count:
        cube = raw
    elif len(raw.shape) == 2:
        hidden = side.hidden
        rows = (
            hidden
            if raw.shape[0] in (hidden, count * hidden) and module != "down_proj"
            else raw.shape[0] // count
        )
        if not rows or raw.size % (count * rows):
            return
        cube = raw.reshape(count, rows, -1)
    else:
        return
    transposed = _is_transposed(side, cube.shape[1:], module)
    for part in cube:
        yield Matrix.from_array(part.T if transposed else part, tensor.dtype), transposed


def _is_transposed(side: WholeModel, shape: tuple[int, ...], module: str) -> bool:
    """Whether experts lie as [in, out]: by which axis is as wide as the model, else by what the family does."""
    hidden = side.hidden
    inside = [axis for axis in (0, 1) if shape[axis] == hidden]
    if len(inside) == 1:
        return inside[0] == (0 if module != "down_proj" else 1)
    return has_transposed_experts(side.family)


_STATES = re.compile(
    r"^(exp_avg|exp_avg_sq|momentum|optimizer)\.|(^|\.)(rotary_emb\.inv_freq|inv_freq|attn\.bias|attn\.masked_bias)$"
    r"|_extra_state|(^|\.)rotary_pos_emb\."
)
_COUNTERS = re.compile(
    r"^(global_step|epoch_num|step_num|epoch|step|learning_rate|loss_scale|scale_sense|current_iterator_step"
    r"|last_overflow_iterator_step|beta[12]_power|cur_step|append_epoch)$"
)


def is_state(path: str, tensor: Tensor) -> bool:
    """Whether a tensor is the state of an optimizer, a counter or a table, and no weight."""
    return _STATES.search(path) is not None or (
        _COUNTERS.match(path) is not None and tensor.size <= 1
    )


def get_layer_path(path: str) -> str:
    """The layer that a canonical name is in, '' if none."""
    found = re.match(r"^((?:\w+\.)*?layers\.\d+)\.", path)
    return found[1] if found else ""


def by_shape(members: Iterable[Member]) -> dict[tuple[int, int], list[Member]]:
    """Members by the shape of their matrices."""
    found: dict[tuple[int, int], list[Member]] = defaultdict(list)
    for member in members:
        found[member.matrix.shape].append(member)
    return found


def count_rows(members: Iterable[Member]) -> list[int]:
    """Rows of each."""
    return [int(np.int64(member.matrix.shape[0])) for member in members]
