"""What a triage needs of a comparison of dumps, whether of one rank or of a whole run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..model.defaults import MIN_COVERAGE
from ..model.dtypes import HALF_PRECISIONS
from ..model.finding import Finding
from ..model.result import Result
from ..model.run_result import UPDATE, RunFinding, RunResult, TaskResult
from ..model.trace import OPTIMIZER
from ..model.verdict import AGREEING, DIFFERING_STATES, AlignmentVerdict

#: Half-precision values of a run in mixed precision are at least this share of all: only norms,
#: softmax and the loss are kept in float32.
_HALF_SHARE = 0.1

_Counts = Mapping[str, float]
_Coverage = Mapping[str, Mapping[str, _Counts]]  #: side -> phase -> counts


@dataclass(frozen=True)
class DumpEvidence:
    """A comparison of dumps, in the form that is the same for one rank and for many."""

    result: Result | RunResult
    verdict: AlignmentVerdict
    #: numbered as in the result; the title names rank and step where several were compared
    findings: tuple[Finding, ...]
    coverage: _Coverage  #: of all ranks and steps together
    differing_values: Mapping[str, Mapping[str, int]]  #: phase -> state -> compared values
    n_agreeing_parameters: int  #: those that agree wherever they were compared
    #: Share of the compared and uncompared parameters that agree wherever they were compared.
    agreeing_parameter_share: float
    notes: tuple[str, ...]
    min_coverage: float
    has_whole_tensors: bool  #: whether any pair was compared by whole tensors
    has_half_precision: (
        bool  #: whether values of either side are in half precision, as far as known
    )


def summarize_dumps(result: Result | RunResult) -> DumpEvidence:
    """Return the evidence of a comparison of dumps."""
    min_coverage = float(result.details.get("min_coverage", MIN_COVERAGE))
    if isinstance(result, RunResult):
        return _summarize_run(result, min_coverage)
    phases = {phase for side in result.coverage.values() for phase in side}
    return DumpEvidence(
        result,
        result.verdict,
        result.findings,
        result.coverage,
        {phase: result.count_differing_values(phase) for phase in phases},
        len(result.parameters),
        _compute_parameter_share(result),
        result.notes,
        min_coverage,
        bool(result.pairs["relative_l2"].notna().any()),
        _has_half_precision(result),
    )


def _summarize_run(result: RunResult, min_coverage: float) -> DumpEvidence:
    compared_tasks = [task for task in result.tasks if not task.problem]
    agreeing_parameters = _list_agreeing_parameters(compared_tasks)
    parameters = {parameter.name for task in compared_tasks for parameter in task.parameters}
    return DumpEvidence(
        result,
        result.verdict,
        tuple(map(_place_finding, result.findings)),
        _add_coverage(task.coverage for task in compared_tasks),
        _count_differing_values(compared_tasks),
        len(agreeing_parameters),
        len(agreeing_parameters) / max(1, len(parameters)),
        (*result.notes, *result.unread),
        min_coverage,
        any(task.target is not None and task.target.files_read > 0 for task in compared_tasks),
        False,
    )


def _place_finding(item: RunFinding) -> Finding:
    """Return a finding of a run with its number there, and with rank and step in its title.

    Weights that differ because the step before updated them otherwise are about the optimizer.
    """
    finding = replace(item.finding, rank=item.number, title=f"{item.place}: {item.title}")
    if item.kind == UPDATE:
        return replace(finding, kind="introduced", phase=OPTIMIZER)
    return finding


def _has_half_precision(result: Result) -> bool:
    """Return whether a good part of the compared values is in half precision."""
    dtypes = result.pairs[["target_dtype", "reference_dtype"]]
    is_half = dtypes.isin(HALF_PRECISIONS).any(axis=1)
    return bool(is_half.mean() > _HALF_SHARE) if len(is_half) else False


def _compute_parameter_share(result: Result) -> float:
    """Return the share of the parameters that agree; of two sides the smaller one."""
    n_agreeing = len(result.parameters)
    is_parameter = result.uncompared["slot"].str.startswith("parameter")
    sides = result.uncompared.loc[is_parameter, "side"]
    n_uncompared = max(int((sides == side).sum()) for side in ("target", "reference"))
    return n_agreeing / max(1, n_agreeing + n_uncompared)


def _add_coverage(coverages: Iterable[_Coverage]) -> _Coverage:
    """Return the sum of the counts of all tasks; a share is not one of them."""
    total: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for coverage in coverages:
        for side, phases in coverage.items():
            for phase, counts in phases.items():
                for name, count in counts.items():
                    if not name.endswith("share"):
                        total[side][phase][name] += int(count)
    return total


def _count_differing_values(tasks: Iterable[TaskResult]) -> Mapping[str, Mapping[str, int]]:
    """Return, by phase and state, the pairs that differ, of all layers of all tasks."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        for layer in task.layers:
            if layer.differing and layer.state in DIFFERING_STATES:
                counts[layer.phase][layer.state] += layer.differing
    return counts


def _list_agreeing_parameters(tasks: Iterable[TaskResult]) -> set[str]:
    """Return the parameters that agree before the step wherever they were compared."""
    states: defaultdict[str, set[str]] = defaultdict(set)
    for task in tasks:
        for parameter in task.parameters:
            if parameter.weight:
                states[parameter.name].add(parameter.weight)
    return {name for name, weight_states in states.items() if weight_states == {AGREEING}}
