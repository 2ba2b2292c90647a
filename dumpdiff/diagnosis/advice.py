"""What to do next: the command that tells more, or the change that ends the mismatch, for every outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..model.result import Result
from ..model.finding import Finding
from . import commands
from .case import Case
from .decision import Decision
from .dump_stages import PHASES
from .evidence import Evidence
from .places import Place, select_findings


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
            yield Advice(
                "set both alike, and run again; every row:", (commands.settings(case, "-v"),)
            )
        elif decision.cause == "precision":
            yield Advice(
                "no setting tells it: look for casts in the model's code, and give both sides the wider dtype"
            )
    places = decision.candidates or _places(decision)
    for place in places:
        yield from _LOOK[place](case, evidence)
    if decision.verdict == "agree":
        yield Advice(
            "nothing is left to look for in these steps; a longer run says more (1000 steps by the standard)"
        )
    elif not places and decision.cause is None:
        yield from _unlooked(case, evidence)


def _places(decision: Decision) -> tuple[Place, ...]:
    """Where the cause lies, if it is a place; what has low precision is looked at where it shows."""
    if decision.cause == "precision":
        return ("backward",) if decision.symptom == "gradients" else ("forward",)
    return () if decision.cause is None or decision.cause == "settings" else (decision.cause,)


def _unlooked(case: Case, evidence: Evidence) -> Iterator[Advice]:
    """Nothing differs and too little was given: what would tell most."""
    unread = [_unreadable(evidence, stage.name) for stage in evidence.stages]
    yield from dict.fromkeys(one for one in unread if one is not None)
    if evidence.logs is None and evidence.find_stage("logs") is None:
        yield Advice(
            "give the training logs of both runs: they show at which step the runs part (log: in the case)"
        )
    if evidence.dumps is None and evidence.find_stage("forward") is None:
        yield from _forward(case, evidence)


def _unreadable(evidence: Evidence, name: str) -> Advice | None:
    """What to do about a stage that was given something and could not read it; None if it read all, or had nothing."""
    stage = evidence.find_stage(name)
    result = "dumps" if name in PHASES else name
    if stage is None or stage.verdict != "inconclusive" or getattr(evidence, result) is not None:
        return None
    return Advice(
        f"what was given of {result} could not be used; put it right, and triage again: {stage.headline}"
    )


def _data(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.data is not None:
        yield Advice(
            "give both runs the same batch; what differs in it:",
            (commands.data(case, evidence, "-v"),),
        )
    else:
        what = "compare the batches: give data: (dataset or saved batch) or dump: of both runs"
        yield _unreadable(evidence, "data") or Advice(what)
    yield from _seen_in_dumps(case, evidence, "data")


def _weights(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.weights is not None:
        yield Advice(
            "convert the reference's weights again, every bit is checked; parameter by parameter:",
            (
                commands.weights(case, "-v", "--html", "weights.html"),
                "dumpdiff weights convert --help",
            ),
        )
    else:
        what = "compare the checkpoints: give weights: of both runs, as they were before step 1"
        yield _unreadable(evidence, "weights") or Advice(what)
    yield from _seen_in_dumps(case, evidence, "weights")


def _seen_in_dumps(case: Case, evidence: Evidence, place: Place) -> Iterator[Advice]:
    """What the dumps say of tokens or weights."""
    found = select_findings(evidence, place)
    if found:
        yield Advice(f"look at {_first(found)}:", (commands.align(case, "--html", "report.html"),))


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


def _pass(case: Case, evidence: Evidence, place: Place) -> Iterator[Advice]:
    """A dump of statistics, then one of whole tensors around the first finding, then its explanation."""
    if evidence.dumps is None:
        yield _unreadable(evidence, place) or Advice(
            "dump the statistics of step 1 in both runs, then 'dumpdiff triage' again with dump: of both:",
            _dumped(0),
        )
        return
    found = select_findings(evidence, place)
    if not found:
        yield Advice(
            "the dumps do not show it; see what of them was not compared, and dump that:",
            (commands.align(case, "-v"),),
        )
        return
    first = found[0].rank
    if found[0].causes:
        yield Advice(
            f"look at {_first(found)}, and at the dataflow around it:",
            (commands.align(case, "--html", "report.html"),),
        )
    elif _whole(evidence.dumps):
        yield Advice(
            f"no hypothesis explains {_first(found)}; everything that was tried:",
            (
                commands.align(case, "--json", "result.json"),
                f"dumpdiff explain result.json --finding {first}",
            ),
        )
    else:
        yield Advice(
            f"statistics say where, whole tensors say why; what to dump next around {_first(found)}:",
            (
                commands.align(case, "--json", "result.json"),
                f"dumpdiff narrow result.json --finding {first} -o next",
            ),
        )


def _first(found: Sequence[Finding]) -> str:
    """The first of a place's findings by its number, and how many there are."""
    return f"finding {found[0].rank}" + (
        f" (the first of {len(found)} there)" if len(found) > 1 else ""
    )


def _dumped(step: int) -> tuple[str, ...]:
    """How both runs dump the statistics of a step, counted from 0."""
    return (
        f"dumpdiff dump-config mindspore --saved-data statistic --stat max,min,avg,l2norm --iteration {step} "
        "-o dump.json",
        'eval "$(dumpdiff env dump.json)"   # in the MindSpore run',
        f"dumpdiff dump-config msprobe --framework pytorch --task statistics --step {step} -o config.json",
        "dumpdiff snippet dump --framework pytorch --config config.json   # into the PyTorch script",
    )


def _schedule(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.logs is not None:
        yield Advice(
            "set warmup, peak, decay and end of the learning rate alike; both curves:",
            (commands.logs(case, "--svg", "curves.svg"),),
        )
    else:
        yield Advice("set warmup, peak, decay and end of the learning rate alike")


def _optimizer(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.optimizer is not None:
        yield Advice(
            "give both runs the same rule and numbers; every group of parameters:",
            (commands.optimizer(case, "-v"),),
        )
        return
    yield _unreadable(evidence, "optimizer") or Advice(
        "save weights and gradients of the first two steps of both runs, which tell the rule of the update:",
        (
            "dumpdiff snippet save-grads --framework mindformers",
            "dumpdiff snippet save-grads --framework megatron",
            "dumpdiff optimizer TARGET_STEPS REFERENCE_STEPS",
        ),
    )


def _long_run(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.logs is None:
        return
    if evidence.logs.band is None:
        yield Advice(
            "run the reference once more: what its own runs differ by is allowed to the target",
            (commands.logs(case, "--baseline", "REFERENCE_AGAIN.log"),),
        )
    yield Advice(
        "run both 1000 steps with a learning rate of 0: weights never change, forward and backward alone part"
    )
    step = evidence.logs.divergence_step
    if step is not None:
        yield Advice(
            f"look at the data near step {step}, at overflow, and dump that step in both runs:",
            _dumped(step - 1),
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
