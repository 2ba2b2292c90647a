"""Each format is read as its framework defines it, corrected for averaged and omitted values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.training_logs import Curves, read_log

from .log_lines import format_megatron_log, format_mindformers_log

LOGS = Path(__file__).parents[1] / "samples" / "logs"
LOSSES = [
    8.351725,
    8.363781,
    8.339663,
    8.331816,
    8.346218,
    8.370594,
]  #: of the run that 0.12 and 0.17 both printed


def read_written_log(tmp_path: Path, text: str, name: str = "run.log") -> Curves:
    (tmp_path / name).write_text(text)
    return read_log(tmp_path / name)


def test_megatron_prints_the_rate_of_the_next_step() -> None:
    curves = read_log(LOGS / "megatron_0.12.log")
    assert (curves.format, curves.format_variant, curves.rate_of) == (
        "megatron",
        "before core 0.16",
        "next",
    )
    assert curves.steps.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(curves.loss, LOSSES)
    np.testing.assert_allclose(curves.rate[:2], [5e-4, 1e-3])
    assert curves.norm.tolist() == [1.418, 1.49, 1.472, 1.298, 1.424, 1.449]
    assert (curves.loss_resolution, curves.norm_resolution) == pytest.approx((5e-7, 5e-4))


def test_the_mean_that_newer_versions_print_at_step_2_is_undone() -> None:
    curves = read_log(LOGS / "megatron_0.17.log")
    np.testing.assert_allclose(curves.loss, LOSSES, atol=2e-6)
    assert "step 2: Megatron-LM prints the mean of the first two steps" in curves.notes[0]


def test_a_missing_loss_is_nan() -> None:
    curves = read_log(LOGS / "megatron_0.12_nan.log")
    assert curves.nonfinite.tolist() == [False, True, True, True]
    assert np.isnan(curves.loss[1:]).all()


def test_a_resumed_run_keeps_its_numbers() -> None:
    assert read_log(LOGS / "megatron_0.12_resumed.log").steps.tolist() == [4, 5, 6]


def test_the_last_line_of_a_step_that_is_printed_twice_is_used(tmp_path: Path) -> None:
    restarted = format_megatron_log([9.0, 9.0], begin=3)
    curves = read_written_log(
        tmp_path,
        format_megatron_log([1.0, 2.0, 3.0, 4.0])
        + "-------- end of arguments --------\n"
        + restarted,
    )
    assert curves.loss.tolist() == [1.0, 2.0, 9.0, 9.0]
    assert curves.restarts == (3,)


def test_the_mean_is_undone_in_every_process_of_a_newer_version(tmp_path: Path) -> None:
    first = format_megatron_log([1.0, 1.5, 3.0], time="01:51:13.123456")
    restarted = format_megatron_log([9.0, 8.0, 6.0], time="01:52:13.123456", begin=4)
    curves = read_written_log(tmp_path, first + "-------- end of arguments --------\n" + restarted)
    assert curves.loss.tolist() == pytest.approx([1.0, 2.0, 3.0, 9.0, 7.0, 6.0])


def test_a_skipped_step_has_no_loss_and_is_not_nonfinite(tmp_path: Path) -> None:
    skipped = (
        format_megatron_log([1.0])
        .replace("lm loss: 1.000000E+00 | ", "")
        .replace("skipped iterations:   0", "skipped iterations:   1")
    )
    curves = read_written_log(tmp_path, skipped + format_megatron_log([2.0, 3.0], begin=2))
    assert (curves.skipped.tolist(), curves.nonfinite.tolist()) == (
        [True, False, False],
        [False] * 3,
    )
    assert np.isnan(curves.loss[0])


def test_additional_fields_and_lines_are_ignored(tmp_path: Path) -> None:
    line = format_megatron_log([2.5]).replace(
        " lm loss", " core attn ratio (%): 12.3 | now/mean thing | lm loss"
    )
    noise = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 0.0 | max allocated: 0.0\n"
    assert read_written_log(
        tmp_path, noise + line.rstrip("\n") + format_megatron_log([2.6], begin=2)
    ).loss.tolist() == [
        2.5,
        2.6,
    ]


def test_auxiliary_losses_are_separate_from_the_loss_of_the_model(tmp_path: Path) -> None:
    line = format_megatron_log([2.5]).replace(
        "lm loss", "load_balancing_loss: 1.0E+00 | mtp_1 loss: 3.0E+00 | lm loss"
    )
    curves = read_written_log(tmp_path, line)
    assert curves.loss.tolist() == [2.5]
    assert {name: column.tolist() for name, column in curves.other_losses.items()} == {
        "load_balancing_loss": [1.0],
        "mtp_1 loss": [3.0],
    }


def test_mindspore_transformers_prints_the_rate_that_was_used() -> None:
    curves = read_log(LOGS / "mindformers_1.7.log")
    assert (curves.format, curves.rate_of, curves.format_variant) == (
        "mindformers",
        "used",
        "6 decimals",
    )
    assert curves.steps.tolist() == list(range(1, 17))
    assert curves.loss[:2].tolist() == [4.143459, 4.181364]
    assert curves.rate[:3].tolist() == [0.0, 0.005, 0.01]
    assert curves.norm[0] == 0.27662084


def test_without_clipping_there_is_no_norm_and_older_versions_print_three_decimals() -> None:
    curves = read_log(LOGS / "mindformers_1.6.log")
    assert np.isnan(curves.norm).all()
    assert curves.loss_resolution == pytest.approx(5e-4)


def test_step_numbers_that_restart_in_a_resumed_run_are_continued() -> None:
    curves = read_log(LOGS / "mindformers_1.8_resumed.log")
    assert curves.steps.tolist() == list(range(4, 4 + len(curves)))
    assert "restart within an epoch are continued" in curves.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch:[  1/  2], step:[    3/    8], loss:[4.123/4.149], time:5.123 ms,"
        " lr:0.01, overflow cond: False",
        "{ Epoch:[  1/  2], step:[    3/    8], loss: 4.123, per_step_time: 5ms,"
        " lr: [0.01], overflow cond: [False]",
        "{ Epoch:[  1/  2], step:[    3/    8], loss: 5.5, lm_loss: 4.123,"
        " load_balancing_loss: 1.0, lr: 0.01",
        "[INFO] 2026 [a.py:1] f: { Epoch:[  1/  2], step:[    3/    8], loss: 4.123,"
        " lr: 1e-2, global_norm: None",
        "{ step:[    3/    8], loss: 4.123, per_step_time: 5ms, lr: 0.01",
    ],
)
def test_every_format_variant_of_mindspore_transformers_is_read(tmp_path: Path, line: str) -> None:
    curves = read_written_log(tmp_path, line + "\n")
    assert (curves.steps.tolist(), curves.loss.tolist(), curves.rate.tolist()) == (
        [3],
        [4.123],
        [0.01],
    )


def test_two_runs_in_one_log_are_not_a_resumed_run(tmp_path: Path) -> None:
    curves = read_written_log(
        tmp_path, format_mindformers_log([4.0, 3.0]) + format_mindformers_log([5.0, 4.5])
    )
    assert (curves.loss.tolist(), curves.restarts) == ([5.0, 4.5], (1,))


def test_epochs_continue_the_steps_even_if_they_are_counted_from_0(tmp_path: Path) -> None:
    first_epoch = format_mindformers_log([4.0, 3.0])
    text = first_epoch + format_mindformers_log([2.0, 1.0]).replace("Epoch:[  1/", "Epoch:[  2/")
    assert read_written_log(tmp_path, text).steps.tolist() == [1, 2, 3, 4]
    text = first_epoch.replace("Epoch:[  1/", "Epoch:[  0/") + first_epoch
    assert read_written_log(tmp_path, text).steps.tolist() == [1, 2, 3, 4]


def test_an_overflow_is_a_step_without_an_update(tmp_path: Path) -> None:
    text = format_mindformers_log([4.0, 4.1]).replace(
        "overflow cond: False", "overflow cond: [ True]", 1
    )
    assert read_written_log(tmp_path, text).skipped.tolist() == [True, False]


@pytest.mark.parametrize("name", ["trainer_state.json", "trainer_terminal.log"])
def test_the_trainer_is_read_from_its_state_and_from_the_terminal(name: str) -> None:
    curves = read_log(LOGS / name)
    assert curves.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert curves.loss.tolist() == [4.699, 4.6992, 4.6967, 4.7012, 4.7033, 4.717, 4.6929, 4.7038]
    assert curves.rate[:2].tolist() == [0.0, 5e-05]


def test_ms_swift_numbers_its_steps() -> None:
    curves = read_log(LOGS / "swift.jsonl")
    assert (curves.format_variant, curves.steps.tolist()) == ("ms-swift", [1, 2, 3, 4])
    assert curves.loss.tolist() == [6.25278378, 6.25210619, 6.24040794, 6.22839546]


def test_printed_dictionaries_without_a_bar_are_counted_with_a_note(tmp_path: Path) -> None:
    curves = read_written_log(
        tmp_path,
        "{'loss': '4.699', 'learning_rate': 1e-05}\n{'loss': nan, 'learning_rate': 1e-05}\n",
    )
    assert (curves.steps.tolist(), curves.nonfinite.tolist()) == ([1, 2], [False, True])
    assert "records were counted" in curves.notes[0]


def test_lines_of_a_launcher_are_split_by_rank(tmp_path: Path) -> None:
    text = format_megatron_log([1.0, 2.0, 3.0])
    prefixed = "".join(f"[default0]: noise\n[default7]:{line}\n" for line in text.splitlines())
    assert read_written_log(tmp_path, prefixed).loss.tolist() == [1.0, 2.0, 3.0]


def test_the_last_rank_of_a_folder_is_read_if_all_agree(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        (tmp_path / f"worker_{rank}.log").write_text(format_mindformers_log([3.0, 2.0]))
    curves = read_log(tmp_path)
    assert curves.loss.tolist() == [3.0, 2.0]
    assert curves.notes[-1] == "3 logs agree at both ends; worker_10.log was read"


def test_the_last_stage_of_a_pipeline_has_the_loss(tmp_path: Path) -> None:
    (tmp_path / "worker_0.log").write_text(format_mindformers_log([0.0, 0.0]))
    (tmp_path / "worker_1.log").write_text(format_mindformers_log([3.0, 2.0]))
    assert read_log(tmp_path).loss.tolist() == [3.0, 2.0]


def test_ranks_with_different_losses_are_averaged(tmp_path: Path) -> None:
    (tmp_path / "worker_0.log").write_text(format_mindformers_log([3.0, 2.0]))
    (tmp_path / "worker_1.log").write_text(format_mindformers_log([4.0, 2.5]))
    curves = read_log(tmp_path)
    assert curves.loss.tolist() == [3.5, 2.25]
    assert "2 ranks print different losses: their mean was taken" in curves.notes[-1]


def test_the_error_for_a_log_without_steps_names_the_expected_lines(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"no training step.*iteration <n>.*Epoch:\[.*'loss'"):
        read_written_log(tmp_path, "validation loss at iteration 3 | lm loss value: 8.3E+00 |\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpError, match="no logs in this folder"):
        read_log(tmp_path / "empty")
    with pytest.raises(DumpError, match="no such file"):
        read_log(tmp_path / "gone.log")
