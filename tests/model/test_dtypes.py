"""Names of dtypes, and one definition of a masking constant for all comparisons."""

import numpy as np
import pandas as pd
import pytest

from dumpdiff.alignment.values import Fingerprints, compute_distances
from dumpdiff.comparison.metrics import compute_metrics
from dumpdiff.graph.statistics import STATISTICS, compute_statistics
from dumpdiff.graph.value_classes import count_evidence
from dumpdiff.model.dtypes import (
    MASK_MAGNITUDE,
    get_unit_roundoff,
    normalize_dtype,
)

MASKS = [
    -1e4,
    -1e5,
    -1e9,
    float(np.finfo(np.float32).min),
]  # BERT, float16 models, Hugging Face before and after


def draw_scores(mask: float, noise: float = 0.0, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((8, 32, 32)).astype(np.float32)
    noisy = values * (1 + np.float32(noise) * rng.standard_normal(values.shape).astype(np.float32))
    return np.where(
        np.triu(np.ones((32, 32), bool), 1), np.float32(mask), np.float32(scale) * noisy
    )


def build_table(*arrays: np.ndarray) -> pd.DataFrame:
    rows = pd.DataFrame(
        [compute_statistics(array)[:4] for array in arrays], columns=list(STATISTICS)
    )
    return rows.assign(size=[array.size for array in arrays]).assign(evidence=count_evidence)


@pytest.mark.parametrize("mask", MASKS)
class TestMask:
    def test_a_mask_sets_no_scale_for_whole_tensors(self, mask):
        metrics = compute_metrics(draw_scores(mask, 1e-2), draw_scores(mask), 0.0, True)
        assert metrics.relative_l2 == pytest.approx(1e-2, rel=0.05)

    def test_a_mask_sets_no_scale_for_statistics(self, mask):
        sides = [
            Fingerprints.from_table(build_table(array))
            for array in (draw_scores(mask, scale=1.01), draw_scores(mask))
        ]
        statistics = build_table(draw_scores(mask))
        assert statistics["min"].iat[0] < -MASK_MAGNITUDE
        row = np.array([0])
        assert compute_distances(sides[0], row, sides[1], row)[0] == pytest.approx(1e-2, rel=0.05)

    def test_a_mask_is_no_evidence(self, mask):
        assert (
            build_table(draw_scores(mask))["evidence"].iat[0] <= 2
        )  # the maximum, and a mean that the weakest mask leaves small


def test_unit_roundoff_is_half_the_gap_above_one():
    for dtype in (np.float16, np.float32, np.float64):
        assert get_unit_roundoff(np.dtype(dtype).name) == np.finfo(dtype).eps / 2
    assert get_unit_roundoff("int64") == 0


def test_every_spelling_has_one_name():
    assert {
        normalize_dtype(text) for text in ("torch.float16", "Half", "fp16", "mindspore.float16")
    } == {"float16"}
