"""Weights and gradients of a run, from what people have: checkpoints, npy folders, dumps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .. import checkpoints, readers
from ..model.arrays import AnyArray
from ..model.dtypes import is_floating
from ..model.errors import DumpError
from ..model.trace import Trace
from ..rulebook import load_rules
from .history import History, build_history
from .update_analysis import UpdateAnalysis, analyze_updates
from .script_settings import Settings, read_settings

#: Tensors of one moment by name; each is read when it is called.
Tensors = Mapping[str, Callable[[], AnyArray]]

#: What is in front of a parameter's name in a model that was wrapped, or saved as a gradient.
_FRONT = re.compile(
    r"(module\.|_orig_mod\.|_fsdp_wrapped_module\.|grads?\.|gradients?\.|main_grads?\.)+"
)
_BACK = re.compile(r"\.(grad|main_grad|gradient)$")
_FIRST = re.compile(r"(moment1|adam_m|exp_avg|momentum_buffer|muon_m|moments|accum)\.(.+)")
_SECOND = re.compile(r"(moment2|adam_v|exp_avg_sq)\.(.+)")
#: What else an optimizer saves beside the weights: MindSpore's counters and rates, SGD's flags.
_OTHER = re.compile(
    r"(global_step|beta[12]_power|learning_rate|current_iterator_step|epoch_num|step_num|stat\..*)"
)
_STEP = re.compile(r"(weights|gradients)[_-]?(\d+)(\.\w+)?")
_SETTINGS = ("settings.yaml", "settings.yml", "settings.json")
_COUNTER = "global_step"
_KEPT = (
    1 << 25
)  #: weights of all steps together, 0.5 GB with their gradients: beyond, no more matrices are kept whole


@dataclass(frozen=True)
class RunSteps:
    """A run in n steps: n + 1 times weights, n times gradients."""

    weights: tuple[Tensors, ...]
    gradients: tuple[Tensors, ...]
    problems: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


def read_steps(given: str) -> RunSteps:
    """The steps that an argument of the command means.

    A folder with ``weights_0``, ``gradients_1``, ``weights_1``, ...; or those paths in order with commas between
    them; or a dump that has several steps. Raises DumpError if it is none of these.
    """
    if "," in given and not Path(given).exists():
        return _listed([Path(part) for part in given.split(",")], given)
    path = Path(given)
    if not path.is_dir():
        what = "is a file" if path.is_file() else "no such folder"
        raise DumpError(
            f"{given}: {what}; expected a folder with weights_0, gradients_1, weights_1, ... or 'W0,G1,W1'"
        )
    found = _numbered(path)
    if found is not None:
        return found
    return _dumped(path)


def read_run(given: str, settings_file: str | Path | None = None) -> UpdateAnalysis:
    """What moved the weights of the run that ``given`` means; the settings' file counts before one in its folder."""
    steps = read_steps(given)
    settings = (
        steps.settings
        if settings_file is None
        else steps.settings.override_with(read_settings(settings_file))
    )
    found, problems = build_histories(steps, settings.first_step)
    return analyze_updates(given, found, settings.to_known(len(steps.gradients)), problems=problems)


def build_histories(steps: RunSteps, first: int | None = None) -> tuple[list[History], list[str]]:
    """Parameters that have weights and gradients at every step, and what had to be left out.

    ``first`` is the number of the first update, counted from 1. Raises DumpError if no parameter can be followed, or
    if moments are given and it is not known after how many steps.
    """
    weights = [{strip_wrappers(name): load for name, load in at.items()} for at in steps.weights]
    gradients, said = _paired(
        [{strip_wrappers(name): load for name, load in at.items()} for at in steps.gradients], weights[0]
    )
    problems = [*steps.problems, *said]
    moments = _moments(steps.weights[0])
    done = first - 1 if first is not None else _counted(steps.weights[0])
    found: list[History] = []
    apart = []
    kept = 0
    for name in filter(_parameter, weights[0]):
        if not all(name in at for at in (*weights, *gradients)):
            apart.append(name)
            continue
        before, second = (
            [m() for m in (moments[which].get(name),) if m is not None] for which in (0, 1)
        )
        moving = [moment for moment in (*before, *second) if moment.any()]
        if moving and not done:
            raise DumpError(
                f"{name}: its moments are not zero; say in the settings which 'step' the first update is"
            )
        try:
            made = build_history(
                name,
                [at[name]() for at in weights],
                [at[name]() for at in gradients],
                before[0] if before and moving else None,
                second[0] if second and moving else None,
                done or 0,
                whole=kept < _KEPT,
            )
        except ValueError as error:
            problems.append(f"left out: {error}")
            continue
        kept += made.weights.size
        found.append(made)
    if not found:
        raise DumpError(f"no parameter has weights and gradients at every step; weights are called {_few(weights[0])}, "
                        f"gradients {_few(gradients[0])}")  # fmt: skip
    if apart:
        problems.append(f"left out, without weights or gradients at every step: {_few(apart)}")
    return found, problems


def strip_wrappers(name: str) -> str:
    """A parameter's name without what wrappers and gradients put around it."""
    return _BACK.sub("", _FRONT.sub("", name) if _FRONT.match(name) else name)


def open_tensors(path: Path) -> tuple[Tensors, list[str]]:
    """The floating tensors of a checkpoint; pieces of parallel ranks each for itself. Raises DumpError."""
    checkpoint = checkpoints.open(path)
    tensors = {}
    for entry in checkpoint.entries:
        if is_floating(entry.dtype) or entry.name == _COUNTER:
            split = len(checkpoint.entries_by_name[entry.name]) > 1
            tensors[f"{entry.name} ({entry.rank})" if split else entry.name] = partial(
                checkpoint.read_array, entry
            )
    return tensors, [f"{path}: {problem}" for problem in checkpoint.problems]


def _listed(paths: Sequence[Path], given: str) -> RunSteps:
    if len(paths) < 3 or len(paths) % 2 == 0:
        raise DumpError(
            f"{given}: {len(paths)} paths; expected weights,gradients,weights and for more steps so on"
        )
    each = [open_tensors(path) for path in paths]
    problems = tuple(problem for _, met in each for problem in met)
    return RunSteps(tuple(at for at, _ in each[::2]), tuple(at for at, _ in each[1::2]), problems)


def _numbered(folder: Path) -> RunSteps | None:
    """The folder's own files by their number; None if it has none that are called so."""
    places: dict[str, dict[int, Path]] = {"weights": {}, "gradients": {}}
    for place in sorted(folder.iterdir()):
        if matched := _STEP.fullmatch(place.name):
            if int(matched[2]) in places[matched[1]]:
                raise DumpError(f"{place}: a second file of the same step; remove one")
            places[matched[1]][int(matched[2])] = place
    if not places["weights"]:
        return None
    start = min(places["weights"])
    steps = 0
    while start + steps + 1 in places["weights"] and start + steps + 1 in places["gradients"]:
        steps += 1
    if not steps:
        raise DumpError(
            f"{folder}: expected weights_{start}, gradients_{start + 1} and weights_{start + 1}"
        )
    order = [places["weights"][start]]
    for number in range(start + 1, start + steps + 1):
        order += [places["gradients"][number], places["weights"][number]]
    found = _listed(order, str(folder))
    beside = next((folder / name for name in _SETTINGS if (folder / name).is_file()), None)
    return RunSteps(
        found.weights,
        found.gradients,
        found.problems,
        read_settings(beside) if beside else Settings(),
    )


def _dumped(path: Path) -> RunSteps:
    """A dump of n + 1 steps: each has the weights before its update and its gradients."""
    parts = {part.step: part for part in reversed(readers.find_parts(path)) if part.step is not None}
    if len(parts) < 2:
        raise DumpError(
            f"{path}: a dump of one step has no weights after it; dump a second, or save checkpoints"
        )
    traces = [readers.read_part(parts[step]) for step in sorted(parts)]
    weights = tuple(_recorded(trace, "parameter") for trace in traces)
    gradients = tuple(_recorded(trace, "gradient_of") for trace in traces[:-1])
    if not any(weights) or not any(gradients):
        what = "weights" if not any(weights) else "gradients"
        raise DumpError(
            f"{path}: holds no whole {what} by name; save them as weights_0, gradients_1, weights_1, ..."
        )
    return RunSteps(weights, gradients)


def _recorded(trace: Trace, column: str) -> Tensors:
    """The first whole tensor of every parameter; what an update has overwritten is not trusted."""
    tensors = trace.tensors
    names = tensors[column].to_numpy()
    usable = (names != "") & (tensors["file"] != "").to_numpy() & tensors["trusted"].to_numpy()
    found: dict[str, Callable[[], AnyArray]] = {}
    for row in usable.nonzero()[0].tolist():
        if is_floating(tensors["dtype"].iat[row]):
            found.setdefault(names[row], partial(trace.array, row))
    return found


def _paired(
    gradients: list[dict[str, Callable[[], AnyArray]]], weights: Tensors
) -> tuple[list[Tensors], list[str]]:
    """Gradients under the names of the weights: as they are, by canonical name, or in their order."""
    if any(name in gradients[0] for name in weights):
        return list(gradients), []
    parameters = [name for name in weights if _parameter(name)]
    rules = load_rules()
    ours = {path: name for name, path in rules.resolve_parameters(parameters).items()}
    named = [
        {ours[path]: at[name] for name, path in rules.resolve_parameters(at).items() if path in ours}
        for at in gradients
    ]
    if any(named[0]):
        return list(named), [
            "gradients are called otherwise than weights, and were paired by the rules for names"
        ]
    if all(len(at) == len(parameters) for at in gradients):
        return (
            [dict(zip(parameters, at.values(), strict=True)) for at in gradients],
            ["gradients are not called as weights, and were paired in their order"],
        )
    return list(gradients), []


def _parameter(name: str) -> bool:
    return not any(pattern.fullmatch(name) for pattern in (_FIRST, _SECOND, _OTHER))


def _moments(weights: Tensors) -> tuple[Tensors, Tensors]:
    """First and second moments that were saved with the weights, by parameter."""
    return tuple(  # type: ignore[return-value]
        {
            strip_wrappers(matched[2]): load
            for name, load in weights.items()
            if (matched := pattern.fullmatch(name))
        }
        for pattern in (_FIRST, _SECOND)
    )


def _counted(weights: Tensors) -> int:
    """How many steps a MindSpore checkpoint says were made before it was saved; 0 if it does not say."""
    return int(weights[_COUNTER]().reshape(-1)[0]) if _COUNTER in weights else 0


def _few(names: Iterable[str]) -> str:
    shown = list(names)
    return (
        ", ".join(shown[:3]) + (f", ... ({len(shown)} in all)" if len(shown) > 3 else "")
        or "nothing"
    )
