"""The answer about a run: the findings of its tasks joined, ordered and traced to their origin."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..communication.collectives import TRANSFERS
from ..model.finding import Finding
from ..model.formatting import format_names, format_number
from ..model.run_result import (
    UPDATE,
    CollectiveState,
    Reception,
    RunFinding,
    RunResult,
    TaskResult,
    format_place,
)
from ..model.verdict import AlignmentVerdict
from .coordinates import describe_group, find_coordinates
from .receptions import (
    UNSEEN,
    FindingKey,
    Source,
    StepCommunication,
    find_sources,
    follow_to_origin,
)
from .steps import (
    UpdateGap,
    compute_inherited_error,
    find_earlier_task,
    find_update_gap,
    has_diverged,
    list_inherited_findings,
)

_MAX_NAMES = 3  #: parameters that the title of a finding names
#: What tells the same op of two ranks apart in its name: numbers of calls, ops and repetitions.
_NUMBERS = re.compile(r"-op\d+|#\d+|(?<=\.)\d+(?=\.|$)")


@dataclass
class _Group:
    """The same finding on several ranks of one step."""

    step: int | None
    #: rank (-1 if unknown) -> its task, and the number of the finding there
    places: dict[int, tuple[TaskResult, int]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    received: list[tuple[int, Source]] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    gap: UpdateGap | None = None
    #: rank that gave a wrong value although it has no finding, and how another rank received it
    unseen: tuple[int, Source] | None = None

    @property
    def first(self) -> tuple[TaskResult, int]:
        """The task of the first rank, and the number of the finding there."""
        return self.places[min(self.places)]

    @property
    def finding(self) -> Finding:
        """The finding of the first rank."""
        task, index = self.first
        return task.findings[index]


def locate_run(
    target: str,
    reference: str,
    tasks: Sequence[TaskResult],
    *,
    unread: tuple[str, ...] = (),
    unpaired: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> RunResult:
    """Return the answer about the run whose tasks were compared.

    It is 'diverged' if a task is; 'aligned' only if every task is and no rank lacks a partner
    (``unpaired``); else 'inconclusive'. A finding of several ranks is one finding. One that a rank
    received through a collective belongs to the finding of the rank that it came from. Weights
    that differ when a step begins belong to the step before.
    """
    ordered_tasks = sorted(tasks, key=lambda task: (_order(task.step), _order(task.rank)))
    coordinates = find_coordinates(ordered_tasks)
    groups: list[_Group] = []
    notes: list[str] = []
    for step in dict.fromkeys(task.step for task in ordered_tasks):
        step_tasks = [task for task in ordered_tasks if task.step == step]
        groups += _group_step(step, step_tasks, ordered_tasks)
        notes += _describe_inheritance(step, step_tasks)
    groups = _join_steps(groups)
    groups.sort(key=_rank_group)
    findings = [_build_finding(group, coordinates) for group in groups]
    findings = [replace(finding, number=number) for number, finding in enumerate(findings, 1)]
    verdict, reasons = _decide(ordered_tasks, unpaired)
    return RunResult(
        target=target,
        reference=reference,
        verdict=verdict,
        findings=tuple(findings),
        tasks=tuple(ordered_tasks),
        coordinates=coordinates,
        unread=unread,
        unpaired=unpaired,
        notes=(*reasons, *notes),
        details=dict(details or {}),
    )


def _order(number: int | None) -> int:
    return -1 if number is None else number


def _decide(
    tasks: Sequence[TaskResult], unpaired: Sequence[str]
) -> tuple[AlignmentVerdict, list[str]]:
    """Return the verdict of the run, and why it is no better."""
    reasons = list(unpaired)
    if unpaired:
        reasons.append("what has no partner was not compared")
    reasons += _describe_tasks(tasks, "problem")
    reasons += _describe_tasks(tasks, "inconclusive")
    if any(task.verdict == "diverged" for task in tasks):
        return "diverged", reasons
    if reasons or not tasks:
        return "inconclusive", reasons
    return "aligned", []


def _describe_tasks(tasks: Sequence[TaskResult], why: str) -> list[str]:
    """Return a sentence for all tasks that could not be compared, or that are inconclusive."""
    ranks_by_reason: defaultdict[tuple[int | None, str], list[int | None]] = defaultdict(list)
    for task in tasks:
        if why == "problem" and task.problem:
            reason = f"could not be compared: {task.problem}"
        elif why == "inconclusive" and task.verdict == "inconclusive" and not task.problem:
            reason = task.headline
        else:
            continue
        ranks_by_reason[task.step, reason].append(task.rank)
    return [
        f"{format_place(tuple(ranks), (step,))}: {reason}"
        for (step, reason), ranks in ranks_by_reason.items()
    ]


def _group_step(
    step: int | None,
    tasks: Sequence[TaskResult],
    all_tasks: Sequence[TaskResult],
) -> list[_Group]:
    """Return the findings of one step, each with its ranks and with those that received it."""
    communication = StepCommunication(tasks)
    gaps, inherited_keys = _find_inherited(tasks, all_tasks)
    keys: list[FindingKey] = []
    for task in tasks:
        rank = _order(task.rank)
        keys += [(rank, index) for index in range(len(task.findings))]
    keys = [key for key in keys if key not in inherited_keys]
    sources = find_sources(communication, [key for key in keys if key[0] in communication.tasks])
    origins: dict[FindingKey, FindingKey] = {}
    for key in sources:
        origin = follow_to_origin(key, sources, communication)
        if origin is not None:
            origins[key] = origin
    task_of_rank = {_order(task.rank): task for task in tasks}
    groups: dict[tuple[Any, ...], _Group] = {}
    group_of_key: dict[FindingKey, _Group] = {}
    counts: Counter[tuple[Any, ...]] = Counter()
    for key in keys:
        if key in origins:
            continue
        rank, index = key
        finding = task_of_rank[rank].findings[index]
        signature = _compute_signature(finding)
        group_key = (*signature, counts[rank, signature])
        counts[rank, signature] += 1
        group = groups.setdefault(group_key, _Group(step))
        group.places[rank] = (task_of_rank[rank], index)
        if rank in communication.tasks:
            group.suspects.update(communication.find_suspects(rank, finding))
        group_of_key[key] = group
    for key, origin in origins.items():
        if origin[1] == UNSEEN and origin not in group_of_key:
            unseen_group = _Group(step, unseen=(origin[0], sources[key]))
            unseen_group.places[key[0]] = (task_of_rank[key[0]], key[1])
            groups["unseen", origin] = group_of_key[origin] = unseen_group
        if origin in group_of_key:
            group_of_key[origin].received.append((key[0], sources[key]))
    return [*_group_gaps(gaps), *groups.values()]


def _find_inherited(
    tasks: Sequence[TaskResult], all_tasks: Sequence[TaskResult]
) -> tuple[list[UpdateGap], set[FindingKey]]:
    """Return the updates that nothing explains, and the findings that the step before explains."""
    gaps = []
    inherited_keys: set[FindingKey] = set()
    inherited_error = compute_inherited_error(tasks)
    for task in tasks:
        earlier_task = find_earlier_task(task, all_tasks)
        if earlier_task is None or task.problem:
            continue
        gap = find_update_gap(earlier_task, task)
        if gap is not None:
            gaps.append(gap)
        elif not has_diverged(earlier_task):
            continue
        inherited = list_inherited_findings(task, inherited_error)
        inherited_keys.update((_order(task.rank), index) for index in inherited)
    return gaps, inherited_keys


def _describe_inheritance(step: int | None, tasks: Sequence[TaskResult]) -> list[str]:
    """Return a sentence if the weights of a step were allowed to differ."""
    errors = [task.inheritance.largest_error for task in tasks if task.inheritance is not None]
    if not errors:
        return []
    return [
        f"step {step}: when it begins, weights differ by up to {format_number(max(errors))}, which"
        " is no more than the noise that the step before left, and was allowed"
    ]


def _compute_signature(finding: Finding) -> tuple[Any, ...]:
    """Return what the same finding has in common on sibling ranks."""
    ops = tuple(_NUMBERS.sub("", op) for op in finding.target_ops[-1:])
    return (finding.kind, finding.phase, finding.scope, ops, finding.slots)


def _group_gaps(gaps: Sequence[UpdateGap]) -> list[_Group]:
    """Return the updates of a step that diverge as one finding of all their ranks."""
    group: _Group | None = None
    for gap in gaps:
        parameters = [
            index for index, finding in enumerate(gap.later.findings) if finding.kind == "parameter"
        ]
        if not parameters:
            continue
        if group is None:
            group = _Group(gap.earlier.step, gap=gap)
        group.places[_order(gap.later.rank)] = (gap.later, parameters[0])
    return [] if group is None else [group]


def _join_steps(groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups; one that a later step repeats is one group with several steps."""
    joined: dict[tuple[Any, ...], _Group] = {}
    for group in groups:
        key: tuple[Any, ...] = (UPDATE, group.step)
        if group.gap is None:
            key = (*_compute_signature(group.finding), tuple(sorted(group.places)))
        if key in joined and joined[key].step != group.step:
            joined[key].steps.append(_order(group.step))
            continue
        while key in joined:
            key = (*key, "again")
        group.steps.append(_order(group.step))
        joined[key] = group
    return list(joined.values())


def _rank_group(group: _Group) -> tuple[Any, ...]:
    """Return what orders findings: step, certainty, place in the task, place in the run."""
    task, index = group.first
    finding = group.finding
    is_isolated = finding.kind == "isolated"
    return (
        _order(group.step),
        is_isolated,
        group.gap is not None,
        task.verdict != "diverged",
        finding.rank,
        -len(group.received),
        task.positions[index],
    )


def _build_finding(group: _Group, coordinates: Mapping[str, str]) -> RunFinding:
    task, _ = group.first
    finding = group.finding
    ranks = tuple(rank for rank in sorted(group.places) if rank >= 0)
    steps = tuple(step for step in group.steps if step >= 0)
    kind: str = finding.kind
    title = finding.title
    ops = finding.target_ops
    evidence = list(finding.evidence)
    if group.gap is not None:
        kind = UPDATE
        title = _describe_gap(group.gap)
        evidence = [f"at the beginning of step {group.gap.later.step}: {finding.title}"]
    if group.unseen is not None:
        giver, source = group.unseen
        ranks = (giver,)
        title = _describe_unseen(giver, source)
        record = source.givers[giver]
        ops = (*record.input_ops, record.op)
        evidence.insert(0, f"rank {source.receiver} received it: {finding.title}")
    if len(steps) > 1:
        evidence.append(f"again at {format_place((), steps[1:])}")
    unknown_ranks = group.suspects - set(ranks)
    if unknown_ranks:
        place = format_place(tuple(sorted(unknown_ranks)), ())
        evidence.append(
            f"it may come from {place}: what they gave to this collective was not compared"
        )
    return RunFinding(
        number=0,
        kind=kind,
        step=group.step,
        steps=steps,
        ranks=ranks,
        place=_format_ranks(ranks, group.step, coordinates),
        title=title,
        finding=finding,
        task=task.folder,
        receptions=tuple(_build_receptions(group)),
        evidence=tuple(evidence),
        ops=ops,
    )


def _format_ranks(ranks: tuple[int, ...], step: int | None, coordinates: Mapping[str, str]) -> str:
    """Return 'rank 3 (tp 1, dp 1), step 0'; of several ranks, what they have in common."""
    step_place = "" if step is None else f"step {step}"
    if not ranks:
        return step_place
    place = format_place(ranks, ())
    shared_words = [set(coordinates.get(str(rank), "").split(", ")) for rank in ranks]
    common_words = set.intersection(*shared_words) - {""}
    words = [
        word for word in coordinates.get(str(ranks[0]), "").split(", ") if word in common_words
    ]
    if words:
        place += f" ({', '.join(words)})"
    return f"{place}, {step_place}" if step_place else place


def _build_receptions(group: _Group) -> list[Reception]:
    """Return who received the error, by the kind of collective and group that brought it."""
    ranks_by_way: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    first_op: dict[tuple[str, str], CollectiveState] = {}
    own_ranks = set(group.places) if group.unseen is None else {group.unseen[0]}
    for rank, source in group.received:
        if rank in own_ranks:
            continue
        way = (source.collective.kind, describe_group(source.collective))
        if rank not in ranks_by_way[way]:
            ranks_by_way[way].append(rank)
        first_op.setdefault(way, source.collective)
    return [
        Reception(tuple(sorted(ranks)), kind, group_name, first_op[kind, group_name].op)
        for (kind, group_name), ranks in ranks_by_way.items()
    ]


def _describe_unseen(giver: int, source: Source) -> str:
    """Return the title of an error that only shows in what a rank gives to another."""
    collective = source.collective
    record = source.givers[giver]
    what = (
        f"what it sends to rank {source.receiver}"
        if collective.kind in TRANSFERS
        else (f"what it gives to {collective.kind}")
    )
    title = f"{what} ({record.op}) differs, and nothing that was compared before it does"
    if not record.input_ops:
        return title
    ends = dict.fromkeys((record.input_ops[0], record.input_ops[-1]))
    return f"{title}; it comes from {' to '.join(ends)}, without a partner that agrees"


def _describe_gap(gap: UpdateGap) -> str:
    """Return the title of an update that diverges."""
    names = format_names(gap.parameters, _MAX_NAMES)
    if gap.has_agreeing_updates:
        return f"weights change after the update of step {gap.earlier.step}: {names}"
    gradients = "gradients agree" if _has_gradients(gap) else "no difference was found in the step"
    return (
        f"the update of step {gap.earlier.step}: {names} agree before it, {gradients}, and they "
        f"differ at the beginning of step {gap.later.step}"
    )


def _has_gradients(gap: UpdateGap) -> bool:
    """Return whether the gradients of all these parameters were compared."""
    gradients = {parameter.name: parameter.gradient for parameter in gap.earlier.parameters}
    return all(gradients.get(name) for name in gap.parameters)
