"""What dumpdiff says of every case in every form, held against the truth: a :class:`Score` each, kept as JSON lines."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import dumps
import faults
import formats
import partners
import recordings
import truth

import dumpdiff
from dumpdiff.model.result import Result
from dumpdiff.model.finding import Finding

HERE = Path(__file__).resolve().parent
_SCORING = ("dumps.py", "formats.py", "partners.py", "score.py", "truth.py")


@dataclass(frozen=True)
class Score:
    """One case in one form. Of a benign case only verdict, alignment and time count."""

    case: str
    model: str
    form: str
    held_out: bool
    benign: bool
    side: str
    cause: str
    void: str  #: why there is nothing to find: no effect on what this form holds; then it is not counted
    verdict: str
    top1: bool
    top3: bool
    named: int  #: ops of the faulty side that the first finding names: how near it leads
    said_cause: str  #: the first cause of the finding that is right, '' if it gives none
    pairs: dict[
        str, dict[str, int]
    ]  #: {} for pairs of low precision, where no partners are known; see partners.Tally
    seconds: float
    truth: str  #: the earliest root
    said: tuple[str, ...]  #: titles of the first three findings, or why it is inconclusive


def scores(
    cases: Iterable[faults.Case],
    forms: tuple[str, ...],
    work: Path,
    processes: int,
    say: Callable[[str], None],
) -> list[Score]:
    """Score the cases whose recordings are there, or take what was scored before with the same code."""
    file = work / "scores.jsonl"
    kept = dict(_kept(file)) if file.exists() else {}
    found, wanted = [], []
    for case in cases:
        key = _key(case, work)
        found += [kept[at] for form in forms if (at := (case.name, form, key)) in kept]
        if missing := tuple(form for form in forms if (case.name, form, key) not in kept):
            wanted.append((case, missing, key))
    with ProcessPoolExecutor(processes) as pool, file.open("a") as lines:
        running = {
            pool.submit(score, case, missing, work): (case, key) for case, missing, key in wanted
        }
        for count, done in enumerate(as_completed(running), 1):
            case, key = running[done]
            for made in done.result():
                found.append(made)
                lines.write(json.dumps({"key": key, **asdict(made)}) + "\n")
            lines.flush()
            say(
                f"scored {count}/{len(running)} {'a held-out case' if case.held_out else case.name}"
            )
    return found


def score(case: faults.Case, forms: Iterable[str], work: Path) -> list[Score]:
    """Compare one pair in several forms."""
    wanted = recordings.of(case)
    clean = [_load(recordings.path(recording.clean(), work)) for recording in wanted]
    runs = [_load(recordings.path(recording, work)) for recording in wanted]
    faulty = 0 if case.side == recordings.MINDSPORE else 1
    root = None if case.benign else truth.find(clean[faulty], runs[faulty])
    sides = [
        partners.Side(*pair, dumps.twins(*pair), root.changed if root and at == faulty else None)
        for at, pair in enumerate(zip(clean, runs, strict=True))
    ]
    single = not any("16" in option for option in (*case.target_options, *case.reference_options))
    known = partners.known(*clean) if single else None
    paths = [recordings.path(recording, work) for recording in wanted]
    return [_score(case, form, paths, sides, root, known) for form in forms]


def _score(case, form: str, paths: list[Path], sides: list[partners.Side], root, known) -> Score:
    chosen = formats.FORMS[form]
    target, reference = (
        formats.made(chosen.target, paths[0]),
        formats.made(chosen.reference, paths[1]),
    )
    renamed = formats.names(chosen.target, paths[0], sides[0].run.trace)
    ops_of_form = set(dumpdiff.read(reference).ops["name"])
    begin = time.perf_counter()
    result = dumpdiff.align(target, reference)
    seconds = time.perf_counter() - begin

    void, hits = "", []
    if root is not None:
        nameable = root.ops & ops_of_form if case.side == recordings.PYTORCH else root.ops
        void = _void(root, bool(nameable))
        hits = [_named(finding, case.side, renamed) & nameable for finding in result.findings[:3]]
    right = next(
        (finding for finding, hit in zip(result.findings, hits, strict=False) if hit), None
    )
    causes = getattr(right, "causes", ())
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
        top1=diverged and bool(hits[:1] and hits[0]),
        top3=diverged and any(hits),
        named=len(_named(first, case.side, renamed)) if first and case.side else 0,
        said_cause=causes[0].name if causes else "",
        pairs=asdict(_alignment(result, renamed, sides, ops_of_form, known))
        if known is not None
        else {},
        seconds=round(seconds, 3),
        truth=root.first if root else "",
        said=tuple(f.title for f in result.findings[:3]) or result.notes[:1],
    )


def _void(root: truth.Truth, nameable: bool) -> str:
    """Why there is nothing to find, '' if there is."""
    if not root.ops:
        return "nothing that was recorded changes"
    if root.effect < truth.ROUNDING:
        return f"harmless: all gradients stay the same to {root.effect:.0e}"
    return "" if nameable else "its op is not recorded in this form"


def _named(finding: Finding, side: str, renamed: formats.Names) -> frozenset[str]:
    """Ops of the faulty side that a finding names, by their names as recorded."""
    ops = finding.target_ops if side == recordings.MINDSPORE else finding.reference_ops
    return frozenset(renamed.get(op, op) if side == recordings.MINDSPORE else op for op in ops)


def _alignment(
    result: Result, renamed, sides: list[partners.Side], ops_of_form: set[str], known
) -> partners.Quality:
    rows = []
    for side, run in zip(("target", "reference"), (side.run for side in sides), strict=True):
        number = {name: op for op, name in enumerate(run.trace.ops["name"])}
        names = result.pairs[f"{side}_op"]
        ops = [
            number.get(renamed.get(name, name) if side == "target" else name, -1) for name in names
        ]
        rows.append(
            [run.slots.get(at, -1) for at in zip(ops, result.pairs[f"{side}_slot"], strict=True)]
        )
    pairs = [
        (ours, theirs) for ours, theirs in zip(*rows, strict=True) if ours >= 0 and theirs >= 0
    ]
    reference = sides[1].run
    names = reference.trace.ops["name"].tolist()
    results = [
        row
        for row, op in enumerate(reference.op)
        if reference.role[row] == "output" and names[op] in ops_of_form
    ]
    return partners.judge(pairs, known, *sides, results)


@lru_cache(maxsize=8)
def _load(path: Path) -> dumps.Dump:
    return dumps.load(path)


def _kept(file: Path) -> Iterator[tuple[tuple[str, str, str], Score]]:
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        key = fields.pop("key")
        yield (
            (fields["case"], fields["form"], key),
            Score(**{**fields, "said": tuple(fields["said"])}),
        )


def _key(case: faults.Case, work: Path) -> str:
    """Changes with the program, with the way of scoring, and with the recordings."""
    digest = hashlib.sha256(code().encode())
    for recording in recordings.of(case):
        for one in (recording, recording.clean()):
            digest.update(recordings.mark(one, work).read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def code() -> str:
    """What every answer depends on: a digest of the program, its rules and the way of scoring."""
    package = Path(dumpdiff.__file__).parent
    rules = package.parent / "rules"
    files = [*package.rglob("*.py"), *rules.glob("*.yaml"), *(HERE / name for name in _SCORING)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()
