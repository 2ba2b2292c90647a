"""The first symptom in the logs, and logs that seem to show one and do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff import run_settings
from dumpdiff.diagnosis.symptom import (
    check_first_loss,
    check_first_norm,
    check_second_loss,
    departs_at_once,
    find_symptom,
)
from dumpdiff.run_settings import read_settings
from dumpdiff.training_logs import LogComparison

from .conftest import LOSS, Logs

SAMPLES = Path(__file__).parents[1] / "samples"


def test_without_logs_nothing_is_known() -> None:
    assert find_symptom(None, None) == "unknown"


def test_gradients_of_step_1(logs: Logs) -> None:
    assert find_symptom(logs(norm=1.2), None) == "gradients"


def test_equal_logs_show_nothing(logs: Logs) -> None:
    assert find_symptom(logs(), None) == "none"


def test_the_first_loss(logs: Logs) -> None:
    assert find_symptom(logs(LOSS * 1.01), None) == "first loss"


def test_the_second_loss(logs: Logs) -> None:
    assert (
        find_symptom(logs(np.where(np.arange(40) == 0, LOSS, LOSS * 1.02)), None) == "second loss"
    )


def test_a_later_loss(logs: Logs) -> None:
    assert find_symptom(logs(np.where(np.arange(40) < 20, LOSS, LOSS * 1.05)), None) == "later"


def compare_in_float32(tmp_path: Path) -> run_settings.SettingsComparison:
    (tmp_path / "run.yaml").write_text(
        "model: {model_config: {type: LlamaConfig, compute_dtype: float32}}\n"
    )
    (tmp_path / "run.sh").write_text("torchrun pretrain_gpt.py --num-layers 2 --lr 1e-3\n")
    return run_settings.compare(
        read_settings(tmp_path / "run.yaml"), read_settings(tmp_path / "run.sh")
    )


def test_float32_runs_are_not_allowed_what_the_standard_allows(logs: Logs, tmp_path: Path) -> None:
    """0.08 % is a tripled row of a weight; 0.01 % may be TF32."""
    settings = compare_in_float32(tmp_path)
    assert get_first_verdict(logs(1.0008 * LOSS), settings) == "differ"
    assert get_first_verdict(logs(1.0001 * LOSS), settings) == "inconclusive"
    assert get_first_verdict(logs(LOSS + 1e-5), settings) == "agree"


def test_what_may_be_either_precision_is_undecided(logs: Logs) -> None:
    close_logs = logs(1.0008 * LOSS)
    check = check_first_loss(close_logs, None)
    assert check is not None
    assert check.verdict == "inconclusive"
    assert check.summary == (
        "loss of step 1: 8.0064 against 8, off by 6.4e-3 (0.08 %): float32 rounds less (3.1e-5),"
        " but it is not beyond what rounding may cause (4.0e-2)"
    )
    assert find_symptom(close_logs, None) == "none"


@pytest.mark.parametrize(
    ("norm", "verdict"), [(1.0001, "agree"), (1.011, "inconclusive"), (1.2, "differ")]
)
def test_a_gradient_norm_has_three_answers(logs: Logs, norm: float, verdict: str) -> None:
    check = check_first_norm(logs(norm=norm), None)
    assert check is not None
    assert check.verdict == verdict


def test_a_departure_is_a_jump_or_a_drift(logs: Logs) -> None:
    steps = np.arange(40)
    assert departs_at_once(logs(np.where(steps < 20, LOSS, LOSS * 1.05)))
    growth = np.where(steps < 10, 0, 1e-4 * 1.3 ** (steps - 10))
    assert not departs_at_once(logs(LOSS * (1 + growth)))


def get_first_verdict(logs: LogComparison, settings: run_settings.SettingsComparison) -> str:
    check = check_first_loss(logs, settings)
    assert check is not None
    return check.verdict


def test_low_precision_runs_are(logs: Logs) -> None:
    settings = run_settings.compare(
        read_settings(SAMPLES / "llama.yaml"), read_settings(SAMPLES / "llama_megatron.sh")
    )
    check = check_first_loss(logs(LOSS + 1e-3), settings)
    assert check is not None
    assert check.verdict == "agree"


def test_a_second_loss_after_a_rate_of_zero_says_nothing_of_the_optimizer(logs: Logs) -> None:
    assert check_second_loss(logs(), None) is not None
    assert check_second_loss(logs(lr=np.concatenate([[0.0], np.full(39, 1e-3)])), None) is None
