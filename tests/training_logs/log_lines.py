"""Logs in the form that the frameworks print, with given numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def format_megatron_log(
    loss: Numbers,
    lr: Numbers | float = 1e-5,
    norm: Numbers | float = 1.0,
    begin: int = 1,
    time: str = "01:51:13",
) -> str:
    """Format lines of Megatron-LM; the line of a step prints the rate that the next step uses."""
    count = len(loss)
    rates, norms = np.broadcast_to(lr, count), np.broadcast_to(norm, count)
    lines = [
        (
            f" [2026-11-21 {time}] iteration {begin + i:8d}/{count:8d} |"
            f" consumed samples: {4 * i:12d} | elapsed time per iteration (ms): 29.8 |"
            f" learning rate: {rates[min(i + 1, count - 1)]:.6E} | global batch size:     4 |"
            f" lm loss: {loss[i]:.6E} | loss scale: 1.0 | grad norm: {norms[i]:.3f} |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
        for i in range(count)
    ]
    return "".join(lines)


def format_mindformers_log(
    loss: Numbers, lr: Numbers | float = 1e-5, norm: Numbers | float | None = 1.0, digits: int = 6
) -> str:
    """Format lines of MindSpore Transformers, one epoch."""
    count = len(loss)
    rates, norms = np.broadcast_to(lr, count), np.broadcast_to(1.0 if norm is None else norm, count)
    path = "mindformers/path/output/log[mindformers/core/callback/callback.py"
    lines = []
    for i in range(count):
        norm_text = "None" if norm is None else f"[{norms[i]}]"
        lines.append(
            f"2026-11-21 01:44:41,849 - {path}:544] - INFO - "
            f"{{ Epoch:[  1/  1], step:[{i + 1:5d}/{count:5d}], loss: {loss[i]:.{digits}f}, "
            f"per_step_time: 1120ms, lr: {rates[i]}, overflow cond: False, loss_scale: 1.0, "
            f"global_norm: {norm_text}, train_throughput_per_npu: 0.000T\n"
            f"2026-11-21 01:44:41,850 - {path}:560] - INFO -    "
            "6.2% |███                                               | 1.78514 samples/s/p"
            "  0:00:16 }\n"
        )
    return "".join(lines)
