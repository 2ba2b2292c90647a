"""Which kind of settings a file holds is judged by its content."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ..model.errors import DumpError
from .arguments import from_mapping, holds_arguments, of_swift, read_arguments
from .launch_script import read_launch
from .mindformers import read_mindformers
from .model_config import with_model
from .settings import Settings

#: Top keys of which every YAML of MindSpore Transformers has some; Megatron-SWIFT's options in a YAML have none.
_MINDFORMERS = {
    "use_legacy",
    "model",
    "trainer",
    "runner_config",
    "train_dataset",
    "optimizer",
    "parallel_config",
}
_LONGEST = 64 << 20  #: bytes; the head of a log holds its arguments


def read_settings(path: str | Path, version: str = "", model: str | Path | None = None) -> Settings:
    """The settings of one run: a YAML of MindSpore Transformers, a launch script (read, never run), a log with the
    arguments it printed, or arguments saved as JSON. ``version`` is that of the framework, where defaults changed.

    ``model`` is the config.json of the model (or its folder), for launches that take the structure from it.

    Raises DumpError if it is none of these.
    """
    place = Path(path)
    if place.is_dir():
        raise DumpError(f"{path}: is a folder; give the YAML, launch script or log of the run")
    if not place.is_file():
        raise DumpError(f"{path}: there is no such file")
    with place.open("rb") as stream:
        text = stream.read(_LONGEST).decode("utf-8", errors="replace")
    if "\0" in text[:4096]:
        raise DumpError(f"{path}: is binary; expected a YAML, a launch script, a log or args.json")
    settings = _read(text, place)
    settings = settings if model is None else with_model(settings, Path(model))
    return replace(settings, version=version) if version else settings


def _read(text: str, path: Path) -> Settings:
    if text.lstrip().startswith("{"):
        return _json(text, path)
    if path.suffix in (".yaml", ".yml"):
        settings = read_mindformers(text, path.name, path)
        return (
            of_swift(settings)
            if _MINDFORMERS.isdisjoint(name.partition(".")[0] for name in settings.values)
            else settings
        )
    if holds_arguments(text):
        return read_arguments(text, str(path), path.name)
    return read_launch(text, path, path.name)


def _json(text: str, path: Path) -> Settings:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: no valid JSON ({error})") from error
    data = data.get("args", data) if isinstance(data.get("args"), dict) else data
    return from_mapping(data, str(path), path.name)
