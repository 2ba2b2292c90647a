"""Every field of msprobe's config.json that affects a dump, and the versions that have it.

Source: mindstudio-probe 1.1.0, 1.2.0, 1.3.0, 8.1.0, 8.3.3, 26.0.0 and 26.2.0 (common_config.py,
pt_config.py and ms_config.py). A version silently ignores a field that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from .version import OLDEST, Version

PYTORCH, MINDSPORE = "pytorch", "mindspore"
FRAMEWORKS = (PYTORCH, MINDSPORE)
TASKS = ("statistics", "tensor")
LEVELS = ("L0", "L1", "mix", "L2")


@dataclass(frozen=True)
class Field:
    """One field: its place, its meaning, and where it is valid."""

    section: str  #: '' for the top level, 'task' for the section with the name of the task
    name: str
    meaning: str
    since: Version = OLDEST
    frameworks: tuple[str, ...] = FRAMEWORKS
    tasks: tuple[str, ...] = TASKS
    levels: tuple[str, ...] = LEVELS

    @property
    def limits(self) -> str:
        """Where the field is valid, as text; '' if everywhere."""
        limits = []
        if self.frameworks != FRAMEWORKS:
            limits.append(", ".join(self.frameworks))
        if self.tasks != TASKS:
            limits.append(f"task {', '.join(self.tasks)}")
        if self.levels != LEVELS:
            limits.append(f"level {', '.join(self.levels)}")
        return "; ".join(limits)


FIELDS = (
    Field("", "task", "statistics, or tensor for whole tensors too"),
    Field("", "dump_path", "folder; only letters, digits and _ . : / -"),
    Field("", "rank", "ranks, as numbers or '4-6'; empty: all"),
    Field("", "step", "steps from 0, as numbers or '4-6'; empty: all"),
    Field("", "level", "L0 modules, L1 APIs, mix both, L2 kernels "
          "(MindSpore graph mode: the dump of the framework itself)"),
    Field("", "async_dump", "write at the end of the step; needs memory for all of it; "
          "task tensor needs list, and summary_mode md5 is refused", (1, 3)),
    Field("", "precision", "low: statistics in the tensor's own dtype, high: in float32", (8, 3)),
    Field("", "extra_info", "write stack.json and construct.json", (26, 0)),
    Field("", "risk_level", "FOCUS skips view, reshape, transpose, cat, split and similar calls; "
          "ALL keeps them",
          (26, 0), (PYTORCH,)),
    Field("task", "scope", "full names of the first and the last call of a range"),
    Field("task", "list", "calls whose names contain any of these; "
          "in level mix the name of a module selects everything in it"),
    Field("task", "data_mode", "all, or any of forward, backward, input, output"),
    Field("task", "summary_mode", "statistics, or checksums: md5 (CRC-32), "
          "and xor (PyTorch, since 26.2), which the device computes",
          tasks=("statistics",)),
    Field("task", "tensor_list", "like list: calls whose whole tensors are saved, "
          "in addition to all statistics",
          (8, 1), tasks=("statistics",), levels=("L0", "L1", "mix")),
)  # fmt: skip

BY_NAME = {field.name: field for field in FIELDS}
