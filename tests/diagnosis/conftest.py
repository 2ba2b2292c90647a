"""Logs of two runs, as the decision tree and the symptom need them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_logs.log_lines import format_megatron_log, format_mindformers_log

from dumpdiff.training_logs import LogComparison, compare, read_log

LOSS = np.linspace(8.0, 5.0, 40)

Logs = Callable[..., LogComparison]
MakeLogs = Callable[..., LogComparison]


@pytest.fixture
def make_logs(tmp_path: Path) -> MakeLogs:
    """``make_logs(loss, reference_loss)`` compares logs with these losses."""

    def compare_logs(target: np.ndarray, reference: np.ndarray, **options: Any) -> LogComparison:
        (tmp_path / "ms.log").write_text(format_mindformers_log(target, **options))
        (tmp_path / "pt.log").write_text(format_megatron_log(reference))
        return compare(read_log(tmp_path / "ms.log"), read_log(tmp_path / "pt.log"), least_steps=10)

    return compare_logs


@pytest.fixture
def logs(make_logs: MakeLogs) -> Logs:
    """``logs(loss)`` compares a log with these losses to a log with ``LOSS``."""

    def compare_logs(target: np.ndarray = LOSS, **options: Any) -> LogComparison:
        return make_logs(target, LOSS, **options)

    return compare_logs
