"""Plan the next dump: whole tensors of only the ops around the findings of a comparison."""

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
    """What to record on one side."""

    side: str  #: target or reference
    ops: tuple[str, ...]  #: names as in the dump
    file: str  #: name of the configuration file, '' if the dumper has none
    text: str  #: content of that file
    instructions: tuple[str, ...]  #: commands to run or lines to paste
    cost: Cost
    full_cost: Cost  #: cost of whole tensors of all ops


@dataclass(frozen=True)
class NextDumps:
    """The next pair of dumps."""

    findings: tuple[Finding, ...]
    target: NextDump
    reference: NextDump
    commands: tuple[str, ...]  #: commands that compare the two dumps


def plan_next_dump(
    alignment: Alignment, findings: Sequence[Finding], count: int, folder: Path
) -> NextDumps:
    """Return a plan for whole tensors of at most ``count`` ops per side, around the findings.

    ``folder`` is the folder of the configurations and the dumps. Raises DumpError if there are no
    findings, if a dump already exists, or if a dumper would refuse the configuration (for example
    because of its path).
    """
    if not findings:
        raise DumpError("nothing to record: the comparison has no findings")
    for side in ("target", "reference"):
        if (folder / side).exists():
            raise DumpError(
                f"{folder / side}: already exists, and two dumps would be mixed; "
                "give another folder"
            )
    nearby_ops = select_nearby_ops(alignment, findings, count)
    sides = [
        _plan_side(side, flow, ops, folder)
        for side, flow, ops in zip(
            ("target", "reference"),
            (alignment.target, alignment.reference),
            nearby_ops,
            strict=True,
        )
    ]
    target, reference, result = (
        shlex.quote(str(folder / name)) for name in ("target", "reference", "result.json")
    )
    commands = (
        f"dumpdiff align {target} {reference} --json {result}",
        f"dumpdiff explain {result}",
    )
    return NextDumps(tuple(findings), sides[0], sides[1], commands)


def _plan_side(side: str, flow: Flow, ops: tuple[int, ...], folder: Path) -> NextDump:
    trace = flow.trace
    if not ops:
        raise DumpError(
            f"{trace.source.path}: the {side} has no op near the findings that a dumper can select"
        )
    names = tuple(dict.fromkeys(_REPEAT_NUMBER.sub("", trace.ops["name"].iat[op]) for op in ops))
    file, text, instructions = _WRITERS[trace.source.format](side, trace.source, names, folder)
    cost = estimate_cost(trace, trace.source.format, whole_tensors=flag_op_tensors(trace, ops))
    return NextDump(
        side,
        names,
        file,
        text,
        tuple(instructions),
        cost,
        estimate_cost(trace, trace.source.format, whole_tensors=flag_recorded_tensors(trace)),
    )


_REPEAT_NUMBER = re.compile(r"#\d+$")  #: the suffix that the reader adds to a repeated name

_DumpRequest = tuple[str, str, list[str]]  #: name of the configuration file, its text, instructions


def _write_mindspore_config(
    side: str, source: Source, names: tuple[str, ...], folder: Path
) -> _DumpRequest:
    """Return a configuration with the ops in ``kernels``.

    Names in the trace are those of the runtime. In a dump without graphs they have '_' for '/';
    then a regular expression matches either character.
    """
    kernels = tuple(
        name if "/" in name else f"name-regex({name.replace('_', '.')})" for name in names
    )
    devices = (source.rank,) if source.rank is not None else tuple(range(8))
    step = str(source.step or 0)
    options = mindspore.Options(
        path=str(folder / side), iteration=step, kernels=kernels, devices=devices
    )
    target = _guess_mindspore_target(source)
    config = mindspore.build_configuration(options, target)
    for violation in mindspore.check(config, target, run_is_local=False):
        raise DumpError(f"{side}: {violation}")
    file = f"{side}_dump.json"
    return (
        file,
        mindspore.format_configuration(config),
        [f'eval "$(dumpdiff env {shlex.quote(str(folder / file))})"', "# then start the training"],
    )


def _guess_mindspore_target(source: Source) -> mindspore.Target:
    """Return backend and version as recorded in the dump; by default Ascend and the tested one."""
    backend = str(source.details.get("device", "ascend")).lower()
    target = mindspore.Target(backend if backend in mindspore.BACKENDS else "ascend")
    if "version" in source.details:
        target = target._replace(version=mindspore.Version.parse(str(source.details["version"])))
    return target


def _write_msprobe_config(
    side: str, source: Source, names: tuple[str, ...], folder: Path
) -> _DumpRequest:
    options = msprobe.Options(
        path=str(folder / side),
        framework=source.framework,
        version=msprobe.get_version(source),
        task="tensor",
        level=str(source.details.get("level", "mix")),
        steps=(str(source.step or 0),),
        ranks=() if source.rank is None else (str(source.rank),),
        names=names,
    )
    file = f"{side}_config.json"
    script_lines = msprobe.build_script_lines(
        str(folder / file), source.framework, "plain", options.version
    )
    return (
        file,
        msprobe.format_configuration(msprobe.build_configuration(options)),
        script_lines.splitlines(),
    )


def _write_ptdbg_lines(
    side: str, source: Source, names: tuple[str, ...], folder: Path
) -> _DumpRequest:
    """Return lines for the script: ptdbg_ascend has no configuration file."""
    scope = ", ".join(map(repr, names))
    return "", "", [
        "from ptdbg_ascend import set_dump_path, set_dump_switch",
        f"set_dump_path({str(folder / side)!r})",
        f'set_dump_switch("ON", mode="list", scope=[{scope}], filter_switch="OFF")'
        "  # before the step",
        'set_dump_switch("OFF")  # after it',
    ]  # fmt: skip


_WRITERS: Mapping[str, Callable[[str, Source, tuple[str, ...], Path], _DumpRequest]] = {
    "mindspore": _write_mindspore_config,
    "msprobe": _write_msprobe_config,
    "ptdbg": _write_ptdbg_lines,
}
