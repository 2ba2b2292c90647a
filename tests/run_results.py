"""Results of tasks made by hand: ranks of a run that exchange values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from results import FINDING

from dumpdiff.model.finding import Finding
from dumpdiff.model.run_result import CollectiveState, LayerState, ParameterState, TaskResult

TP_GROUP = (0, 1)


def make_finding(
    op: str, kind: Any = "introduced", scope: str = "layers.1.mlp", **changes: Any
) -> Finding:
    finding = replace(
        FINDING, kind=kind, scope=scope, title=f"{op} differs", target_ops=(op,),
        reference_ops=(op,), phase="forward", causes=(), metrics={"error": 0.5},
    )  # fmt: skip
    return replace(finding, **changes)


def make_collective(
    op: str, position: int, input_state: str, output_state: str, **changes: Any
) -> CollectiveState:
    fields: dict[str, Any] = {
        "op": op, "kind": "all_reduce", "phase": "communication", "position": position,
        "group": "tp-0-1", "group_kind": "tp", "members": TP_GROUP, "order": 0, "peer": -1,
        "input_state": input_state, "output_state": output_state,
    }  # fmt: skip
    return CollectiveState(**(fields | changes))


def make_task(
    rank: int,
    *findings: Finding,
    positions: tuple[int, ...] = (),
    collectives: tuple[CollectiveState, ...] = (),
    step: int = 0,
    parameters: tuple[ParameterState, ...] = (),
    **changes: Any,
) -> TaskResult:
    ranked_findings = tuple(
        replace(finding, rank=number) for number, finding in enumerate(findings, 1)
    )
    verdict = "diverged" if findings else "aligned"
    state = "introduced" if findings else "agreeing"
    task = TaskResult(
        step=step,
        rank=rank,
        reference_rank=rank,
        verdict=verdict,  # type: ignore[arg-type]
        headline=f"{verdict}: ...",
        findings=ranked_findings,
        positions=positions or tuple(range(10, 10 + len(findings))),
        n_findings=len(findings),
        collectives=collectives,
        parameters=parameters,
        layers=(
            LayerState("forward", "layers.1", state, 100.0 if findings else 0.5, 4, len(findings)),
        ),
        folder=f"step{step}/rank{rank}",
    )
    return replace(task, **changes)


def make_parameter(
    weight: str = "agreeing", gradient: str = "agreeing", update: str = "", **errors: float
) -> ParameterState:
    weight_error = errors.get("weight_error", 1e-2 if weight == "introduced" else 1e-7)
    update_error = errors.get("update_error", 1e-7 if update else float("nan"))
    return ParameterState("layers.0.weight", weight, gradient, update, weight_error, update_error)
