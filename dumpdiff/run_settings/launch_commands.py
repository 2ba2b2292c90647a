"""The command that starts a training, as settings: one function for each way to pass them.

Each returns None if the words do not prove its framework.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text
from .document import is_document, read_document
from .file_kind import find_kind
from .options import group_words, read_environment, read_options, read_plain_options
from .settings import Framework, Settings, SettingValue
from .shell import Call, Word, read_script
from .table import Table, load_table
from .world_size import add_world_size, compute_world_size
from .yaml_document import add_options, mark_references, read_yaml

#: Options that trainings of Megatron-LM have, and neither its tools (conversion, preparation of
#: data) nor programs with a few options of their own.
_MEGATRON_OPTIONS = {
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "seq-length",
    "max-position-embeddings",
    "micro-batch-size",
    "global-batch-size",
    "train-iters",
    "train-samples",
    "lr-decay-style",
    "lr-warmup-iters",
    "lr-warmup-fraction",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "init-method-std",
    "use-mcore-models",
    "use-distributed-optimizer",
}
_LEAST_MEGATRON_OPTIONS = 3  #: of these prove a training; real ones have ten or more
_MEGATRON_PROGRAM = re.compile(r"(?:pre|post)train_\w+\.py")  #: with such a name one is enough
_TRAINER_FAMILY: tuple[Framework, ...] = ("trainer", "llamafactory", "msswift")
_HYDRA_FAMILY: tuple[Framework, ...] = ("verl", "nemo")

#: Option of a program that names a file with settings, and the framework of that file.
_CONFIG_OPTIONS: dict[str, Framework] = {"--job.config_file": "torchtitan"}

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


@dataclass(frozen=True)
class ScriptFile:
    """The script with the command, and how it is started."""

    path: Path
    file: str  #: its name in places
    arguments: tuple[str, ...] | None = None  #: ``$1`` and the following, None if not known
    variables: Mapping[str, str] = field(default_factory=dict)  #: that are set before it starts

    def find_file(self, name: str) -> Path | None:
        """Return a file that the script names, next to it or in the current folder."""
        for folder in (self.path.parent, self.path.parent.parent, Path()):
            if (folder / name).is_file():
                return folder / name
        return None


def _build_settings(
    framework: Framework,
    values: dict[str, SettingValue],
    call: Call,
    script: ScriptFile,
    notes: Sequence[str] = (),
) -> Settings:
    return Settings(
        path=str(script.path),
        framework=framework,
        source="launch script",
        values=values,
        environment=read_environment(call.environment, script.file),
        notes=tuple(notes),
    )


def read_megatron_command(
    program: str, words: Sequence[Word], world_size: Word | None, call: Call, script: ScriptFile
) -> Settings | None:
    """Read the options of a training of Megatron-LM, or of a program with its options."""
    table = load_table()
    if not _is_megatron(program, words, table):
        return None  # some other program: data preparation, a download
    values, notes = read_options(words, script.file, table, underscores=False)
    if "use_checkpoint_args" in values:
        notes.append(
            f"{script.file}: --use-checkpoint-args: the checkpoint's arguments override those of"
            " the script"
        )
    values = add_world_size(values, world_size, script.file)
    return _build_settings("megatron", values, call, script, notes)


def _is_megatron(program: str, words: Sequence[Word], table: Table) -> bool:
    """Return whether several options, or one and the program's name, are those of Megatron-LM."""
    options = set()
    for word in words:
        if word.text.startswith("--"):
            options.add(table.resolve_option(word.text[2:].partition("=")[0]))
    if _MEGATRON_PROGRAM.fullmatch(program):
        return not options.isdisjoint(table.options)
    return len(options & _MEGATRON_OPTIONS) >= _LEAST_MEGATRON_OPTIONS


def read_swift_command(
    program: str, words: Sequence[Word], call: Call, script: ScriptFile
) -> Settings:
    """Read ``megatron sft ...`` of Megatron-SWIFT, or ``swift sft ...`` of ms-swift."""
    variables = call.environment
    workers, nodes = variables.get("NPROC_PER_NODE"), variables.get("NNODES")
    devices = variables.get("CUDA_VISIBLE_DEVICES") or variables.get("ASCEND_RT_VISIBLE_DEVICES")
    if workers is None and devices is not None:
        n_devices = sum(bool(device) for device in devices.text.split(","))
        if program == "swift":
            n_devices = 1  # without NPROC_PER_NODE it is one process with all devices
        workers = Word(str(n_devices), devices.line, devices.is_known)
    world_size = compute_world_size(workers, nodes)
    if program == "swift":
        values = read_plain_options(words, script.file)
        values = add_world_size(values, world_size, script.file)
        return _build_settings("msswift", values, call, script)
    values, notes = read_options(words, script.file, load_table(), underscores=True)
    values = add_world_size(values, world_size, script.file)
    return _build_settings("swift", values, call, script, notes)


def read_trainer_command(
    words: Sequence[Word], world_size: Word | None, call: Call, script: ScriptFile
) -> Settings | None:
    """Read the options of a program that uses the Hugging Face Trainer, or the file it is given."""
    values = read_plain_options(words, script.file)
    if words and not words[0].text.startswith("-"):
        document = _read_named_document(words[0], script)
        if document is not None and document.framework in _TRAINER_FAMILY:
            values = add_world_size({**document.values, **values}, world_size, script.file)
            notes = document.notes
            return _build_settings(document.framework, values, call, script, notes)
    kind = find_kind(values)
    if kind is None or kind.framework not in _TRAINER_FAMILY:
        return None
    values = add_world_size(values, world_size, script.file)
    return mark_references(_build_settings(kind.framework, values, call, script))


def _read_named_document(word: Word, script: ScriptFile) -> Settings | None:
    """Return the settings in a file that a command names, None if there is no such file."""
    path = script.find_file(word.text) if word.is_known else None
    if path is None:
        return None
    text = read_input_text(path, MAX_WRITTEN_BYTES, errors="replace")
    return read_document(text, path) if is_document(text, path) else None


def read_hydra_command(
    words: Sequence[Word], world_size: Word | None, call: Call, script: ScriptFile
) -> Settings | None:
    """Read ``a.b=c ++a.d=e``, which override the YAML of a program that uses Hydra."""
    values: dict[str, SettingValue] = {}
    for word in words:
        name, equals, value = word.text.lstrip("+").partition("=")
        if equals and not name.startswith(("-", "~")):
            doubt = "" if word.is_known else f"{word.text}: only the shell knows it"
            values[name] = SettingValue(value, word.format_place(script.file), doubt)
    kind = find_kind(values)
    if kind is None or kind.framework not in _HYDRA_FAMILY:
        return None
    note = "only what the command sets is known; the program's own YAML has the rest"
    return mark_references(_build_settings(kind.framework, values, call, script, [note]))


def read_configured_command(
    words: Sequence[Word], world_size: Word | None, call: Call, script: ScriptFile
) -> Settings | None:
    """Read the file that an option names, and the options ``--section.key`` that override it."""
    for option, arguments in group_words(words):
        if option is None:
            continue
        name, _, attached_text = option.text.partition("=")
        if name not in _CONFIG_OPTIONS:
            continue
        config = Word(attached_text, option.line, option.is_known)
        if not attached_text and arguments:
            config = arguments[0]
        document = _read_named_document(config, script)
        if document is None:
            raise DumpError(
                f"{script.file}:{option.line}: there is no {config.text} next to the script; give"
                " that file itself"
            )
        overrides = read_plain_options(words, script.file)
        overrides.pop(name.lstrip("-"))
        values = add_world_size({**document.values, **overrides}, world_size, script.file)
        return _build_settings(_CONFIG_OPTIONS[name], values, call, script)
    return None


def read_quoted_mindformers(
    words: Sequence[Word], call: Call, script: ScriptFile
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
    for index, word in enumerate(inner_words):
        if word.text.endswith("run_mindformer.py"):
            return read_mindformers_command(inner_words[index + 1 :], call, script)
    return None


def read_mindformers_command(words: Sequence[Word], call: Call, script: ScriptFile) -> Settings:
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
        place = option.format_place(script.file)
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
    settings = add_options(_read_config(config, script), values, tuple(notes))
    environment = read_environment(call.environment, script.file)
    return replace(settings, path=str(script.path), environment=environment)


def _parse_option_value(value: str) -> object:
    """Return the effective value of ``--options name=value``.

    ``True`` sets False, as MindSpore Transformers r0.6 to r1.8 reads it.
    """
    return False if value in ("True", "true", "False", "false") else value


def _read_config(config: Word | None, script: ScriptFile) -> Settings:
    if config is None or not config.is_known:
        raise DumpError(
            f"{script.file}: run_mindformer.py has no --config that the script defines; give the"
            " YAML itself"
        )
    yaml_path = script.find_file(config.text)
    if yaml_path is None:
        raise DumpError(
            f"{script.file}:{config.line}: there is no {config.text} next to the script; give the"
            " YAML itself"
        )
    text = read_input_text(yaml_path, MAX_WRITTEN_BYTES, errors="replace")
    return read_yaml(text, config.text, yaml_path)


def _group_arguments(words: Sequence[Word]) -> list[tuple[Word, list[Word]]]:
    """Return options with the words that follow each."""
    groups: list[tuple[Word, list[Word]]] = []
    for word in words:
        if word.text.startswith("--"):
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
    return groups
