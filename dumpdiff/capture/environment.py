"""Environment variables for a run: dumping, determinism, overflow checks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import DumpError
from .existing_dumps import describe_existing_dumps, find_existing_dumps
from .mindspore.document import read_config

FRAMEWORKS = ("mindspore", "pytorch")


@dataclass(frozen=True)
class Variable:
    """One variable of the environment."""

    name: str
    value: str  #: what to set; '' if it depends on the dump
    purpose: str  #: what it does
    since: str  #: first version that documents it, or the tool that requires it
    frameworks: tuple[str, ...] = FRAMEWORKS
    is_optional: bool = False  #: set only if it is requested by name


DUMP_CONFIG, DIAGNOSTIC = "MINDSPORE_DUMP_CONFIG", "MS_DIAGNOSTIC_DATA_PATH"
ACL_CONFIG = "MS_ACL_DUMP_CFG_PATH"

VARIABLES = (
    Variable(
        DUMP_CONFIG,
        "",
        "path of the dump configuration; read when the first graph is compiled",
        "MindSpore 1.0",
        ("mindspore",),
    ),
    Variable(
        DIAGNOSTIC,
        "",
        "folder of the dump (in debug_dump/) if the configuration has no path",
        "MindSpore 1.5",
        ("mindspore",),
    ),
    Variable(
        "HCCL_DETERMINISTIC",
        "true",
        "bitwise deterministic AllReduce, ReduceScatter and Reduce between Ascend devices",
        "CANN 8.0; Atlas A2",
    ),
    Variable(
        "LCCL_DETERMINISTIC",
        "1",
        "the same for AllReduce with LCCL, which is used for up to 8 Ascend devices",
        "MindSpore 2.4; msprobe sets it for PyTorch",
    ),
    Variable(
        "CLOSE_MATMUL_K_SHIFT",
        "1",
        "fixed summation order of matrix products on Ascend",
        "msprobe sets it for PyTorch",
    ),
    Variable(
        "CUSTOM_MATMUL_SHUFFLE",
        "off",
        "no shuffling in the framework's own matrix products on Ascend",
        "MindSpore 2.4, MindSpore Transformers",
        ("mindspore",),
    ),
    Variable(
        "TE_PARALLEL_COMPILER",
        "1",
        "compiles operators one by one, so that every run gets the same ones; "
        "set_deterministic sets it too",
        "MindSpore 2.4, on Ascend",
        ("mindspore",),
    ),
    Variable(
        "ASCEND_LAUNCH_BLOCKING",
        "1",
        "launches operators one by one, so that an error names the operator that caused it",
        "MindSpore 2.4",
    ),
    Variable(
        "MS_ASCEND_CHECK_OVERFLOW_MODE",
        "INFNAN_MODE",
        "overflow gives inf or nan, as on other hardware, instead of the largest finite number",
        "MindSpore 2.3, where it is the default; Atlas A2",
        ("mindspore",),
    ),
    Variable(
        "INF_NAN_MODE_ENABLE",
        "1",
        "the same setting in CANN; both must agree",
        "required by msprobe; the default on Atlas A2",
    ),
    Variable(
        "PYTHONHASHSEED",
        "0",
        "fixed iteration order of sets of strings; must be set before Python starts",
        "Python 3.3",
    ),
    Variable(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        "deterministic matrix products on NVIDIA devices; "
        "torch.use_deterministic_algorithms(True) requires it",
        "CUDA 10.2",
        ("pytorch",),
    ),
    Variable(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "0",
        "deterministic algorithms in Transformer Engine; "
        "Megatron-LM's --deterministic-mode requires it",
        "Megatron-LM with Transformer Engine",
        ("pytorch",),
    ),
    Variable(
        "NCCL_ALGO",
        "Ring",
        "one algorithm for reductions between NVIDIA devices; "
        "Megatron-LM's --deterministic-mode requires it",
        "Megatron-LM with NCCL",
        ("pytorch",),
    ),
    Variable(
        "MINDSPORE_DUMP_IGNORE_USELESS_OUTPUT",
        "0",
        "dumps the outputs of Send and Print and the reserved output of FlashAttentionScore too",
        "MindSpore 2.7",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "ENABLE_MS_GE_DUMP",
        "1",
        "dumps whole graphs (jit level O2, GE), in versions where MindSpore itself still does so",
        "MindSpore 2.4; removed in 2.6",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        ACL_CONFIG,
        "",
        "path of the same configuration, read by CANN for whole graphs",
        "MindSpore 2.3; removed in 2.6",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "MS_DEV_SAVE_GRAPHS",
        "2",
        "saves the graphs; trace_code_graph_* and graph_build_* have the names of the dump's files",
        "MindSpore 2.0",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "MS_DEV_SAVE_GRAPHS_PATH",
        "graphs",
        "the folder for those graphs",
        "MindSpore 2.3",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "VLOG_v",
        "(10302,10302)",
        "logs what the dumper does, and why it skips a step or an operator",
        "MindSpore 2.5",
        ("mindspore",),
        is_optional=True,
    ),
)

BY_NAME = {variable.name: variable for variable in VARIABLES}


def build_environment(
    framework: str, config: str | Path | None = None, also: tuple[str, ...] = (), seed: int = 0
) -> dict[str, str]:
    """Return names and values of the variables for one framework, in the order of VARIABLES.

    ``config`` is the path of the dump configuration. ``also`` names optional variables to set.
    ``seed`` is the seed of Python's hashes. Raises DumpError for a configuration that cannot be
    read and for an unknown name.
    """
    unknown = [name for name in also if name not in BY_NAME]
    if unknown:
        optional_names = ", ".join(variable.name for variable in VARIABLES if variable.is_optional)
        raise DumpError(f"unknown variable {unknown[0]!r}; expected one of {optional_names}")
    dump_values = _read_dump_variables(Path(config)) if config is not None else {}
    values = {}
    for variable in VARIABLES:
        if variable.is_optional and variable.name not in also:
            continue
        if framework in variable.frameworks:
            values[variable.name] = dump_values.get(variable.name, variable.value)
    if "PYTHONHASHSEED" in values:
        values["PYTHONHASHSEED"] = str(seed)
    return {name: value for name, value in values.items() if value}


def list_remarks(values: Mapping[str, str]) -> list[str]:
    """Return sentences on what the run will meet: a place that stays, a dump that is there."""
    remarks = []
    folder = values.get(DIAGNOSTIC, "")
    if folder and folder == os.environ.get(DIAGNOSTIC):
        remarks.append(
            f"{DIAGNOSTIC} is set already and stays: the dump goes to {folder}/debug_dump"
        )
    if DUMP_CONFIG in values:
        config = read_config(Path(values[DUMP_CONFIG]))
        place = config["common_dump_settings"].get("path") or f"{folder}/debug_dump"
        warning = describe_existing_dumps(place, find_existing_dumps(place))
        if warning:
            remarks.append(f"warning: {warning}")
    return remarks


def explain_variables(framework: str, values: Mapping[str, str]) -> str:
    """Return text that describes every variable of a framework, also those not in ``values``."""
    lines = []
    for variable in VARIABLES:
        if framework not in variable.frameworks:
            continue
        name = variable.name
        if name in values:
            first_line = f"{name}={values[name]}"
        else:
            first_line = f"{name} (not set{_explain_unset(variable)})"
        lines.append(f"{first_line}\n    {variable.purpose}\n    since: {variable.since}\n")
    return "".join(lines)


def _explain_unset(variable: Variable) -> str:
    if variable.is_optional:
        setting = f" to {variable.value}" if variable.value else ""
        return f"; --also {variable.name} sets it{setting}"
    if variable.name == DUMP_CONFIG:
        return "; give the configuration"
    return "; the configuration has a path"


def _read_dump_variables(config: Path) -> dict[str, str]:
    """Return the variables for a configuration file: its path, and a folder if it has none.

    A folder that is set in the environment stays.
    """
    content = read_config(config)
    common = content.get("common_dump_settings") if isinstance(content, dict) else None
    if not isinstance(common, dict):
        raise DumpError(
            f"{config}: has no common_dump_settings; expected a dump configuration of MindSpore"
        )
    values = dict.fromkeys((DUMP_CONFIG, ACL_CONFIG), str(config.resolve()))
    if not common.get("path") and os.environ.get(DIAGNOSTIC):
        values[DIAGNOSTIC] = os.environ[DIAGNOSTIC]  # the user has chosen a place
    elif not common.get("path"):
        folder = str(config.resolve().parent)
        if not re.fullmatch(r"[A-Za-z0-9_/-]+", folder):
            raise DumpError(
                f"{config}: has no path, and its own folder {folder!r} has characters that "
                "MindSpore refuses; write a path into the file"
            )
        values[DIAGNOSTIC] = folder
    return values
