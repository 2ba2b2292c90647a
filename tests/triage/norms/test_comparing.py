"""Two sides of real gradients, edited by one effect at a time: what is paired, what differs, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.errors import DumpError
from dumpdiff.rules import load_rules
from dumpdiff.triage.norms import NormComparison, Norms, Row, compare, read_norms
from dumpdiff.triage.norms.side import norms_of

RULES = load_rules()
MEGATRON = Path(__file__).parents[1] / "data" / "norms" / "megatron_0.12_local_norm.log"
MINDFORMERS = Path(__file__).parents[1] / "data" / "logs" / "mindformers_1.8_resumed.log"


@pytest.fixture(scope="module")
def ms(dump: Callable[[str], Path]) -> Norms:
    """Gradients of the second model in MindSpore: 4 layers, names of MindSpore Transformers."""
    return read_norms(dump("ms_mf_none"))


@pytest.fixture(scope="module")
def pt(dump: Callable[[str], Path]) -> Norms:
    """The same in PyTorch, names of Hugging Face."""
    return read_norms(dump("pt_none"))


def times(norms: Norms, factor: Callable[[str], float]) -> Norms:
    """Every norm times what a function of its canonical name gives."""
    changed = [value * factor(RULES.parameter(name)) for value, name in zip(norms.given, norms.names, strict=True)]
    return replace(norms, given=np.array(changed))


def depth(path: str) -> int:
    """0 to 3 of a layer, -1 of the embedding, 9 of what comes after the layers."""
    layer = re.search(r"layers\.(\d+)", path)
    return int(layer[1]) if layer else -1 if path.startswith("embedding") else 9


def unknown(norms: Norms) -> Norms:
    """Of a precision that nobody knows."""
    return replace(norms, precision="")


def bare(norms: Norms, order: Sequence[int] | None = None, *, digits: int = 9, squared: bool | None = False) -> Norms:
    """The same numbers without names, in another order, printed with some digits, as squares or roots."""
    rows = list(range(len(norms)) if order is None else order)
    values = norms.values[rows] ** (2 if squared else 1)
    printed = np.array([float(f"{value:.{digits - 1}e}") for value in values])
    rounding = 0.5 * 10.0 ** (np.floor(np.log10(printed)) - digits + 1)
    return norms_of("list.txt", "a list", (), printed, rounding=rounding, squared=squared, because="the test says so")


def decayed_first(norms: Norms) -> list[int]:
    """The order of Megatron-LM's optimizer."""
    return sorted(range(len(norms)), key=lambda row: int(norms.vectors[row]))


def wrongly_paired(comparison: NormComparison, norms: Norms, order: Sequence[int]) -> int:
    """How many rows have another parameter than their number in the list is."""
    truth = {f"#{place + 1}": RULES.parameter(norms.names[row]) for place, row in enumerate(order)}
    return sum(truth[row.target] != row.path for row in comparison.rows)


def row(comparison: NormComparison, path: str) -> Row:
    return next(found for found in comparison.rows if found.path == path)


# --- names


def test_the_same_gradients_in_two_frameworks_agree(ms: Norms, pt: Norms) -> None:
    comparison = compare(ms, pt)
    assert (comparison.verdict, comparison.coverage, comparison.patterns) == ("agree", (1.0, 1.0), ())
    assert {found.by for found in comparison.rows} == {"name", "rule"}
    assert max(found.relative for found in comparison.rows) < 1e-6
    assert comparison.stage().headline == "48 parameters' gradient norms equal within 8.3e-7"


def test_rows_are_ranked_by_how_far_beyond_what_is_allowed(ms: Norms, pt: Norms) -> None:
    changes = {"layers.2.mlp.up_proj.weight": 1.5, "head.weight": 1.01, "layers.1.attention.q.weight": 1.2}
    comparison = compare(times(ms, lambda path: changes.get(path, 1.0)), pt)
    assert [found.path for found in comparison.rows[:3]] == sorted(changes, key=lambda path: -changes[path])
    assert [found.state for found in comparison.rows[:4]] == ["differ"] * 3 + ["agree"]


def fused(norms: Norms, named: bool) -> Norms:
    """With queries, keys and values in one parameter, and gate and up."""
    wholes = {"q": "qkv", "k": "qkv", "v": "qkv", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    groups: dict[str, list[float]] = {}
    for name, value in zip(norms.names, norms.values, strict=True):
        *front, module, leaf = RULES.parameter(name).split(".")
        groups.setdefault(".".join([*front, wholes.get(module, module), leaf]), []).append(float(value))
    values = np.array([np.linalg.norm(parts) for parts in groups.values()])
    return norms_of("fused", "a list", tuple(groups) if named else (), values, squared=False)


@pytest.mark.parametrize("named", [True, False])
def test_the_squares_of_parts_sum_to_that_of_the_whole(ms: Norms, pt: Norms, named: bool) -> None:
    comparison = compare(fused(ms, named), pt)
    assert (comparison.verdict, len(comparison.rows), comparison.coverage) == ("agree", 36, (1.0, 1.0))
    qkv = row(comparison, "layers.1.attention.qkv.weight")
    assert qkv.by == "parts"
    assert qkv.reference == " + ".join(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")


def test_parts_are_found_without_any_names(ms: Norms, pt: Norms) -> None:
    comparison = compare(fused(ms, named=False), bare(pt))
    assert comparison.verdict == "agree"
    assert sum(found.by == "parts" for found in comparison.rows) == 8


def test_experts_one_by_one_are_the_parts_of_a_stack() -> None:
    one = norms_of(
        "a", "", tuple(f"layers.0.mlp.experts.{n}.gate_up_proj.weight" for n in range(3)), np.array([1.0, 2.0, 2.0])
    )
    stack = norms_of("b", "", ("layers.0.mlp.experts.gate_up_proj.weight",), np.array([3.0]))
    comparison = compare(replace(one, squared=False), replace(stack, squared=False))
    assert (comparison.verdict, comparison.rows[0].by, comparison.rows[0].relative) == ("agree", "parts", 0.0)


def test_parameters_without_a_partner_are_listed_and_counted(ms: Norms, pt: Norms) -> None:
    keep = [i for i, name in enumerate(ms.names) if "norm" not in name]
    fewer = replace(
        ms, **{field: getattr(ms, field)[keep] for field in ("given", "rounding", "sizes", "vectors")},
        names=tuple(ms.names[i] for i in keep),
    )  # fmt: skip
    comparison = compare(fewer, pt)
    assert comparison.verdict == "unclear"
    assert (comparison.coverage, len(comparison.reference_alone)) == ((1.0, pytest.approx(30 / 48)), 18)
    assert comparison.stage().missing[0].startswith("18 of the reference's parameters have no partner: model.layers.0")


# --- no names


def test_lists_in_one_order_are_paired_in_it(ms: Norms, pt: Norms) -> None:
    order = range(len(ms))
    in_order = [pt.names.index(next(n for n in pt.names if RULES.parameter(n) == RULES.parameter(m))) for m in ms.names]
    comparison = compare(bare(ms), bare(pt, in_order))
    assert (comparison.verdict, {found.by for found in comparison.rows}) == ("agree", {"order"})
    assert all(found.target == found.reference for found in comparison.rows)
    assert len(comparison.rows) == len(order)


def test_the_optimizers_order_is_known(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    comparison = compare(bare(ms, order, digits=5, squared=True), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert "48 norms were paired by their place in both lists, since not both sides name them" in comparison.notes


def test_no_order_at_all_leaves_the_values(ms: Norms, pt: Norms) -> None:
    order = np.random.default_rng(0).permutation(len(ms)).tolist()
    comparison = compare(bare(ms, order, digits=5), pt)
    assert (comparison.verdict, wrongly_paired(comparison, ms, order)) == ("agree", 0)
    assert {found.by for found in comparison.rows} == {"value"}
    assert "48 norms were paired by their values, since not both sides name them" in comparison.notes


def test_an_order_holds_where_half_of_the_norms_differ(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    random = np.random.default_rng(0)
    wrong = times(ms, lambda path: 1.05 + 0.3 * random.random() if depth(path) <= 1 else 1.0)
    comparison = compare(bare(wrong, order, digits=5, squared=True), pt)
    assert (comparison.verdict, comparison.pattern, wrongly_paired(comparison, ms, order)) == ("differ", "layer", 0)


def test_an_order_holds_where_all_norms_differ(ms: Norms, pt: Norms) -> None:
    random = np.random.default_rng(0)
    comparison = compare(bare(times(ms, lambda path: 1 + random.random())), bare(ms))
    assert comparison.verdict == "differ"
    assert all(found.target == found.reference for found in comparison.rows)


def test_modules_of_a_layer_may_stand_in_another_order(ms: Norms) -> None:
    order = sorted(
        range(len(ms)),
        key=lambda i: (depth(RULES.parameter(ms.names[i])), "attention.out" not in RULES.parameter(ms.names[i])),
    )
    in_order = sorted(range(len(ms)), key=lambda i: depth(RULES.parameter(ms.names[i])))
    assert compare(bare(ms, order), bare(ms, in_order)).verdict == "agree"


def test_norms_of_other_sizes_are_never_paired(ms: Norms, pt: Norms) -> None:
    order = decayed_first(ms)
    sizes = replace(bare(ms, order), sizes=ms.sizes[order])
    comparison = compare(times(sizes, lambda path: 1.0), pt)
    by_name = {RULES.parameter(name): size for name, size in zip(pt.names, pt.sizes.tolist(), strict=True)}
    for found in comparison.rows:
        assert sizes.sizes[int(found.target[1:]) - 1] == by_name[found.path]


def test_lists_of_two_models_are_not_compared() -> None:
    with pytest.raises(
        DumpError, match=r"\(3 norms\) and .* \(28 norms\) have no parameter in common, by name or by value"
    ):
        compare(read_norms(MINDFORMERS), read_norms(MEGATRON))


def test_two_steps_of_one_run_differ_and_their_numbers_are_said() -> None:
    comparison = compare(read_norms(MEGATRON, 1), read_norms(MEGATRON, 2))
    assert comparison.verdict == "differ"
    assert "step 1 of the target is compared with step 2 of the reference" in comparison.notes
    assert all(found.target == found.reference for found in comparison.rows)


# --- squares and roots


@pytest.mark.parametrize("squared", [True, False])
def test_whether_a_list_holds_squares_is_decided_by_what_agrees(ms: Norms, pt: Norms, squared: bool) -> None:
    listed = replace(bare(ms, digits=6, squared=squared), squared=None, because="")
    comparison = compare(listed, pt)
    assert (comparison.verdict, comparison.target.squared) == ("agree", squared)
    assert comparison.target.because == f"taken as {'squares' if squared else 'roots'}: so the sides agree best"


# --- what all have in common


@pytest.mark.parametrize(
    ("factor", "said", "cause"),
    [
        (65536.0, "all norms are 65536 times the reference's", "the loss scale is still in the gradients"),
        (1 / 1024, "all norms are 1/1024 of the reference's", "the loss scale is still in the gradients"),
        (8.0, "all norms are 8 times the reference's", "a sum in place of a mean over 8: devices"),
        (0.34423, "all norms are 0.34423 times the reference's", "one side was taken after clipping"),
    ],
)
def test_one_factor_for_all(ms: Norms, pt: Norms, factor: float, said: str, cause: str) -> None:
    comparison = compare(times(ms, lambda path: factor), pt)
    assert (comparison.verdict, comparison.pattern) == ("differ", "factor")
    assert comparison.factor == pytest.approx(factor, rel=1e-6)
    assert comparison.patterns[0].said == said
    assert comparison.patterns[0].cause.startswith(cause)
    assert not comparison.of_state("differ")


def test_what_differs_beyond_the_factor_is_found(ms: Norms, pt: Norms) -> None:
    comparison = compare(times(ms, lambda path: 0.125 * (1.02 if path == "embedding.weight" else 1)), pt)
    assert [pattern.kind for pattern in comparison.patterns] == ["factor", "precision"]
    assert [found.path for found in comparison.of_state("differ")] == ["embedding.weight"]


@pytest.mark.parametrize(
    ("effect", "pattern", "said"),
    [
        (lambda path: 1.02 if path == "embedding.weight" else 1, "precision", "only the embedding's norm differs, by 2.0e-2"),  # noqa: E501
        (lambda path: 3.0 if path == "embedding.weight" else 1, "embedding", "only the embedding's norm differs, by 2.0e0"),  # noqa: E501
        (
            lambda path: 1.05 if depth(path) <= 1 else 1, "layer",
            "norms differ from layer 1 down to the embedding, and agree above it",
        ),
        (
            lambda path: 1.05 if depth(path) <= 2 and path != "layers.2.mlp.down_proj.weight" else 1, "layer",
            "norms differ from layer 2 down to the embedding, and agree above it; of it still right: mlp.down_proj.weight",  # noqa: E501
        ),
        (lambda path: 1.05 if "norm" in path else 1, "vectors", "only biases and norm weights differ, 18 of 18"),
        (lambda path: 1.05 if path.endswith("attention.q.weight") else 1, "module", "only attention.q.weight differ, in 4 layers"),  # noqa: E501
        (
            lambda path: 1.05 if path == "layers.2.mlp.up_proj.weight" else 1, "one-layer",
            "only layer 2 differs: mlp.up_proj.weight",
        ),
        (
            lambda path: 1.01 + len(path) % 7 / 20, "everything",
            "norms differ everywhere, the head's or the final norm's too",
        ),
        (
            lambda path: 0.0 if path == "layers.2.mlp.up_proj.weight" else 1, "no-gradient",
            "1 parameters get no gradient on the target: layers.2.mlp.up_proj.weight",
        ),
        (
            lambda path: np.nan if depth(path) <= 1 else 1, "nonfinite",
            "23 norms are not finite on the target alone, the first on the way back layers.1.",
        ),
    ],
)  # fmt: skip
def test_where_the_differing_ones_are(
    ms: Norms, pt: Norms, effect: Callable[[str], float], pattern: str, said: str
) -> None:
    comparison = compare(times(ms, effect), pt)
    assert (comparison.verdict, comparison.pattern) == ("differ", pattern)
    assert comparison.patterns[0].said.startswith(said)
    assert comparison.stage().headline.startswith(said)


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
    assert comparison.pattern == "tied"


def test_the_first_of_lists_without_names_is_the_embedding(ms: Norms) -> None:
    order = sorted(range(len(ms)), key=lambda i: depth(RULES.parameter(ms.names[i])))
    other = times(ms, lambda path: 1.006 if path == "embedding.weight" else 1)
    assert compare(bare(other, order, digits=5), bare(ms, order, digits=5)).pattern == "precision"


# --- rounding


def noisy(norms: Norms, size: float) -> Norms:
    random = np.random.default_rng(1)
    return times(norms, lambda path: 1 + size * random.normal())


def test_noise_of_bfloat16_is_allowed_where_it_is_known(ms: Norms, pt: Norms) -> None:
    target, reference = unknown(noisy(ms, 4e-3)), unknown(pt)
    assert compare(target, reference, precision="bfloat16").verdict == "agree"
    assert compare(replace(target, precision="bfloat16"), reference).precision == "bfloat16"
    assert compare(target, reference, precision="float32").verdict == "differ"


def test_noise_of_a_precision_that_nobody_knows_cannot_be_told(ms: Norms, pt: Norms) -> None:
    comparison = compare(unknown(noisy(ms, 4e-3)), unknown(pt))
    assert comparison.verdict == "unclear"
    assert "rounding in bfloat16 may do that, in float32 it does not" in comparison.stage().headline


def test_one_norm_off_among_exact_ones_is_no_noise(ms: Norms, pt: Norms) -> None:
    changed = times(unknown(ms), lambda path: 1.003 if path == "embedding.weight" else 1)
    assert compare(changed, unknown(pt)).pattern == "precision"


def test_no_precision_allows_what_is_far_beyond_rounding(ms: Norms, pt: Norms) -> None:
    assert compare(noisy(ms, 0.2), pt, precision="bfloat16").verdict == "differ"


def test_digits_that_were_not_printed_are_left_open(ms: Norms, pt: Norms) -> None:
    comparison = compare(bare(ms, digits=3), bare(pt, digits=3))
    assert comparison.verdict == "agree"
    assert all(found.tolerance > 1e-4 for found in comparison.rows)


def test_too_few_digits_are_too_few() -> None:
    comparison = compare(read_norms(MEGATRON), read_norms(MEGATRON))
    coarse = comparison.of_state("coarse")
    assert (comparison.verdict, len(coarse)) == ("agree", 4)  # tensor(0.0003) and the like, of little weight
    assert all(found.reference_norm < 0.03 for found in coarse)


def test_the_gradient_of_a_keys_bias_is_rounding_alone() -> None:
    names = tuple(f"layers.0.attention.{part}.bias" for part in "qkv")
    one, other = (norms_of("a", "", names, np.array([1.0, key, 2.0]), squared=False) for key in (3e-8, 9e-9))
    assert compare(one, other).verdict == "agree"
    assert compare(one, replace(other, given=np.array([1.0, 0.5, 2.0]))).verdict == "differ"


def test_global_norms_stand_beside_the_sums_of_local_ones() -> None:
    assert compare(read_norms(MEGATRON), read_norms(MEGATRON)).totals()[0] == (
        "target: 28 local norms, together 1.41822, printed 1.418"
    )
