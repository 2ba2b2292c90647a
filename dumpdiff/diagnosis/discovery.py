"""What two folders hold of two runs, judged by content, and the case file that says it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

from .. import checkpoints, readers
from ..gradient_norms import read_norms
from ..model.errors import DumpError
from ..optimizers.inputs import read_steps
from ..run_settings import read_settings
from ..training_logs import read_log
from .case import PARTS, SIDES, Case, Run

_DEEPEST = 3  #: folders below the run's own in which something is looked for
_MANY = 2000  #: files and folders that are looked at

_SETTINGS = (".yaml", ".yml", ".sh", ".json")
_LOGS = (".log", ".out", ".txt", ".jsonl")
_SAVED = (".safetensors", ".ckpt", ".pt", ".bin")


def discover_case(target: str | Path, reference: str | Path) -> Case:
    """The case that two folders make, one per run. Raises DumpError for a folder in which nothing is found."""
    return Case(_found(Path(target)), _found(Path(reference)))


def _found(root: Path) -> Run:
    if not root.is_dir():
        raise DumpError(
            f"{root}: {'is a file' if root.exists() else 'there is no such folder'}; give a run's folder"
        )
    run = Run()
    inside: set[Path] = set()  # of what is known already: a dump's own files are nothing else
    for path in _paths(root):
        if inside & {path, *path.parents}:
            continue
        for part, holds in _KINDS.items():
            if not getattr(run, part) and holds(path):
                run = replace(run, **{part: str(path)})
                inside.add(path)
                break
    if run == Run():
        raise DumpError(
            f"{root}: nothing of a training in it; expected {', '.join(PARTS.values())}"
        )
    return run


def _paths(root: Path) -> Iterator[Path]:
    """Folders before what is in them, both in the order of their names."""
    seen = 0
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders.sort()
        if len(here.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        for path in ([] if here == root else [here]) + [here / name for name in sorted(files)]:
            seen += 1
            if seen > _MANY:
                return
            yield path


def _is(path: Path, reads: Callable[[Path], object]) -> bool:
    try:
        reads(path)
    except DumpError:
        return False
    return True


def _steps(path: Path) -> bool:
    return (
        path.is_dir()
        and any(path.glob("weights_0*"))
        and _is(path, lambda found: read_steps(str(found)))
    )


def _dump(path: Path) -> bool:
    return path.is_dir() and _is(path, readers.find_parts)


def _weights(path: Path) -> bool:
    if path.is_file() and path.suffix not in _SAVED:
        return False
    return _is(path, checkpoints.open)


def _log(path: Path) -> bool:
    return path.is_file() and path.suffix in _LOGS and _is(path, read_log)


def _log_folder(path: Path) -> bool:
    return (
        path.is_dir()
        and any(file.suffix in _LOGS for file in path.iterdir())
        and _is(path, read_log)
    )


def _settings(path: Path) -> bool:
    return path.is_file() and path.suffix in _SETTINGS and _is(path, read_settings)


def _norms(path: Path) -> bool:
    """A file of norms alone; a training log that has some too is known as a log."""
    return (
        path.is_file()
        and path.suffix in _LOGS
        and _is(path, read_norms)
        and not _is(path, read_log)
    )


def _dataset(path: Path) -> bool:
    return path.suffix == ".idx" and path.with_suffix(".bin").is_file()


#: Of each part how it is known; the more telling first, since a file may pass for two.
_KINDS = {
    "steps": _steps,
    "dump": _dump,
    "weights": _weights,
    "log": lambda path: _log_folder(path) or _log(path),
    "norms": _norms,
    "settings": _settings,
    "data": _dataset,
}

_HEAD = """\
# A case for 'dumpdiff triage': what there is of two runs of one model. Paths are relative to this file.
# Nothing is needed; what is missing is skipped, and said to be.
"""
_TAIL = """
# baseline:                        # further runs of the reference: what these differ by is allowed to the target
#   logs: [reference_again.log]
#   dump: reference_again/dump
# tokenizer: tokenizer.json        # decodes a sample of the batch
# min_steps: 1000                  # steps that logs need, to be called agreeing
# rules: [names.yaml]              # further rules for names
"""
_ABOUT = {
    "settings": "YAML of MindSpore Transformers, launch script, or log with the arguments",
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
    """The case as a commented YAML file that stands in ``folder``; what was not found stands there as a comment."""
    lines = [_HEAD]
    for side in SIDES:
        run = getattr(case, side)
        lines.append(f"\n{side}:{'' if side == 'reference' else '    # the run under test'}\n")
        for name in (part.name for part in fields(Run)):
            value = getattr(run, name)
            said = f"{name}: {_relative(value, folder) if value else _EXAMPLES[name]}"
            lines.append(f"  {'' if value else '# '}{said:<42}  # {_ABOUT[name]}\n")
    return "".join((*lines, _TAIL))


def _relative(path: str, folder: Path) -> str:
    """A path as it is written in YAML: relative, and quoted where it would be read as something else."""
    shown = os.path.relpath(path, folder)
    plain = all(char.isalnum() or char in "/._-" for char in shown) and shown[0] not in "-."
    return (
        shown
        if plain or shown.startswith("../")
        else '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )
