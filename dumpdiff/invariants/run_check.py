"""The check of one run: all invariants, on all ranks and steps that were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..model.stage import Stage
from ..model.trace import Problem, Source, Trace
from ..model.verdict import Verdict
from ..rulebook import Rules
from .calls import check_calls
from .exchange_checks import check_exchanges
from .gradient_norm import check_gradient_norm
from .numbers import check_finite, check_zero_gradients
from .parameters import check_parameters, list_parameters
from .readings import check_readings
from .reductions import check_copies
from .replication import check_batches, check_loss, check_replication
from .step import Step, build_step
from .tokens import check_tokens
from .violations import INVARIANTS, InvariantCheck, Violation

#: Violations that a stage quotes.
_MAX_EVIDENCE = 5
#: What shows where an error begins, first; what follows from it, last.
_ORDER = {name: position for position, name in enumerate((
    "parameter", "batch", "received", "exchanged", "broadcast", "equal outputs", "reduction",
    "gathered", "scattered", "same dtype", "same calls", "reduced once", "read", "deterministic",
    "replicated", "tokens", "loss", "finite", "gradient", "zero gradient", "new parameter",
    "gradient norm", "next step",
))}  # fmt: skip


@dataclass(frozen=True)
class RunCheck:
    """What was checked in a run, and what contradicts an invariant."""

    path: str
    source: Source  #: of the first rank and step
    steps: tuple[int | None, ...]
    ranks: tuple[int, ...]
    groups: tuple[str, ...]  #: kind and members of the groups of the first step
    checks: tuple[InvariantCheck, ...]
    problems: tuple[Problem, ...]  #: met while reading
    missing: tuple[str, ...]  #: what was not checked, and why
    notes: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All violations: those of an earlier step first, then what shows where an error begins."""
        violations = [item for check in self.checks for item in check.violations]
        steps = {step: position for position, step in enumerate(self.steps)}
        violations.sort(key=lambda item: (steps.get(item.step, 0), _ORDER[item.invariant]))
        return tuple(violations)

    @property
    def n_checked(self) -> int:
        """How many comparisons were made."""
        return sum(check.checked for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """'differ' if an invariant is violated, 'inconclusive' if ranks could not be compared."""
        if self.violations:
            return "differ"
        compared = sum(check.checked for check in self.checks if check.name not in _OWN)
        return "agree" if compared or (len(self.ranks) == 1 and self.n_checked) else "inconclusive"

    @property
    def headline(self) -> str:
        """One line for a person, without the verdict."""
        violations = self.violations
        if violations:
            first = violations[0]
            clauses = [f"{_format_place(first)}: {first.message}"]
            if len(violations) > 1:
                clauses.append(f"{len(violations) - 1} more contradictions")
            return "; ".join(clauses)
        ranks = "1 rank" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        steps = "1 step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
        text = f"no contradiction in {self.n_checked:,} checks of {ranks} and {steps}"
        if self.verdict == "inconclusive":
            return f"{text}; nothing could be compared between ranks"
        return text

    def to_stage(self) -> Stage:
        """Return the outcome in the form of all stages."""
        evidence = [
            f"{_format_place(item)}: {item.message}" for item in self.violations[:_MAX_EVIDENCE]
        ]
        return Stage("check", self.verdict, self.headline, tuple(evidence), self.missing)


#: Invariants of one rank alone, or that compare no values of ranks with each other.
_OWN = frozenset({
    "finite", "zero gradient", "next step", "same calls", "same dtype", "read", "reduced once",
    "tokens",
})  # fmt: skip


def check_run(
    path: str,
    steps: Iterable[tuple[int | None, Mapping[int, Trace]]],
    rules: Rules,
    progress: Callable[[float], None] | None = None,
    notes: tuple[str, ...] = (),
) -> RunCheck:
    """Check all invariants of a run, given as (number, traces by rank) of each step, in order.

    One step is in memory at a time.
    """
    checks: list[InvariantCheck] = []
    problems: list[Problem] = []
    missing: list[str] = []
    numbers: dict[object, int] = {}
    step_numbers: list[int | None] = []
    ranks: set[int] = set()
    groups: tuple[str, ...] = ()
    source: Source | None = None
    left: dict[tuple[int, str], tuple[int, str]] = {}
    for number, traces in steps:
        step = build_step(number, traces, numbers, progress)
        step_numbers.append(number)
        ranks |= set(traces)
        if source is None:
            first_trace = step.traces[min(step.traces)]
            source = first_trace.source
            groups = tuple(str(group) for group in step.exchanges.groups)
        problems += [problem for trace in step.traces.values() for problem in trace.problems]
        missing += list(step.exchanges.unjoined)
        checks += check_step(step, rules)
        next_check, left = _compare_with_previous(step, left)
        if next_check is not None:
            checks.append(next_check)
    if source is None:
        raise ValueError("no step to check")
    checks_by_name = _sum_checks(checks)
    return RunCheck(
        path,
        source,
        tuple(step_numbers),
        tuple(sorted(ranks)),
        groups,
        checks_by_name,
        tuple(problems),
        tuple(dict.fromkeys([*missing, *_list_missing(checks_by_name)])),
        notes,
    )


def check_step(step: Step, rules: Rules) -> list[InvariantCheck]:
    """Check all invariants of one step."""
    return [
        *check_exchanges(step),
        check_copies(step),
        check_readings(step),
        check_calls(step),
        *check_replication(step),
        check_loss(step),
        check_batches(step),
        *check_parameters(step),
        check_finite(step, rules),
        check_zero_gradients(step),
        check_gradient_norm(step),
        check_tokens(step),
    ]


def _compare_with_previous(
    step: Step, left: Mapping[tuple[int, str], tuple[int, str]]
) -> tuple[InvariantCheck | None, dict[tuple[int, str], tuple[int, str]]]:
    """Compare the parameters with what the step before left; return what this one leaves."""
    violations: list[Violation] = []
    n_checked = 0
    leaves: dict[tuple[int, str], tuple[int, str]] = {}
    for rank, parameters in list_parameters(step).items():
        for name, parameter in parameters.items():
            if parameter.new_tensor >= 0:
                key = int(step.keys[rank][parameter.new_tensor])
                leaves[rank, name] = (key, step.describe(rank, parameter.new_tensor))
            if (rank, name) not in left:
                continue
            key, text = left[rank, name]
            if key < 0 or not parameter.is_informative:
                continue
            n_checked += 1
            if key != parameter.key:
                tensors = step.traces[rank].tensors
                op = step.traces[rank].ops["name"].iat[int(tensors["op"].iat[parameter.tensor])]
                violations.append(
                    Violation(
                        "next step", step.number, (rank,), op,
                        tensors["slot"].iat[parameter.tensor], name,
                        step.describe(rank, parameter.tensor), f"the step before left {text}",
                    )
                )  # fmt: skip
    check = InvariantCheck("next step", n_checked, tuple(violations)) if left else None
    return check, leaves


def _sum_checks(checks: Iterable[InvariantCheck]) -> tuple[InvariantCheck, ...]:
    """Return one check for each invariant, of all steps, in the order of :data:`INVARIANTS`."""
    n_checked: Counter[str] = Counter()
    violations: dict[str, list[Violation]] = {name: [] for name in INVARIANTS}
    unchecked: dict[str, Counter[str]] = {name: Counter() for name in INVARIANTS}
    names = set()
    for check in checks:
        names.add(check.name)
        n_checked[check.name] += check.checked
        violations[check.name] += check.violations
        unchecked[check.name].update(check.unchecked)
    return tuple(
        InvariantCheck(name, n_checked[name], tuple(violations[name]), dict(unchecked[name]))
        for name in INVARIANTS
        if name in names
    )


def _list_missing(checks: Iterable[InvariantCheck]) -> list[str]:
    """Return what could not be checked, and why."""
    missing = []
    for check in checks:
        for reason, count in check.unchecked.items():
            missing.append(f"{check.name}: {count:,} not checked: {reason}")
    return missing


def _format_place(violation: Violation) -> str:
    ranks = ", ".join(map(str, violation.ranks))
    label = "rank" if len(violation.ranks) == 1 else "ranks"
    place = f"{label} {ranks}"
    if violation.group:
        place += f" ({violation.group})"
    if violation.step is not None:
        place += f", step {violation.step}"
    return f"{violation.invariant}: {place}"
