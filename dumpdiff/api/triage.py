"""All stages of a triage in order, each on what the case has for it, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..diagnosis.case import PARTS, SIDES, Case, Run
from ..diagnosis.evidence import STAGES, Evidence
from ..model.errors import DumpError
from ..model.stage import Stage
from ..rulebook import load_rules
from .progress import Progress, say

if TYPE_CHECKING:
    from ..diagnosis.outcome import Triaged

_Read = TypeVar("_Read")
_Found = tuple[Any, tuple[Stage, ...]]  #: what a comparison made, and what it says as stages


class _LackingError(Exception):
    """The case has nothing for a stage; the message says what."""


def triage(case: Case, *, progress: Progress | None = None) -> Triaged:
    """Where does a mismatch come from? Every stage that ``case`` has something for, and the conclusion.

    A stage whose files cannot be read is told as one that cannot tell, with the reason; the others are looked at.
    """
    from ..diagnosis.outcome import triaged

    found: dict[str, Any] = {}
    stages: dict[str, Stage] = {}
    skipped: dict[str, str] = {}
    for key, (names, look) in _STAGES.items():
        say(progress, key, 0.0)
        try:
            found[key], said = look(case, found, progress)
        except _LackingError as lacking:
            skipped |= dict.fromkeys(names, str(lacking))
        except DumpError as error:
            stages |= {
                name: Stage(name, "unclear", str(error), (), (str(error),)) for name in names
            }
        else:
            stages |= {stage.name: stage for stage in said}
    return triaged(
        case,
        Evidence(
            stages=tuple(stages[name] for name in STAGES if name in stages),
            skipped={name: skipped[name] for name in STAGES if name in skipped},
            **found,
        ),
    )


def _settings(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..run_settings import compare, read_settings

    _both(case, "settings")
    sides = [
        read_settings(run.settings, run.version, run.model_config or None)
        for run in (case.target, case.reference)
    ]
    made = compare(*sides)
    return made, (made.stage(),)


def _checklist(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..run_settings.checklist import check

    if not {"settings", "logs"} & found.keys():
        raise _LackingError("neither settings nor logs of both runs are given")
    made = check(found.get("settings"), found.get("logs"))
    return made, (made.stage(),)


def _data(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..batches import Packing, compare, packings_of, read_batches

    settings = found.get("settings")
    packings = (Packing(), Packing()) if settings is None else packings_of(settings)
    runs = zip(SIDES, (case.target, case.reference), packings, strict=True)
    target, reference = (
        _first(run, side, ("data", "dump"), partial(read_batches, packing=packing))
        for side, run, packing in runs
    )
    made = compare(target, reference)
    return made, (made.stage(),)


def _logs(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..training_logs import compare, read_log

    target, reference = (read_log(path) for path in _both(case, "log"))
    made = compare(
        target, reference, [read_log(path) for path in case.baseline_logs], case.min_steps
    )
    return made, (made.stage(),)


def _norms(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..gradient_norms import compare, read_norms

    book = load_rules(case.rules)
    sides = _each(case, ("norms", "log", "dump"), lambda path: read_norms(path, None, book))
    if not all(side.named for side in sides) and all(case.both("dump")):
        # Lists that name nothing are paired by value at best; dumps of the same step name their gradients.
        dumped = [
            _tried(lambda path: read_norms(path, None, book), path) for path in case.both("dump")
        ]
        named = [side for side in dumped if not isinstance(side, DumpError) and side.named]
        sides = (named[0], named[1]) if len(named) == len(sides) else sides
    settings = found.get("settings")
    made = compare(*sides, book, "" if settings is None else settings.compute_dtype)
    return made, (made.stage(),)


def _weights(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..diagnosis.checkpoint_stages import weights_stage
    from .checkpoints import weights

    made = weights(*_both(case, "weights"), rules=case.rules, progress=progress)
    return made, (weights_stage(made),)


def _dumps(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..diagnosis.dump_stages import stages_of
    from .dumps import align

    target, reference = _both(case, "dump")
    made = align(
        target, reference, baseline=case.baseline_dump or None, rules=case.rules, progress=progress
    )
    return made, stages_of(made)


def _optimizer(case: Case, found: Mapping[str, Any], progress: Progress | None) -> _Found:
    from ..diagnosis.checkpoint_stages import optimizer_stage
    from ..optimizers.comparison import compared
    from ..optimizers.inputs import read_run

    target, reference = (read_run(path) for path in _both(case, "steps"))
    made = compared(target, reference)
    return made, (optimizer_stage(made),)


#: Names of the stages that one comparison makes, and what makes it; the checklist rests on others.
_STAGES: Mapping[
    str, tuple[tuple[str, ...], Callable[[Case, Mapping[str, Any], Progress | None], _Found]]
] = {
    "settings": (("settings",), _settings),
    "logs": (("logs",), _logs),
    "checklist": (("checklist",), _checklist),
    "data": (("data",), _data),
    "norms": (("norms",), _norms),
    "weights": (("weights",), _weights),
    "dumps": (("forward", "backward"), _dumps),
    "optimizer": (("optimizer",), _optimizer),
}


def _both(case: Case, part: str) -> tuple[str, str]:
    """One part of both runs, which a stage cannot do without."""
    lacking = [side for side, path in zip(SIDES, case.both(part), strict=True) if not path]
    if lacking:
        raise _LackingError(f"no {PARTS[part]} of the {' and the '.join(lacking)}")
    return case.both(part)


def _each(case: Case, parts: tuple[str, ...], read: Callable[[str], _Read]) -> tuple[_Read, _Read]:
    """Either run's first part that can be read; one that was given for this very stage must be readable."""
    return _first(case.target, "target", parts, read), _first(
        case.reference, "reference", parts, read
    )


def _first(run: Run, side: str, parts: tuple[str, ...], read: Callable[[str], _Read]) -> _Read:
    own, *others = parts
    if getattr(run, own):
        return read(getattr(run, own))
    refused = ""
    for path in (getattr(run, part) for part in others if getattr(run, part)):
        made = _tried(read, path)
        if not isinstance(made, DumpError):
            return made
        refused = refused or str(made)
    raise _LackingError(refused or f"no {' or '.join(PARTS[part] for part in parts)} of the {side}")


def _tried(read: Callable[[str], _Read], path: str) -> _Read | DumpError:
    try:
        return read(path)
    except DumpError as error:
        return error
