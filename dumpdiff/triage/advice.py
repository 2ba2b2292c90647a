"""What to do next: the command that tells more, or the change that ends the mismatch, for every outcome."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ..result import Result
from .case import Case
from .decision import Decision
from .dumps import findings_of
from .evidence import Evidence
from .places import Place


@dataclass(frozen=True)
class Advice:
    """One thing to do."""

    why: str
    commands: tuple[str, ...] = ()  #: lines for a shell, in order


def advise(case: Case, evidence: Evidence, decision: Decision) -> tuple[Advice, ...]:
    """What to do next, the most telling first."""
    return tuple(_advice(case, evidence, decision))


def _advice(case: Case, evidence: Evidence, decision: Decision) -> Iterator[Advice]:
    if decision.cause in ("settings", "precision"):
        if evidence.settings is not None and evidence.settings.verdict == "differ":
            sides = _sides(case, "settings")
            yield Advice("set both alike, and run again; every row:", (f"dumpdiff settings {sides} -v",))
        elif decision.cause == "precision":
            yield Advice("no setting tells it: look for casts in the model's code, and give both sides the wider dtype")
    places = decision.candidates or _places(decision)
    for place in places:
        yield from _LOOK[place](case, evidence)
    if decision.verdict == "agree":
        yield Advice("nothing is left to look for in these steps; a longer run says more (1000 steps by the standard)")
    elif not places and decision.cause is None:
        yield from _unlooked(case, evidence)


def _places(decision: Decision) -> tuple[Place, ...]:
    """Where the cause lies, if it is a place; what has low precision is looked at where it shows."""
    if decision.cause == "precision":
        return ("backward",) if decision.symptom == "gradients" else ("forward",)
    return () if decision.cause is None or decision.cause == "settings" else (decision.cause,)


def _unlooked(case: Case, evidence: Evidence) -> Iterator[Advice]:
    """Nothing differs and too little was given: what would tell most."""
    if evidence.logs is None:
        yield Advice("give the training logs of both runs: they show at which step the runs part (log: in the case)")
    if evidence.dumps is None:
        yield from _forward(case, evidence)


def _data(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.data is None:
        yield Advice("compare the batches: give data: (dataset or saved batch) or dump: of both runs")
        return
    names = [run.data or run.dump for run in (case.target, case.reference)]
    decode = f" --tokenizer {shlex.quote(case.tokenizer)}" if case.tokenizer else ""
    yield Advice("give both runs the same batch; what differs in it:", (f"dumpdiff data {_joined(*names)}{decode} -v",))


def _weights(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.weights is None:
        yield Advice("compare the checkpoints: give weights: of both runs, as they were before step 1")
        return
    sides = _sides(case, "weights")
    yield Advice(
        "convert the reference's weights again, every bit is checked; parameter by parameter:",
        (f"dumpdiff weights {sides} -v --html weights.html", "dumpdiff weights convert --help"),
    )


def _forward(case: Case, evidence: Evidence) -> Iterator[Advice]:
    yield from _pass(case, evidence, "forward")


def _backward(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.norms is None and evidence.dumps is None:
        yield Advice(
            "print every parameter's gradient norm at step 1, which says where the backward pass parts:",
            (
                "dumpdiff snippet local-norm --framework mindformers",
                "dumpdiff snippet local-norm --framework megatron",
            ),
        )
    yield from _pass(case, evidence, "backward")


def _pass(case: Case, evidence: Evidence, phase: str) -> Iterator[Advice]:
    """A dump of statistics, then one of whole tensors around the first finding, then its explanation."""
    if evidence.dumps is None:
        yield Advice(
            "dump the statistics of step 1 in both runs, then 'dumpdiff triage' again with dump: of both:",
            (
                "dumpdiff dump-config mindspore --saved-data statistic --stat max,min,avg,l2norm -o dump.json",
                'eval "$(dumpdiff env dump.json)"   # in the MindSpore run',
                "dumpdiff dump-config msprobe --framework pytorch --task statistics -o config.json",
                "dumpdiff snippet dump --framework pytorch --config config.json   # into the PyTorch script",
            ),
        )
        return
    found = findings_of(evidence.dumps, phase)
    if not found:
        yield Advice("the dumps do not show it; dump both again with higher coverage", (_align(case, ""),))
        return
    if any(finding.causes for finding in found[:1]):
        yield Advice("look at the finding and its dataflow:", (_align(case, " --html report.html"),))
        return
    again = _align(case, " --json result.json")
    if _whole(evidence.dumps):
        rank = found[0].rank
        yield Advice(
            "no hypothesis explains the finding; everything that was tried:",
            (again, f"dumpdiff explain result.json --finding {rank}"),
        )
    else:
        yield Advice(
            "statistics say where, whole tensors around it say why; what to dump next:",
            (again, "dumpdiff narrow result.json -o next"),
        )


def _schedule(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.logs is not None:
        yield Advice(
            "set warmup, peak, decay and end of the learning rate alike; both curves:",
            (f"dumpdiff logs {_sides(case, 'log')} --svg curves.svg",),
        )
    else:
        yield Advice("set warmup, peak, decay and end of the learning rate alike")


def _optimizer(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.optimizer is None:
        yield Advice(
            "save weights and gradients of the first two steps of both runs, which tell the rule of the update:",
            (
                "dumpdiff snippet save-grads --framework mindformers",
                "dumpdiff snippet save-grads --framework megatron",
                "dumpdiff optimizer TARGET_STEPS REFERENCE_STEPS",
            ),
        )
        return
    yield Advice(
        "give both runs the same rule and numbers; every group of parameters:",
        (f"dumpdiff optimizer {_sides(case, 'steps')} -v",),
    )


def _long_run(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.logs is None:
        return
    logs = _sides(case, "log")
    if evidence.logs.band is None:
        yield Advice(
            "run the reference once more: what its own runs differ by is allowed to the target",
            (f"dumpdiff logs {logs} --baseline REFERENCE_AGAIN.log",),
        )
    yield Advice("run both 1000 steps with a learning rate of 0: weights never change, forward and backward alone part")
    step = evidence.logs.departure
    if step is not None:
        yield Advice(
            f"look at the data near step {step}, at overflow, and dump that step in both runs:",
            (f"dumpdiff dump-config mindspore --saved-data statistic --iteration {step - 1} -o dump.json",),
        )


_LOOK = {
    "data": _data,
    "weights": _weights,
    "forward": _forward,
    "backward": _backward,
    "schedule": _schedule,
    "optimizer": _optimizer,
    "long run": _long_run,
}


def _whole(result: Result) -> bool:
    """Whether any pair was compared by whole tensors."""
    return bool(result.pairs["relative_l2"].notna().any())


def _align(case: Case, more: str) -> str:
    rules = "".join(f" --rules {shlex.quote(rule)}" for rule in case.rules)
    return f"dumpdiff align {_sides(case, 'dump')}{rules}{more}"


def _sides(case: Case, part: str) -> str:
    return _joined(*case.both(part))


def _joined(*paths: str) -> str:
    return " ".join(shlex.quote(path) for path in paths)
