"""Damage pairs of dumps, ask dumpdiff, and keep what it answered as JSON lines."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import answers
import damages
import formats
import kinds
import recordings
import score
from copies import DumpCopy, Editor, JsonEntries, StatisticRows, TensorFiles
from pairs import Pair
from records import list_records

HERE = Path(__file__).resolve().parent
_MEASURING = ("answers.py", "copies.py", "damages.py", "kinds.py", "outcomes.py", "records.py")
FORMS = ("tensors", "statistics")
SIDES = ("target", "reference")
#: Kind of the outcome of a pair without damage.
UNDAMAGED = "undamaged"


@dataclass(frozen=True)
class Outcome:
    """What dumpdiff answered to one damage, or to the pair without one."""

    pair: str
    model: str
    form: str
    held_out: bool
    kind: str
    side: str = ""
    subject: str = ""
    id: str = ""
    name: str = ""
    verdict: str = ""
    level: str = ""  #: one of answers.LEVELS
    #: whether ``align`` opened the damaged file; None for statistics
    is_read: bool | None = None
    #: the level with ``verify=True``, which is asked only where the terminal tells nothing without;
    #: '' where it does not apply
    verified_level: str = ""
    lines: tuple[str, ...] = ()  #: that tell it
    seconds: float = 0.0


def measure_outcomes(
    pairs: Sequence[Pair],
    forms: Sequence[str],
    selected_kinds: Sequence[str],
    work: Path,
    processes: int,
    report: Callable[[str], None],
) -> list[Outcome]:
    """Damage the pairs in every kind, or take kept outcomes of the same code and recordings."""
    file = work / "damages.jsonl"
    kept = _read_outcomes(file)
    outcomes, pending = [], []
    for pair in pairs:
        key = _compute_key(pair, work)
        for form in forms:
            possible_kinds = kinds.list_kinds(whole=form == "tensors")
            wanted_kinds = [UNDAMAGED, *(k for k in possible_kinds if k in selected_kinds)]
            missing = [k for k in wanted_kinds if (pair.name, form, k, key) not in kept]
            for kind in wanted_kinds:
                outcomes += kept.get((pair.name, form, kind, key), [])
            if missing:
                pending.append((pair, form, missing, key))
    with ProcessPoolExecutor(processes) as pool, file.open("a") as lines:
        running = {
            pool.submit(measure_pair, pair, form, missing, work): (pair, form, missing, key)
            for pair, form, missing, key in pending
        }
        for count, future in enumerate(as_completed(running), 1):
            pair, form, missing, key = running[future]
            pair_outcomes = future.result()
            for kind in missing:
                kind_outcomes = [outcome for outcome in pair_outcomes if outcome.kind == kind]
                outcomes += kind_outcomes
                row = [pair.name, form, kind, key, [asdict(outcome) for outcome in kind_outcomes]]
                lines.write(json.dumps(row) + "\n")
            lines.flush()
            report(f"damaged {count}/{len(running)} {pair.name} [{form}]")
    return outcomes


def measure_pair(
    pair: Pair,
    form: str,
    wanted_kinds: Collection[str],
    work: Path,
    *,
    only: str = "",
    keep: Path | None = None,
) -> list[Outcome]:
    """Ask about a pair as it is, and with each damage.

    With ``only``, just about the damage of this id; with ``keep``, the damaged dumps are left
    in this folder as ``target`` and ``reference``.
    """
    outcomes = []
    paths = [recordings.get_path(recording, work) for recording in pair.recordings]
    with tempfile.TemporaryDirectory(prefix="damage-", dir=work) as folder:
        copies = [
            DumpCopy(_make_form(form, recording.framework, path), Path(folder) / side)
            for recording, path, side in zip(pair.recordings, paths, SIDES, strict=True)
        ]
        folders = [copy.folder for copy in copies]
        begin = time.perf_counter()
        clean = answers.ask(*folders)
        undamaged = Outcome(
            pair.name, pair.model, form, pair.held_out, UNDAMAGED, verdict=clean.verdict,
            lines=clean.lines[:1], seconds=round(time.perf_counter() - begin, 3),
        )  # fmt: skip
        outcomes.append(undamaged)
        if clean.verdict != "aligned":  # a false alarm: nothing can be asked of it
            return outcomes
        clean_verified = None
        if answers.CAN_VERIFY and form == "tensors":
            clean_verified = answers.ask(*folders, verify=True)
        for recording, path, side, copy in zip(pair.recordings, paths, SIDES, copies, strict=True):
            records = list_records(path)
            editor = _make_editor(form, recording.framework, copy, path)
            place = (pair.name, form, side)
            for kind in wanted_kinds:
                if kind == UNDAMAGED:
                    continue
                for damage in damages.draw_damages(editor, records, place, kind):
                    if only in ("", damage.id):
                        outcomes.append(
                            _ask_about(damage, undamaged, folders, clean, clean_verified)
                        )
                        if keep is not None:
                            _keep(folders, keep)
                    copy.restore()
    return outcomes


def _ask_about(
    damage: damages.Damage,
    undamaged: Outcome,
    folders: Sequence[Path],
    clean: answers.Answer,
    clean_verified: answers.Answer | None,
) -> Outcome:
    outcome = replace(
        undamaged,
        held_out=undamaged.held_out or damage.is_held_out,
        kind=damage.kind,
        side=damage.side,
        subject=damage.record.subject,
        id=damage.id,
        name=damage.name,
    )
    begin = time.perf_counter()
    answer, level, lines = _judge(damage, folders, clean, verify=False)
    seconds = round(time.perf_counter() - begin, 3)
    is_read, verified_level = None, ""
    if damage.form == "tensors":
        damaged_file = folders[SIDES.index(damage.side)] / damage.record.file
        is_read = answer is not None and str(damaged_file) in answer.read_files
    if clean_verified is not None:
        verified_level = level
        if level not in answers.TOLD:
            _, verified_level, _ = _judge(damage, folders, clean_verified, verify=True)
    return replace(
        outcome,
        verdict="" if answer is None else answer.verdict,
        level=level,
        is_read=is_read,
        verified_level=verified_level,
        lines=tuple(lines[:3]),
        seconds=seconds,
    )


def _judge(
    damage: damages.Damage, folders: Sequence[Path], clean: answers.Answer, *, verify: bool
) -> tuple[answers.Answer | None, str, tuple[str, ...]]:
    """Return the answer (None if there is none), its level, and the lines that tell the damage."""
    ops = {record.op for record in damage.same_value}
    file = Path(damage.record.file).name
    try:
        answer = answers.ask(*folders, verify=verify, counts=clean.counts)
    except Exception:
        return None, answers.CRASHED, (traceback.format_exc(limit=-1),)
    return answer, *answers.locate_damage(answer, clean, damage.side, ops, file)


def _keep(folders: Sequence[Path], keep: Path) -> None:
    for folder in folders:
        shutil.rmtree(keep / folder.name, ignore_errors=True)
        shutil.copytree(folder, keep / folder.name)


def _make_form(form: str, framework: str, recording: Path) -> Path:
    makers = formats.FORMS[form]
    is_mindspore = framework == recordings.MINDSPORE
    return formats.make_form(makers.target if is_mindspore else makers.reference, recording)


def _make_editor(form: str, framework: str, copy: DumpCopy, recording: Path) -> Editor:
    if form == "tensors":
        return TensorFiles(copy)
    if framework == recordings.MINDSPORE:
        return StatisticRows(copy, recording)
    return JsonEntries(copy, recording)


def _read_outcomes(file: Path) -> dict[tuple[str, ...], list[Outcome]]:
    if not file.exists():
        return {}
    kept = {}
    for line in file.read_text().splitlines():
        *key, rows = json.loads(line)
        kept[tuple(key)] = [Outcome(**{**row, "lines": tuple(row["lines"])}) for row in rows]
    return kept


def _compute_key(pair: Pair, work: Path) -> str:
    """Return a key that changes with the program, with this benchmark, and with the recordings."""
    digest = hashlib.sha256(score.hash_code().encode())
    for name in _MEASURING:
        digest.update((HERE / name).read_bytes())
    for recording in pair.recordings:
        digest.update(recordings.get_mark(recording, work).read_bytes())
    return digest.hexdigest()[:16]
