"""Every field of msprobe's config.json that shapes a dump, and which versions know it.

Read in mindstudio-probe 1.1.0, 1.2.0, 1.3.0, 8.1.0, 8.3.3, 26.0.0 and 26.2.0 (common_config.py, pt_config.py and
ms_config.py of each). What a version does not know it ignores without a word.
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
    """One field: where it stands, who knows it, what it does."""

    section: str  #: '' for the top level, 'task' for the section that bears the task's name
    name: str
    meaning: str
    since: Version = OLDEST
    frameworks: tuple[str, ...] = FRAMEWORKS
    tasks: tuple[str, ...] = TASKS
    levels: tuple[str, ...] = LEVELS

    @property
    def limits(self) -> str:
        """What it is limited to, in words."""
        limits = [
            *((", ".join(self.frameworks),) if self.frameworks != FRAMEWORKS else ()),
            *((f"task {', '.join(self.tasks)}",) if self.tasks != TASKS else ()),
            *((f"level {', '.join(self.levels)}",) if self.levels != LEVELS else ()),
        ]
        return "; ".join(limits)


FIELDS = (
    Field("", "task", "statistics, or tensor for whole tensors too"),
    Field("", "dump_path", "folder; letters, digits and _ . : / - only"),
    Field("", "rank", "ranks, as numbers or '4-6'; none: all"),
    Field("", "step", "steps from 0, as numbers or '4-6'; none: all"),
    Field("", "level", "L0 modules, L1 APIs, mix both, L2 kernels (MindSpore graph mode: the framework's own dump)"),
    Field("", "async_dump", "write when the step has ended; needs memory for all of it", (1, 3)),
    Field("", "precision", "low: statistics in the tensor's own dtype, high: in float32", (8, 3)),
    Field("", "extra_info", "write stack.json and construct.json", (26, 0)),
    Field("", "risk_level", "FOCUS leaves out view, reshape, transpose, cat, split and the like; ALL keeps them",
          (26, 0), (PYTORCH,)),
    Field("task", "scope", "first and last call of a range, by their full names"),
    Field("task", "list", "calls whose names contain one of these; in level mix a module's name opens all inside it"),
    Field("task", "data_mode", "all, or any of forward, backward, input, output"),
    Field("task", "summary_mode", "statistics, or md5 for checksums (CRC-32)", tasks=("statistics",)),
    Field("task", "tensor_list", "like list: calls whose whole tensors are saved beside statistics of everything",
          (8, 1), tasks=("statistics",), levels=("L0", "L1", "mix")),
)  # fmt: skip

BY_NAME = {field.name: field for field in FIELDS}
