"""What all stages of a triage found, in one place, before anything is concluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..model.stage import Stage

if TYPE_CHECKING:
    from ..batches import DataComparison
    from ..gradient_norms import NormComparison
    from ..model.result import Result
    from ..optimizers.comparison import UpdateComparison as Moves
    from ..run_settings import SettingsComparison as Settings
    from ..run_settings.checklist import Checklist
    from ..training_logs import LogComparison
    from ..weight_comparison import WeightsResult

#: All stages, in the order of the precision guide. Dumps are compared once, and are two stages.
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
    """What each stage found; None where the case names nothing for it."""

    stages: tuple[Stage, ...] = ()  #: those that were looked at, in the order of :data:`STAGES`
    skipped: Mapping[str, str] = field(default_factory=dict)  #: the others, and why
    settings: Settings | None = None
    checklist: Checklist | None = None
    data: DataComparison | None = None
    logs: LogComparison | None = None
    norms: NormComparison | None = None
    weights: WeightsResult | None = None
    dumps: Result | None = None
    optimizer: Moves | None = None

    def find_stage(self, name: str) -> Stage | None:
        """The stage of that name, None if it was not looked at."""
        return next((stage for stage in self.stages if stage.name == name), None)
