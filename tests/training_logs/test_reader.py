"""Each format is read as its framework defines it, corrected for averaged and omitted values."""

from __future__ import annotations

import json
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


def test_current_steps_of_llama_factory_number_its_records(tmp_path: Path) -> None:
    lines = [
        json.dumps({"current_steps": 10 * i, "total_steps": 30, "loss": 5.0 - i, "lr": 1e-5})
        for i in (1, 2, 3)
    ]
    curves = read_written_log(tmp_path, "\n".join(lines) + "\n", "trainer_log.jsonl")
    assert (curves.format_variant, curves.steps.tolist()) == ("LLaMA-Factory", [10, 20, 30])
    assert curves.averaged


def format_dictionaries(epochs: list[float]) -> str:
    return "".join(
        f"{{'loss': {5 - epoch:.4f}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n"
        for epoch in epochs
    )


def test_epochs_and_their_length_number_the_records(tmp_path: Path) -> None:
    head = "  Num Epochs = 2\n  Total optimization steps = 1,000\n"
    curves = read_written_log(tmp_path, head + format_dictionaries([0.02, 0.04, 0.06]))
    assert curves.steps.tolist() == [10, 20, 30]
    assert "they follow from the epochs, of 500 steps each" in curves.notes[0]


def test_a_run_that_was_resumed_begins_where_its_epoch_says(tmp_path: Path) -> None:
    head = "  Num Epochs = 1\n  Total optimization steps = 500\n"
    resumed = "  Continuing training from global step 450\n"
    text = format_dictionaries([0.92, 0.94, 0.96])
    assert read_written_log(tmp_path, head + resumed + text).steps.tolist() == [460, 470, 480]
    assert read_written_log(tmp_path, head + text).steps.tolist() == [460, 470, 480]
    curves = read_written_log(tmp_path, text)
    assert curves.steps[0] > 40
    assert "it begins at epoch 0.92" in curves.notes[0]


def test_records_that_two_hosts_print_are_one(tmp_path: Path) -> None:
    lines = format_dictionaries([0.1, 0.2, 0.3, 0.4]).splitlines(keepends=True)
    both = "".join(line + line for line in lines)
    assert read_written_log(tmp_path, both).steps.tolist() == [1, 2, 3, 4]
    named = "".join(f"node-1: {line}node-2: {line}" for line in lines)
    assert read_written_log(tmp_path, named).steps.tolist() == [1, 2, 3, 4]


def test_ranks_that_share_a_log_are_averaged(tmp_path: Path) -> None:
    text = ""
    for step, loss in ((1, 4.0), (2, 3.0), (3, 2.0)):
        text += format_megatron_log([loss], begin=step)
        text += format_megatron_log([loss + 0.2], begin=step)
    curves = read_written_log(tmp_path, text)
    assert curves.loss.tolist() == pytest.approx([4.1, 3.1, 2.1])
    assert "every step is printed 2 times, by several processes" in curves.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "format_name", "steps", "losses"),
    [
        (
            "titan.log",
            "[rank0]:[titan] 2025-01-02 03:04:05,678 - root - INFO - step:  1  loss: 12.2253"
            "  grad_norm:  1.5000  memory:  0.51GiB(0.54%)  tps: 1,234  tflops: 0.10  mfu: 0.01%\n"
            "[rank0]:[titan] 2025-01-02 03:04:06,678 - root - INFO - validate step:  1  loss: 9.0\n"
            "[rank0]:[titan] 2025-01-02 03:04:07,678 - root - INFO - step: 10  loss: 10.5000"
            "  grad_norm:  2.5000  memory:  0.51GiB(0.54%)  tps: 1,234  tflops: 0.10  mfu: 0.01%\n",
            "torchtitan",
            [1, 10],
            [12.2253, 10.5],
        ),
        (
            "nemo.log",
            "Training epoch 0, iteration 0/99 | lr: 1.5e-07 | global_step: 0"
            " | reduced_train_loss: 11.03 | train_step_timing in s: 13.2\n"
            "Training epoch 0, iteration 1/99 | lr: 3e-07 | global_step: 1"
            " | reduced_train_loss: 11.02 | train_step_timing in s: 3.2\n",
            "nemo",
            [1, 2],
            [11.03, 11.02],
        ),
        (
            "nemo1.log",
            "Epoch 0: :   1%|  | 1/100 [00:12, reduced_train_loss=9.510, global_step=0.000]\n"
            "Epoch 0: :   1%|  | 1/100 [00:13, reduced_train_loss=9.510, global_step=0.000]\n"
            "Epoch 0: :   2%|  | 2/100 [00:14, reduced_train_loss=9.400, global_step=1.000]\n",
            "nemo",
            [1, 2],
            [9.51, 9.4],
        ),
        (
            "verl.log",
            "(TaskRunner pid=12) step:0 - val-core/gsm8k/acc:0.1\n"
            "(TaskRunner pid=12) step:1 - actor/pg_loss:np.float64(0.015) - actor/grad_norm:0.25"
            " - actor/lr:1e-06 - perf/time:3.5\n"
            "(TaskRunner pid=12) step:2 - actor/pg_loss:-0.002 - actor/grad_norm:0.5\n",
            "verl",
            [1, 2],
            [0.015, -0.002],
        ),
        (
            "wandb.csv",
            '"Step","run-7 - train/loss","run-7 - train/loss__MIN","run-7 - train/loss__MAX"\n'
            '"1","5.25","5.25","5.25"\n"2","5.125","5.125","5.125"\n',
            "table",
            [1, 2],
            [5.25, 5.125],
        ),
        (
            "metrics.csv",
            "epoch,step,train_loss,val_loss\n0,0,5.5,\n0,1,5.4,\n0,1,,5.9\n0,2,5.3,\n",
            "table",
            [1, 2, 3],
            [5.5, 5.4, 5.3],
        ),
    ],
)
def test_further_formats_are_read(
    tmp_path: Path, name: str, text: str, format_name: str, steps: list[int], losses: list[float]
) -> None:
    curves = read_written_log(tmp_path, text, name)
    assert (curves.format, curves.steps.tolist()) == (format_name, steps)
    assert curves.loss.tolist() == losses


def test_a_table_of_several_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"has several runs \(a - train/loss, b - train/loss\)"):
        read_written_log(tmp_path, "Step,a - train/loss,b - train/loss\n1,5,6\n", "wandb.csv")
