"""Configurations that MindSpore 2.10 on CPU refuses, ignores in part, or answers with an empty
dump.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpdiff.capture.mindspore import Options, Target, build_configuration

CPU = Target("cpu")
#: Operators and parameters of the net of fixtures/try_mindspore_configs.py.
NAMES = (
    "Default/fc-Dense/MatMul-op0",
    "Default/fc-Dense/BiasAdd-op0",
    "Default/relu-ReLU/ReLU-op0",
    "Default/Add-op0",
    "fc.weight",
    "fc.bias",
)
EVERYTHING = 34  #: files of two steps of that net
PARAMETERS = 6  #: those of them that hold a parameter or the input

Config = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One configuration, what is said of it, and what the framework does."""

    name: str
    rule: str
    field: str
    message: str  #: a part of what is said
    common: Config | None = None  #: fields to add or change; the value ... removes one
    e2e: Config | None = None
    top: Config | None = None
    text: Callable[[str], str] = str  #: of the file
    suffix: str = ".json"
    files: int | None = None  #: that the framework writes; None: it refuses

    def write(self, folder: Path) -> Path:
        """The file, in a folder of its own, which the dump goes into too."""
        folder = folder / self.name
        folder.mkdir()
        config = build_configuration(Options(path=str(folder / "out"), iteration="all"), CPU)
        for section, changes in (
            ("common_dump_settings", self.common),
            ("e2e_dump_settings", self.e2e),
        ):
            change(config[section], changes)
        change(config, self.top)
        file = folder / f"dump{self.suffix}"
        file.write_text(self.text(json.dumps(config)), encoding="utf-8")
        return file


def change(values: Config, changes: Config | None) -> None:
    for name, value in (changes or {}).items():
        if value is ...:
            del values[name]
        else:
            values[name] = value


C, E = "common_dump_settings", "e2e_dump_settings"

REFUSED = (
    Case(
        "bits-64",
        "field-type",
        f"{C}.initial_iteration",
        "is not a whole number",
        {"initial_iteration": 2**64},
    ),
    Case(
        "regex-brace",
        "regex-invalid",
        f"{C}.kernels",
        "a '{' begins a count",
        {"dump_mode": 1, "kernels": ["name-regex(.*MatMul{)"]},
    ),
    Case("no-section", "section-missing", C, "is missing", top={C: ...}),
    Case("no-dump-mode", "field-missing", f"{C}.dump_mode", "is missing", {"dump_mode": ...}),
    Case("no-iteration", "field-missing", f"{C}.iteration", "'0|5-8'", {"iteration": ...}),
    Case("no-kernels", "field-missing", f"{C}.kernels", "is missing", {"kernels": ...}),
    Case(
        "mode-text", "field-type", f"{C}.dump_mode", "'0' is not a whole number", {"dump_mode": "0"}
    ),
    Case(
        "mode-fraction",
        "field-type",
        f"{C}.dump_mode",
        "0.5 is not a whole number",
        {"dump_mode": 0.5},
    ),
    Case(
        "mode-negative",
        "field-type",
        f"{C}.dump_mode",
        "-1 is not a whole number",
        {"dump_mode": -1},
    ),
    Case("mode-3", "field-value", f"{C}.dump_mode", "0, 1, 2", {"dump_mode": 3}),
    Case(
        "set-dump",
        "set-dump-backend",
        f"{C}.dump_mode",
        "2 is not available on cpu",
        {"dump_mode": 2},
    ),
    Case("path-relative", "path-absolute", f"{C}.path", "'dump' is relative", {"path": "dump"}),
    Case("path-dot", "path-characters", f"{C}.path", "'/data/v1_0'", {"path": "/data/v1.0"}),
    Case("path-space", "path-characters", f"{C}.path", "contains ' '", {"path": "/data/a b"}),
    Case(
        "path-none",
        "path-missing",
        f"{C}.path",
        "MS_DIAGNOSTIC_DATA_PATH is not set",
        {"path": ...},
    ),
    Case("net-dot", "net-name", f"{C}.net_name", "write 'Res_Net'", {"net_name": "Res.Net"}),
    Case("net-empty", "net-name", f"{C}.net_name", "is empty", {"net_name": ""}),
    Case(
        "net-number", "field-type", f"{C}.net_name", "5 is not a string in quotes", {"net_name": 5}
    ),
    Case(
        "iteration-spaces",
        "iteration-characters",
        f"{C}.iteration",
        "it is '0|5-8'",
        {"iteration": "0 | 5-8"},
    ),
    Case(
        "iteration-list",
        "field-type",
        f"{C}.iteration",
        "[0, 1] is not a string",
        {"iteration": [0, 1]},
    ),
    Case(
        "iteration-comma",
        "iteration-characters",
        f"{C}.iteration",
        "contains ','",
        {"iteration": "0,1"},
    ),
    Case(
        "iteration-empty", "iteration-characters", f"{C}.iteration", "is empty", {"iteration": ""}
    ),
    Case(
        "iteration-ALL",
        "iteration-characters",
        f"{C}.iteration",
        "lower case",
        {"iteration": "ALL"},
    ),
    Case(
        "statistics",
        "statistics-cpu",
        f"{C}.saved_data",
        "write tensor",
        {"saved_data": "statistic"},
    ),
    Case(
        "full",
        "statistics-cpu",
        f"{C}.saved_data",
        "full cannot be saved on CPU",
        {"saved_data": "full"},
    ),
    Case(
        "saved-odd",
        "field-value",
        f"{C}.saved_data",
        "tensor, statistic, full",
        {"saved_data": "stat"},
    ),
    Case("input-output-3", "field-value", f"{C}.input_output", "0, 1, 2", {"input_output": 3}),
    Case("kernels-text", "field-type", f"{C}.kernels", "is not a list", {"kernels": "MatMul"}),
    Case(
        "regex-odd",
        "regex-invalid",
        f"{C}.kernels",
        "is not a regular expression",
        {"dump_mode": 1, "kernels": ["name-regex([)"]},
    ),
    Case(
        "regex-python",
        "regex-invalid",
        f"{C}.kernels",
        "'(?i)' does not exist in ECMAScript",
        {"dump_mode": 1, "kernels": ["name-regex((?i)matmul)"]},
    ),
    Case(
        "device-number",
        "field-type",
        f"{C}.support_device",
        "0 is not a list",
        {"support_device": 0},
    ),
    Case(
        "device-text",
        "device-type",
        f"{C}.support_device",
        "without quotes",
        {"support_device": ["0"]},
    ),
    Case("debug-5", "field-value", f"{C}.op_debug_mode", "0, 1, 2, 3, 4", {"op_debug_mode": 5}),
    Case(
        "overflow-number",
        "overflow-number",
        f"{C}.overflow_number",
        "leave it out",
        {"overflow_number": 1},
    ),
    Case(
        "initial-negative",
        "field-type",
        f"{C}.initial_iteration",
        "-1 is not",
        {"initial_iteration": -1},
    ),
    Case("sample-mode-2", "field-value", f"{E}.sample_mode", "0, 1", e2e={"sample_mode": 2}),
    Case(
        "sample-0",
        "sample-num",
        f"{E}.sample_num",
        "write 1 or more",
        e2e={"sample_mode": 1, "sample_num": 0},
    ),
    Case(
        "stat-on-gpu",
        "field-value",
        f"{E}.stat_calc_mode",
        "host, device",
        e2e={"stat_calc_mode": "gpu"},
    ),
    Case(
        "precision-mid",
        "field-value",
        f"{E}.device_stat_precision_mode",
        "high, low",
        e2e={"device_stat_precision_mode": "mid"},
    ),
    Case("enable-text", "field-type", f"{E}.enable", "without quotes", e2e={"enable": "true"}),
    Case(
        "trans-number",
        "field-type",
        f"{E}.trans_flag",
        "1 is not true or false",
        e2e={"trans_flag": 1},
    ),
    Case("comment", "json-syntax", "", "no comments", text=lambda text: "// all\n" + text),
    Case("comma", "json-syntax", "", "a comma before", text=lambda text: text[:-1] + ",}"),
    Case(
        "single-quotes",
        "json-syntax",
        "",
        "double quotes",
        text=lambda text: text.replace('"', "'"),
    ),
    Case("empty", "json-syntax", "", "the file is empty", text=lambda text: ""),
    Case("suffix", "file-suffix", "", "must end in .json", suffix=".txt"),
)

EMPTY = (
    Case(
        "net-long",
        "name-length",
        f"{C}.net_name",
        "has 256 characters",
        {"net_name": "N" * 256},
        files=0,
    ),
    Case(
        "kernel-null",
        "kernel-type",
        f"{C}.kernels",
        "None is not a string",
        {"dump_mode": 1, "kernels": [None]},
        files=0,
    ),
    Case(
        "kernel-cell",
        "kernel-no-type",
        f"{C}.kernels",
        "'name-regex(.*/fc-Dense/.*)'",
        {"dump_mode": 1, "kernels": ["fc-Dense"]},
        files=0,
    ),
    Case(
        "kernel-quote",
        "kernel-no-type",
        f"{C}.kernels",
        "no operator has such a type",
        {"dump_mode": 1, "kernels": ['Mat"Mul']},
        files=0,
    ),
    Case(
        "regex-capitals",
        "regex-case",
        f"{C}.kernels",
        "in lower case",
        {"dump_mode": 1, "kernels": ["Name-Regex(.*MatMul.*)"]},
        files=0,
    ),
    Case(
        "range-open",
        "iteration-none",
        f"{C}.iteration",
        "both ends",
        {"iteration": "5-"},
        files=0,
    ),
    Case(
        "range-back",
        "iteration-none",
        f"{C}.iteration",
        "ends before it begins",
        {"iteration": "3-1"},
        files=0,
    ),
    Case(
        "bar", "iteration-none", f"{C}.iteration", "one side of a '|'", {"iteration": "|"}, files=0
    ),
    Case(
        "range-three",
        "iteration-none",
        f"{C}.iteration",
        "a range has exactly one '-'",
        {"iteration": "0-1-2"},
        files=0,
    ),
    Case(
        "iteration-huge",
        "iteration-none",
        f"{C}.iteration",
        "such a large number",
        {"iteration": "9" * 23},
        files=0,
    ),
    Case(
        "initial-late",
        "initial-iteration",
        f"{C}.initial_iteration",
        "'10-11'",
        {"initial_iteration": 10, "iteration": "0"},
        files=0,
    ),
    Case(
        "unwritable",
        "path-unwritable",
        f"{C}.path",
        "use another folder",
        {"path": "/proc/nope"},
        files=0,
    ),
    Case(
        "cell",
        "kernel-scope",
        f"{C}.kernels",
        "'name-regex(Default/fc-Dense/.*)'",
        {"dump_mode": 1, "kernels": ["Default/fc-Dense"]},
        files=0,
    ),
    Case(
        "regex-part",
        "regex-part",
        f"{C}.kernels",
        "'name-regex(.*MatMul.*)'",
        {"dump_mode": 1, "kernels": ["name-regex(MatMul)"]},
        files=0,
    ),
    Case(
        "regex-end",
        "regex-part",
        f"{C}.kernels",
        "no name ends with '/MatMul'",
        {"dump_mode": 1, "kernels": ["name-regex(.*/MatMul)"]},
        files=0,
    ),
    Case(
        "backslash",
        "regex-backslash",
        f"{C}.kernels",
        "write [0-9]",
        {"dump_mode": 1, "kernels": [r"name-regex(.*MatMul-op\d)"]},
        files=0,
    ),
    Case(
        "file-name",
        "kernel-file-name",
        f"{C}.kernels",
        "has '/' where",
        {"dump_mode": 1, "kernels": ["Default_fc-Dense_MatMul-op0"]},
        files=0,
    ),
    Case(
        "kernel-object",
        "kernel-type",
        f"{C}.kernels",
        "is not a string",
        {"dump_mode": 1, "kernels": [{"a": 1}]},
        files=0,
    ),
    Case(
        "kernel-number",
        "kernel-absent",
        f"{C}.kernels",
        "of 'Default/fc-Dense/MatMul' there are -op0; the numbers in graph files",
        {"dump_mode": 1, "kernels": ["Default/fc-Dense/MatMul-op7"]},
        files=0,
    ),
    Case(
        "exception",
        "exception-backend",
        f"{C}.op_debug_mode",
        "cpu cannot dump the operator that raised",
        {"op_debug_mode": 4},
        files=PARAMETERS,
    ),
)

IGNORED = (
    Case(
        "bits-32",
        "field-bits",
        f"{C}.input_output",
        "reads it as 1",
        {"input_output": 2**32 + 1},
        files=20,
    ),
    Case(
        "first-step-32-bits",
        "field-bits",
        f"{C}.initial_iteration",
        "reads it as 0",
        {"initial_iteration": 2**32},
        files=EVERYTHING,
    ),
    Case(
        "device-32-bits",
        "device-odd",
        f"{C}.support_device",
        "4294967296 is not a device",
        {"support_device": [2**32]},
        files=EVERYTHING,
    ),
    Case(
        "part-dead",
        "iteration-part",
        f"{C}.iteration",
        "'' in '0|'",
        {"iteration": "0|"},
        files=EVERYTHING // 2,
    ),
    Case("e2e-list", "section-type", E, "counts as empty", top={E: []}, files=EVERYTHING),
    Case(
        "enable-false",
        "e2e-enable",
        f"{E}.enable",
        "no dump, unset",
        e2e={"enable": False},
        files=EVERYTHING,
    ),
    Case(
        "section-odd",
        "section-unknown",
        "e2e_dump",
        "did you mean",
        top={"e2e_dump": {}},
        files=EVERYTHING,
    ),
    Case(
        "async",
        "field-version",
        "async_dump_settings",
        "only up to 1.2",
        top={"async_dump_settings": {}},
        files=34,
    ),
    Case(
        "field-odd",
        "field-unknown",
        f"{C}.kernel",
        "did you mean kernels?",
        {"kernel": []},
        files=EVERYTHING,
    ),
    Case(
        "misplaced",
        "field-unknown",
        f"{C}.sample_num",
        "belongs to",
        {"sample_num": 9},
        files=EVERYTHING,
    ),
    Case(
        "format",
        "field-unread",
        f"{C}.file_format",
        "leave it out",
        {"file_format": "npy"},
        files=EVERYTHING,
    ),
    Case(
        "category",
        "field-unread",
        f"{C}.statistic_category",
        "read only if",
        {"statistic_category": ["max"]},
        files=34,
    ),
    Case(
        "sample-num",
        "field-unread",
        f"{E}.sample_num",
        "with sample_mode 1",
        e2e={"sample_num": 9},
        files=34,
    ),
    Case(
        "sampling",
        "sampling-backend",
        f"{E}.sample_mode",
        "cpu saves whole tensors",
        e2e={"sample_mode": 1},
        files=34,
    ),
    Case(
        "device-statistics",
        "device-statistics",
        f"{E}.stat_calc_mode",
        "write host",
        e2e={"stat_calc_mode": "device"},
        files=EVERYTHING,
    ),
    Case(
        "precision",
        "device-precision",
        f"{E}.device_stat_precision_mode",
        "leave it out",
        e2e={"device_stat_precision_mode": "low"},
        files=EVERYTHING,
    ),
    Case(
        "arguments",
        "kernel-args-backend",
        f"{E}.save_kernel_args",
        "cpu saves no attributes",
        e2e={"save_kernel_args": True},
        files=EVERYTHING,
    ),
    Case(
        "kernels-unused",
        "kernels-unused",
        f"{C}.kernels",
        "write 1",
        {"kernels": ["MatMul"]},
        files=EVERYTHING,
    ),
    Case(
        "kernels-none",
        "kernels-empty",
        f"{C}.kernels",
        "every operator",
        {"dump_mode": 1},
        files=EVERYTHING,
    ),
    Case(
        "kernel-twice",
        "kernel-twice",
        f"{C}.kernels",
        "write it once",
        {"dump_mode": 1, "kernels": ["MatMul", "MatMul"]},
        files=10,
    ),
    Case(
        "device-odd",
        "device-odd",
        f"{C}.support_device",
        "-1 is not a device",
        {"support_device": [-1]},
        files=34,
    ),
    Case(
        "debug-old",
        "debug-old",
        f"{C}.op_debug_mode",
        "write 3",
        {"op_debug_mode": 1},
        files=EVERYTHING,
    ),
    Case(
        "overflow",
        "overflow-backend",
        f"{C}.op_debug_mode",
        "does not detect overflow",
        {"op_debug_mode": 3},
        files=34,
    ),
    Case(
        "overflow-kernels",
        "debug-dump-mode",
        f"{C}.dump_mode",
        "write 0",
        {"op_debug_mode": 3, "dump_mode": 1, "kernels": ["MatMul"]},
        files=EVERYTHING,
    ),
    Case(
        "exception-step",
        "exception-iteration",
        f"{C}.iteration",
        "write all",
        {"op_debug_mode": 4, "iteration": "0"},
        files=PARAMETERS,
    ),
    Case(
        "exception-sample",
        "debug-data",
        f"{E}.sample_mode",
        "for op_debug_mode 0",
        {"op_debug_mode": 4},
        {"sample_mode": 1},
        files=PARAMETERS,
    ),
    Case(
        "overflow-outputs",
        "overflow-input-output",
        f"{C}.input_output",
        "write 0",
        {"op_debug_mode": 3, "input_output": 2},
        files=EVERYTHING,
    ),
    Case(
        "key-twice",
        "json-twice",
        "iteration",
        "only the later one counts",
        text=lambda text: text.replace('"iteration": "all"', '"iteration": "5", "iteration": "1"'),
        files=EVERYTHING // 2,
    ),
    Case(
        "rest",
        "json-rest",
        "",
        "'rubbish' after",
        text=lambda text: text + " rubbish",
        files=EVERYTHING,
    ),
)

CASES = (*REFUSED, *EMPTY, *IGNORED)
