"""What the norms that differ have in common, of real gradients edited by one effect at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import RULES, bare, depth, times


@pytest.mark.parametrize(
    ("factor", "said", "cause"),
    [
        (
            65536.0,
            "all norms are 65536 times the reference's",
            "the loss scale is still in the gradients",
        ),
        (
            1 / 1024,
            "all norms are 1/1024 of the reference's",
            "the loss scale is still in the gradients",
        ),
        (8.0, "all norms are 8 times the reference's", "a sum in place of a mean over 8: devices"),
        (
            0.34423,
            "all norms are 0.34423 times the reference's",
            "one side was taken after clipping",
        ),
    ],
)
def test_one_factor_for_all(ms: Norms, pt: Norms, factor: float, said: str, cause: str) -> None:
    comparison = compare(times(ms, lambda path: factor), pt)
    assert (comparison.verdict, comparison.pattern_kind) == ("differ", "factor")
    assert comparison.factor == pytest.approx(factor, rel=1e-6)
    assert comparison.patterns[0].summary == said
    assert comparison.patterns[0].cause.startswith(cause)
    assert not comparison.select_rows("differ")


def test_what_differs_beyond_the_factor_is_found(ms: Norms, pt: Norms) -> None:
    comparison = compare(
        times(ms, lambda path: 0.125 * (1.02 if path == "embedding.weight" else 1)), pt
    )
    assert [pattern.kind for pattern in comparison.patterns] == ["factor", "precision"]
    assert [found.path for found in comparison.select_rows("differ")] == ["embedding.weight"]


def only(path: str, factor: float = 1.05) -> Callable[[str], float]:
    """An effect on the parameters whose name ends so."""
    return lambda name: factor if name.endswith(path) else 1.0


@pytest.mark.parametrize(
    ("effect", "pattern", "said"),
    [
        (
            only("embedding.weight", 1.02),
            "precision",
            "only the embedding's norm differs, by 2.0e-2",
        ),
        (only("embedding.weight", 3.0), "embedding", "only the embedding's norm differs, by 2.0e0"),
        (
            lambda path: 1.05 if depth(path) <= 1 else 1,
            "layer",
            "from layer 1 down to the embedding, those above it agree",
        ),
        (
            lambda path: 1.05
            if depth(path) <= 2 and path != "layers.2.mlp.down_proj.weight"
            else 1,
            "layer",
            "from layer 2 down to the embedding, those above it agree; of layer 2 still right: mlp.down_proj.weight",
        ),
        (
            lambda path: 1.05 if "norm" in path else 1,
            "vectors",
            "only biases and norm weights differ, 18 of 18",
        ),
        (only("attention.q.weight"), "module", "only attention.q.weight differ, in 4 layers"),
        (
            only("layers.2.mlp.up_proj.weight"),
            "one-layer",
            "only layer 2 differs: mlp.up_proj.weight",
        ),
        (
            lambda path: 1.01 + len(path) % 7 / 20,
            "everything",
            "everywhere, the head's or the final norm's too",
        ),
        (
            only("layers.2.mlp.up_proj.weight", 0.0),
            "no-gradient",
            "no gradient on the target for layers.2.mlp.up_proj.weight",
        ),
        (
            lambda path: np.nan if depth(path) <= 1 else 1,
            "nonfinite",
            "not finite on the target alone: 23 norms, the first on the way back layers.1.",
        ),
    ],
)
def test_where_the_differing_ones_are(
    ms: Norms, pt: Norms, effect: Callable[[str], float], pattern: str, said: str
) -> None:
    comparison = compare(times(ms, effect), pt)
    assert (comparison.verdict, comparison.pattern_kind) == ("differ", pattern)
    assert comparison.patterns[0].summary.startswith(said)
    assert comparison.to_stage().headline.startswith(said)


def test_the_layer_where_the_backward_pass_departs_is_named(ms: Norms, pt: Norms) -> None:
    (pattern,) = compare(times(ms, lambda path: 1.05 if depth(path) <= 1 else 1), pt).patterns
    assert (pattern.layer, pattern.cause) == (
        1, "the backward pass, which runs from the last layer to the first, departs in layer 1",
    )  # fmt: skip


def test_a_head_that_shares_the_embeddings_weight(ms: Norms, pt: Norms) -> None:
    rows = [i for i, name in enumerate(pt.names) if name != "lm_head.weight"]
    tied = replace(
        pt, **{field: getattr(pt, field)[rows] for field in ("given", "rounding", "sizes", "vectors")},
        names=tuple(pt.names[i] for i in rows),
    )  # fmt: skip
    comparison = compare(ms, times(tied, lambda path: 2.5 if path == "embedding.weight" else 1))
    assert comparison.pattern_kind == "tied"


def test_the_first_of_lists_without_names_is_the_embedding(ms: Norms) -> None:
    order = sorted(range(len(ms)), key=lambda i: depth(RULES.resolve_parameter(ms.names[i])))
    other = times(ms, lambda path: 1.006 if path == "embedding.weight" else 1)
    assert compare(bare(other, order, digits=5), bare(ms, order, digits=5)).pattern_kind == "precision"
