"""Pair parameters by name: one with one, or a fused parameter with its components."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..model.arrays import AnyArray
from ..rulebook import Rules
from .family_layouts import has_transposed_experts, is_stored_transposed
from .matrix import Matrix, concatenate_rows
from .whole_model import Tensor, WholeModel

_STACKED_EXPERTS = re.compile(
    r"^(.*\bmlp\.experts\.)(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)
_SINGLE_EXPERT = re.compile(
    r"^(.*\bmlp\.experts\.)(\d+)\.(gate_up_proj|gate_proj|up_proj|down_proj)\.(weight|bias)$"
)
_STATES = re.compile(
    r"^(exp_avg|exp_avg_sq|momentum|optimizer)\."
    r"|(^|\.)(rotary_emb\.inv_freq|inv_freq|attn\.bias|attn\.masked_bias)$"
    r"|_extra_state|(^|\.)rotary_pos_emb\."
)
_COUNTERS = re.compile(
    r"^(global_step|epoch_num|step_num|epoch|step|learning_rate|loss_scale|scale_sense"
    r"|current_iterator_step|last_overflow_iterator_step|beta[12]_power|cur_step|append_epoch)$"
)
_LAYER_PATH = re.compile(r"^((?:\w+\.)*?layers\.\d+)\.")


@dataclass(frozen=True)
class Member:
    """A parameter of one side, or one expert of a stack, as a matrix of [out, in]."""

    name: str
    path: str  #: canonical name
    matrix: Matrix
    transposed: bool = False  #: it is stored as [in, out]
    expert: int | None = None  #: its index in a stack

    @property
    def label(self) -> str:
        """The name, with the index in a stack."""
        return self.name if self.expert is None else f"{self.name}[{self.expert}]"


@dataclass(frozen=True)
class Group:
    """Members with the same contents; one side may hold the components of a fused parameter."""

    target: tuple[Member, ...]
    reference: tuple[Member, ...]
    evidence: str  #: name, rule, value

    @property
    def fused(self) -> str:
        """Which side holds the fused parameter: 'target', 'reference', or '' for one and one."""
        if len(self.target) == len(self.reference):
            return ""
        return "target" if len(self.target) == 1 else "reference"

    @property
    def components(self) -> tuple[Member, ...]:
        """The members of the side that has more."""
        return self.reference if len(self.reference) >= len(self.target) else self.target

    @property
    def path(self) -> str:
        """Canonical name of the fused parameter, or of the only one."""
        members = self.target if len(self.target) <= len(self.reference) else self.reference
        return members[0].path


def join_members(members: Iterable[Member]) -> Matrix:
    """Concatenate the rows of the members' matrices."""
    return concatenate_rows([member.matrix for member in members])


def count_rows(members: Iterable[Member]) -> list[int]:
    """Return the number of rows of each member."""
    return [int(member.matrix.shape[0]) for member in members]


def group_by_name(
    target: WholeModel, reference: WholeModel
) -> tuple[list[Group], list[Member], list[Member]]:
    """Pair members by name, and return the groups and the unpaired members of target and reference.

    Optimizer states and counters are ignored.
    """
    target_members = collect_members(target, reference)
    reference_members = collect_members(reference, target)
    target_members = _drop_only_tower(target_members, reference_members)
    reference_members = _drop_only_tower(reference_members, target_members)
    groups: list[Group] = []
    for path in list(target_members):
        if path in reference_members:
            member, other = target_members.pop(path), reference_members.pop(path)
            evidence = "name" if member.name == other.name else "rule"
            groups.append(Group((member,), (other,), evidence))
    for member, components in _match_fused(target_members, reference_members, target.rules):
        groups.append(Group((member,), components, "rule"))
    for member, components in _match_fused(reference_members, target_members, target.rules):
        groups.append(Group(components, (member,), "rule"))
    return groups, list(target_members.values()), list(reference_members.values())


def _drop_only_tower(members: dict[str, Member], others: dict[str, Member]) -> dict[str, Member]:
    """Return the members without the prefix of a tower that all layers and no other side have.

    A prefix tells towers apart: a model that is only one tower may have it or not.
    """
    towers = _list_towers(members)
    if len(towers) != 1 or towers == {""} or _list_towers(others) != {""}:
        return members
    tower = towers.pop()
    renamed = {}
    for member in members.values():
        path = member.path.removeprefix(tower)
        renamed[path] = replace(member, path=path)
    return renamed if len(renamed) == len(members) else members


def _list_towers(paths: Iterable[str]) -> set[str]:
    """Return what precedes ``layers.N`` in canonical names, each with its last dot."""
    layers = (_LAYER_PATH.match(path) for path in paths)
    return {match[1][: match[1].index("layers.")] for match in layers if match is not None}


def _match_fused(
    fused_members: dict[str, Member], component_members: dict[str, Member], rules: Rules
) -> list[tuple[Member, tuple[Member, ...]]]:
    """Return each member that is the fusion of several ``component_members``, and these.

    Removes them from both dicts.
    """
    matches = []
    for path, member in list(fused_members.items()):
        component_paths = _find_components(path, component_members, rules)
        components = tuple(component_members[component_path] for component_path in component_paths)
        size = sum(component.matrix.size for component in components)
        if len(components) > 1 and size == member.matrix.size:
            matches.append((member, components))
            del fused_members[path]
            for component_path in component_paths:
                del component_members[component_path]
    return matches


def _find_components(path: str, members: Mapping[str, Member], rules: Rules) -> tuple[str, ...]:
    """Return the names of members that together are ``path``; () if some are missing."""
    for component_paths in rules.split_path(path):
        names: list[str] = []
        for component_path in component_paths:
            if component_path in members:
                component_names: tuple[str, ...] = (component_path,)
            else:
                component_names = _find_components(component_path, members, rules)
            if not component_names:
                break
            names += component_names
        else:
            return tuple(names)
    return ()


def collect_members(model: WholeModel, other: WholeModel) -> dict[str, Member]:
    """Return the members of a model by canonical name; stacked experts are split if possible."""
    unique_paths = {name: path for path, name in model.canonical.items()}
    members: dict[str, Member] = {}
    for name, tensor in model.tensors.items():
        path = unique_paths.get(name, name)
        if is_state(path, tensor):
            continue
        experts = _split_stack(model, other, tensor, path)
        for expert in experts:
            members[expert.path] = expert
        if not experts:
            transposed = len(tensor.shape) == 2 and is_stored_transposed(model.naming, path)
            matrix = tensor.matrix.T if transposed else tensor.matrix
            members[path] = Member(name, path, matrix, transposed)
    return members


def _split_stack(model: WholeModel, other: WholeModel, tensor: Tensor, path: str) -> list[Member]:
    """Return the experts of a stack as members; none if it is no stack, or if shapes do not fit."""
    match = _STACKED_EXPERTS.match(path)
    if match is None:
        return []
    stem, module, leaf = match.groups()
    count = _count_experts(model, other, stem)
    if not count or not tensor.stack or count % len(tensor.stack):
        return []
    members: list[Member] = []
    for raw in tensor.stack:
        stack = _reshape_slice(raw, count // len(tensor.stack), module, leaf, model.hidden)
        if stack is None:
            return []
        transposed = leaf != "bias" and _is_transposed(model, stack.shape[1:], path)
        for expert_raw in stack:
            expert = len(members)
            matrix = Matrix.from_array(expert_raw.T if transposed else expert_raw, tensor.dtype)
            expert_path = f"{stem}{expert}.{module}.{leaf}"
            members.append(Member(tensor.name, expert_path, matrix, transposed, expert))
    return members


def _reshape_slice(
    raw: AnyArray, count: int, module: str, leaf: str, hidden: int
) -> AnyArray | None:
    """Return a slice of a stack with an axis of ``count`` experts; None if its shape does not fit.

    The axis is followed by one axis for a bias, by two for a weight.
    """
    if raw.size % count:
        return None
    return raw.reshape(count, -1) if leaf == "bias" else _reshape_stack(raw, count, module, hidden)


def _count_experts(model: WholeModel, other: WholeModel, stem: str) -> int:
    """Return the number of experts of a layer; 0 if unknown.

    It is taken from single experts on either side, else from a stack with three axes, else from
    settings.
    """
    return (
        _count_single_experts(other, stem)
        or _count_single_experts(model, stem)
        or _get_stack_length(model, stem)
        or _get_stack_length(other, stem)
        or model.config.experts
        or other.config.experts
        or 0
    )


def _count_single_experts(model: WholeModel, stem: str) -> int:
    """Return the number of experts that parameters of single experts imply, 0 if none do.

    Experts are numbered from 0, so it is the largest number plus one.
    """
    count = 0
    for path in model.canonical:
        match = _SINGLE_EXPERT.match(path)
        if match is not None and match[1] == stem:
            count = max(count, int(match[2]) + 1)
    return count


def _get_stack_length(model: WholeModel, stem: str) -> int:
    """Return the length of a stack of experts with three axes, 0 if there is none."""
    for path, name in model.canonical.items():
        match = _STACKED_EXPERTS.match(path)
        shape = model.tensors[name].shape
        if match is not None and match[1] == stem and len(shape) == 3:
            return shape[0]
    return 0


def _reshape_stack(raw: AnyArray, count: int, module: str, hidden: int) -> AnyArray | None:
    """Return a stack of experts with three axes; None if its shape does not fit.

    A stack has three axes, or its first two axes are merged. ``weight1`` of GroupedMLP is declared
    as [hidden, experts * 2 * intermediate], but its bytes are those of [experts, hidden,
    2 * intermediate] (megatron/core/transformer/moe/experts.py).
    """
    if len(raw.shape) == 3 and raw.shape[0] == count:
        return raw
    if len(raw.shape) != 2:
        return None
    n_rows = raw.shape[0] // count
    has_hidden_rows = raw.shape[0] in (hidden, count * hidden)
    if module != "down_proj" and has_hidden_rows:
        n_rows = hidden
    if not n_rows or raw.size % (count * n_rows):
        return None
    return raw.reshape(count, n_rows, -1)


def _is_transposed(model: WholeModel, shape: tuple[int, ...], path: str) -> bool:
    """Whether the experts of a stack are stored as [in, out]; ``path`` is its canonical name.

    The axis whose length is the hidden size of the model is "in", or "out" for down_proj. If both
    axes or none have that length, the family decides.
    """
    is_first_hidden, is_last_hidden = shape[0] == model.hidden, shape[1] == model.hidden
    if is_first_hidden == is_last_hidden:
        return has_transposed_experts(model.naming, path)
    return is_last_hidden if ".down_proj." in path else is_first_hidden


def is_state(path: str, tensor: Tensor) -> bool:
    """Whether a tensor is an optimizer state, a counter or a table, and not a weight."""
    is_counter = _COUNTERS.match(path) is not None and tensor.size <= 1
    return is_counter or _STATES.search(path) is not None


def get_layer_path(path: str) -> str:
    """Return the layer of a canonical name, '' if there is none."""
    match = _LAYER_PATH.match(path)
    return match[1] if match else ""
