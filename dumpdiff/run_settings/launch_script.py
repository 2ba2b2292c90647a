"""A launch script as settings: find the training among its commands, and read its options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text
from .mindformers import add_options, read_mindformers
from .options import read_environment, read_options
from .settings import Settings, SettingValue
from .shell import Call, Word, read_script
from .table import load_table

_SHELLS = ("bash", "sh", "srun", "ssh", "docker")
_SWIFT_TASKS = {"sft", "pt", "rlhf"}
_WORKERS = re.compile(r"--(?:nproc[-_]per[-_]node|worker[-_]num|num[-_]gpus|num[-_]processes)")
_NODES = re.compile(r"--nnodes")
_MAX_NESTED = 4  #: scripts in quotes within scripts in quotes

#: Arguments of which a training of Megatron-LM has at least one. Other Python programs have none of
#: them.
_TRAINING_ARGUMENTS = {
    "num_layers",
    "micro_batch_size",
    "hidden_size",
    "lr",
    "train_iters",
    "load",
    "bf16",
}

#: Workers of msrun_launcher.sh if their number is not given.
_DEFAULT_MSRUN_WORKERS = "8"

#: Options of run_mindformer.py, and the keys of the YAML that they set.
_YAML_KEYS = {
    "use_parallel": "use_parallel",
    "run_mode": "run_mode",
    "load_checkpoint": "load_checkpoint",
    "seed": "seed",
    "resume_training": "resume_training",
    "output_dir": "output_dir",
    "epochs": "runner_config.epochs",
    "batch_size": "runner_config.batch_size",
    "sink_mode": "runner_config.sink_mode",
    "gradient_accumulation_steps": "runner_config.gradient_accumulation_steps",
    "train_dataset_dir": "train_dataset.data_loader.dataset_dir",
    "train_dataset": "train_dataset.data_loader.dataset_dir",
}


def read_launch(text: str, path: Path, file: str) -> Settings:
    """Return the settings of the last training that a script starts.

    Raises DumpError if it starts none of Megatron-LM, Megatron-SWIFT and MindSpore Transformers.
    """
    try:
        script = read_script(text)
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error
    trainings = []
    for call in script.calls:
        settings = _find_training(call, path, file, 0)
        if settings is not None:
            trainings.append((call, settings))
    if not trainings:
        raise DumpError(
            f"{path}: no training is started in it; expected a launch script (torchrun"
            " pretrain_gpt.py, megatron sft, msrun_launcher.sh), a YAML of MindSpore Transformers,"
            " a log with the run's arguments, or args.json"
        )
    notes = [
        f"{file}:{word.line}: {word.text} is read by the script, and was not read here"
        for word in script.sourced
    ]
    if len(trainings) > 1:
        notes.append(f"{file}: {len(trainings)} trainings are started; the last one was read")
    call, settings = trainings[-1]
    if not call.certain:
        notes.append(
            f"{file}:{call.line}: the training is started under a condition that the script does"
            " not decide"
        )
    return replace(settings, notes=(*settings.notes, *notes))


def _find_training(call: Call, path: Path, file: str, depth: int) -> Settings | None:
    """Return the settings of the training that a command starts, None if it starts none."""
    words = list(call.words)
    nested_training = _find_nested_training(words, path, file, depth)
    if nested_training is not None:
        return nested_training
    for index, word in enumerate(words):
        name = PurePosixPath(word.text).name
        next_words = words[index + 1 :]
        if name in ("megatron", "swift") and next_words and next_words[0].text in _SWIFT_TASKS:
            return _read_swift(next_words[1:], call, path, file)
        if name == "msrun_launcher.sh":
            return _read_quoted_mindformers(next_words, call, path, file)
        if name == "run_mindformer.py":
            workers = _find_world_size(words[:index])
            return _read_mindformers_command(next_words, workers, call, path, file)
        if name.endswith(".py"):
            return _read_megatron(words[:index], next_words, call, path, file)
    return None


def _find_nested_training(
    words: Sequence[Word], path: Path, file: str, depth: int
) -> Settings | None:
    """Return the last training of a script in quotes: ``bash -c "torchrun pretrain_gpt.py"``."""
    if PurePosixPath(words[0].text).name not in _SHELLS or depth >= _MAX_NESTED:
        return None
    for option, script in pairwise(words):
        if option.text != "-c" and not option.text.endswith("lc"):
            continue
        last_training = None
        for call in read_script(script.text).calls:
            training = _find_training(call, path, file, depth + 1)
            if training is not None:
                last_training = training
        if last_training is not None:
            return last_training
    return None


def _read_megatron(
    launcher: Sequence[Word], words: Sequence[Word], call: Call, path: Path, file: str
) -> Settings | None:
    values, notes = read_options(words, file, load_table(), underscores=False)
    if not values.keys() & _TRAINING_ARGUMENTS:
        return None  # some other program: data preparation, a download
    if "use_checkpoint_args" in values:
        notes.append(
            f"{file}: --use-checkpoint-args: the checkpoint's arguments override those of the"
            " script"
        )
    return Settings(
        path=str(path),
        framework="megatron",
        source="launch script",
        values=_add_world_size(values, _find_world_size(launcher), file),
        environment=read_environment(call.environment, file),
        notes=tuple(notes),
    )


def _read_swift(words: Sequence[Word], call: Call, path: Path, file: str) -> Settings:
    values, notes = read_options(words, file, load_table(), underscores=True)
    variables = call.environment
    workers, nodes = variables.get("NPROC_PER_NODE"), variables.get("NNODES")
    devices = variables.get("CUDA_VISIBLE_DEVICES") or variables.get("ASCEND_RT_VISIBLE_DEVICES")
    if workers is None and devices is not None:
        n_devices = sum(bool(device) for device in devices.text.split(","))
        workers = Word(str(n_devices), devices.line, devices.is_known)
    return Settings(
        path=str(path),
        framework="swift",
        source="launch script",
        values=_add_world_size(values, _compute_world_size(workers, nodes), file),
        environment=read_environment(variables, file),
        notes=tuple(notes),
    )


def _read_quoted_mindformers(
    words: Sequence[Word], call: Call, path: Path, file: str
) -> Settings | None:
    """Read ``msrun_launcher.sh "run_mindformer.py ..." 8``: the command is one quoted word."""
    if not words:
        return None
    command = words[0]
    inner_calls = read_script(command.text).calls
    inner_words = [
        Word(word.text, command.line, word.is_known and command.is_known)
        for inner_call in inner_calls
        for word in inner_call.words
    ]
    workers = words[1] if len(words) > 1 else Word(_DEFAULT_MSRUN_WORKERS, command.line)
    for index, word in enumerate(inner_words):
        if word.text.endswith("run_mindformer.py"):
            options = inner_words[index + 1 :]
            return _read_mindformers_command(options, workers, call, path, file)
    return None


def _read_mindformers_command(
    words: Sequence[Word], workers: Word | None, call: Call, path: Path, file: str
) -> Settings:
    """Read the YAML of ``--config``, named options that override it, and ``--options a.b=c``."""
    values: dict[str, SettingValue] = {}
    config: Word | None = None
    notes: list[str] = []
    for option, next_words in _group_arguments(words):
        name, _, attached_text = option.text.lstrip("-").partition("=")
        arguments = next_words
        if attached_text:
            arguments = [Word(attached_text, option.line, option.is_known)]
        texts = [word.text for word in arguments]
        place = f"{file}:{option.line}"
        doubt = ""
        if not all(word.is_known for word in arguments):
            doubt = f"{' '.join(texts)}: only the shell knows it"
        if name == "config" and arguments:
            config = arguments[0]
        elif name == "options":
            for text in texts:
                key, _, value = text.partition("=")
                if value in ("True", "true"):
                    notes.append(
                        f"{place}: --options {text} sets {key} to False, as the program reads it"
                    )
                values[key] = SettingValue(_parse_option_value(value), place, doubt)
        elif name in _YAML_KEYS and texts:
            values[_YAML_KEYS[name]] = SettingValue(texts[0], place, doubt)
    settings = add_options(_read_config(config, path, file), values, tuple(notes))
    environment = read_environment(call.environment, file)
    return replace(settings, path=str(path), environment=environment)


def _parse_option_value(value: str) -> object:
    """Return the effective value of ``--options name=value``.

    ``True`` sets False, as MindSpore Transformers r0.6 to r1.8 reads it.
    """
    return False if value in ("True", "true", "False", "false") else value


def _read_config(config: Word | None, path: Path, file: str) -> Settings:
    if config is None or not config.is_known:
        raise DumpError(
            f"{file}: run_mindformer.py has no --config that the script defines; give the YAML"
            " itself"
        )
    for folder in (path.parent, path.parent.parent, Path()):
        yaml_path = folder / config.text
        if yaml_path.is_file():
            text = read_input_text(yaml_path, MAX_WRITTEN_BYTES, errors="replace")
            return read_mindformers(text, config.text, yaml_path)
    raise DumpError(
        f"{file}:{config.line}: there is no {config.text} next to the script; give the YAML itself"
    )


def _group_arguments(words: Sequence[Word]) -> list[tuple[Word, list[Word]]]:
    """Return options with the words that follow each."""
    groups: list[tuple[Word, list[Word]]] = []
    for word in words:
        if word.text.startswith("--"):
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
    return groups


def _find_world_size(launcher: Sequence[Word]) -> Word | None:
    """Return the number of processes on all nodes, None if the launcher's options do not say it."""
    workers = _find_option(launcher, _WORKERS)
    nodes = _find_option(launcher, _NODES)
    if workers is None and nodes is None and _is_plain_python(launcher):
        return Word("1", launcher[0].line)
    return _compute_world_size(workers, nodes)


def _is_plain_python(launcher: Sequence[Word]) -> bool:
    """Return whether the words before the script are ``python`` or ``python -u``: one process."""
    if not 0 < len(launcher) < 3:
        return False
    return PurePosixPath(launcher[0].text).name.startswith("python")


def _find_option(words: Sequence[Word], pattern: re.Pattern[str]) -> Word | None:
    """Return the value of the last option that matches, attached by ``=`` or the next word."""
    value: Word | None = None
    for index, word in enumerate(words):
        match = pattern.match(word.text)
        if match is None:
            continue
        attached_text = word.text[match.end() :].lstrip("=")
        if attached_text:
            value = Word(attached_text, word.line, word.is_known)
        else:
            value = words[min(index + 1, len(words) - 1)]
    return value


def _compute_world_size(workers: Word | None, nodes: Word | None) -> Word | None:
    """Return workers x nodes, None if a number is not known."""
    if workers is None:
        return None
    if nodes is None:
        nodes = Word("1", workers.line)
    for word in (workers, nodes):
        if not word.is_known or not word.text.isdigit():
            return None
    return Word(str(int(workers.text) * int(nodes.text)), workers.line)


def _add_world_size(
    values: dict[str, SettingValue], world_size: Word | None, file: str
) -> dict[str, SettingValue]:
    if world_size is None:
        return values
    setting = SettingValue(world_size.text, f"{file}:{world_size.line}")
    return {**values, "world_size": setting}
