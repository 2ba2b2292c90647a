"""The first symptom in the logs, and logs that seem to show one and do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dumpdiff import run_settings
from dumpdiff.diagnosis.symptom import check_first_loss, check_second_loss, find_symptom
from dumpdiff.run_settings import read_settings

from .conftest import LOSS, Logs

SAMPLES = Path(__file__).parents[1] / "samples"


def test_without_logs_nothing_is_known() -> None:
    assert find_symptom(None, None) == "unknown"


def test_gradients_of_step_1(logs: Logs) -> None:
    assert find_symptom(logs(norm=1.05), None) == "gradients"


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
    close_logs = logs(LOSS + 1e-3)
    assert find_symptom(close_logs, None) == "none"
    check = check_first_loss(close_logs, compare_in_float32(tmp_path))
    assert check is not None
    assert check.verdict == "differ"
    assert "within the standard, but beyond the rounding of float32" in check.summary


def test_low_precision_runs_are(logs: Logs) -> None:
    settings = run_settings.compare(
        read_settings(SAMPLES / "llama.yaml"), read_settings(SAMPLES / "llama_megatron.sh")
    )
    check = check_first_loss(logs(LOSS + 1e-3), settings)
    assert check is not None
    assert check.verdict == "agree"


def test_a_second_loss_after_a_rate_of_zero_says_nothing_of_the_optimizer(logs: Logs) -> None:
    assert check_second_loss(logs()) is not None
    assert check_second_loss(logs(lr=np.concatenate([[0.0], np.full(39, 1e-3)]))) is None
