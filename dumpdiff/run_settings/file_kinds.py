"""Recognize by its content which kind of settings a file holds, and read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import open_input_file, read_stream
from .arguments import (
    convert_swift_options,
    has_arguments,
    read_argument_mapping,
    read_arguments,
)
from .launch_script import read_launch
from .mindformers import read_mindformers
from .model_config import add_model_config
from .settings import Settings

#: Top-level keys of a YAML of MindSpore Transformers. A YAML with Megatron-SWIFT's options has none
#: of them.
_MINDFORMERS_KEYS = {
    "use_legacy",
    "model",
    "trainer",
    "runner_config",
    "train_dataset",
    "optimizer",
    "parallel_config",
}
_MAX_BYTES = 64 << 20  #: that are read; a log prints its arguments at the beginning
_HEAD = 4096  #: characters in which a zero byte means a binary file


def read_settings(path: str | Path, version: str = "", model: str | Path | None = None) -> Settings:
    """Read the settings of one run.

    ``path`` is a YAML of MindSpore Transformers, a launch script (which is never run), a log with
    the arguments it printed, or arguments saved as JSON. ``version`` is that of the framework,
    where defaults changed. ``model`` is the config.json of the model (or its folder), for launches
    that take the structure from it.

    Raises DumpError if it is none of these.

    """
    file = Path(path)
    if file.is_dir():
        raise DumpError(f"{path}: is a folder; give the YAML, launch script or log of the run")
    if not file.exists():
        raise DumpError(f"{path}: there is no such file")
    with open_input_file(file) as stream:
        text = read_stream(stream, _MAX_BYTES).decode("utf-8", errors="replace")
    if "\0" in text[:_HEAD]:
        raise DumpError(f"{path}: is binary; expected a YAML, a launch script, a log or args.json")
    settings = _parse_text(text, file)
    if model is not None:
        settings = add_model_config(settings, Path(model))
    return replace(settings, version=version) if version else settings


def _parse_text(text: str, path: Path) -> Settings:
    if text.lstrip().startswith("{"):
        return _parse_json(text, path)
    if path.suffix in (".yaml", ".yml"):
        settings = read_mindformers(text, path.name, path)
        top_keys = {name.partition(".")[0] for name in settings.values}
        if _MINDFORMERS_KEYS.isdisjoint(top_keys):
            return convert_swift_options(settings)
        return settings
    if has_arguments(text):
        return read_arguments(text, str(path), path.name)
    return read_launch(text, path, path.name)


def _parse_json(text: str, path: Path) -> Settings:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: no valid JSON ({error})") from error
    arguments = data.get("args", data) if isinstance(data.get("args"), dict) else data
    return read_argument_mapping(arguments, str(path), path.name)
