"""Commands on dump configurations.

They are ``dumpdiff.dump_config.mindspore``, ``.msprobe`` and ``.check``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import readers
from ..model.errors import DumpError
from ..model.trace import Trace
from .inputs import PathLike

if TYPE_CHECKING:
    from ..capture.cost_from_dump import ExpectedCost
    from ..capture.mindspore import Target, Violation

__all__ = ["ConfigurationError", "DumpConfig", "check", "mindspore", "msprobe"]

_INPUT_OUTPUT = ("both", "input", "output")  #: position is MindSpore's number for it


@dataclass(frozen=True)
class DumpConfig:
    """A dump configuration that was checked."""

    #: its content
    config: Mapping[str, Any]
    #: the text of the file
    text: str
    #: lines to paste into the training script, '' if none are needed
    script: str = ""
    #: what the dump will cost, if a dump of a similar run was given
    cost: ExpectedCost | None = None
    #: a sentence if a dump is already where the next one will go
    warning: str = ""


class ConfigurationError(DumpError):
    """A configuration that MindSpore would refuse, ignore in part, or answer with an empty dump."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        """``violations`` are the broken rules, worst first."""
        super().__init__("; ".join(map(str, violations)))
        self.violations = tuple(violations)


def mindspore(
    *,
    backend: str = "ascend",
    ms_version: str = "2.10",
    elsewhere: bool = False,
    path: str | None = None,
    net_name: str = "Net",
    iteration: str = "0",
    saved_data: str = "tensor",
    input_output: str = "both",
    kernels: Sequence[str] = (),
    set_dump: bool = False,
    device: str = "0-7",
    stat: str | None = None,
    stat_on: str | None = None,
    stat_precision: str | None = None,
    op_debug_mode: int = 0,
    overflow_number: int | None = None,
    initial_iteration: int | None = None,
    sample_num: int | None = None,
    save_kernel_args: bool = False,
    clean: bool = False,
    like: PathLike | None = None,
    output: PathLike = "dump.json",
) -> DumpConfig:
    """Return the file that ``MINDSPORE_DUMP_CONFIG`` names, checked.

    docs/dump-config.md describes every field.

    Parameters
    ----------
    backend, ms_version
        For which MindSpore: ``ascend``, ``ascend-ge``, ``gpu`` or ``cpu``, and its version.
    elsewhere
        The run is on another machine: do not check the folder of the dump.
    path
        Absolute folder of the dump, '' to leave it to ``MS_DIAGNOSTIC_DATA_PATH``; default: ./dump.
    net_name
        Folder of the network in the dump.
    iteration
        Steps: ``0``, ``5-8``, ``0|5-8`` or ``all``.
    saved_data
        ``tensor``, ``statistic`` or ``full``.
    input_output
        Tensors of an operator: ``both``, ``input`` or ``output``.
    kernels
        Operators to dump; default: all.
    set_dump
        Dump only cells that the script marks with ``set_dump``.
    device
        Devices: ``0``, ``0,3`` or ``0-7``.
    stat
        Names of statistics, separated by commas.
    stat_on, stat_precision
        Where statistics are computed (``host`` or ``device``), and how exactly (``high`` or
        ``low``).
    op_debug_mode, overflow_number
        3: dump operators that overflow, at most so many; 4: the operator that raised.
    initial_iteration
        Number of the first step.
    sample_num
        Number of elements saved from the head and from the tail of a tensor.
    save_kernel_args
        Save the attributes of operators.
    clean
        Remove the dump that an earlier run left in the folder.
    like
        Dump of a similar run, to estimate the cost.
    output
        Where the file will be; MindSpore reads its suffix.

    Raises
    ------
    ConfigurationError
        If a rule of MindSpore would be broken.
    DumpError
        If an option or ``like`` cannot be read.
    """
    from ..capture import mindspore as capture

    target = parse_target(backend, ms_version)
    statistics = None if stat is None else tuple(name.strip() for name in stat.split(","))
    options = capture.Options(
        path=os.path.abspath("dump") if path is None else path,
        net_name=net_name,
        iteration=iteration,
        saved_data=saved_data,
        input_output=_INPUT_OUTPUT.index(input_output),
        kernels=tuple(kernels),
        set_dump=set_dump,
        devices=_parse_devices(device),
        op_debug_mode=op_debug_mode,
        overflow_number=overflow_number,
        initial_iteration=initial_iteration,
        statistic_category=statistics,
        stat_calc_mode=stat_on,
        device_stat_precision_mode=stat_precision,
        sample_num=sample_num,
        save_kernel_args=save_kernel_args,
    )
    config = capture.build_configuration(options, target)
    violations = (
        *capture.check_file_name(output),
        *capture.check(config, target, run_is_local=not elsewhere),
    )
    if violations:
        raise ConfigurationError(violations)
    warning = "" if elsewhere else _look_for_dumps(options.path, clean)
    cost = None
    if like is not None:
        from ..capture.cost_from_dump import estimate_mindspore_cost

        cost = estimate_mindspore_cost(config, _read_first_part(like), str(like))
    return DumpConfig(config, capture.format_configuration(config), cost=cost, warning=warning)


def msprobe(
    *,
    framework: str,
    msprobe_version: str = "26.2",
    script: str = "plain",
    path: str | None = None,
    task: str = "statistics",
    level: str = "mix",
    step: Sequence[str] = ("0",),
    rank: Sequence[str] = (),
    list: Sequence[str] = (),  # the option's name
    scope: tuple[str, str] | None = None,
    data_mode: Sequence[str] = ("all",),
    summary_mode: str = "statistics",
    tensor_list: Sequence[str] = (),
    precision: str | None = None,
    risk_level: str | None = None,
    async_dump: bool = False,
    clean: bool = False,
    like: PathLike | None = None,
    output: PathLike = "config.json",
) -> DumpConfig:
    """Return msprobe's ``config.json``, and the lines that the training script needs.

    Parameters
    ----------
    framework
        ``pytorch`` or ``mindspore``.
    msprobe_version
        Version of mindstudio-probe.
    script
        Kind of training script: ``plain``, ``megatron`` or ``mindformers``.
    path
        Absolute folder of the dump; default: ./dump.
    task, level
        msprobe's fields of these names.
    step, rank
        Steps and ranks, such as ``0`` or ``5-8``; no step or ``("all",)``: every step; no rank:
        all.
    list
        Only calls whose names contain one of these.
    scope
        Only calls between two, by full names.
    data_mode, summary_mode, tensor_list, precision, risk_level, async_dump
        msprobe's fields of these names.
    clean
        Remove the dump that an earlier run left in the folder.
    like
        Dump of a similar run, to estimate the cost.
    output
        Where the file will be; the lines of the script name it.

    Raises
    ------
    DumpError
        If msprobe would refuse or ignore something, or ``like`` cannot be read.
    """
    from ..capture.msprobe import (
        Options,
        build_configuration,
        build_script_lines,
        format_configuration,
        parse_version,
    )

    options = Options(
        path=os.path.abspath("dump") if path is None else path,
        framework=framework,
        version=parse_version(msprobe_version),
        task=task,
        level=level,
        steps=() if tuple(step) == ("all",) else tuple(step),
        ranks=tuple(rank),
        names=tuple(list),
        scope=scope or (),
        data_mode=tuple(data_mode),
        summary_mode=summary_mode,
        tensor_list=tuple(tensor_list),
        precision=precision or "",
        risk_level=risk_level or "",
        async_dump=async_dump,
    )
    config = build_configuration(options)
    script_lines = build_script_lines(os.path.abspath(output), framework, script, options.version)
    cost = None
    if like is not None:
        from ..capture.cost_from_dump import estimate_msprobe_cost

        cost = estimate_msprobe_cost(options, _read_first_part(like), str(like))
    warning = _look_for_dumps(options.path, clean)
    return DumpConfig(config, format_configuration(config), script_lines, cost, warning)


def check(
    file: PathLike,
    *,
    backend: str = "ascend",
    ms_version: str = "2.10",
    elsewhere: bool = False,
    dump: PathLike | None = None,
) -> Sequence[Violation]:
    """Return the errors of an existing configuration.

    They are what MindSpore would refuse, ignore, or answer with an empty dump.

    Parameters
    ----------
    file
        What ``MINDSPORE_DUMP_CONFIG`` names.
    backend, ms_version, elsewhere
        As for :func:`mindspore`.
    dump
        Earlier dump of the whole network, to check that the kernels are in it.

    Raises
    ------
    DumpError
        If the file or the dump cannot be read.
    """
    from ..capture.mindspore import check_file
    from ..capture.mindspore.kernels import list_kernel_names

    names = None
    if dump is not None:
        parts = readers.find_parts(dump)
        part, _ = readers.choose_parts(parts, parts)
        names = list_kernel_names(readers.read_part(part))
    target = parse_target(backend, ms_version)
    return check_file(str(file), target, run_is_local=not elsewhere, names=names)


def parse_target(backend: str, ms_version: str) -> Target:
    """Return the MindSpore that the options name.

    Raises DumpError if the version is invalid or none whose configurations are known.
    """
    from ..capture.mindspore import LAST_OF_MAJOR_1, OLDEST, TESTED, Target, Version

    version = Version.parse(ms_version)
    is_known = OLDEST <= version <= LAST_OF_MAJOR_1 or Version(2, 0) <= version <= TESTED
    if not is_known:
        raise DumpError(
            f"--ms-version {version}: configurations are known of {OLDEST} to {LAST_OF_MAJOR_1} "
            f"and 2.0 to {TESTED}; give one of them"
        )
    return Target(backend, version)


def _look_for_dumps(folder: str, clean: bool) -> str:
    """Return a warning if an earlier dump is in the folder of the next one; remove it if asked."""
    from ..capture.existing_dumps import (
        describe_existing_dumps,
        find_existing_dumps,
        remove_existing_dumps,
    )

    if not folder:
        return ""
    if clean:
        remove_existing_dumps(folder)
    return describe_existing_dumps(folder, find_existing_dumps(folder))


def _parse_devices(text: str) -> tuple[int, ...]:
    """Turn '0,3' or '0-7' into numbers. Raises DumpError."""
    devices: list[int] = []
    try:
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            devices += range(int(first), int(last or first) + 1)
    except ValueError:
        raise DumpError(
            f"--device {text}: write numbers and ranges separated by commas, such as 0,3 or 0-7"
        ) from None
    return tuple(devices)


def _read_first_part(dump: PathLike) -> Trace:
    """Read the first part of a dump: one step of one rank is taken for all."""
    return readers.read_part(readers.find_parts(dump)[0])
