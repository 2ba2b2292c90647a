"""A case: the inputs of a triage, read from a YAML file. Every input is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from ..model.errors import DumpError
from ..rulebook.document import Entry, read_document
from ..run_settings.reader import resolve_command
from ..training_logs.migration_standard import MIN_STEPS

#: Keys of a case that belong to one run; the other keys belong to both.
SIDES = ("target", "reference")


@dataclass(frozen=True)
class Run:
    """The inputs of one run: paths, '' for those that are missing."""

    settings: str = ""  #: YAML of MindSpore Transformers, launch script, or log with the arguments
    model_config: str = ""  #: config.json, for settings that take the structure from it
    version: str = ""  #: of the framework, where defaults changed; not a path
    data: str = ""  #: dataset (prefix of .bin and .idx) or saved batch; '': the batch in the dump
    log: str = ""  #: training log, or the folder of all ranks' logs
    #: Local norms or gradients of step 1; '': those in the log, else the steps, else the dump.
    norms: str = ""
    weights: str = ""  #: checkpoint before step 1
    steps: str = ""  #: weights_0, gradients_1, weights_1, ... of the first steps
    dump: str = ""  #: dump of step 1


@dataclass(frozen=True)
class Case:
    """The inputs of two runs, and those that belong to both."""

    target: Run = field(default_factory=Run)
    reference: Run = field(default_factory=Run)
    baseline_logs: tuple[str, ...] = ()  #: of further runs of the reference
    baseline_dump: str = ""
    tokenizer: str = ""
    min_steps: int = MIN_STEPS  #: number of steps that agreement of the logs needs
    rules: tuple[str, ...] = ()
    file: str = ""  #: the file of the case, '' if it was given by options

    def get_both(self, key: str) -> tuple[str, str]:
        """Return one input of target and reference."""
        return getattr(self.target, key), getattr(self.reference, key)

    def list_paths(self) -> list[str]:
        """Return everything that is read; settings may be a command in place of a path."""
        paths = [
            getattr(run, key)
            for run in (self.target, self.reference)
            for key in INPUTS
            if key not in _NO_PATHS
        ]
        paths += [*self.baseline_logs, self.baseline_dump, self.tokenizer, *self.rules]
        return [path for path in paths if path]


#: The inputs of a run by key, and what a message calls them.
INPUTS: Mapping[str, str] = {
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
    """Read a case from a YAML file; its paths are relative to the file's folder.

    Raises DumpError with the line for an unknown key, a value of another type, or a path that does
    not exist.
    """
    file = Path(path)
    if not file.exists():
        raise DumpError(
            f"{path}: there is no such file; 'dumpdiff triage --init TARGET REFERENCE' writes one"
        )
    if file.is_dir():
        raise DumpError(
            f"{path}: is a folder, not a case file; two folders, one of each run, are compared "
            "with 'dumpdiff triage TARGET REFERENCE'"
        )
    document = read_document(file, str(path))
    entries = {} if document is None else document.read_fields(_KEYS)
    root = file.parent
    runs = {side: _read_run(entries.get(side), root) for side in SIDES}
    baseline = _read_fields(entries.get("baseline"), ("logs", "dump"))
    case = Case(
        target=runs["target"],
        reference=runs["reference"],
        baseline_logs=_read_paths(baseline.get("logs"), root),
        baseline_dump=_read_path(baseline.get("dump"), root),
        tokenizer=_read_path(entries.get("tokenizer"), root),
        min_steps=_read_min_steps(entries.get("min_steps")),
        rules=_read_paths(entries.get("rules"), root),
        file=str(path),
    )
    if case.target == case.reference == Run():
        raise DumpError(f"{path}: names no input of either run; give some of: {', '.join(INPUTS)}")
    return case


def build_run(inputs: Mapping[str, str]) -> Run:
    """Return one run from the keys and values of ``--target KEY=VALUE``.

    Raises DumpError for an unknown key, or a path that does not exist.
    """
    for key in inputs:
        if key not in INPUTS:
            expected_keys = ", ".join(INPUTS)
            raise DumpError(f"'{key}' is no input of a run; expected one of {expected_keys}")
    for key, value in inputs.items():
        if key in _NO_PATHS:
            continue
        is_command = key == "settings" and resolve_command(value, Path()) is not None
        if not is_command and not _has_files(key, Path(value)):
            raise DumpError(f"{value}: no such file or folder (given as {key})")
    return Run(**inputs)


def _read_run(entry: Entry | None, root: Path) -> Run:
    inputs = {}
    for key, value in _read_fields(entry, [run_field.name for run_field in fields(Run)]).items():
        if key in _NO_PATHS:
            inputs[key] = value.read_text()
        else:
            inputs[key] = _read_path(value, root, key)
    return Run(**inputs)


def _read_fields(entry: Entry | None, keys: Sequence[str]) -> dict[str, Entry]:
    """Return the entries of a mapping that have a value."""
    if entry is None or _is_empty(entry):
        return {}
    values = entry.read_fields(keys)
    return {key: value for key, value in values.items() if not _is_empty(value)}


def _is_empty(entry: Entry) -> bool:
    """Return whether a key has no value, as if everything under it is commented out."""
    return bool(entry.node.tag.endswith(":null"))


def _read_paths(entry: Entry | None, root: Path) -> tuple[str, ...]:
    if entry is None or _is_empty(entry):
        return ()
    return tuple(_read_path(text_entry, root) for text_entry in entry.read_texts())


def _read_path(entry: Entry | None, root: Path, key: str = "") -> str:
    if entry is None or _is_empty(entry):
        return ""
    path = root / entry.read_text()
    if not _has_files(key, path):
        command = resolve_command(entry.read_text(), root) if key == "settings" else None
        if command is not None:
            return command
        raise entry.make_error(f"there is no {path}")
    return str(path)


def _has_files(key: str, path: Path) -> bool:
    """Return whether an input exists.

    Datasets have no suffix here, steps may be a list of files.
    """
    if path.exists():
        return True
    if key == "data":
        return path.with_name(path.name + ".idx").is_file()
    return key == "steps" and "," in path.name


def _read_min_steps(entry: Entry | None) -> int:
    if entry is None or _is_empty(entry):
        return MIN_STEPS
    value = entry.read_number()
    if value != int(value) or value < 1:
        raise entry.make_error(f"expected a whole number, 1 or more, found '{entry.read_text()}'")
    return int(value)
