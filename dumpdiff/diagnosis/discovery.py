"""Find the inputs of a triage in the folders of two runs, and write a case file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

from .. import checkpoints, readers
from ..gradient_norms import read_norms
from ..model.errors import DumpError
from ..model.input_files import iterate_folders
from ..optimizers.inputs import read_steps
from ..run_settings import read_settings
from ..training_logs import read_log
from .case import INPUTS, SIDES, Case, Run

_MAX_DEPTH = 3  #: levels of folders below the run's own that are searched
_MAX_PATHS = 2000  #: files and folders that are examined

_SETTINGS_SUFFIXES = (".yaml", ".yml", ".sh", ".json", ".toml")
_LOG_SUFFIXES = (".log", ".out", ".txt", ".jsonl")
_LOG_NAMES = ("trainer_state.json",)
_CHECKPOINT_SUFFIXES = (".safetensors", ".ckpt", ".pt", ".bin")


def discover_case(target: str | Path, reference: str | Path) -> Case:
    """Return the case of two folders, one per run. Raises DumpError for a folder without inputs."""
    return Case(_discover_run(Path(target)), _discover_run(Path(reference)))


def _discover_run(root: Path) -> Run:
    """Return the first input of each kind in a folder."""
    if not root.is_dir():
        problem = "is a file" if root.exists() else "there is no such folder"
        raise DumpError(f"{root}: {problem}; give a run's folder")
    run = Run()
    recognized_paths: set[Path] = set()
    for path in _iterate_paths(root):
        if not recognized_paths.isdisjoint((path, *path.parents)):
            continue  # a file of a dump is nothing else
        for key, is_kind in _RECOGNIZERS.items():
            if not getattr(run, key) and is_kind(path):
                run = replace(run, **{key: str(path)})
                recognized_paths.add(path)
                break
    if run == Run():
        raise DumpError(f"{root}: holds no input; expected {', '.join(INPUTS.values())}")
    return run


def _iterate_paths(root: Path) -> Iterator[Path]:
    """Iterate over folders, each before its content, in the order of their names."""
    n_paths = 0
    for folder, folder_names, file_names in iterate_folders(root):
        if len(folder.relative_to(root).parts) >= _MAX_DEPTH:
            folder_names.clear()
        paths = [folder / name for name in file_names]
        if folder != root:
            paths.insert(0, folder)
        for path in paths:
            n_paths += 1
            if n_paths > _MAX_PATHS:
                return
            yield path


def _is_readable(path: Path, read: Callable[[Path], object]) -> bool:
    try:
        read(path)
    except DumpError:
        return False
    return True


def _is_steps(path: Path) -> bool:
    if not path.is_dir() or not any(path.glob("weights_0*")):
        return False
    return _is_readable(path, lambda folder: read_steps(str(folder)))


def _is_dump(path: Path) -> bool:
    return path.is_dir() and _is_readable(path, readers.find_parts)


def _is_checkpoint(path: Path) -> bool:
    if path.is_file() and path.suffix not in _CHECKPOINT_SUFFIXES:
        return False
    return _is_readable(path, checkpoints.open)


def _is_log(path: Path) -> bool:
    """Return whether a path is a training log, or a folder of them."""
    files: list[Path] = []
    if path.is_dir():
        files = list(path.iterdir())
    elif path.is_file():
        files = [path]
    if any(file.suffix in _LOG_SUFFIXES or file.name in _LOG_NAMES for file in files):
        return _is_readable(path, read_log)
    return False


def _is_settings(path: Path) -> bool:
    if not path.is_file() or path.suffix not in _SETTINGS_SUFFIXES:
        return False
    return _is_readable(path, read_settings)


def _is_norms(path: Path) -> bool:
    """Return whether a path is a file of norms; a training log with norms is a log."""
    if not path.is_file() or path.suffix not in _LOG_SUFFIXES:
        return False
    return _is_readable(path, read_norms) and not _is_readable(path, read_log)


def _is_dataset(path: Path) -> bool:
    return path.suffix == ".idx" and path.with_suffix(".bin").is_file()


#: How each input is recognized. The more specific test comes first: a file may pass several.
_RECOGNIZERS: Mapping[str, Callable[[Path], bool]] = {
    "steps": _is_steps,
    "dump": _is_dump,
    "weights": _is_checkpoint,
    "log": _is_log,
    "norms": _is_norms,
    "settings": _is_settings,
    "data": _is_dataset,
}

_CASE_HEADER = """\
# A case for 'dumpdiff triage': the inputs of two runs of one model. Paths are relative to this
# file. Every input is optional; missing inputs are skipped and reported.
"""
_CASE_FOOTER = """
# baseline:                        # further runs of the reference: the target may differ as much as
# these do logs: [reference_again.log] dump: reference_again/dump tokenizer: tokenizer.json        #
# decodes a sample of the batch min_steps: 1000                  # number of steps that agreement of
# the logs needs rules: [names.yaml]              # further rules for names
"""
_DESCRIPTIONS = {
    "settings": "YAML, JSON or TOML, launch script with its arguments, or log with the arguments",
    "model_config": "of the model, for settings that take the structure from it",
    "version": "of the framework, where defaults changed",
    "data": "dataset without .bin and .idx, or saved batch; without: the batch in the dump",
    "log": "or the folder with the logs of all ranks",
    "norms": "local norms or gradients of step 1; without: those in the log or in the dump",
    "weights": "before step 1",
    "steps": "weights_0, gradients_1, weights_1, ... ('dumpdiff optimizer --help')",
    "dump": "of step 1",
}
_EXAMPLES = {
    "settings": "train.sh",
    "model_config": "config.json",
    "version": '"1.6"',
    "data": "data/wiki_text_document",
    "log": "train.log",
    "norms": "local_norms.log",
    "weights": "checkpoint",
    "steps": "steps",
    "dump": "dump",
}


def format_case(case: Case, folder: Path) -> str:
    """Return the case as a commented YAML file in ``folder``; missing inputs are comments."""
    lines = [_CASE_HEADER]
    for side in SIDES:
        comment = "" if side == "reference" else "    # the run under test"
        lines.append(f"\n{side}:{comment}\n")
        run = getattr(case, side)
        for field in fields(Run):
            value = getattr(run, field.name)
            path = _format_path(value, folder) if value else _EXAMPLES[field.name]
            prefix = "" if value else "# "
            entry = f"{field.name}: {path}"
            lines.append(f"  {prefix}{entry:<42}  # {_DESCRIPTIONS[field.name]}\n")
    lines.append(_CASE_FOOTER)
    return "".join(lines)


def _format_path(path: str, folder: Path) -> str:
    """Return a path relative to the folder, in quotes if YAML would read it as something else."""
    relative_path = os.path.relpath(path, folder)
    if relative_path.startswith("../"):
        return relative_path
    is_plain = all(character.isalnum() or character in "/._-" for character in relative_path)
    if is_plain and relative_path[0] not in "-.":
        return relative_path
    escaped_path = relative_path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped_path}"'
