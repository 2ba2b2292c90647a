"""Build MindSpore's dump configuration from options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .target import Target

#: The statistics that dumpdiff compares. MindSpore's own default has no mean.
STATISTICS = ("max", "min", "avg", "l2norm")


@dataclass(frozen=True)
class Options:
    """What to record. Values are written as they are; :func:`check` finds the invalid ones."""

    path: str  #: absolute folder of the dump; '' leaves it to MS_DIAGNOSTIC_DATA_PATH
    net_name: str = "Net"
    iteration: str = "0"  #: '0', '5-8', '0|5-8' or 'all'
    saved_data: str = "tensor"  #: 'tensor', 'statistic' or 'full'
    input_output: int = 0  #: 0 both, 1 inputs, 2 outputs
    kernels: tuple[str, ...] = ()  #: empty: every operator
    set_dump: bool = False  #: only the cells marked with mindspore.set_dump
    devices: tuple[int, ...] = tuple(range(8))
    op_debug_mode: int = 0  #: 0 everything, 3 operators that overflow, 4 the operator that raised
    overflow_number: int | None = None
    initial_iteration: int | None = None
    #: None: :data:`STATISTICS` if statistics are saved
    statistic_category: tuple[str, ...] | None = None
    stat_calc_mode: str | None = None  #: 'host' or 'device'
    device_stat_precision_mode: str | None = None  #: 'high' or 'low'
    #: number of elements to keep of each tensor, half from its head, half from its tail
    sample_num: int | None = None
    save_kernel_args: bool = False


def build_configuration(options: Options, target: Target) -> dict[str, Any]:
    """Return the content of the configuration file for ``target``; :func:`check` checks it.

    A field that ``target`` does not know is written only if an option sets it, so that the check
    reports it.
    """
    common: dict[str, Any] = {
        "op_debug_mode": options.op_debug_mode,
        "dump_mode": _choose_dump_mode(options),
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
    if is_asynchronous(target) and target.version >= (1, 6):
        common["file_format"] = "npy"
    config = {"common_dump_settings": common}
    e2e_settings = _build_e2e_settings(options)
    if not is_asynchronous(target):
        config["e2e_dump_settings"] = {**_E2E_ENABLED, **e2e_settings}
    elif e2e_settings:
        config["e2e_dump_settings"] = {**_E2E_DISABLED, **e2e_settings}
    return config


def format_configuration(config: Mapping[str, Any]) -> str:
    """Return the text of the file, with one line per field."""
    sections = []
    for section, values in config.items():
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()
        )
        sections.append(f"  {json.dumps(section)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def is_asynchronous(target: Target) -> bool:
    """Return whether the device writes the dump by itself, without ``e2e_dump_settings``.

    This holds for whole graphs, and on Ascend before 2.3 introduced execution kernel by kernel:
    there the synchronous dump was deprecated and refused statistics.
    """
    return target.backend == "ascend-ge" or (target.backend == "ascend" and target.version < (2, 3))


def _choose_dump_mode(options: Options) -> int:
    """Return 2 for marked cells, 1 for listed kernels, 0 for every operator."""
    if options.set_dump:
        return 2
    return 1 if options.kernels else 0


_E2E_ENABLED, _E2E_DISABLED = (
    {"enable": True, "trans_flag": True},
    {"enable": False, "trans_flag": True},
)


def _build_e2e_settings(options: Options) -> dict[str, Any]:
    """Return the fields of e2e_dump_settings that options set."""
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
