"""``dumpdiff.triage``: every stage that a case has inputs for, in order, and the conclusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..diagnosis.case import INPUTS, SIDES, Case, Run, build_run, load_case
from ..diagnosis.evidence import STAGES, Evidence
from ..model.errors import DumpError
from ..model.stage import Stage
from ..rulebook import load_rules
from .inputs import PathLike
from .progress import Progress, report_progress

if TYPE_CHECKING:
    from ..diagnosis.outcome import TriageResult

_Input = TypeVar("_Input")
_Outcome = tuple[Any, tuple[Stage, ...]]  #: a comparison, and what it says as stages
_Look = Callable[[Case, Mapping[str, Any], Progress | None], _Outcome]


class _MissingInputError(Exception):
    """The case has no input for a stage; the message says which."""


def triage(
    *inputs: Case | PathLike,
    target: Mapping[str, str] | None = None,
    reference: Mapping[str, str] | None = None,
    min_steps: int | None = None,
    pages: PathLike | None = None,
    redact: bool = False,
    progress: Progress | None = None,
) -> TriageResult:
    """Find where a mismatch of two training runs comes from, from everything available.

    A stage whose files cannot be read is ``inconclusive``, with the reason; the other stages are
    still run.

    Parameters
    ----------
    inputs
        A case (object or YAML file), or two folders, one for each run, that are searched for
        inputs.
    target, reference
        Inputs of either run by key (settings, model_config, version, data, log, norms, weights,
        steps, dump), in place of ``inputs``.
    min_steps
        Number of common steps that agreement of the logs needs.
    pages
        Folder to write ``triage.html`` and a page of each stage into.
    redact
        Shorten paths to their last component, and hide the names of users and of this host.
    progress
        Called with the current stage and its share done.

    Raises
    ------
    DumpError
        If the case cannot be used, or a page cannot be written.
    TypeError
        If neither a case, nor two folders, nor inputs by key are given.
    """
    case = _build_case(inputs, target or {}, reference or {})
    if min_steps is not None:
        case = replace(case, min_steps=min_steps)
    triaged = _run_stages(case, progress)
    if redact:
        triaged = _redact(triaged)
    if pages is not None:
        from ..reports.triage.pages import write

        write(triaged, Path(pages))
    return triaged


def find_case(target: PathLike, reference: PathLike) -> Case:
    """Search the folders of two runs for inputs of a triage, and return them as a case.

    Raises
    ------
    DumpError
        If a folder is missing, or holds nothing that is recognized.
    """
    from ..diagnosis.discovery import discover_case

    return discover_case(target, reference)


def _build_case(
    inputs: Sequence[Case | PathLike], target: Mapping[str, str], reference: Mapping[str, str]
) -> Case:
    has_keys = bool(target or reference)
    if has_keys == bool(inputs) or len(inputs) > 2:
        raise TypeError("give a case, or two folders, or inputs by key with target and reference")
    if has_keys:
        return Case(build_run(target), build_run(reference))
    if len(inputs) == 1:
        (case,) = inputs
        return case if isinstance(case, Case) else load_case(case)
    target_folder, reference_folder = inputs
    if isinstance(target_folder, Case) or isinstance(reference_folder, Case):
        raise TypeError("give one case, not two")
    return find_case(target_folder, reference_folder)


def _run_stages(case: Case, progress: Progress | None) -> TriageResult:
    from ..diagnosis.outcome import conclude

    comparisons: dict[str, Any] = {}
    stages: dict[str, Stage] = {}
    skipped: dict[str, str] = {}
    for key, (stage_names, look) in _STAGES.items():
        report_progress(progress, key, 0.0)
        try:
            comparisons[key], new_stages = look(case, comparisons, progress)
        except _MissingInputError as missing:
            skipped |= dict.fromkeys(stage_names, str(missing))
        except DumpError as error:
            message = str(error)
            for name in stage_names:
                stages[name] = Stage(name, "inconclusive", message, (), (message,))
        else:
            stages |= {stage.name: stage for stage in new_stages}
    evidence = Evidence(
        stages=tuple(stages[name] for name in STAGES if name in stages),
        skipped={name: skipped[name] for name in STAGES if name in skipped},
        **comparisons,
    )
    return conclude(case, evidence)


def _redact(triaged: TriageResult) -> TriageResult:
    """Return a triage whose reports have no paths, user names and host names."""
    from ..reports.redaction import redact_result
    from . import backends

    evidence = triaged.evidence
    if evidence.dumps is not None:
        dumps = replace(evidence.dumps, result=backends.redact(evidence.dumps.result))
        triaged = replace(triaged, evidence=replace(evidence, dumps=dumps))
    return redact_result(triaged)


def _compare_settings(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..run_settings import compare, read_settings

    _require_both(case, "settings")
    sides = [
        read_settings(run.settings, run.version, run.model_config or None)
        for run in (case.target, case.reference)
    ]
    comparison = compare(*sides)
    return comparison, (comparison.to_stage(),)


def _answer_checklist(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..run_settings.checklist import check

    if not {"settings", "logs"} & comparisons.keys():
        raise _MissingInputError("neither settings nor logs of both runs are given")
    answers = check(comparisons.get("settings"), comparisons.get("logs"))
    return answers, (answers.to_stage(),)


def _compare_data(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..batches import Packing, choose_comparison, compare, derive_packings, read_batches

    settings = comparisons.get("settings")
    packings = (Packing(), Packing()) if settings is None else derive_packings(settings)
    batches = []
    runs = (case.target, case.reference)
    for side, run, packing in zip(SIDES, runs, packings, strict=True):
        read = partial(read_batches, packing=packing)
        batches.append(_read_first(run, side, ("data", "dump"), read))
    comparison = compare(batches[0], batches[1])
    if any(case.get_both("data")) and all(case.get_both("dump")):
        # What the networks read counts more than the files that they should have read.
        target, reference = (_try_reading(read_batches, path) for path in case.get_both("dump"))
        if not isinstance(target, DumpError) and not isinstance(reference, DumpError):
            comparison = choose_comparison(compare(target, reference), comparison)
    return comparison, (comparison.to_stage(),)


def _compare_logs(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..training_logs import compare, read_log

    target, reference = (read_log(path) for path in _require_both(case, "log"))
    baselines = [read_log(path) for path in case.baseline_logs]
    comparison = compare(target, reference, baselines, case.min_steps)
    return comparison, (comparison.to_stage(),)


def _compare_norms(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..gradient_norms import compare, read_norms

    book = load_rules(case.rules)

    def read(path: str) -> Any:
        return read_norms(path, None, book)

    inputs = ("norms", "log", "steps", "dump")
    sides = [
        _read_first(run, side, inputs, read)
        for side, run in zip(SIDES, (case.target, case.reference), strict=True)
    ]
    has_names = all(side.has_names for side in sides)
    if not has_names and all(case.get_both("dump")):
        # Lists without names are paired by value at best; dumps of the same step name their
        # gradients.
        dump_norms = [_try_reading(read, path) for path in case.get_both("dump")]
        if all(not isinstance(norms, DumpError) and norms.has_names for norms in dump_norms):
            sides = dump_norms
    settings = comparisons.get("settings")
    compute_dtype = "" if settings is None else settings.compute_dtype
    comparison = compare(sides[0], sides[1], book, compute_dtype)
    return comparison, (comparison.to_stage(),)


def _compare_weights(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..diagnosis.stages import build_weights_stage
    from . import weights

    target, reference = _require_both(case, "weights")
    comparison = weights.compare(target, reference, rules=case.rules, progress=progress)
    return comparison, (build_weights_stage(comparison),)


def _align_dumps(case: Case, comparisons: Mapping[str, Any], progress: Progress | None) -> _Outcome:
    from ..diagnosis.dump_evidence import summarize_dumps
    from ..diagnosis.stages import build_dump_stages
    from .dumps import align

    target, reference = _require_both(case, "dump")
    baseline = case.baseline_dump or None
    result = align(target, reference, baseline=baseline, rules=case.rules, progress=progress)
    dumps = summarize_dumps(result)
    return dumps, build_dump_stages(dumps)


def _compare_updates(
    case: Case, comparisons: Mapping[str, Any], progress: Progress | None
) -> _Outcome:
    from ..diagnosis.stages import build_optimizer_stage
    from ..optimizers.comparison import compare_updates
    from ..optimizers.inputs import read_run

    target, reference = (read_run(path) for path in _require_both(case, "steps"))
    comparison = compare_updates(target, reference)
    return comparison, (build_optimizer_stage(comparison),)


#: Comparison -> the stages that it makes, and how it is made. The checklist needs settings and
#: logs first.
_STAGES: Mapping[str, tuple[tuple[str, ...], _Look]] = {
    "settings": (("settings",), _compare_settings),
    "logs": (("logs",), _compare_logs),
    "checklist": (("checklist",), _answer_checklist),
    "data": (("data",), _compare_data),
    "norms": (("norms",), _compare_norms),
    "weights": (("weights",), _compare_weights),
    "dumps": (("forward", "backward"), _align_dumps),
    "optimizer": (("optimizer",), _compare_updates),
}


def _require_both(case: Case, part: str) -> tuple[str, str]:
    """Return an input of both runs that a stage needs. Raises _MissingInputError."""
    paths = case.get_both(part)
    missing_sides = [side for side, path in zip(SIDES, paths, strict=True) if not path]
    if missing_sides:
        raise _MissingInputError(f"no {INPUTS[part]} of the {' and the '.join(missing_sides)}")
    return paths


def _read_first(
    run: Run, side: str, inputs: tuple[str, ...], read: Callable[[str], _Input]
) -> _Input:
    """Read the first input of a run that can be read.

    The first of ``inputs`` must be readable if the run has it.
    """
    main_input, *fallbacks = inputs
    if getattr(run, main_input):
        return read(getattr(run, main_input))
    first_error = ""
    for name in fallbacks:
        path = getattr(run, name)
        if not path:
            continue
        content = _try_reading(read, path)
        if not isinstance(content, DumpError):
            return content
        first_error = first_error or str(content)
    expected = " or ".join(INPUTS[name] for name in inputs)
    raise _MissingInputError(first_error or f"no {expected} of the {side}")


def _try_reading(read: Callable[[str], _Input], path: str) -> _Input | DumpError:
    try:
        return read(path)
    except DumpError as error:
        return error
