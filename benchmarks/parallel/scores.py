"""Score the answers: of ``align`` on pairs of runs, and of ``check`` on single runs."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cases
import formats
import truths
from layouts import parse_layout
from runs import MINDSPORE, Recording

import dumpdiff
from dumpdiff import RunResult

HERE = Path(__file__).resolve().parent
TENSORS, STATISTICS = "tensors", "statistics"
FORMS = (TENSORS, STATISTICS)
#: What follows the name of an op in a result of merged ranks, where a rank calls it.
_RANK_SUFFIX = re.compile(r" \((micro-batch \d+ of )?rank \d+\)$")
CHECK = "check"  #: in place of a relation: the run is checked without a reference


@dataclass(frozen=True)
class Score:
    """One answer. Of correct pairs only verdict, findings and coverage count."""

    name: str
    relation: str  #: equal layout, other layout, or check
    form: str
    layout: str
    framework: str
    is_correct: bool
    is_held_out: bool
    is_visible: bool  #: whether the fault changes what was recorded, for check: an invariant
    verdict: str
    n_findings: int
    coverage: float  #: share of the forward ops that were compared, of the side with fewer
    is_op_right: bool  #: the first finding names a right op
    is_rank_right: bool  #: and only ranks on which the fault is introduced
    is_step_right: bool
    seconds: float
    truth: str
    titles: tuple[str, ...]  #: of the first three findings, or why it is inconclusive


Job = tuple[str, Any, str]  #: relation, case or recording with its fault, form


def score_all(
    jobs: Iterable[Job], work: Path, processes: int, report: Callable[[str], None]
) -> list[Score]:
    """Return the scores of all jobs; those of the same code and recording are taken from disk."""
    file = work / "scores.jsonl"
    code = hash_code()
    known_scores = _read_scores(file, code)
    scores, pending = [], []
    for job in jobs:
        key = _name_job(job)
        if key in known_scores:
            scores.append(known_scores[key])
        else:
            pending.append(job)
    with ProcessPoolExecutor(processes) as pool, file.open("a") as lines:
        running = {pool.submit(score_job, job, work): job for job in pending}
        for count, future in enumerate(as_completed(running), 1):
            score = future.result()
            scores.append(score)
            key = _name_job(running[future])
            lines.write(json.dumps({"code": code, "key": key, **asdict(score)}) + "\n")
            lines.flush()
            name = "a held-out case" if score.is_held_out else score.name
            report(f"scored {count}/{len(pending)} {name} ({score.seconds:.0f} s)")
    return scores


def score_job(job: Job, work: Path) -> Score:
    """Ask dumpdiff, and judge its answer."""
    relation, subject, form = job
    if relation == CHECK:
        return _score_check(*subject, form, work)
    return _score_case(subject, form, work)


def _score_case(case: cases.Case, form: str, work: Path) -> Score:
    paths = [make_form(run, form, work) for run in (case.target, case.reference)]
    begin = time.perf_counter()
    try:
        result = dumpdiff.align(*paths)
    except Exception as error:  # a crash is an answer that the table has to show
        return _score_crash(case, form, error)
    seconds = time.perf_counter() - begin
    run_truth = None if case.fault is None else truths.find_truth(case.fault, work)
    is_op_right = is_rank_right = is_step_right = False
    first = result.findings[0] if result.findings else None
    if run_truth is not None and first is not None and result.verdict == "diverged":
        names = first.ops if isinstance(result, RunResult) else first.target_ops
        # several steps of merged ranks have findings without ranks
        ranks = getattr(first, "ranks", None) or None
        right_names = set(run_truth.merged_ops)
        if ranks is not None:
            right_names = set(run_truth.ops.get(ranks[0], ()))
        named_ops = {_RANK_SUFFIX.sub("", name) for name in names}
        is_op_right = bool(right_names & named_ops)
        # a result of one process on each side names no rank
        is_rank_right = set(ranks or run_truth.ranks) <= set(run_truth.ranks)
        if ranks is None and parse_layout(case.target.layout).n_ranks > 1:
            is_rank_right = False
        is_step_right = getattr(first, "step", run_truth.step) in (run_truth.step, None)
    titles = [getattr(finding, "title", "") for finding in result.findings[:3]]
    return Score(
        name=case.name,
        relation=case.relation,
        form=form,
        layout=case.target.layout,
        framework=case.target.framework,
        is_correct=case.fault is None,
        is_held_out=case.is_held_out,
        is_visible=run_truth is None or bool(run_truth.ranks),
        verdict=result.verdict,
        n_findings=len(result.findings),
        coverage=_read_coverage(result),
        is_op_right=is_op_right,
        is_rank_right=is_rank_right,
        is_step_right=is_step_right,
        seconds=round(seconds, 2),
        truth="" if run_truth is None else f"ranks {run_truth.ranks}, {run_truth.first}",
        titles=tuple(titles) or tuple(result.notes[:1]),
    )


def _score_crash(case: cases.Case, form: str, error: Exception) -> Score:
    return Score(
        name=case.name,
        relation=case.relation,
        form=form,
        layout=case.target.layout,
        framework=case.target.framework,
        is_correct=case.fault is None,
        is_held_out=case.is_held_out,
        is_visible=True,
        verdict="crash",
        n_findings=0,
        coverage=0.0,
        is_op_right=False,
        is_rank_right=False,
        is_step_right=False,
        seconds=0.0,
        truth="",
        titles=(f"{type(error).__name__}: {error}",),
    )


def _score_check(recording: Recording, fault: cases.Fault | None, form: str, work: Path) -> Score:
    """An alarm is right if it names a rank of the fault, or a group with one."""
    path = make_form(recording, form, work)
    begin = time.perf_counter()
    result = dumpdiff.check(path)
    seconds = time.perf_counter() - begin
    run_truth = None if fault is None else truths.find_truth(fault, work)
    violations = result.violations
    is_rank_right = False
    if run_truth is not None and violations:
        is_rank_right = bool(set(violations[0].ranks) & set(run_truth.ranks))
    titles = [f"{item.invariant}: ranks {item.ranks}: {item.message}" for item in violations[:3]]
    return Score(
        name=recording.name if fault is None else fault.name,
        relation=CHECK,
        form=form,
        layout=recording.layout,
        framework=recording.framework,
        is_correct=fault is None,
        is_held_out=fault is not None and fault.name in cases.list_held_out(),
        is_visible=fault is None or fault.is_invariant,
        verdict=result.verdict,
        n_findings=len(violations),
        coverage=0.0,
        is_op_right=is_rank_right,
        is_rank_right=is_rank_right,
        is_step_right=True,
        seconds=round(seconds, 2),
        truth="" if run_truth is None else f"ranks {run_truth.ranks}, {run_truth.first}",
        titles=tuple(titles) or (result.headline,),
    )


def make_form(recording: Recording, form: str, work: Path) -> Path:
    """Return a recording in a form; statistics are derived once from the whole tensors."""
    path = cases.get_path(recording, work)
    if form == TENSORS:
        return path
    is_mindspore = recording.framework == MINDSPORE
    convert = (
        formats.convert_to_statistic_csv if is_mindspore else formats.convert_to_msprobe_statistics
    )
    folder = work / "statistics" / path.parent.name / path.name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_name(f"{folder.name}.part")
        convert(path, unfinished)
        unfinished.rename(folder)
    return folder


def _read_coverage(result: Any) -> float:
    """Return the smallest share of compared forward ops, over sides and tasks."""
    shares = []
    for task in getattr(result, "tasks", (result,)):
        for phases in task.coverage.values():
            figures = phases.get("forward", {})
            if figures.get("ops"):
                compared = figures["compared"] + figures.get("reconverged", 0)
                shares.append(compared / figures["ops"])
    return round(min(shares, default=0.0), 4)


def hash_code() -> str:
    """Return a digest of what every answer depends on: the program, its rules and the scoring."""
    package = Path(dumpdiff.__file__).parent
    files = [*package.rglob("*.py"), *(package.parent / "rules").glob("*.yaml")]
    files += [HERE / name for name in ("scores.py", "truths.py")]
    contents = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(contents).hexdigest()[:16]


def _name_job(job: Job) -> str:
    relation, subject, form = job
    if relation == CHECK:
        return f"{CHECK} {subject[0].name} {form}"
    return f"{relation} {subject.name} {form}"


def _read_scores(file: Path, code: str) -> dict[str, Score]:
    """Return the scores of this code by the name of their job."""
    scores: dict[str, Score] = {}
    if not file.exists():
        return scores
    names = {field.name for field in fields(Score)}
    for line in file.read_text().splitlines():
        values = json.loads(line)
        if values.pop("code") == code:
            key = values.pop("key")
            if set(values) == names:
                scores[key] = Score(**{**values, "titles": tuple(values["titles"])})
    return scores
