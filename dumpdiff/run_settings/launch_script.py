"""A launch script as settings: the training command is found among its commands, and its options are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ..model.errors import DumpError
from .mindformers import read_mindformers, with_options
from .options import environment, read_options
from .settings import Given, Settings
from .shell import Call, Word, commands
from .table import load_table

_SWIFT_TASKS = {"sft", "pt", "rlhf"}
_WORKERS = re.compile(r"--(?:nproc[-_]per[-_]node|worker[-_]num|num[-_]gpus|num[-_]processes)")
_NODES = re.compile(r"--nnodes")
_MOST_NESTED = 4  #: a script in quotes in a script in quotes ...

#: Options of run_mindformer.py, and the keys of the YAML that they set.
_NAMED = {
    "use_parallel": "use_parallel", "run_mode": "run_mode", "load_checkpoint": "load_checkpoint", "seed": "seed",
    "resume_training": "resume_training", "output_dir": "output_dir",  "epochs": "runner_config.epochs",
    "batch_size": "runner_config.batch_size", "sink_mode": "runner_config.sink_mode",
    "gradient_accumulation_steps": "runner_config.gradient_accumulation_steps",
    "train_dataset_dir": "train_dataset.data_loader.dataset_dir",
    "train_dataset": "train_dataset.data_loader.dataset_dir",
}  # fmt: skip


def read_launch(text: str, path: Path, file: str) -> Settings:
    """The settings of the last training that a script starts.

    Raises DumpError if it starts none of Megatron-LM, Megatron-SWIFT and MindSpore Transformers.
    """
    try:
        script = commands(text)
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error
    found = [
        (call, read)
        for call in script.calls
        if (read := _training(call, path, file, 0)) is not None
    ]
    if not found:
        raise DumpError(
            f"{path}: no training is started in it; expected a launch script (torchrun pretrain_gpt.py, megatron sft,"
            " msrun_launcher.sh), a YAML of MindSpore Transformers, a log with the run's arguments, or args.json"
        )
    notes = [
        f"{file}:{word.line}: {word.text} is read by the script, and was not read here"
        for word in script.sourced
    ]
    if len(found) > 1:
        notes.append(f"{file}: {len(found)} trainings are started; the last one was read")
    call, settings = found[-1]
    if not call.certain:
        notes.append(
            f"{file}:{call.line}: the training is started under a condition that the script does not decide"
        )
    return replace(settings, notes=(*settings.notes, *notes))


def _training(call: Call, path: Path, file: str, depth: int) -> Settings | None:
    words = list(call.words)
    first = PurePosixPath(words[0].text).name
    if first in ("bash", "sh", "srun", "ssh", "docker") and depth < _MOST_NESTED:
        for i, word in enumerate(words[:-1]):
            if word.text == "-c" or word.text.endswith("lc"):
                nested = commands(words[i + 1].text).calls
                inner = [
                    read
                    for each in nested
                    if (read := _training(each, path, file, depth + 1)) is not None
                ]
                if inner:
                    return inner[-1]
    for i, word in enumerate(words):
        name = PurePosixPath(word.text).name
        if (
            name in ("megatron", "swift")
            and i + 1 < len(words)
            and words[i + 1].text in _SWIFT_TASKS
        ):
            return _swift(words[i + 2 :], call, path, file)
        if name == "msrun_launcher.sh":
            return _quoted_mindformers(words[i + 1 :], call, path, file)
        if name == "run_mindformer.py":
            return _mindformers(words[i + 1 :], _world(words[:i]), call, path, file)
        if name.endswith(".py"):
            return _megatron(words[:i], words[i + 1 :], call, path, file)
    return None


def _megatron(
    launcher: Sequence[Word], words: Sequence[Word], call: Call, path: Path, file: str
) -> Settings | None:
    values, notes = read_options(words, file, load_table(), underscores=False)
    if not values.keys() & {
        "num_layers",
        "micro_batch_size",
        "hidden_size",
        "lr",
        "train_iters",
        "load",
        "bf16",
    }:
        return None  # some other program: data preparation, a download
    if "use_checkpoint_args" in values:
        notes.append(
            f"{file}: --use-checkpoint-args: the checkpoint's arguments overrule those of the script"
        )
    return Settings(
        path=str(path),
        framework="megatron",
        source="launch script",
        values=_with_world(values, _world(launcher), file),
        environment=environment(call.environment, file),
        notes=tuple(notes),
    )


def _swift(words: Sequence[Word], call: Call, path: Path, file: str) -> Settings:
    values, notes = read_options(words, file, load_table(), underscores=True)
    variables = call.environment
    workers, nodes = variables.get("NPROC_PER_NODE"), variables.get("NNODES")
    devices = variables.get("CUDA_VISIBLE_DEVICES") or variables.get("ASCEND_RT_VISIBLE_DEVICES")
    if workers is None and devices is not None:
        workers = Word(
            str(len([d for d in devices.text.split(",") if d])), devices.line, devices.known
        )
    return Settings(
        path=str(path),
        framework="swift",
        source="launch script",
        values=_with_world(values, _product(workers, nodes), file),
        environment=environment(variables, file),
        notes=tuple(notes),
    )


def _quoted_mindformers(
    words: Sequence[Word], call: Call, path: Path, file: str
) -> Settings | None:
    """``msrun_launcher.sh "run_mindformer.py --config x.yaml ..." 8``: the command is one quoted word."""
    if not words:
        return None
    inner = [word for each in commands(words[0].text).calls for word in each.words]
    lines = [Word(word.text, words[0].line, word.known and words[0].known) for word in inner]
    begin = next(
        (i for i, word in enumerate(lines) if word.text.endswith("run_mindformer.py")), None
    )
    workers = words[1] if len(words) > 1 else Word("8", words[0].line)
    return None if begin is None else _mindformers(lines[begin + 1 :], workers, call, path, file)


def _mindformers(
    words: Sequence[Word], workers: Word | None, call: Call, path: Path, file: str
) -> Settings:
    """The YAML of ``--config``, what named options set over it, and ``--options a.b=c``."""
    given: dict[str, Given] = {}
    config: Word | None = None
    notes: list[str] = []
    for option, arguments in _options(words):
        name, _, attached = option.text.lstrip("-").partition("=")
        texts = [attached] if attached else [word.text for word in arguments]
        place = f"{file}:{option.line}"
        doubt = (
            ""
            if all(word.known for word in arguments)
            else f"{' '.join(texts)}: only the shell knows it"
        )
        if name in ("config", "register_path") and texts:
            config = arguments[0] if name == "config" and arguments else config
        elif name == "options":
            for text in texts:
                key, _, value = text.partition("=")
                effective, warned = _as_option(value)
                given[key] = Given(effective, place, doubt)
                notes += [
                    f"{place}: --options {text} sets {key} to False, as the program reads it"
                ] * warned
        elif name in _NAMED and texts:
            given[_NAMED[name]] = Given(texts[0], place, doubt)
    settings = _config(config, path, file)
    found = with_options(settings, given, tuple(notes))
    return replace(found, path=str(path), environment=environment(call.environment, file))


def _as_option(value: str) -> tuple[object, bool]:
    """``--options use_clip_grad=True`` sets False (MindSpore Transformers r0.6 to r1.8): the effective value."""
    if value in ("True", "true"):
        return False, True
    return (False, False) if value in ("False", "false") else (value, False)


def _config(config: Word | None, path: Path, file: str) -> Settings:
    if config is None or not config.known:
        raise DumpError(
            f"{file}: run_mindformer.py without a --config that the script says; give the YAML itself"
        )
    for folder in (path.parent, path.parent.parent, Path()):
        candidate = folder / config.text
        if candidate.is_file():
            return read_mindformers(
                candidate.read_text(encoding="utf-8", errors="replace"), config.text, candidate
            )
    raise DumpError(
        f"{file}:{config.line}: there is no {config.text} beside the script; give the YAML itself"
    )


def _options(words: Sequence[Word]) -> list[tuple[Word, list[Word]]]:
    found: list[tuple[Word, list[Word]]] = []
    for word in words:
        if word.text.startswith("--"):
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
    return found


def _world(launcher: Sequence[Word]) -> Word | None:
    """Processes of all nodes, from the launcher's own options; None if it does not say."""
    found: dict[str, Word] = {}
    for i, word in enumerate(launcher):
        for key, pattern in (("workers", _WORKERS), ("nodes", _NODES)):
            if match := pattern.match(word.text):
                attached = word.text[match.end() :].lstrip("=")
                found[key] = (
                    Word(attached, word.line, word.known)
                    if attached
                    else launcher[min(i + 1, len(launcher) - 1)]
                )
    alone = (
        bool(launcher)
        and PurePosixPath(launcher[0].text).name.startswith("python")
        and len(launcher) < 3
    )
    if alone and not found:
        return Word("1", launcher[0].line)
    return _product(found.get("workers"), found.get("nodes"))


def _product(workers: Word | None, nodes: Word | None) -> Word | None:
    if workers is None:
        return None
    nodes = nodes or Word("1", workers.line)
    if workers.known and nodes.known and workers.text.isdigit() and nodes.text.isdigit():
        return Word(str(int(workers.text) * int(nodes.text)), workers.line)
    return None


def _with_world(values: dict[str, Given], world: Word | None, file: str) -> dict[str, Given]:
    return (
        values
        if world is None
        else {**values, "world_size": Given(world.text, f"{file}:{world.line}")}
    )
