"""What is wanted -> the configuration that asks MindSpore for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .target import Target

#: What dumpdiff compares by when only statistics were saved; MindSpore's own default lacks the mean.
STATISTICS = ("max", "min", "avg", "l2norm")


@dataclass(frozen=True)
class Options:
    """What to record. Every value goes into the configuration as it is; :func:`check` tells whether it will do."""

    path: str  #: where the dump goes, absolute; '' leaves it to MS_DIAGNOSTIC_DATA_PATH
    net_name: str = "Net"
    iteration: str = "0"  #: '0', '5-8', '0|5-8' or 'all'
    saved_data: str = "tensor"  #: 'tensor', 'statistic' or 'full'
    input_output: int = 0  #: 0 both, 1 inputs, 2 outputs
    kernels: tuple[str, ...] = ()  #: none: every operator
    set_dump: bool = False  #: only the cells marked with mindspore.set_dump
    devices: tuple[int, ...] = tuple(range(8))
    op_debug_mode: int = 0  #: 0 everything, 3 operators that overflow, 4 the operator that raised
    overflow_number: int | None = None
    initial_iteration: int | None = None
    statistic_category: tuple[str, ...] | None = (
        None  #: None: :data:`STATISTICS`, where statistics are saved
    )
    stat_calc_mode: str | None = None  #: 'host' or 'device'
    device_stat_precision_mode: str | None = None  #: 'high' or 'low'
    sample_num: int | None = (
        None  #: keep so many elements of each tensor, half from its head, half from its tail
    )
    save_kernel_args: bool = False


def build_configuration(options: Options, target: Target) -> dict[str, Any]:
    """The content of the configuration file for ``target``; not yet checked, see :func:`check`.

    Fields that ``target`` does not know are left out unless they were asked for, so that the check can say so.
    """
    common: dict[str, Any] = {
        "op_debug_mode": options.op_debug_mode,
        "dump_mode": 2 if options.set_dump else 1 if options.kernels else 0,
        "path": options.path,
        "net_name": options.net_name,
        "iteration": options.iteration,
        "saved_data": options.saved_data,
        "input_output": options.input_output,
        "kernels": list(options.kernels),
        "support_device": list(options.devices),
    }
    if target.version < (1, 6) and options.saved_data == "tensor":
        del common["saved_data"]
    if options.statistic_category is not None:
        common["statistic_category"] = list(options.statistic_category)
    elif options.saved_data != "tensor" and target.version >= (2, 3):
        common["statistic_category"] = list(STATISTICS)
    if options.overflow_number is not None:
        common["overflow_number"] = options.overflow_number
    if options.initial_iteration is not None:
        common["initial_iteration"] = options.initial_iteration
    if is_asynchronous(target):
        if target.version >= (1, 6):
            common["file_format"] = "npy"
        extra = _build_e2e_settings(options)
        return {"common_dump_settings": common} | (
            {"e2e_dump_settings": {**_E2E_DISABLED, **extra}} if extra else {}
        )
    return {"common_dump_settings": common, "e2e_dump_settings": {**_E2E_ENABLED, **_build_e2e_settings(options)}}


def format_configuration(config: Mapping[str, Any]) -> str:
    """The text of the file that holds a configuration: a line for each field."""
    sections = []
    for section, values in config.items():
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()
        )
        sections.append(f"  {json.dumps(section)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def is_asynchronous(target: Target) -> bool:
    """Whether the dump is made by the device behind the program's back, which wants no ``e2e_dump_settings``.

    So it is with whole graphs, and on Ascend before execution kernel by kernel came with 2.3: the synchronous dump
    was deprecated there and refused statistics.
    """
    return target.backend == "ascend-ge" or (target.backend == "ascend" and target.version < (2, 3))


_E2E_ENABLED, _E2E_DISABLED = {"enable": True, "trans_flag": True}, {"enable": False, "trans_flag": True}


def _build_e2e_settings(options: Options) -> dict[str, Any]:
    """The fields of e2e_dump_settings that were asked for."""
    settings: dict[str, Any] = {}
    if options.stat_calc_mode is not None:
        settings["stat_calc_mode"] = options.stat_calc_mode
    if options.device_stat_precision_mode is not None:
        settings["device_stat_precision_mode"] = options.device_stat_precision_mode
    if options.sample_num is not None:
        settings |= {"sample_mode": 1, "sample_num": options.sample_num}
    if options.save_kernel_args:
        settings["save_kernel_args"] = True
    return settings
