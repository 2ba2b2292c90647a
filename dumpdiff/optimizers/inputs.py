"""Weights and gradients of a run, from checkpoints, npy folders or dumps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .. import checkpoints, readers
from ..checkpoints import Checkpoint, Entry
from ..model.arrays import AnyArray
from ..model.dtypes import is_floating
from ..model.errors import DumpError
from ..model.trace import Trace
from ..rulebook import load_rules
from .history import History, adopt_narrow_dtype, build_history
from .script_settings import Settings, read_settings
from .update_analysis import UpdateAnalysis, analyze_updates

#: The tensors of one point in time by name; each is read when its function is called.
Tensors = Mapping[str, Callable[[], AnyArray]]

#: Prefixes of a parameter's name in a model that was wrapped, or of a saved gradient.
_PREFIXES = re.compile(
    r"(module\.|_orig_mod\.|_fsdp_wrapped_module\.|grads?\.|gradients?\.|main_grads?\.)+"
)
_GRADIENT_SUFFIX = re.compile(r"\.(grad|main_grad|gradient)$")
_FIRST_MOMENT = re.compile(r"(moment1|adam_m|exp_avg|momentum_buffer|muon_m|moments|accum)\.(.+)")
_SECOND_MOMENT = re.compile(r"(moment2|adam_v|exp_avg_sq)\.(.+)")
#: Other tensors that an optimizer saves with the weights: MindSpore's counters and rates, SGD's
#: flags.
_OTHER_STATE = re.compile(
    r"(global_step|beta[12]_power|learning_rate|current_iterator_step|epoch_num|step_num|stat\..*)"
)
_STEP_FILE = re.compile(r"(weights|gradients)[_-]?(\d+)(\.\w+)?")
_SETTINGS_FILES = ("settings.yaml", "settings.yml", "settings.json")
_STEP_COUNTER = "global_step"
#: Weights of all steps together, 0.5 GB with their gradients. After that, no more matrices are
#: kept completely.
_LARGEST_TOTAL = 1 << 25
_SHOWN_NAMES = 3  #: names in a message


@dataclass(frozen=True)
class RunSteps:
    """A run of n steps: weights of n + 1 points in time, gradients of n steps."""

    weights: tuple[Tensors, ...]
    gradients: tuple[Tensors, ...]
    problems: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


def read_steps(argument: str) -> RunSteps:
    """Return the steps for an argument of the command.

    It is a folder with ``weights_0``, ``gradients_1``, ``weights_1``, ...; or those paths in
    order, separated by commas; or a dump with several steps. Raises DumpError for anything else.
    """
    if "," in argument and not Path(argument).exists():
        return _read_listed_paths([Path(part) for part in argument.split(",")], argument)
    path = Path(argument)
    if not path.is_dir():
        reason = "is a file" if path.is_file() else "no such folder"
        raise DumpError(
            f"{argument}: {reason}; expected a folder with weights_0, gradients_1, weights_1, ... "
            "or 'W0,G1,W1'"
        )
    steps = _read_numbered_files(path)
    return _read_dump(path) if steps is None else steps


def read_run(argument: str, settings_file: str | Path | None = None) -> UpdateAnalysis:
    """Return the update analysis of a run; see :func:`read_steps` for the argument.

    Settings of ``settings_file`` override those of a file in the run's folder.
    """
    steps = read_steps(argument)
    settings = steps.settings
    if settings_file is not None:
        settings = settings.override_with(read_settings(settings_file))
    histories, problems = build_histories(steps, settings.first_step)
    known_settings = settings.to_known(len(steps.gradients))
    return analyze_updates(argument, histories, known_settings, problems=problems)


def build_histories(
    steps: RunSteps, first_step: int | None = None
) -> tuple[list[History], list[str]]:
    """Return histories of parameters with weights and gradients at every step, and problems.

    ``first_step`` is the number of the first update, counted from 1. Raises DumpError if there is
    no such parameter, or if there are moments and the number of previous steps is unknown.
    """
    weights = [_strip_all_wrappers(tensors) for tensors in steps.weights]
    stripped_gradients = [_strip_all_wrappers(tensors) for tensors in steps.gradients]
    gradients, pairing_problems = _pair_gradients(stripped_gradients, weights[0])
    problems = [*steps.problems, *pairing_problems]
    first_moments = _collect_moments(steps.weights[0], _FIRST_MOMENT)
    second_moments = _collect_moments(steps.weights[0], _SECOND_MOMENT)
    previous_steps = _read_step_counter(steps.weights[0])
    if first_step is not None:
        previous_steps = first_step - 1
    histories: list[History] = []
    incomplete_names = []
    total_size = 0
    for name in filter(_is_parameter, weights[0]):
        if not all(name in tensors for tensors in (*weights, *gradients)):
            incomplete_names.append(name)
            continue
        moments = _read_moments(name, first_moments, second_moments)
        has_moments = any(moment is not None and moment.any() for moment in moments)
        if has_moments and not previous_steps:
            raise DumpError(
                f"{name}: its moments are not zero; give the number of the first update as 'step' "
                "in the settings"
            )
        try:
            history = build_history(
                name,
                [tensors[name]() for tensors in weights],
                [tensors[name]() for tensors in gradients],
                moments[0] if has_moments else None,
                moments[1] if has_moments else None,
                previous_steps,
                keep_matrix=total_size < _LARGEST_TOTAL,
            )
        except ValueError as error:
            problems.append(f"skipped: {error}")
            continue
        total_size += history.weights.size
        histories.append(history)
    if not histories:
        raise DumpError(
            "no parameter has weights and gradients at every step; weights are named "
            f"{_format_names(weights[0])}, gradients {_format_names(gradients[0])}"
        )
    if incomplete_names:
        problems.append(
            "skipped, because weights or gradients are missing at a step: "
            f"{_format_names(incomplete_names)}"
        )
    return adopt_narrow_dtype(histories), problems


def strip_wrappers(name: str) -> str:
    """Return a parameter's name without the prefixes and suffixes of wrappers and gradients."""
    if _PREFIXES.match(name):
        name = _PREFIXES.sub("", name)
    return _GRADIENT_SUFFIX.sub("", name)


def _strip_all_wrappers(tensors: Tensors) -> Tensors:
    return {strip_wrappers(name): load for name, load in tensors.items()}


def _read_moments(
    name: str, first_moments: Tensors, second_moments: Tensors
) -> tuple[AnyArray | None, AnyArray | None]:
    """Return the first and the second moment of a parameter; None if it was not saved."""
    first = first_moments[name]() if name in first_moments else None
    second = second_moments[name]() if name in second_moments else None
    return first, second


def open_tensors(path: Path) -> tuple[Tensors, list[str]]:
    """Return the floating-point tensors of a checkpoint, and its problems.

    Pieces whose place the checkpoint states are joined, such as the shards of ZeRO; other pieces
    of parallel ranks are separate tensors. Raises DumpError if there is no checkpoint.
    """
    checkpoint = checkpoints.open(path)
    tensors: dict[str, Callable[[], AnyArray]] = {}
    for name, entries in checkpoint.entries_by_name.items():
        if not is_floating(entries[0].dtype) and name != _STEP_COUNTER:
            continue
        if all(entry.window is not None for entry in entries):
            tensors[name] = partial(_join_pieces, checkpoint, name, entries)
            continue
        for entry in entries:
            piece_name = name if len(entries) == 1 else f"{name} ({entry.rank})"
            tensors[piece_name] = partial(checkpoint.read_array, entry)
    return tensors, [f"{path}: {problem}" for problem in checkpoint.problems]


def _join_pieces(checkpoint: Checkpoint, name: str, entries: Sequence[Entry]) -> AnyArray:
    """Return the full tensor of pieces with windows. Raises DumpError if some are missing."""
    windows = [entry.window for entry in entries if entry.window is not None]
    shape = windows[0].full_shape
    is_inside = all(
        start + length <= full_length
        for entry, window in zip(entries, windows, strict=True)
        for start, length, full_length in zip(window.start, entry.shape, shape, strict=True)
    )
    if not is_inside or sum(entry.size for entry in entries) != math.prod(shape):
        raise DumpError(
            f"{checkpoint.path}: {name}: {len(entries)} pieces do not make up the tensor of shape "
            f"{shape}; give the checkpoint with the files of all ranks"
        )
    joined: AnyArray = np.empty(shape, checkpoint.read_array(entries[0]).dtype)
    for entry, window in zip(entries, windows, strict=True):
        place = tuple(
            slice(start, start + length)
            for start, length in zip(window.start, entry.shape, strict=True)
        )
        joined[place] = checkpoint.read_array(entry)
    return joined


def _read_listed_paths(paths: Sequence[Path], argument: str) -> RunSteps:
    """Return the steps of alternating weights and gradients."""
    if len(paths) < 3 or len(paths) % 2 == 0:
        raise DumpError(
            f"{argument}: {len(paths)} paths; expected weights,gradients,weights, and two more "
            "for each further step"
        )
    points = []
    problems: list[str] = []
    for path in paths:
        tensors, path_problems = open_tensors(path)
        points.append(tensors)
        problems += path_problems
    return RunSteps(tuple(points[::2]), tuple(points[1::2]), tuple(problems))


def _read_numbered_files(folder: Path) -> RunSteps | None:
    """Return the steps of the folder's numbered files; None if it has none."""
    files: dict[str, dict[int, Path]] = {"weights": {}, "gradients": {}}
    for child in sorted(folder.iterdir()):
        match = _STEP_FILE.fullmatch(child.name)
        if match is None:
            continue
        files_of_kind, step = files[match[1]], int(match[2])
        if step in files_of_kind:
            raise DumpError(f"{child}: a second file of the same step; remove one")
        files_of_kind[step] = child
    weights, gradients = files["weights"], files["gradients"]
    if not weights:
        return None
    start = min(weights)
    paths = [weights[start]]
    step = start + 1
    while step in weights and step in gradients:
        paths += [gradients[step], weights[step]]
        step += 1
    if len(paths) == 1:
        raise DumpError(
            f"{folder}: expected weights_{start}, gradients_{start + 1} and weights_{start + 1}"
        )
    steps = _read_listed_paths(paths, str(folder))
    return RunSteps(steps.weights, steps.gradients, steps.problems, _read_folder_settings(folder))


def _read_folder_settings(folder: Path) -> Settings:
    for name in _SETTINGS_FILES:
        if (folder / name).is_file():
            return read_settings(folder / name)
    return Settings()


def _read_dump(path: Path) -> RunSteps:
    """Return the steps of a dump: each has the weights before its update, and its gradients."""
    parts: dict[int, readers.Part] = {}
    for part in readers.find_parts(path):
        if part.step is not None:
            parts.setdefault(part.step, part)
    if len(parts) < 2:
        raise DumpError(
            f"{path}: a dump of one step has no weights after it; dump a second step, or save "
            "checkpoints"
        )
    traces = [readers.read_part(parts[step]) for step in sorted(parts)]
    weights = tuple(_collect_tensors(trace, "parameter") for trace in traces)
    gradients = tuple(_collect_tensors(trace, "gradient_of") for trace in traces[:-1])
    for kind, points in (("weights", weights), ("gradients", gradients)):
        if not any(points):
            raise DumpError(
                f"{path}: holds no complete {kind} by name; save them as weights_0, gradients_1, "
                "weights_1, ..."
            )
    return RunSteps(weights, gradients)


def _collect_tensors(trace: Trace, column: str) -> Tensors:
    """Return the first complete tensor of every parameter that no update has overwritten."""
    table = trace.tensors
    names = table[column].to_numpy()
    has_file = (table["file"] != "").to_numpy()
    is_usable = (names != "") & has_file & table["trusted"].to_numpy()
    tensors: dict[str, Callable[[], AnyArray]] = {}
    for row in is_usable.nonzero()[0].tolist():
        if is_floating(table["dtype"].iat[row]):
            tensors.setdefault(names[row], partial(trace.array, row))
    return tensors


def _pair_gradients(gradients: list[Tensors], weights: Tensors) -> tuple[list[Tensors], list[str]]:
    """Return the gradients under the names of the weights, and notes on how they were paired.

    They are paired by name, by canonical name, or by their order.
    """
    if any(name in gradients[0] for name in weights):
        return gradients, []
    parameters = [name for name in weights if _is_parameter(name)]
    renamed = _rename_by_rules(gradients, parameters)
    if any(renamed[0]):
        note = "gradients and weights have different names; they were paired by the naming rules"
        return renamed, [note]
    if any(len(tensors) != len(parameters) for tensors in gradients):
        return gradients, []
    in_order: list[Tensors] = [
        dict(zip(parameters, tensors.values(), strict=True)) for tensors in gradients
    ]
    note = "gradients and weights have different names; they were paired by their order"
    return in_order, [note]


def _rename_by_rules(gradients: Sequence[Tensors], parameters: Sequence[str]) -> list[Tensors]:
    """Return the gradients whose canonical name is that of a parameter, under its name."""
    rules = load_rules()
    parameters_by_path = {path: name for name, path in rules.resolve_parameters(parameters).items()}
    renamed: list[Tensors] = []
    for tensors in gradients:
        tensors_of_step = {}
        for name, path in rules.resolve_parameters(tensors).items():
            if path in parameters_by_path:
                tensors_of_step[parameters_by_path[path]] = tensors[name]
        renamed.append(tensors_of_step)
    return renamed


def _is_parameter(name: str) -> bool:
    """Return whether a tensor is a weight, and no state of an optimizer."""
    patterns = (_FIRST_MOMENT, _SECOND_MOMENT, _OTHER_STATE)
    return not any(pattern.fullmatch(name) for pattern in patterns)


def _collect_moments(weights: Tensors, pattern: re.Pattern[str]) -> Tensors:
    """Return the moments that were saved with the weights, by parameter."""
    moments = {}
    for name, load in weights.items():
        match = pattern.fullmatch(name)
        if match is not None:
            moments[strip_wrappers(match[2])] = load
    return moments


def _read_step_counter(weights: Tensors) -> int:
    """Return the number of previous steps in a MindSpore checkpoint; 0 if it has no counter."""
    if _STEP_COUNTER not in weights:
        return 0
    return int(weights[_STEP_COUNTER]().reshape(-1)[0])


def _format_names(names: Iterable[str]) -> str:
    listed = list(names)
    if not listed:
        return "nothing"
    text = ", ".join(listed[:_SHOWN_NAMES])
    if len(listed) > _SHOWN_NAMES:
        text += f", ... ({len(listed)} in all)"
    return text
