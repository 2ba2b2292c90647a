"""Lists of tensors in a log of Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import read_norms
from gradient_norms.sides import MEGATRON, write_text


@pytest.mark.parametrize(
    ("step", "first", "total"), [(1, 0.7230, 1.418), (2, 0.7737, 1.490), (3, 0.7701, 1.472)]
)
def test_the_first_of_three_lists_is_read_which_is_before_clipping(
    step: int, first: float, total: float
) -> None:
    norms = read_norms(MEGATRON, step)
    assert (len(norms), norms.squared, norms.raw_values[0], norms.global_norm) == (
        28,
        True,
        first,
        total,
    )
    assert norms.combined_norm == pytest.approx(total, rel=1e-3)


def test_devices_and_dtypes_in_a_list_are_no_norms(tmp_path: Path) -> None:
    content = (
        "local norm:\n[tensor(0.5, device='cuda:0'),"
        " tensor(4.e-3, device='npu:1', dtype=torch.float32), tensor(nan)]"
    )
    assert read_norms(write_text(tmp_path, content)).raw_values == pytest.approx(
        [0.5, 4e-3, np.nan], nan_ok=True
    )


def test_precision_and_clip_limit_are_read_from_the_arguments(tmp_path: Path) -> None:
    content = (
        f"  clip_grad {'.' * 39} 0.5\n  params_dtype {'.' * 36} torch.bfloat16\n"
        "local norm:\n[tensor(0.2500)]\n"
    )
    norms = read_norms(write_text(tmp_path, content))
    assert (norms.precision, norms.clip_limit) == ("bfloat16", 0.5)
