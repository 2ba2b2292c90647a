"""What to do next, for every conclusion: a command that narrows the cause down, or the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.finding import Finding
from . import commands
from .case import Case
from .decision import Decision
from .evidence import STAGES, Evidence
from .likelihoods import Place
from .next_input import choose_next_input
from .observations import select_findings
from .places import PLACE_NAMES
from .stages import PHASES


@dataclass(frozen=True)
class Advice:
    """One thing to do."""

    reason: str
    commands: tuple[str, ...] = ()  #: lines for a shell, in order


def advise(case: Case, evidence: Evidence, decision: Decision) -> tuple[Advice, ...]:
    """Return what to do next, most useful first."""
    return tuple(_advise(case, evidence, decision))


def _advise(case: Case, evidence: Evidence, decision: Decision) -> Iterator[Advice]:
    if decision.cause in ("settings", "precision"):
        if evidence.settings is not None and evidence.settings.verdict == "differ":
            yield Advice(
                "give these settings the same value in both runs, and run again; all settings:",
                (commands.format_settings(case, "-v"),),
            )
        elif decision.cause == "precision":
            yield Advice(
                "no setting explains it: look for casts in the model's code, and use the wider"
                " dtype on both sides"
            )
    for place in _find_places(decision):
        yield from _ADVISERS[place](case, evidence)
    if decision.verdict == "agree":
        yield Advice(
            "nothing is left to examine in these steps; a longer run shows more (the standard asks"
            " for 1000 steps)"
        )
    elif decision.cause is None:
        yield from _advise_next_input(case, evidence, decision)


def _find_places(decision: Decision) -> tuple[Place, ...]:
    """Return the places of the causes; that of a low precision is the place where it shows."""
    if decision.cause is None or decision.cause == "settings":
        return decision.other_causes
    if decision.cause != "precision":
        return (decision.cause, *decision.other_causes)
    if decision.symptom == "gradients":
        return ("backward",)
    return ("forward",)


def _advise_next_input(case: Case, evidence: Evidence, decision: Decision) -> Iterator[Advice]:
    """Advise the one thing that separates the places that are left best.

    An input that was given and cannot be read comes first. If all inputs were compared, the most
    probable place is looked at more closely.
    """
    for name in STAGES:
        unreadable = _advise_unreadable(evidence, name)
        if unreadable is not None:
            yield unreadable
            return
    key = choose_next_input(evidence, decision)
    if key:
        places = ", ".join(PLACE_NAMES[place] for place in decision.candidates)
        reason, command_lines = _INPUT_ADVICE[key]
        yield Advice(f"{reason}; this separates best what is left ({places}):", command_lines)
        return
    for place in decision.candidates[:1]:
        yield from _ADVISERS[place](case, evidence)


def _advise_unreadable(evidence: Evidence, name: str) -> Advice | None:
    """Return what to do about a stage whose input could not be read, None if it could."""
    stage = evidence.find_stage(name)
    result = "dumps" if name in PHASES else name
    if stage is None or stage.verdict != "inconclusive" or getattr(evidence, result) is not None:
        return None
    return Advice(
        f"the input of {result} could not be used; fix it, and triage again: {stage.headline}"
    )


def _advise_data(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.data is not None:
        yield Advice(
            "give both runs the same batch; the differences:",
            (commands.format_data(case, evidence, "-v"),),
        )
    else:
        yield _advise_unreadable(evidence, "data") or Advice(
            "compare the batches: give data: (dataset or saved batch) or dump: of both runs"
        )
    yield from _advise_dump_findings(case, evidence, "data")


def _advise_weights(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.weights is not None:
        yield Advice(
            "convert the reference's weights again, every bit is checked; parameter by parameter:",
            (
                commands.format_weights(case, "-v", "--html", "weights.html"),
                "dumpdiff weights convert --help",
            ),
        )
    else:
        yield _advise_unreadable(evidence, "weights") or Advice(
            "compare the checkpoints: give weights: of both runs, as they were before step 1"
        )
    yield from _advise_dump_findings(case, evidence, "weights")


def _advise_dump_findings(case: Case, evidence: Evidence, place: Place) -> Iterator[Advice]:
    """Advise on the findings of the dumps about tokens or weights."""
    findings = select_findings(evidence, place)
    if findings:
        yield Advice(
            f"look at {_format_findings(findings)}:",
            (commands.format_align(case, "--html", "report.html"),),
        )


def _advise_forward(case: Case, evidence: Evidence) -> Iterator[Advice]:
    yield from _advise_pass(case, evidence, "forward")


def _advise_backward(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.norms is None and evidence.dumps is None:
        yield Advice(
            "print every parameter's gradient norm at step 1: it shows where the backward pass"
            " diverges:",
            (
                "dumpdiff snippet local-norm --framework mindformers",
                "dumpdiff snippet local-norm --framework megatron",
            ),
        )
    yield from _advise_pass(case, evidence, "backward")


def _advise_pass(case: Case, evidence: Evidence, place: Place) -> Iterator[Advice]:
    """Advise a dump of statistics, then whole tensors around the first finding, then its causes."""
    if evidence.dumps is None:
        yield _advise_unreadable(evidence, place) or Advice(
            "dump the statistics of step 1 in both runs, then 'dumpdiff triage' again with dump: of"
            " both:",
            _list_dump_commands(0),
        )
        return
    findings = select_findings(evidence, place)
    if not findings:
        yield Advice(
            "the dumps do not show it; find out what was not compared, and dump that:",
            (commands.format_align(case, "-v"),),
        )
        return
    first_rank = findings[0].rank
    write_result = commands.format_align(case, "--json", "result.json")
    if findings[0].causes:
        yield Advice(
            f"look at {_format_findings(findings)}, and at the dataflow around it:",
            (commands.format_align(case, "--html", "report.html"),),
        )
    elif evidence.dumps.has_whole_tensors:
        yield Advice(
            f"no hypothesis explains {_format_findings(findings)}; all that were tested:",
            (write_result, f"dumpdiff explain result.json --finding {first_rank}"),
        )
    else:
        yield Advice(
            "statistics show where the runs diverge, whole tensors show why; what to dump next"
            f" around {_format_findings(findings)}:",
            (write_result, f"dumpdiff narrow result.json --finding {first_rank} -o next"),
        )


def _format_findings(findings: Sequence[Finding]) -> str:
    """Return the first of a place's findings by its number, and how many there are."""
    text = f"finding {findings[0].rank}"
    if len(findings) > 1:
        text += f" (the first of {len(findings)} there)"
    return text


def _list_dump_commands(step: int) -> tuple[str, ...]:
    """Return how both runs dump the statistics of a step, counted from 0."""
    return (
        "dumpdiff dump-config mindspore --saved-data statistic --stat max,min,avg,l2norm"
        f" --iteration {step} -o dump.json",
        'eval "$(dumpdiff env dump.json)"   # in the MindSpore run',
        f"dumpdiff dump-config msprobe --framework pytorch --task statistics --step {step}"
        " -o config.json",
        "dumpdiff snippet dump --framework pytorch --config config.json"
        "   # into the PyTorch script",
    )


def _advise_schedule(case: Case, evidence: Evidence) -> Iterator[Advice]:
    advice = "use the same warmup, peak, decay and end of the learning rate in both runs"
    if evidence.logs is not None:
        yield Advice(
            f"{advice}; both curves:", (commands.format_logs(case, "--svg", "curves.svg"),)
        )
    else:
        yield Advice(advice)


def _advise_optimizer(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.optimizer is not None:
        yield Advice(
            "use the same rule with the same numbers in both runs; every group of parameters:",
            (commands.format_optimizer(case, "-v"),),
        )
        return
    yield _advise_unreadable(evidence, "optimizer") or Advice(
        "save weights and gradients of the first two steps of both runs, which show the rule of the"
        " update:",
        (
            "dumpdiff snippet save-grads --framework mindformers",
            "dumpdiff snippet save-grads --framework megatron",
            "dumpdiff optimizer TARGET_STEPS REFERENCE_STEPS",
        ),
    )


def _advise_long_run(case: Case, evidence: Evidence) -> Iterator[Advice]:
    if evidence.logs is None:
        return
    if evidence.logs.band is None:
        yield Advice(
            "run the reference once more: the target may differ as much as its runs do",
            (commands.format_logs(case, "--baseline", "REFERENCE_AGAIN.log"),),
        )
    yield Advice(
        "run both 1000 steps with a learning rate of 0: the weights never change, so only the"
        " forward and backward pass can diverge"
    )
    step = evidence.logs.divergence_step
    if step is not None:
        yield Advice(
            f"check the data near step {step} and overflow, and dump that step in both runs:",
            _list_dump_commands(step - 1),
        )


_ADVISERS: Mapping[Place, Callable[[Case, Evidence], Iterator[Advice]]] = {
    "data": _advise_data,
    "weights": _advise_weights,
    "forward": _advise_forward,
    "backward": _advise_backward,
    "schedule": _advise_schedule,
    "optimizer": _advise_optimizer,
    "long run": _advise_long_run,
}

#: Key of a case -> why it should be given, and the commands that make it.
_INPUT_ADVICE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "log": (
        "give the training logs of both runs (log:)",
        ("dumpdiff logs TARGET.log REFERENCE.log",),
    ),
    "data": (
        "give the first batch of both runs, as a dataset or saved (data:)",
        ("dumpdiff data TARGET_BATCH REFERENCE_BATCH",),
    ),
    "weights": (
        "give the checkpoints of both runs, as they were before step 1 (weights:)",
        ("dumpdiff weights TARGET_CHECKPOINT REFERENCE_CHECKPOINT",),
    ),
    "dump": ("dump the statistics of step 1 in both runs (dump:)", _list_dump_commands(0)),
    "steps": (
        "save weights and gradients of the first two steps of both runs (steps:)",
        (
            "dumpdiff snippet save-grads --framework mindformers",
            "dumpdiff snippet save-grads --framework megatron",
            "dumpdiff optimizer TARGET_STEPS REFERENCE_STEPS",
        ),
    ),
}
