"""Parameters on several ranks: replicated or sharded, their gradients and their new values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..model.arrays import Ints
from ..model.trace import OPTIMIZER, Trace
from ..readers.call_records import is_in_place
from .replication import find_minority
from .step import MIN_SIZE, Step, generalize
from .violations import InvariantCheck, Violation, merge_violations

#: Share of the parameters that are equal on the ranks of a group of replicas. Below it, single
#: differences are no evidence: experts and shards differ by design.
_MIN_REPLICATED_SHARE = 0.75


@dataclass(frozen=True)
class Parameter:
    """One parameter on one rank."""

    name: str
    tensor: int  #: before the step
    key: int
    is_informative: bool
    shape: tuple[int, ...] | None
    like: tuple[object, ...]  #: module class, slot, shape and extremes
    gradient: int = -1  #: tensor id of the gradient after its last reduction, -1 if unknown
    new_tensor: int = -1  #: after the step, -1 if unknown


def list_parameters(step: Step) -> dict[int, dict[str, Parameter]]:
    """Return the parameters of each rank by name, with their gradients and new values."""
    return {rank: _list_rank_parameters(step, rank) for rank in step.traces}


def _list_rank_parameters(step: Step, rank: int) -> dict[str, Parameter]:
    trace, keys = step.traces[rank], step.keys[rank]
    tensors = trace.tensors
    names = tensors["parameter"].to_numpy()
    is_usable = (names != "") & tensors["trusted"].to_numpy() & (keys >= 0)
    gradients = _find_gradients(step, rank)
    parameters: dict[str, Parameter] = {}
    kinds = trace.ops["kind"].to_numpy()
    for row in np.flatnonzero(is_usable).tolist():
        name = names[row]
        record = tensors.iloc[row]
        if name in parameters or (record["slot_kind"] == "output" and record["update_of"]):
            continue
        leaf = name.rpartition(".")[2]
        like = (kinds[record["op"]], leaf, record["shape"], record["max"], record["min"])
        parameters[name] = Parameter(
            name, row, int(keys[row]), bool(step.informative[rank][row]), record["shape"], like,
            gradients.get(name, -1),
        )  # fmt: skip
    states = [name for name in parameters if name.partition(".")[2] in parameters]
    for name in states:  # MindSpore: moment1.W, exp_avg.W
        del parameters[name]
    new_tensors = _find_new_tensors(step, rank, parameters)
    return {
        name: replace(parameter, new_tensor=new_tensors.get(name, -1))
        for name, parameter in parameters.items()
    }


def _find_gradients(step: Step, rank: int) -> dict[str, int]:
    """Return the gradient of each parameter after its last reduction."""
    trace, keys = step.traces[rank], step.keys[rank]
    reduced = _map_reductions(step, rank)
    n_reduced = 0
    gradients: dict[str, int] = {}
    names = trace.tensors["gradient_of"].to_numpy()
    for row in np.flatnonzero(names != "").tolist():
        tensor = row
        for _ in range(_MAX_REDUCTIONS):
            key = int(keys[tensor])
            if key < 0 or key not in reduced:
                break
            tensor = reduced[key]
            n_reduced += 1
        gradients[names[row]] = tensor
    if n_reduced:
        return gradients
    # without any, reductions have other inputs: gradients in one buffer, or divided before; or they
    # are not recorded, as those of DistributedDataParallel
    is_reduced_elsewhere = rank in step.ranks_with_own_data or _has_late_reductions(step, rank)
    return {} if is_reduced_elsewhere else gradients


def _has_late_reductions(step: Step, rank: int) -> bool:
    """Whether a rank reduces tensors after its last gradient."""
    trace = step.traces[rank]
    owners = trace.tensors["op"].to_numpy()[(trace.tensors["gradient_of"] != "").to_numpy()]
    table = step.exchanges.table
    rows = table[(table["rank"] == rank) & table["kind"].isin(["all_reduce", "reduce_scatter"])]
    if not len(owners):
        return False
    sizes = trace.tensors["size"].to_numpy()
    for op, inputs in zip(rows["op"], rows["inputs"], strict=True):
        if op > owners.max() and inputs and sizes[list(inputs)].max() >= MIN_SIZE:
            return True
    return False


_MAX_REDUCTIONS = 8  #: reductions of one gradient, one after the other


def _map_reductions(step: Step, rank: int) -> dict[int, int]:
    """Return key of an input -> output of the collective, of all reductions of a rank."""
    table = step.exchanges.table
    rows = table[(table["rank"] == rank) & (table["kind"] == "all_reduce")]
    outputs: dict[int, int] = {}
    keys = step.keys[rank]
    for inputs, results in zip(rows["inputs"], rows["outputs"], strict=True):
        if len(inputs) == 1 and len(results) == 1:
            key = int(keys[inputs[0]])
            if key >= 0 and key != int(keys[results[0]]):
                outputs[key] = results[0]
    return outputs


def _find_new_tensors(step: Step, rank: int, parameters: Mapping[str, Parameter]) -> dict[str, int]:
    """Return the value of each parameter after the step.

    Graph dumps name it. In API dumps it is what the last in-place call of the optimizer leaves that
    began with the parameter's value; parameters of equal values are told apart by their order.
    """
    trace, keys = step.traces[rank], step.keys[rank]
    tensors = trace.tensors
    names = tensors["update_of"].to_numpy()
    if (names != "").any():
        return {names[row]: row for row in np.flatnonzero(names != "").tolist()}
    chains = _follow_in_place_calls(trace, keys)
    by_key: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in parameters.items():
        by_key[parameter.key].append(name)
    new_tensors: dict[str, int] = {}
    for key, equal_names in by_key.items():
        ends = chains.get(key, [])
        if len(ends) == len(equal_names):
            new_tensors |= dict(zip(equal_names, ends, strict=True))
        elif len(ends) == 1:  # one tensor under several names: tied weights
            new_tensors |= dict.fromkeys(equal_names, ends[0])
    return new_tensors


def _follow_in_place_calls(trace: Trace, keys: Ints) -> dict[int, list[int]]:
    """Return key of a value before the optimizer -> output tensors that its memory ends with."""
    tensors = trace.tensors
    is_optimizer = (trace.ops["phase"] == OPTIMIZER).to_numpy()
    kinds = trace.ops["kind"].tolist()
    slots: defaultdict[int, dict[str, int]] = defaultdict(dict)
    owners = tensors["op"].to_numpy()
    is_first = tensors["slot"].isin(["input.0", "output.0"]).to_numpy()
    for row in np.flatnonzero(is_first & is_optimizer[owners]).tolist():
        slots[int(owners[row])][tensors["slot"].iat[row]] = row
    #: key of the current value -> [(key of the first value, chain number)]
    chains: list[tuple[int, int]] = []  # first key, last tensor
    current: defaultdict[int, list[int]] = defaultdict(list)
    trusted = tensors["trusted"].to_numpy()
    for op in sorted(slots):
        if not is_in_place(kinds[op]) or len(slots[op]) < 2:
            continue
        before, after = slots[op]["input.0"], slots[op]["output.0"]
        before_key, after_key = int(keys[before]), int(keys[after])
        if before_key < 0 or after_key < 0 or not trusted[before]:
            continue
        if current[before_key]:
            number = current[before_key].pop(0)
        else:
            number = len(chains)
            chains.append((before_key, after))
        chains[number] = (chains[number][0], after)
        current[after_key].append(number)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for first_key, last in chains:
        ends[first_key].append(last)
    return dict(ends)


def check_parameters(step: Step) -> list[InvariantCheck]:
    """Check that parameters are replicated or sharded alike, before and after the step."""
    parameters = list_parameters(step)
    n_roles, role_violations = _check_roles(step, parameters)
    checks = [InvariantCheck("parameter", n_roles, tuple(role_violations))]
    checks.append(_check_results(step, parameters, "gradient"))
    checks.append(_check_results(step, parameters, "new parameter"))
    return checks


def _check_roles(
    step: Step, parameters: Mapping[int, Mapping[str, Parameter]]
) -> tuple[int, list[Violation]]:
    """Check that a parameter is equal on the ranks of a group in all layers or in none."""
    n_checked = 0
    violations: list[Violation] = []
    for group, siblings in step.list_sibling_groups():
        members = tuple(rank for rank in siblings.ranks if rank in group.members)
        rows: list[tuple[str, bool]] = []  # name, whether the values are equal
        for name in parameters[members[0]]:
            values = [parameters[rank].get(name) for rank in members]
            present = [value for value in values if value is not None]
            if len(present) < len(members) or len({value.shape for value in present}) != 1:
                continue
            is_equal = len({value.key for value in present}) == 1
            if not is_equal or present[0].is_informative:
                rows.append((name, is_equal))
        n_checked += len(rows)
        n_equal = Counter(generalize(name) for name, is_equal in rows if is_equal)
        n_unequal = Counter(generalize(name) for name, is_equal in rows if not is_equal)
        pure_roles = [
            role for role in {*n_equal, *n_unequal} if not n_equal[role] * n_unequal[role]
        ]
        n_replicated = sum(1 for role in pure_roles if n_equal[role])
        are_replicas = n_replicated >= _MIN_REPLICATED_SHARE * len(pure_roles) and n_replicated > 1
        for name, is_equal in rows:
            role = generalize(name)
            n_like, n_other = n_equal[role], n_unequal[role]
            if not is_equal:
                n_like, n_other = n_other, n_like
            is_exception = 0 < n_like <= n_other and (n_like < n_other or not is_equal)
            is_single = not is_equal and are_replicas and n_other == 0 and n_like == 1
            if not (is_exception or is_single):
                continue
            keys = np.array([parameters[rank][name].key for rank in members], dtype=np.int64)
            wrong_ranks = members if is_equal else find_minority(members, keys)
            wrong, right = wrong_ranks[-1], members[0]
            if right == wrong:
                right = members[-1]
            recorded = step.describe(wrong, parameters[wrong][name].tensor)
            other = step.describe(right, parameters[right][name].tensor)
            if is_equal:
                text = f"equal on ranks {_format_ranks(members)}, {recorded}"
                evidence = f"the ranks hold different shards of it in {n_other} other layers"
            elif is_single:
                text = recorded
                evidence = f"{other}; {n_replicated} other parameters are equal on these ranks"
            else:
                text = recorded
                evidence = f"{other}; it is equal on these ranks in {n_other} other layers"
            violations.append(
                _make_violation(
                    step, "parameter", wrong_ranks, parameters[wrong][name], text, evidence,
                    str(group),
                )
            )  # fmt: skip
    return n_checked, merge_violations(violations)


def _check_results(
    step: Step, parameters: Mapping[int, Mapping[str, Parameter]], invariant: str
) -> InvariantCheck:
    """Check that what is equal before the step has equal gradients, and is equal after it.

    A value that two ranks share, under whichever names, is one parameter. Values that say nothing,
    such as ones, are evidence only as far as their like: in other layers, or in modules of the same
    class.
    """
    n_checked = 0
    violations: list[tuple[float, Violation]] = []
    unchecked: Counter[str] = Counter()
    for ranks, first, others in _list_replicas(step, parameters):
        instances = [first, *others]
        results = [_get_result(item, invariant) for item in instances]
        if invariant == "gradient" and all(item.new_tensor >= 0 for item in instances):
            continue  # what the step leaves says more
        if any(result < 0 for result in results):
            unchecked["not recorded after the step or the reduction"] += 1
            continue
        keys = np.array(
            [int(step.keys[rank][row]) for rank, row in zip(ranks, results, strict=True)]
        )
        if (keys < 0).any():
            unchecked["nothing recorded of its value"] += 1
            continue
        n_checked += 1
        if (keys == keys[0]).all() or _are_near(step, ranks, results, invariant):
            continue
        wrong_ranks = find_minority(ranks, keys)
        wrong = wrong_ranks[-1]
        position = ranks.index(wrong)
        other = 0 if position else len(ranks) - 1
        what = "the gradient" if invariant == "gradient" else "after the step"
        violation = _make_violation(
            step, invariant, wrong_ranks, instances[position],
            f"{what} has {step.describe(wrong, results[position])}",
            f"{step.describe(ranks[other], results[other])}, and the parameter is equal "
            "before the step",
            _name_group(step, ranks), results[position],
        )  # fmt: skip
        difference = _measure_difference(
            step, (wrong, results[position]), (ranks[other], results[other])
        )
        violations.append((difference, violation))
    # an error in one gradient changes the norm of all, and with it all parameters a little
    violations.sort(key=lambda item: -item[0])
    ordered = [violation for _, violation in violations]
    return InvariantCheck(
        invariant, n_checked, tuple(_count_further(merge_violations(ordered))), dict(unchecked)
    )


def _measure_difference(step: Step, place: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the L2 norm of the difference of two tensors (rank, tensor) relative to one of them.

    Of statistics it is the largest difference of one of them.
    """
    arrays = [step.load(*place), step.load(*other)]
    if arrays[0] is not None and arrays[1] is not None and arrays[0].size == arrays[1].size:
        first, second = (array.astype(np.float64).ravel() for array in arrays if array is not None)
        scale = float(np.linalg.norm(second))
        return float(np.linalg.norm(first - second)) / scale if scale else np.inf
    names = ["max", "min", "mean", "norm"]
    rows = [step.traces[rank].tensors[names].to_numpy()[row] for rank, row in (place, other)]
    scale = float(np.nanmax(np.abs(rows[1])))
    return float(np.nanmax(np.abs(rows[0] - rows[1]))) / scale if scale else np.inf


def _count_further(violations: list[Violation]) -> list[Violation]:
    """Return the first violation of each set of ranks, with the number of the others.

    What is wrong on all of them has one cause. Small sets come first: they say most.
    """
    by_ranks: defaultdict[tuple[int, ...], list[Violation]] = defaultdict(list)
    for violation in violations:
        by_ranks[violation.ranks].append(violation)
    firsts = [replace(items[0], n_further=len(items) - 1) for items in by_ranks.values()]
    return sorted(firsts, key=lambda violation: len(violation.ranks))


def _get_result(parameter: Parameter, invariant: str) -> int:
    return parameter.gradient if invariant == "gradient" else parameter.new_tensor


def _are_near(step: Step, ranks: tuple[int, ...], tensors: list[int], invariant: str) -> bool:
    """Whether gradients differ by no more than rounding. New parameters are equal to the bit."""
    if invariant != "gradient":
        return False
    table = np.array(
        [
            step.traces[rank].tensors[["max", "min", "norm"]].to_numpy()[tensor]
            for rank, tensor in zip(ranks, tensors, strict=True)
        ]
    )
    scale = np.abs(table).max(axis=0)
    scale[:2] = scale[:2].max()
    return bool((table.max(axis=0) - table.min(axis=0) <= _GRADIENT_ROUNDING * scale).all())


#: Relative difference of the statistics of gradients that ranks compute alike, in another order.
_GRADIENT_ROUNDING = 1e-6


def _list_replicas(
    step: Step, parameters: Mapping[int, Mapping[str, Parameter]]
) -> Iterator[tuple[tuple[int, ...], Parameter, list[Parameter]]]:
    """Yield the ranks that hold one parameter, with the parameter on each of them."""
    by_key: defaultdict[int, list[tuple[int, Parameter]]] = defaultdict(list)
    for rank, rank_parameters in parameters.items():
        for parameter in rank_parameters.values():
            if parameter.is_informative:
                by_key[parameter.key].append((rank, parameter))
    for items in by_key.values():
        ranks = tuple(sorted({rank for rank, _ in items}))
        if len(ranks) > 1:
            instances = [next(item for rank, item in items if rank == owner) for owner in ranks]
            yield ranks, instances[0], instances[1:]
    yield from _list_plain_replicas(step, parameters)


def _list_plain_replicas(
    step: Step, parameters: Mapping[int, Mapping[str, Parameter]]
) -> Iterator[tuple[tuple[int, ...], Parameter, list[Parameter]]]:
    """Yield the parameters of ones or zeros whose like the ranks of a group update alike."""
    for group, siblings in step.list_sibling_groups():
        members = tuple(rank for rank in siblings.ranks if rank in group.members)
        n_like: Counter[tuple[object, ...]] = Counter()
        candidates: list[tuple[tuple[object, ...], list[Parameter]]] = []
        for name, parameter in parameters[members[0]].items():
            instances = [parameters[rank].get(name) for rank in members]
            present = [item for item in instances if item is not None]
            is_plain = len(present) == len(members) and not parameter.is_informative
            if not is_plain or len({item.key for item in present}) != 1:
                continue
            results = [max(item.new_tensor, item.gradient) for item in present]
            if min(results) < 0:
                continue
            keys = {int(step.keys[rank][row]) for rank, row in zip(members, results, strict=True)}
            like = parameter.like
            n_like[like] += 1 if len(keys) == 1 else -1
            candidates.append((like, present))
        for like, present in candidates:
            if n_like[like] > 0:
                yield members, present[0], present[1:]


def _name_group(step: Step, ranks: tuple[int, ...]) -> str:
    for group in step.exchanges.groups:
        if set(group.members) == set(ranks) and not group.is_transfer:
            return str(group)
    return f"ranks {_format_ranks(ranks)}"


def _make_violation(
    step: Step,
    invariant: str,
    ranks: tuple[int, ...],
    parameter: Parameter,
    recorded: str,
    expected: str,
    group: str,
    tensor: int = -1,
) -> Violation:
    rank = ranks[-1]
    tensors = step.traces[rank].tensors
    row = tensor if tensor >= 0 else parameter.tensor
    op = step.traces[rank].ops["name"].iat[int(tensors["op"].iat[row])]
    slot = tensors["slot"].iat[row]
    return Violation(
        invariant, step.number, ranks, op, slot, parameter.name, recorded, expected, group
    )


def _format_ranks(ranks: tuple[int, ...]) -> str:
    return ",".join(map(str, ranks))
