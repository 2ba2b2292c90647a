"""Score dumpdiff's answer for every case in every form against the truth; cached as JSON lines."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path

import dumps
import families
import faults
import formats
import partners
import recordings
import sentences
import truth

import dumpdiff
from dumpdiff.model.finding import Finding
from dumpdiff.model.result import Result

HERE = Path(__file__).resolve().parent
_SCORING = (
    "claims.py",
    "dumps.py",
    "formats.py",
    "partners.py",
    "score.py",
    "sentences.py",
    "truth.py",
)


@dataclass(frozen=True)
class Score:
    """Score of one case in one form. For a benign case only verdict, alignment and time count."""

    case: str
    model: str
    form: str
    held_out: bool
    benign: bool
    side: str
    cause: str
    #: why there is nothing to find: no effect on what this form holds; then it is not counted
    void: str
    verdict: str
    top1: bool
    top3: bool
    named: int  #: ops of the faulty side that the first finding names: how near it leads
    said_cause: str  #: the first cause of the finding that is right, '' if it gives none
    is_cause_right: bool  #: it is ``cause``, or as right as it
    cause_text: str  #: the sentence of that cause
    #: what is wrong with the sentence of the right cause, '' if nothing is; see sentences
    sentence_error: str
    #: {} for pairs of low precision, where no partners are known; see partners.Tally
    pairs: dict[str, dict[str, int]]
    seconds: float
    truth: str  #: the earliest root
    said: tuple[str, ...]  #: titles of the first three findings, or why it is inconclusive


def score_cases(
    cases: Iterable[faults.Case],
    forms: tuple[str, ...],
    work: Path,
    processes: int,
    report: Callable[[str], None],
) -> list[Score]:
    """Score the cases whose recordings exist, or take cached scores of the same code."""
    file = work / "scores.jsonl"
    cached_scores = dict(_read_scores(file)) if file.exists() else {}
    scores, pending = [], []
    for case in cases:
        key = _compute_key(case, work)
        scores += [
            cached_scores[score_key]
            for form in forms
            if (score_key := (case.name, form, key)) in cached_scores
        ]
        if missing := tuple(form for form in forms if (case.name, form, key) not in cached_scores):
            pending.append((case, missing, key))
    with ProcessPoolExecutor(processes) as pool, file.open("a") as lines:
        running = {
            pool.submit(score_case, case, missing, work): (case, key)
            for case, missing, key in pending
        }
        for count, future in enumerate(as_completed(running), 1):
            case, key = running[future]
            for score in future.result():
                scores.append(score)
                lines.write(json.dumps({"key": key, **asdict(score)}) + "\n")
            lines.flush()
            report(
                f"scored {count}/{len(running)} {'a held-out case' if case.held_out else case.name}"
            )
    return scores


def score_case(case: faults.Case, forms: Iterable[str], work: Path) -> list[Score]:
    """Compare one pair in several forms."""
    pair_recordings = recordings.list_recordings(case)
    clean = [_load(recordings.get_path(recording.clean(), work)) for recording in pair_recordings]
    runs = [_load(recordings.get_path(recording, work)) for recording in pair_recordings]
    faulty = 0 if case.side == recordings.MINDSPORE else 1
    root = None if case.benign else truth.find_truth(clean[faulty], runs[faulty])
    sides = [
        partners.Side(
            *side_dumps,
            dumps.pair_ops(*side_dumps),
            root.changed if root and index == faulty else None,
        )
        for index, side_dumps in enumerate(zip(clean, runs, strict=True))
    ]
    is_float32 = not any(
        "16" in option for option in (*case.target_options, *case.reference_options)
    )
    known_partners = partners.find_known_partners(*clean) if is_float32 else None
    paths = [recordings.get_path(recording, work) for recording in pair_recordings]
    return [_score_form(case, form, paths, sides, root, known_partners) for form in forms]


def _score_form(
    case, form: str, paths: list[Path], sides: list[partners.Side], root, known_partners
) -> Score:
    target, reference = formats.make_pair(formats.FORMS[form], *paths)
    recorded_names = formats.map_names(formats.FORMS[form], paths[0], sides[0].run.trace)
    ops_of_form = set(dumpdiff.read(reference).ops["name"])
    begin = time.perf_counter()
    result = dumpdiff.align(target, reference)
    seconds = time.perf_counter() - begin

    void, correct_ops = "", []
    if root is not None:
        nameable = root.ops & ops_of_form if case.side == recordings.PYTORCH else root.ops
        void = _explain_void(root, bool(nameable))
        correct_ops = [
            _list_named_ops(finding, case.side, recorded_names) & nameable
            for finding in result.findings[:3]
        ]
    correct_finding = next(
        (
            finding
            for finding, named_ops in zip(result.findings, correct_ops, strict=False)
            if named_ops
        ),
        None,
    )
    causes = getattr(correct_finding, "causes", ())
    is_cause_right = bool(causes) and causes[0].name in case.right_causes
    first = result.first_divergence
    diverged = result.verdict == "diverged"
    return Score(
        case=case.name,
        model=case.model,
        form=form,
        held_out=case.held_out,
        benign=case.benign,
        side=case.side,
        cause=case.cause,
        void=void,
        verdict=result.verdict,
        top1=diverged and bool(correct_ops[:1] and correct_ops[0]),
        top3=diverged and any(correct_ops),
        named=len(_list_named_ops(first, case.side, recorded_names)) if first and case.side else 0,
        said_cause=causes[0].name if causes else "",
        is_cause_right=is_cause_right,
        cause_text=causes[0].text if causes else "",
        sentence_error=sentences.judge_sentence(causes[0].text, case) if is_cause_right else "",
        pairs=asdict(_judge_alignment(result, recorded_names, sides, ops_of_form, known_partners))
        if known_partners is not None
        else {},
        seconds=round(seconds, 3),
        truth=root.first if root else "",
        said=tuple(f.title for f in result.findings[:3]) or result.notes[:1],
    )


def _explain_void(root: truth.Truth, nameable: bool) -> str:
    """Return why there is nothing to find, '' if there is something."""
    if not root.ops:
        return "nothing that was recorded changes"
    if root.effect < truth.ROUNDING:
        return f"harmless: all gradients stay the same to {root.effect:.0e}"
    return "" if nameable else "its op is not recorded in this form"


def _list_named_ops(finding: Finding, side: str, recorded_names: formats.Names) -> frozenset[str]:
    """Return the ops of the faulty side that a finding names, by their recorded names."""
    ops = finding.target_ops if side == recordings.MINDSPORE else finding.reference_ops
    return frozenset(
        recorded_names.get(op, op) if side == recordings.MINDSPORE else op for op in ops
    )


def _judge_alignment(
    result: Result,
    recorded_names,
    sides: list[partners.Side],
    ops_of_form: set[str],
    known_partners,
) -> partners.Quality:
    rows = []
    for side, run in zip(("target", "reference"), (side.run for side in sides), strict=True):
        number = {name: op for op, name in enumerate(run.trace.ops["name"])}
        names = result.pairs[f"{side}_op"]
        ops = [
            number.get(recorded_names.get(name, name) if side == "target" else name, -1)
            for name in names
        ]
        rows.append(
            [run.slots.get(key, -1) for key in zip(ops, result.pairs[f"{side}_slot"], strict=True)]
        )
    pairs = [
        (target_row, reference_row)
        for target_row, reference_row in zip(*rows, strict=True)
        if target_row >= 0 and reference_row >= 0
    ]
    reference = sides[1].run
    names = reference.trace.ops["name"].tolist()
    results = [
        row
        for row, op in enumerate(reference.op)
        if reference.role[row] == "output" and names[op] in ops_of_form
    ]
    return partners.judge_pairs(pairs, known_partners, *sides, results)


@lru_cache(maxsize=8)
def _load(path: Path) -> dumps.Dump:
    return dumps.load(path)


def _read_scores(file: Path) -> Iterator[tuple[tuple[str, str, str], Score]]:
    """Yield ((case, form, key), score); scores of a benchmark with other fields are skipped."""
    names = {field.name for field in fields(Score)}
    for line in file.read_text().splitlines():
        values = json.loads(line)
        key = values.pop("key")
        if set(values) == names:
            score = Score(**{**values, "said": tuple(values["said"])})
            yield (score.case, score.form, key), score


def _compute_key(case: faults.Case, work: Path) -> str:
    """Return a key that changes with the program, with the scoring, and with the recordings."""
    digest = hashlib.sha256(hash_code().encode())
    if case.model in families.NAMES:
        digest.update((HERE / "families" / case.model / "faults.py").read_bytes())
    for recording in recordings.list_recordings(case):
        for digested in (recording, recording.clean()):
            digest.update(recordings.get_mark(digested, work).read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def hash_code() -> str:
    """Return a digest of what every answer depends on: the program, its rules and the scoring."""
    package = Path(dumpdiff.__file__).parent
    rules = package.parent / "rules"
    files = [*package.rglob("*.py"), *rules.glob("*.yaml"), *(HERE / name for name in _SCORING)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()
