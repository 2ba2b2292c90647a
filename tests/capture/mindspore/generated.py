"""Configurations drawn at random: valid and odd values of every field, and damaged texts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpdiff.capture.mindspore import Options, build_configuration

from .cases import CPU, C, E

COUNT = 200
_ODD = (None, True, -1, 0.5, "", "0", [], {}, 2**31, 2**32, 2**32 + 1, 2**63, 2**64, 10**30)

#: Field of common_dump_settings -> values that are drawn for it, in addition to the odd ones.
_COMMON: dict[str, tuple[Any, ...]] = {
    "op_debug_mode": (0, 1, 2, 3, 4, 5),
    "dump_mode": (0, 1, 2, 3),
    "net_name": ("Net", "a-b_2", "a.b", "a b", "N" * 255, "N" * 256),
    "iteration": (
        *("all", "All", "0", "1", "0-1", "1-0", "0|1", "0 | 1", "5-", "-5", "|", "0||1"),
        *("0-4294967296", "4294967296", "0-18446744073709551616", "00001", "0-1-2"),
    ),
    "saved_data": ("tensor", "statistic", "full", "Tensor"),
    "input_output": (0, 1, 2, 3),
    "support_device": ([0], [0, 7], ["0"], [0.5], [-1], [None], [2**32], [True]),
    "statistic_category": (["max"], ["max", "mean"], "max"),
    "overflow_number": (0, 1),
    "initial_iteration": (0, 1, 10),
    "file_format": ("npy", "bin", "txt"),
    "unknown_field": (1,),
}
_E2E: dict[str, tuple[Any, ...]] = {
    "enable": (True, False),
    "trans_flag": (True, False),
    "stat_calc_mode": ("host", "device", "npu"),
    "device_stat_precision_mode": ("high", "low"),
    "sample_mode": (0, 1, 2),
    "sample_num": (0, 1, 100),
    "save_kernel_args": (True, False),
}
_ENTRIES: tuple[Any, ...] = (
    *("MatMul", "matmul", "add", "ReLU", "Dense", "fc-Dense", 'Mat"Mul', "", " ", "fc.weight"),
    *("Default/fc-Dense/MatMul-op0", "Default/fc-Dense", "Default_fc-Dense_MatMul-op0"),
    *("Default/fc-Dense/MatMul-op9", "name-regex(.*)", "name-regex(.*MatMul-op[0-9]+)"),
    *("Name-Regex(.*)", "name-regex(MatMul)", "name-regex(.*MatMul-op\\d)", "name-regex((.*)"),
    *("name-regex(.*MatMul-op[0-9]{1})", "name-regex(.*{)", "name-regex({.*)", "name-regex([)"),
    *("name-regex(.*(?<n>x))", "name-regex(.*MatMul-op[[:digit:]])", "name-regex(a|.*ReLU.*)"),
    *(None, 5, True, ["MatMul"], {"a": 1}),
)
_TEXTS: tuple[Callable[[str], str], ...] = (
    lambda text: text.replace("}", ",}", 1),
    lambda text: text + " rubbish",
    lambda text: "// comment\n" + text,
    lambda text: text.replace('"', "'"),
    lambda text: text[:-1],
    lambda text: "\ufeff" + text,
    lambda text: text.replace('"dump_mode"', '"dump_mode": 1, "dump_mode"'),
)
#: Of all configurations, how many have a damaged text.
_TEXT_SHARE = 0.08


@dataclass(frozen=True)
class Generated:
    """One drawn configuration."""

    number: int
    changes: dict[str, dict[str, Any]]
    text: Callable[[str], str] = str

    @property
    def name(self) -> str:
        return f"generated-{self.number}"

    def write(self, folder: Path) -> Path:
        """The file, in a folder of its own, which the dump goes into too."""
        folder = folder / self.name
        folder.mkdir()
        config = build_configuration(Options(path=str(folder / "out"), iteration="all"), CPU)
        for section, values in self.changes.items():
            config[section] = {**config[section], **values}
            for name, value in values.items():
                if value is ...:
                    del config[section][name]
        file = folder / "dump.json"
        file.write_text(self.text(json.dumps(config)), encoding="utf-8")
        return file

    def list_entries(self) -> list[Any]:
        """The entries of kernels that MindSpore reads, without blank ones."""
        return [entry for entry in self.changes[C].get("kernels", []) if entry not in ("", " ")]


def generate(count: int = COUNT, seed: int = 0) -> list[Generated]:
    """The same configurations for the same seed."""
    source = random.Random(seed)
    return [_generate_one(source, number) for number in range(count)]


def _generate_one(source: random.Random, number: int) -> Generated:
    changes: dict[str, dict[str, Any]] = {C: {}, E: {}}
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        section, fields = source.choice(((C, _COMMON), (C, _COMMON), (E, _E2E)))
        name = source.choice(list(fields))
        values = (*fields[name], source.choice(_ODD))
        value = ... if source.random() < 0.05 else source.choice(values)
        if value is ... and name not in ("dump_mode", "net_name", "iteration", "input_output"):
            continue
        changes[section][name] = value
    if source.random() < 0.45:
        changes[C] |= {
            "dump_mode": 1,
            "kernels": source.sample(_ENTRIES, source.choice((0, 1, 1, 1, 2))),
        }
    text = source.choice(_TEXTS) if source.random() < _TEXT_SHARE else str
    return Generated(number, changes, text)
