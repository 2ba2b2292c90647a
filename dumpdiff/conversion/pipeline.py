"""A conversion from end to end: read what is there, plan, write, and compare what was written with the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..rulebook import Rules
from ..weight_comparison import WeightsResult, compare
from ..weight_comparison.shards import join_shards
from .canonical import SourceOptions, read_canonical
from .plan import Plan, TargetOptions, build_plan
from .writer import write_plan

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class ConversionResult:
    """What was planned, and written: nothing if ``folder`` is None."""

    plan: Plan
    source: Path
    folder: Path | None = None
    n_reused_files: int = 0  #: files that an interrupted conversion had written
    verification: WeightsResult | None = (
        None  #: what was written against the source; None if it was not compared
    )
    exact: bool = True  #: no dtype was to change, so that every bit must be the source's

    @property
    def verified(self) -> bool | None:
        """Whether all weights are the source's: bit for bit, or rounded once where a dtype was asked for."""
        if self.verification is None:
            return None
        wanted = ("identical",) if self.exact else ("identical", "equal", "rounded")
        return self.verification.verdict == "agree" and self.verification.relation in wanted


def plan_conversion(
    source: Checkpoint,
    reading: SourceOptions,
    wanted: TargetOptions,
    rules: Rules,
    like: Checkpoint | None = None,
) -> ConversionResult:
    """What would become what. Reads names and shapes alone; raises DumpError for what cannot be converted."""
    model = read_canonical(source, rules, reading)
    example = None if like is None else join_shards(like, rules)
    return ConversionResult(build_plan(model, wanted, example), source.path, exact=wanted.dtype is None)


def convert(
    source: Checkpoint,
    folder: Path,
    reading: SourceOptions,
    wanted: TargetOptions,
    rules: Rules,
    *,
    like: Checkpoint | None = None,
    resume: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> ConversionResult:
    """Write a checkpoint as another framework has it, a few megabytes at a time, and compare the two.

    Raises DumpError for what cannot be converted, a folder that is in use, or a file that cannot be written.
    """
    say: Progress = progress or (lambda stage, share: None)
    made = plan_conversion(source, reading, wanted, rules, like)
    kept = write_plan(made.plan, source, folder, resume, lambda share: say("writing", share))
    checked = compare(checkpoints.open(folder), source, rules, say) if verify else None
    return ConversionResult(made.plan, source.path, folder, kept, checked, made.exact)
