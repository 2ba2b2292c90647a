"""A launch script as settings: find the training among its commands, and read its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from ..model.errors import DumpError
from .launch_commands import (
    ScriptFile,
    read_configured_command,
    read_hydra_command,
    read_megatron_command,
    read_mindformers_command,
    read_quoted_mindformers,
    read_swift_command,
    read_trainer_command,
)
from .settings import Settings
from .shell import Call, Word, read_script
from .world_size import find_world_size

_SHELLS = ("bash", "sh", "srun", "ssh", "docker")
_SWIFT_TASKS = {"sft", "pt", "rlhf"}
_LLAMA_FACTORY = ("llamafactory-cli", "lmf")
_MAX_NESTED = 4  #: scripts in quotes within scripts in quotes


def read_launch(text: str, script: ScriptFile) -> Settings:
    """Return the settings of the last training that a script starts.

    Raises DumpError if no command is proven to start a training of a known framework.
    """
    path, file = script.path, script.file
    try:
        shell_script = read_script(text, path, script.arguments, script.variables)
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error
    trainings = []
    for call in shell_script.calls:
        settings = _find_training(call, script, 0)
        if settings is not None:
            trainings.append((call, settings))
    if not trainings:
        raise DumpError(
            f"{path}: no training is started in it; expected a launch script (torchrun"
            " pretrain_gpt.py, megatron sft, swift sft, msrun_launcher.sh, llamafactory-cli train,"
            " verl.trainer.main_ppo), a YAML, JSON or TOML with settings, or a log with the run's"
            " arguments"
        )
    notes = [
        f"{word.format_place(file)}: {word.text} is read by the script, and was not read here"
        for word in shell_script.sourced
    ]
    if len(trainings) > 1:
        notes.append(f"{file}: {len(trainings)} trainings are started; the last one was read")
    call, settings = trainings[-1]
    if not call.certain:
        notes.append(
            f"{file}:{call.line}: the training is started under a condition that the script does"
            " not decide"
        )
    if shell_script.parameters:
        names = ", ".join(f"${name}" for name in shell_script.parameters)
        notes.append(
            f"{file}: settings that follow from the arguments of the script ({names}) are not"
            f' known; give it with them: "bash {file} ..."'
        )
    return replace(settings, notes=(*settings.notes, *notes))


def _find_training(call: Call, script: ScriptFile, depth: int) -> Settings | None:
    """Return the settings of the training that a command starts, None if it starts none."""
    words = list(call.words)
    nested_training = _find_nested_training(words, script, depth)
    if nested_training is not None:
        return nested_training
    for index in range(len(words)):
        training = _read_command(words[:index], words[index], words[index + 1 :], call, script)
        if training is not None or PurePosixPath(words[index].text).suffix == ".py":
            return training
    return None


def _read_command(
    launcher: Sequence[Word], program: Word, words: Sequence[Word], call: Call, script: ScriptFile
) -> Settings | None:
    """Return the settings of the training that a program starts, None if it starts none."""
    name = PurePosixPath(program.text).name
    first_argument = words[0].text if words else ""
    settings: Settings | None = None
    if name in ("megatron", "swift") and first_argument in _SWIFT_TASKS:
        settings = read_swift_command(name, words[1:], call, script)
    elif name in _LLAMA_FACTORY and first_argument == "train":
        settings = read_trainer_command(words[1:], None, call, script)
    elif name == "msrun_launcher.sh":
        settings = read_quoted_mindformers(words, call, script)
    elif name == "run_mindformer.py":
        settings = read_mindformers_command(words, call, script)
    elif program.text == "-m" and first_argument:
        settings = _read_module(launcher, words, call, script)
    elif name.endswith(".py"):
        settings = _read_program(name, launcher, words, call, script)
    return settings


def _read_module(
    launcher: Sequence[Word], words: Sequence[Word], call: Call, script: ScriptFile
) -> Settings | None:
    """Read ``python -m package.module ...``, also where that is a launcher of a program."""
    module = words[0].text
    if module.startswith(("torch.distributed.", "accelerate.commands.", "deepspeed.")):
        rest = replace(call, words=tuple(words))
        return _find_training(rest, script, 0)
    return _read_program(f"{module}.py", launcher, words[1:], call, script)


def _read_program(
    name: str, launcher: Sequence[Word], words: Sequence[Word], call: Call, script: ScriptFile
) -> Settings | None:
    """Return the settings of a Python program by the options that prove its framework."""
    world_size = find_world_size(launcher)
    for read_command in (read_configured_command, read_hydra_command, read_trainer_command):
        settings = read_command(words, world_size, call, script)
        if settings is not None:
            return settings
    return read_megatron_command(name, words, world_size, call, script)


def _find_nested_training(words: Sequence[Word], script: ScriptFile, depth: int) -> Settings | None:
    """Return the last training of a script in quotes: ``bash -c "torchrun pretrain_gpt.py"``."""
    if PurePosixPath(words[0].text).name not in _SHELLS or depth >= _MAX_NESTED:
        return None
    for option, quoted_script in pairwise(words):
        if option.text != "-c" and not option.text.endswith("lc"):
            continue
        last_training = None
        for call in read_script(quoted_script.text).calls:
            training = _find_training(call, script, depth + 1)
            if training is not None:
                last_training = training
        if last_training is not None:
            return last_training
    return None
