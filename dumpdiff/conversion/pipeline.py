"""A conversion from end to end: read the source, plan, write, and compare the result with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..rulebook import Rules
from ..weight_comparison import WeightsResult, compare
from ..weight_comparison.shards import join_shards
from .architecture import check_family
from .canonical import SourceOptions, read_canonical
from .plan import Plan, TargetOptions, build_plan
from .writer import write_plan

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class ConversionResult:
    """The plan, and what was written: nothing if ``folder`` is None."""

    plan: Plan
    source: Path
    folder: Path | None = None
    n_reused_files: int = 0  #: files that an interrupted conversion had written
    #: The written checkpoint compared with the source; None if they were not compared.
    verification: WeightsResult | None = None
    exact: bool = True  #: every bit must be the source's: no dtype changed, no scale was applied
    #: The same weights for transformers, if they were asked for besides.
    huggingface: ConversionResult | None = None

    @property
    def parts(self) -> tuple[ConversionResult, ...]:
        """This conversion, and the one for transformers if there is one."""
        return (self,) if self.huggingface is None else (self, self.huggingface)

    @property
    def verified(self) -> bool | None:
        """Whether all weights are the source's; None if they were not compared.

        They must be identical bit for bit, or rounded once if a dtype was given or 8-bit weights
        were decoded.
        """
        if self.verification is None:
            return None
        relation = self.verification.relation
        is_allowed = relation == "identical"
        if not self.exact:
            is_allowed = relation in ("identical", "equal", "rounded")
        return is_allowed and self.verification.verdict == "agree"


def plan_conversion(
    source: Checkpoint,
    source_options: SourceOptions,
    target_options: TargetOptions,
    rules: Rules,
    like: Checkpoint | None = None,
) -> ConversionResult:
    """Return what would be written. Only names and shapes are read.

    ``like`` is a checkpoint whose names are used. Raises DumpError for what cannot be converted.
    """
    check_family(source, rules, target_options.framework)
    model = read_canonical(source, rules, source_options, target_options.dtype)
    example = None if like is None else join_shards(like, rules)
    plan = build_plan(model, target_options, example)
    is_exact = target_options.dtype is None and not model.is_decoded
    return ConversionResult(plan, source.path, exact=is_exact)


def write_conversion(
    planned: ConversionResult,
    source: Checkpoint,
    folder: Path,
    rules: Rules,
    *,
    resume: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> ConversionResult:
    """Write what was planned, a few megabytes at a time, and compare it with the source.

    Raises DumpError for a folder that is in use, or a file that cannot be written.
    """
    report: Progress = progress or (lambda stage, share: None)
    n_reused_files = write_plan(
        planned.plan, source, folder, resume, lambda share: report("writing", share)
    )
    verification = None
    if verify:
        verification = compare(checkpoints.open(folder), source, rules, report)
    return replace(planned, folder=folder, n_reused_files=n_reused_files, verification=verification)
