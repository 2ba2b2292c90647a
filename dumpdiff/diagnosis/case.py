"""A case: what a user has of two runs. Read from a YAML file; every part may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ..model.errors import DumpError
from ..rulebook.document import Entry, read_document
from ..training_logs.migration_standard import MIN_STEPS

#: Of the two runs; the rest of a :class:`Case` belongs to both.
SIDES = ("target", "reference")


@dataclass(frozen=True)
class Run:
    """What there is of one run: paths, '' for what there is not."""

    settings: str = ""  #: YAML of MindSpore Transformers, launch script, or log with the arguments
    model_config: str = ""  #: config.json, for settings that take the structure from it
    version: str = ""  #: of the framework, where defaults changed; no path
    data: str = ""  #: dataset (prefix of .bin and .idx) or saved batch; '': the batch in the dump
    log: str = ""  #: training log, or the folder of all ranks' logs
    norms: str = (
        ""  #: local norms or gradients of step 1; '': those in the log, else those in the dump
    )
    weights: str = ""  #: checkpoint before step 1
    steps: str = ""  #: weights_0, gradients_1, weights_1, ... of the first steps
    dump: str = ""  #: dump of step 1


@dataclass(frozen=True)
class Case:
    """Two runs, and what else is known."""

    target: Run = field(default_factory=Run)
    reference: Run = field(default_factory=Run)
    baseline_logs: tuple[str, ...] = ()  #: further runs of the reference
    baseline_dump: str = ""
    tokenizer: str = ""
    min_steps: int = MIN_STEPS  #: that logs need, to be called agreeing
    rules: tuple[str, ...] = ()
    file: str = ""  #: where the case is written, '' if it was given by options

    def get_both(self, part: str) -> tuple[str, str]:
        """One part of target and reference."""
        return getattr(self.target, part), getattr(self.reference, part)


#: What a run may have, and what to call it when it is missing.
PARTS: Mapping[str, str] = {
    "settings": "settings (YAML, launch script, or log with arguments)",
    "model_config": "config.json of the model",
    "version": "version of the framework",
    "data": "dataset or saved batch",
    "log": "training log",
    "norms": "local norms",
    "weights": "checkpoint before step 1",
    "steps": "weights and gradients of the first steps",
    "dump": "dump of step 1",
}
_NO_PATHS = ("version",)
_KEYS = (*SIDES, "baseline", "tokenizer", "min_steps", "rules")


def load_case(path: str | Path) -> Case:
    """The case in a YAML file; its paths are relative to the file's folder.

    Raises DumpError, with the line, for an unknown key, a value of another type, or a path that leads nowhere.
    """
    place = Path(path)
    if not place.is_file():
        raise DumpError(
            f"{path}: there is no such file; 'dumpdiff triage --init TARGET REFERENCE' writes one"
        )
    document = read_document(place, str(path))
    given = {} if document is None else document.read_fields(_KEYS)
    root = place.parent
    runs = {side: _run(given.get(side), root) for side in SIDES}
    baseline = (
        given["baseline"].read_fields(("logs", "dump")) if _there(given.get("baseline")) else {}
    )
    case = Case(
        target=runs["target"],
        reference=runs["reference"],
        baseline_logs=_paths(baseline.get("logs"), root),
        baseline_dump=_path(baseline.get("dump"), root),
        tokenizer=_path(given.get("tokenizer"), root),
        min_steps=_count(given.get("min_steps")),
        rules=_paths(given.get("rules"), root),
        file=str(path),
    )
    if case.target == case.reference == Run():
        raise DumpError(f"{path}: names nothing of either run; give some of: {', '.join(PARTS)}")
    return case


def build_run(given: Mapping[str, str]) -> Run:
    """One run from keys and values as ``--target KEY=VALUE`` gives them. Raises DumpError for an unknown key."""
    for name in given:
        if name not in PARTS:
            raise DumpError(
                f"'{name}' is nothing that a run has; expected one of {', '.join(PARTS)}"
            )
    for name, value in given.items():
        if name not in _NO_PATHS and not _exists(name, Path(value)):
            raise DumpError(f"{value}: no such file or folder (given as {name})")
    return Run(**given)


def _run(entry: Entry | None, root: Path) -> Run:
    if entry is None or not _there(entry):
        return Run()
    names = [part.name for part in fields(Run)]
    return Run(**{
        name: value.read_text() if name in _NO_PATHS else _path(value, root, name)
        for name, value in entry.read_fields(names).items()
        if _there(value)
    })  # fmt: skip


def _there(entry: Entry | None) -> bool:
    """Whether a key has a value: one with everything under it commented out has none."""
    return entry is not None and not (entry.node.tag.endswith(":null"))


def _paths(entry: Entry | None, root: Path) -> tuple[str, ...]:
    if entry is None or not _there(entry):
        return ()
    return tuple(_path(one, root) for one in entry.read_texts())


def _path(entry: Entry | None, root: Path, part: str = "") -> str:
    if entry is None or not _there(entry):
        return ""
    path = root / entry.read_text()
    if not _exists(part, path):
        raise entry.make_error(f"there is no {path}")
    return str(path)


def _exists(part: str, path: Path) -> bool:
    """Datasets are given without their suffix, steps as a list with commas."""
    if part == "data" and path.with_name(path.name + ".idx").is_file():
        return True
    return path.exists() or (part == "steps" and "," in path.name)


def _count(entry: Entry | None) -> int:
    if entry is None or not _there(entry):
        return MIN_STEPS
    value = entry.read_number()
    if value != int(value) or value < 1:
        raise entry.make_error(f"expected a whole number, 1 or more, found '{entry.read_text()}'")
    return int(value)
