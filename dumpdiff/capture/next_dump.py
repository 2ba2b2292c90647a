"""Plan the next dump: whole tensors of only the ops that explaining the findings needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..comparison import Comparison
from ..graph import Flow
from ..model.errors import DumpError
from ..model.finding import Finding
from ..model.trace import Source
from ..readers.manifest.document import read_manifest
from ..recorder.request import RecordRequest
from . import mindspore, msprobe
from .cost import Cost, estimate_cost, flag_op_tensors, flag_recorded_tensors
from .op_selection import flag_nameable_ops, select_ops


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
    comparison: Comparison,
    findings: Sequence[Finding],
    folder: Path,
    align_command: Sequence[str],
    *,
    max_bytes: int | None = None,
    max_ops: int | None = None,
) -> NextDumps:
    """Return a plan for whole tensors of the ops that explaining the findings needs.

    :func:`select_ops` chooses them. ``folder`` is the folder of the configurations and the dumps.
    ``align_command`` repeats the comparison that the findings are from; the narrowed dumps complete
    its dumps. Raises DumpError if there is nothing to record, if a dump already exists, or if a
    dumper would refuse the configuration (for example because of its path).
    """
    if not findings:
        raise DumpError("nothing to record: the comparison has no findings")
    _check_formats(comparison)
    for side in ("target", "reference"):
        if (folder / side).exists():
            raise DumpError(
                f"{folder / side}: already exists, and two dumps would be mixed; "
                "give another folder"
            )
    ops_by_side = select_ops(comparison, findings, max_bytes, max_ops)
    if not any(ops_by_side):
        raise DumpError(
            "nothing to record: the dumps hold whole tensors of everything that explaining the "
            "findings reads"
        )
    alignment = comparison.alignment
    flows = alignment.target, alignment.reference
    target, reference = (
        _plan_side(side, flow, ops, folder)
        for side, flow, ops in zip(("target", "reference"), flows, ops_by_side, strict=True)
    )
    result = str(folder.with_name(f"{folder.name}_result"))
    commands = (
        shlex.join([*align_command, "--narrowed", str(folder), "-o", result]),
        shlex.join(["dumpdiff", "explain", result]),
    )
    return NextDumps(tuple(findings), target, reference, commands)


def _plan_side(side: str, flow: Flow, ops: tuple[int, ...], folder: Path) -> NextDump:
    trace = flow.trace
    can_be_named = flag_nameable_ops(trace)
    full_names = [trace.ops["name"].iat[op] for op in ops if can_be_named[op]]
    names = tuple(dict.fromkeys(_REPEAT_NUMBER.sub("", name) for name in full_names))
    request: _DumpRequest = "", "", []
    if names:
        request = _WRITERS[trace.source.format](side, trace.source, names, folder)
    file, text, instructions = request
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


def _check_formats(comparison: Comparison) -> None:
    """Raise DumpError if a recorder cannot be asked for single ops."""
    alignment = comparison.alignment
    for side, flow in (("target", alignment.target), ("reference", alignment.reference)):
        format = flow.trace.source.format
        if format not in _WRITERS:
            raise DumpError(
                f"the {side} is a dump of the format {format}, whose recorder cannot be asked for "
                "single ops; record whole tensors of the step, for example with dumpdiff.record"
            )


_RECORDER = "dumpdiff "  #: how the recorder of a manifest begins that dumpdiff.record wrote
_REPEAT_NUMBER = re.compile(r"#\d+$")  #: the suffix that the reader adds to a repeated name

_DumpRequest = tuple[str, str, list[str]]  #: name of the configuration file, its text, instructions
_RequestWriter = Callable[[str, Source, tuple[str, ...], Path], _DumpRequest]


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


def _write_record_request(
    side: str, source: Source, names: tuple[str, ...], folder: Path
) -> _DumpRequest:
    """Return a request for ``dumpdiff record --like``: the numbers of the tensors of the calls."""
    if not source.format_variant.startswith(_RECORDER):
        raise DumpError(
            f"the {side} was recorded by {source.format_variant}, not by dumpdiff.record, and "
            "cannot be asked for single ops; record whole tensors of the step"
        )
    manifest = read_manifest(Path(source.path) / "manifest.json")
    chosen_names = set(names)
    tensors = frozenset(
        number
        for call in manifest.calls
        if call.name in chosen_names
        for _, _, number in call.slots
    )
    file = f"{side}_record.json"
    request = RecordRequest(source.step or 0, source.rank or 0, tensors)
    command = ["python", "-m", "dumpdiff", "record", "--like", str(folder / file)]
    return file, request.format(), [
        shlex.join([*command, "-o", str(folder / side), "--", "train.py"]),
        "# or dumpdiff.record(..., like=FILE) in the script, with the arguments of the first time",
    ]  # fmt: skip


_WRITERS: Mapping[str, _RequestWriter] = {
    "mindspore": _write_mindspore_config,
    "msprobe": _write_msprobe_config,
    "ptdbg": _write_ptdbg_lines,
    "manifest": _write_record_request,
}


#: File in the folder of the narrowed dumps that compares them and explains the first finding.
COMPARE_FILE = "compare.sh"
_MAX_ROUNDS = 3  #: of the loop; what three rounds do not explain, a fourth hardly does

_LOOP = """\
#!/bin/sh
# Narrow, dump, align and explain until a cause is found, in at most {max_rounds} rounds:
#     sh FILE TARGET_COMMAND REFERENCE_COMMAND
# Each command runs the training up to the dumped step. {config_notes}
result={result}
for round in {rounds}; do
    next={folder}$round
    dumpdiff narrow "$result" -o "$next"{options} || exit
{target_run}
{reference_run}
    sh "$next/{compare_file}"
    code=$?
    [ "$code" -eq 3 ] || exit "$code"
    result=${{next}}_result
done
echo "no cause after {max_rounds} rounds; the last result is in $result" >&2
exit 3
"""

_MINDSPORE_RUN = """\
    if [ -e "$next/{side}_dump.json" ]; then
        (eval "$(dumpdiff env "$next/{side}_dump.json")" && sh -c "{argument}") || exit
    fi"""
_MSPROBE_RUN = """\
    if [ -e "$next/{side}_config.json" ]; then
        DUMP_CONFIG="$next/{side}_config.json" sh -c "{argument}" || exit
    fi"""
_RUNS = {"mindspore": _MINDSPORE_RUN, "msprobe": _MSPROBE_RUN}


def build_loop(formats: tuple[str, str], result: Path, folder: Path, options: Sequence[str]) -> str:
    """Return a shell script that narrows, dumps and explains until a cause is found.

    ``formats`` are those of the target's and the reference's dump, ``options`` words for
    ``dumpdiff narrow``. A round asks for what the rounds before it did not. Raises DumpError for a
    dumper without a configuration file.
    """
    runs = []
    for side, format, argument in zip(("target", "reference"), formats, ("$1", "$2"), strict=True):
        if format not in _RUNS:
            raise DumpError(
                f"the {side} is a dump of {format}, which has no configuration file that a loop "
                "could exchange; narrow round by round"
            )
        runs.append(_RUNS[format].format(side=side, argument=argument))
    config_notes = ""
    if "msprobe" in formats:
        config_notes = "msprobe's config_path is in $DUMP_CONFIG."
    return _LOOP.format(
        max_rounds=_MAX_ROUNDS,
        rounds=" ".join(map(str, range(1, _MAX_ROUNDS + 1))),
        config_notes=config_notes,
        result=shlex.quote(str(result)),
        folder=shlex.quote(str(folder)),
        options="".join(f" {shlex.quote(word)}" for word in options),
        target_run=runs[0],
        reference_run=runs[1],
        compare_file=COMPARE_FILE,
    )


def build_compare_script(plan: NextDumps) -> str:
    """Return a shell script of the printed commands; its exit code is that of the last one."""
    return "\n".join(["#!/bin/sh", *plan.commands]) + "\n"
