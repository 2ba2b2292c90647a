"""The results of all stages of a triage, before anything is concluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..model.dtypes import HALF_PRECISIONS
from ..model.stage import Stage

if TYPE_CHECKING:
    from ..batches import DataComparison
    from ..gradient_norms import NormComparison
    from ..optimizers.comparison import UpdateComparison
    from ..run_settings import SettingsComparison
    from ..run_settings.checklist import Checklist
    from ..training_logs import LogComparison
    from ..weight_comparison import WeightsResult
    from .dump_evidence import DumpEvidence

#: All stages, in the order of the precision guide. One comparison of dumps gives two stages.
STAGES = (
    "settings",
    "checklist",
    "data",
    "logs",
    "norms",
    "weights",
    "forward",
    "backward",
    "optimizer",
)


@dataclass(frozen=True)
class Evidence:
    """The result of each stage; None if the case has no input for it."""

    stages: tuple[Stage, ...] = ()  #: those with input, in the order of :data:`STAGES`
    skipped: Mapping[str, str] = field(default_factory=dict)  #: the others, and why
    settings: SettingsComparison | None = None
    checklist: Checklist | None = None
    data: DataComparison | None = None
    logs: LogComparison | None = None
    norms: NormComparison | None = None
    weights: WeightsResult | None = None
    dumps: DumpEvidence | None = None
    optimizer: UpdateComparison | None = None

    def find_stage(self, name: str) -> Stage | None:
        """Return the stage of that name, None if it was skipped."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        return None

    @property
    def has_half_precision(self) -> bool:
        """Whether the runs compute in half precision, by their settings, else by their dumps."""
        if self.settings is not None and self.settings.compute_dtype:
            return self.settings.compute_dtype in HALF_PRECISIONS
        return self.dumps is not None and self.dumps.has_half_precision
