"""The next dump: from a comparison of cheap statistics, whole tensors of just the ops around its findings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..alignment import Alignment
from ..graph import Flow
from ..model.errors import DumpError
from ..model.finding import Finding
from ..model.trace import Source
from . import mindspore, msprobe
from .cost import Cost, estimate_cost, flag_op_tensors, flag_recorded_tensors
from .neighbours import select_nearby_ops


@dataclass(frozen=True)
class NextDump:
    """What to record of one side."""

    role: str  #: target or reference
    ops: tuple[str, ...]  #: the dump's own names
    file: str  #: name of its configuration file, '' if this dumper has none
    text: str  #: content of that file
    instructions: tuple[str, ...]  #: commands and lines to paste, for a person
    cost: Cost
    full_cost: Cost  #: of whole tensors of all ops


@dataclass(frozen=True)
class NextDumps:
    """The next pair of dumps."""

    findings: tuple[Finding, ...]
    target: NextDump
    reference: NextDump
    commands: tuple[str, ...]  #: commands that compare them


def plan_next_dump(alignment: Alignment, findings: Sequence[Finding], count: int, folder: Path) -> NextDumps:
    """Whole tensors of at most ``count`` ops a side, around the findings; ``folder`` gets configurations and dumps.

    Raises DumpError if there is nothing to look at, a dump is there already, or a configuration would not hold, as with
    a path that a dumper refuses.
    """
    if not findings:
        raise DumpError("no finding to look at more closely: the comparison has none")
    for role in ("target", "reference"):
        if (folder / role).exists():
            raise DumpError(
                f"{folder / role}: is there already, and two dumps would mix; give another folder"
            )
    nearby_ops = select_nearby_ops(alignment, findings, count)
    sides = [
        _plan_side(role, flow, ops, folder)
        for role, flow, ops in zip(
            ("target", "reference"), (alignment.target, alignment.reference), nearby_ops, strict=True
        )
    ]
    target, reference, result = (
        shlex.quote(str(folder / name)) for name in ("target", "reference", "result.json")
    )
    commands = (f"dumpdiff align {target} {reference} --json {result}", f"dumpdiff explain {result}")
    return NextDumps(tuple(findings), sides[0], sides[1], commands)


def _plan_side(role: str, flow: Flow, ops: tuple[int, ...], folder: Path) -> NextDump:
    trace = flow.trace
    if not ops:
        raise DumpError(
            f"{trace.source.path}: the {role} has no op near the findings that a dumper could be asked for"
        )
    names = tuple(dict.fromkeys(_REPEAT_NUMBER.sub("", trace.ops["name"].iat[op]) for op in ops))
    file, text, instructions = _WRITERS[trace.source.format](role, trace.source, names, folder)
    cost = estimate_cost(trace, trace.source.format, whole_tensors=flag_op_tensors(trace, ops))
    return NextDump(
        role,
        names,
        file,
        text,
        tuple(instructions),
        cost,
        estimate_cost(trace, trace.source.format, whole_tensors=flag_recorded_tensors(trace)),
    )


_REPEAT_NUMBER = re.compile(r"#\d+$")  #: what the reader puts behind a name that occurs again

_DumpRequest = tuple[str, str, list[str]]  #: name of the configuration file, its text, what to do


def _write_mindspore_config(role: str, source: Source, names: tuple[str, ...], folder: Path) -> _DumpRequest:
    """``kernels`` with the names of the runtime, which the trace has; without a graph only '/' of theirs is unknown."""
    kernels = tuple(
        name if "/" in name else f"name-regex({name.replace('_', '.')})" for name in names
    )
    devices = (source.rank,) if source.rank is not None else tuple(range(8))
    step = str(source.step or 0)
    options = mindspore.Options(
        path=str(folder / role), iteration=step, kernels=kernels, devices=devices
    )
    target = _guess_mindspore_target(source)
    config = mindspore.build_configuration(options, target)
    for violation in mindspore.check(config, target, run_is_local=False):
        raise DumpError(f"{role}: {violation}")
    file = f"{role}_dump.json"
    return (
        file,
        mindspore.format_configuration(config),
        [f'eval "$(dumpdiff env {shlex.quote(str(folder / file))})"', "# then start the training"],
    )


def _guess_mindspore_target(source: Source) -> mindspore.Target:
    """Backend and version as the dump notes them."""
    backend = str(source.details.get("device", "ascend")).lower()
    target = mindspore.Target(backend if backend in mindspore.BACKENDS else "ascend")
    if "version" in source.details:
        target = target._replace(version=mindspore.Version.parse(str(source.details["version"])))
    return target


def _write_msprobe_config(role: str, source: Source, names: tuple[str, ...], folder: Path) -> _DumpRequest:
    options = msprobe.Options(
        path=str(folder / role),
        framework=source.framework,
        version=msprobe.get_version(source),
        task="tensor",
        level=str(source.details.get("level", "mix")),
        steps=(str(source.step or 0),),
        ranks=() if source.rank is None else (str(source.rank),),
        names=names,
    )
    file = f"{role}_config.json"
    script_lines = msprobe.build_script_lines(str(folder / file), source.framework, "plain", options.version)
    return file, msprobe.format_configuration(msprobe.build_configuration(options)), script_lines.splitlines()


def _write_ptdbg_lines(role: str, source: Source, names: tuple[str, ...], folder: Path) -> _DumpRequest:
    """ptdbg_ascend has no configuration file: the list stands in the script."""
    scope = ", ".join(map(repr, names))
    return "", "", [
        "from ptdbg_ascend import set_dump_path, set_dump_switch",
        f"set_dump_path({str(folder / role)!r})",
        f'set_dump_switch("ON", mode="list", scope=[{scope}], filter_switch="OFF")  # before the step',
        'set_dump_switch("OFF")  # behind it',
    ]  # fmt: skip


_WRITERS: Mapping[str, Callable[[str, Source, tuple[str, ...], Path], _DumpRequest]] = {
    "mindspore": _write_mindspore_config,
    "msprobe": _write_msprobe_config,
    "ptdbg": _write_ptdbg_lines,
}
