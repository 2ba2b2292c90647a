"""The variables that a run needs so that it is dumped, repeats itself and shows its overflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import DumpError
from .mindspore.document import read_config

FRAMEWORKS = ("mindspore", "pytorch")


@dataclass(frozen=True)
class Variable:
    """One variable of the environment."""

    name: str
    value: str  #: what to set; '' if it depends on the dump
    purpose: str  #: what it is for
    since: str  #: from which version of what it is documented, or who asks for it
    frameworks: tuple[str, ...] = FRAMEWORKS
    is_optional: bool = False  #: set only when asked for by name


DUMP_CONFIG, DIAGNOSTIC = "MINDSPORE_DUMP_CONFIG", "MS_DIAGNOSTIC_DATA_PATH"
ACL_CONFIG = "MS_ACL_DUMP_CFG_PATH"

VARIABLES = (
    Variable(
        DUMP_CONFIG,
        "",
        "names the configuration of the dump; read when the first graph is compiled",
        "MindSpore 1.0",
        ("mindspore",),
    ),
    Variable(
        DIAGNOSTIC,
        "",
        "holds the dump, in debug_dump/, if the configuration has no path",
        "MindSpore 1.5",
        ("mindspore",),
    ),
    Variable(
        "HCCL_DETERMINISTIC",
        "true",
        "reductions between Ascend devices (AllReduce, ReduceScatter, Reduce) repeat bit for bit",
        "CANN 8.0; Atlas A2",
    ),
    Variable(
        "LCCL_DETERMINISTIC",
        "1",
        "the same for AllReduce by LCCL, used with at most 8 Ascend devices",
        "MindSpore 2.4; msprobe sets it for PyTorch",
    ),
    Variable(
        "CLOSE_MATMUL_K_SHIFT",
        "1",
        "matrix products on Ascend add in one order",
        "msprobe sets it for PyTorch",
    ),
    Variable(
        "CUSTOM_MATMUL_SHUFFLE",
        "off",
        "the framework's own matrix products on Ascend are not shuffled",
        "MindSpore 2.4, MindSpore Transformers",
        ("mindspore",),
    ),
    Variable(
        "TE_PARALLEL_COMPILER",
        "1",
        "operators are compiled one by one, so that each run gets the same; set_deterministic sets it too",
        "MindSpore 2.4, on Ascend",
        ("mindspore",),
    ),
    Variable(
        "ASCEND_LAUNCH_BLOCKING",
        "1",
        "operators are launched one after the other, and an error names the operator that made it",
        "MindSpore 2.4",
    ),
    Variable(
        "MS_ASCEND_CHECK_OVERFLOW_MODE",
        "INFNAN_MODE",
        "overflow becomes inf or nan, as on other hardware, and is not cut off at the largest number",
        "MindSpore 2.3, where it is the default; Atlas A2",
        ("mindspore",),
    ),
    Variable(
        "INF_NAN_MODE_ENABLE",
        "1",
        "the same on the side of CANN; both must agree",
        "msprobe asks for it; the default on Atlas A2",
    ),
    Variable(
        "PYTHONHASHSEED",
        "0",
        "sets and dictionaries of texts are walked in the same order; must be set before Python starts",
        "Python 3.3",
    ),
    Variable(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        "matrix products on NVIDIA devices repeat; torch.use_deterministic_algorithms(True) asks for it",
        "CUDA 10.2",
        ("pytorch",),
    ),
    Variable(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "0",
        "Transformer Engine takes algorithms that repeat; Megatron-LM's --deterministic-mode asks for it",
        "Megatron-LM with Transformer Engine",
        ("pytorch",),
    ),
    Variable(
        "NCCL_ALGO",
        "Ring",
        "reductions between NVIDIA devices take one way; Megatron-LM's --deterministic-mode asks for it",
        "Megatron-LM with NCCL",
        ("pytorch",),
    ),
    Variable(
        "MINDSPORE_DUMP_IGNORE_USELESS_OUTPUT",
        "0",
        "keeps the outputs of Send and Print and the reserved one of FlashAttentionScore in the dump",
        "MindSpore 2.7",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "ENABLE_MS_GE_DUMP",
        "1",
        "dumps whole graphs (jit level O2, GE) where the framework still does that itself",
        "MindSpore 2.4; gone with 2.6",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        ACL_CONFIG,
        "",
        "names the same configuration to CANN, for whole graphs",
        "MindSpore 2.3; gone with 2.6",
        ("mindspore",),
        is_optional=True,
    ),
    Variable(
        "MS_DEV_SAVE_GRAPHS",
        "2",
        "saves the graphs; those of trace_code_graph_* and graph_build_* have the names of the dump's files",
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
        "prints what the dumper does, among it why it leaves a step or an operator out",
        "MindSpore 2.5",
        ("mindspore",),
        is_optional=True,
    ),
)

BY_NAME = {variable.name: variable for variable in VARIABLES}


def build_environment(
    framework: str, config: str | Path | None = None, also: tuple[str, ...] = (), seed: int = 0
) -> dict[str, str]:
    """Names and values of the variables for one framework, in the order of :data:`VARIABLES`.

    ``config`` is the dump configuration to name, ``also`` names variables that are not set by themselves, ``seed``
    is for Python's hashes. Raises DumpError for a configuration that cannot be read or a name that is not known.
    """
    unknown = [name for name in also if name not in BY_NAME]
    if unknown:
        optional_names = ", ".join(variable.name for variable in VARIABLES if variable.is_optional)
        raise DumpError(f"{unknown[0]} is no variable known here; there are {optional_names}")
    dump = _read_dump_variables(Path(config)) if config is not None else {}
    values = {}
    for variable in VARIABLES:
        if framework in variable.frameworks and (not variable.is_optional or variable.name in also):
            value = dump.get(variable.name, variable.value)
            if value:
                values[variable.name] = str(seed) if variable.name == "PYTHONHASHSEED" else value
    return values


def explain_variables(framework: str, values: Mapping[str, str]) -> str:
    """What every variable of a framework is for, those not among ``values`` too, for a person."""
    lines = []
    for variable in VARIABLES:
        if framework in variable.frameworks:
            name = variable.name
            head = (
                f"{name}={values[name]}" if name in values else f"{name} (not set{_explain_unset(variable)})"
            )
            lines.append(f"{head}\n    {variable.purpose}\n    since: {variable.since}\n")
    return "".join(lines)


def _explain_unset(variable: Variable) -> str:
    if variable.is_optional:
        return (
            f"; --also {variable.name} sets it{f' to {variable.value}' if variable.value else ''}"
        )
    return (
        "; give the configuration"
        if variable.name == DUMP_CONFIG
        else "; the configuration has a path"
    )


def _read_dump_variables(config: Path) -> dict[str, str]:
    """What a configuration file asks for: its own absolute path, and a folder if it names none."""
    content = read_config(config)
    common = content.get("common_dump_settings") if isinstance(content, dict) else None
    values = dict.fromkeys((DUMP_CONFIG, ACL_CONFIG), str(config.resolve()))
    if isinstance(common, dict) and not common.get("path"):
        folder = str(config.resolve().parent)
        if not re.fullmatch(r"[A-Za-z0-9_/-]+", folder):
            raise DumpError(
                f"{config}: has no path, and the dump cannot go into {folder!r} beside it; name a path in it"
            )
        values[DIAGNOSTIC] = folder
    return values
