"""Deliberate mistakes: each is found and named correctly, and no other parameter is reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.weight_comparison.summary import group_mistakes

from . import layouts
from .conftest import compare_files, pad_vocabulary, save_weights
from .layouts import Weights
from .mistake_cases import CASES, Case
from .test_right_pairs import ARGUMENTS

torch = pytest.importorskip("torch")

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]


def matches_pattern(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(re.sub(r"\d+", "*", path), pattern)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_mistake_is_named(
    tmp_path: Path, models: Path, hugging_face: HuggingFace, case: Case
) -> None:
    target = case.make(*hugging_face(case.model))
    if case.family == "mcore":
        file = layouts.save_megatron(tmp_path, layouts.shard_weights(target, 1, 1), ARGUMENTS)
    else:
        file = save_weights(tmp_path / "target.safetensors", target)
    result = compare_files(file, models / case.model)

    mistakes = {pair.path: pair.mistake for pair in result.mistakes}
    assert result.verdict == "differ"
    assert {mistake.kind for mistake in mistakes.values()} == {case.kind}
    assert all(case.message_part in mistake.summary for mistake in mistakes.values())
    assert all(
        any(matches_pattern(path, pattern) for pattern in case.wrong_parameters)
        for path in mistakes
    )
    assert all(
        any(matches_pattern(path, pattern) for path in mistakes)
        for pattern in case.wrong_parameters
    )
    if case.holds:
        assert case.holds in [mistake.actual_parameter for mistake in mistakes.values()]


def test_layers_off_by_one_are_reported_once(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    case = next(case for case in CASES if case.name == "layers off by one")
    result = compare_files(
        save_weights(tmp_path / "t.safetensors", case.make(*hugging_face("llama"))),
        models / "llama",
    )
    assert result.layer_shift == 1


def test_mistakes_of_all_layers_are_grouped(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    case = next(case for case in CASES if case.name == "two experts exchanged")
    result = compare_files(
        save_weights(tmp_path / "t.safetensors", case.make(*hugging_face("mixtral"))),
        models / "mixtral",
    )
    lines = group_mistakes(result.mistakes)
    assert {line.parameter for line in lines} == {
        f"layers.*.mlp.experts.*.{p}_proj.weight" for p in ("gate", "up", "down")
    }
    assert all("(2 for 1; 1 for 2)" in line.message for line in lines)


def cut_to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to bfloat16 by cutting off the lower half of a float32."""
    return (tensor.view(torch.int32) & -65536).view(torch.float32).bfloat16()


@pytest.mark.parametrize(
    ("change", "rounding"),
    [
        (cut_to_bfloat16, "towards zero"),
        (lambda t: t.half().bfloat16(), "twice: to float16, then to bfloat16"),
        (lambda t: t.bfloat16().half(), "twice: to bfloat16, then to float16"),
    ],
    ids=["bits cut off", "through float16", "through bfloat16"],
)
def test_a_wrong_rounding_is_named(
    tmp_path: Path, models: Path, change: Callable, rounding: str
) -> None:
    weights = torch.load(models / "llama.pt", weights_only=True)
    torch.save({name: change(value) for name, value in weights.items()}, tmp_path / "t.pt")
    result = compare_files(tmp_path / "t.pt", models / "llama")

    assert len(result.mistakes) == len(result.pairs) == 39
    assert all(
        pair.mistake.kind == "rounding" and rounding in pair.mistake.summary
        for pair in result.mistakes
    )


def write_bfloat16(
    models: Path, file: Path, change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Path:
    weights = torch.load(models / "llama.pt", weights_only=True)
    torch.save({name: change(name, value).bfloat16() for name, value in weights.items()}, file)
    return file


def test_bits_cut_off_are_found_if_both_sides_are_narrow(tmp_path: Path, models: Path) -> None:
    target = write_bfloat16(models, tmp_path / "t.pt", lambda name, t: cut_to_bfloat16(t))
    result = compare_files(target, write_bfloat16(models, tmp_path / "r.pt", lambda name, t: t))
    # by chance a vector of 64 elements can pass for noise
    assert len(result.mistakes) >= 30
    assert {pair.mistake.kind for pair in result.mistakes} == {"rounding"}


@pytest.mark.parametrize("factor", [1.01, 1.002])
def test_a_factor_below_the_noise_of_an_element_is_found(
    tmp_path: Path, models: Path, factor: float
) -> None:
    """0.2 % is half a unit of bfloat16, but in every element the same way."""
    scaled = "layers.1.self_attn.q_proj"
    target = write_bfloat16(
        models, tmp_path / "t.pt", lambda name, t: t * factor if scaled in name else t
    )
    result = compare_files(target, write_bfloat16(models, tmp_path / "r.pt", lambda name, t: t))
    assert {pair.path: pair.mistake.kind for pair in result.mistakes} == {
        "layers.1.attention.q.weight": "scaled"
    }


def test_noise_of_bfloat16_is_another_value(tmp_path: Path, models: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    noisy = write_bfloat16(
        models,
        tmp_path / "t.pt",
        lambda name, t: t * (1 + 2e-3 * torch.randn(t.shape, generator=generator)),
    )
    result = compare_files(noisy, write_bfloat16(models, tmp_path / "r.pt", lambda name, t: t))
    assert result.verdict == "differ"
    summaries = {pair.path: pair.mistake.summary for pair in result.mistakes}
    assert re.search(r"[\d,]+ of 16,000 elements moved, by up to \d ulps", summaries["head.weight"])


@pytest.mark.parametrize("learning_rate", [1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("target_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reference_dtype", [torch.bfloat16, torch.float32])
def test_one_optimizer_step_is_another_value(
    tmp_path: Path,
    learning_rate: float,
    target_dtype: torch.dtype,
    reference_dtype: torch.dtype,
) -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(512, 256, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.02)
    reference = layer.weight.detach().clone()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=learning_rate)
    layer(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
    torch.save({"layer.weight": layer.weight.detach().to(target_dtype)}, tmp_path / "t.pt")
    torch.save({"layer.weight": reference.to(reference_dtype)}, tmp_path / "r.pt")
    result = compare_files(tmp_path / "t.pt", tmp_path / "r.pt")

    (pair,) = result.pairs
    assert result.verdict == "differ"
    assert pair.mistake.kind == "changed"
    assert f"a learning rate of about {learning_rate:.1g}" in pair.mistake.summary


def test_a_step_of_norms_of_ones_is_no_rounding(tmp_path: Path, models: Path) -> None:
    """Rounded to bfloat16, 0.999 is one; but no other weight was rounded."""
    weights = torch.load(models / "llama.pt", weights_only=True)
    norm = "model.norm.weight"
    torch.save(weights | {norm: torch.ones_like(weights[norm])}, tmp_path / "r.pt")
    torch.save(
        {name: value * 0.999 for name, value in weights.items()}
        | {norm: torch.full_like(weights[norm], 0.999)},
        tmp_path / "t.pt",
    )
    result = compare_files(tmp_path / "t.pt", tmp_path / "r.pt")
    assert len(result.mistakes) == len(result.pairs)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_a_cast_on_the_way_of_small_values_is_a_rounding(
    tmp_path: Path, models: Path, stored: torch.dtype
) -> None:
    """float16 keeps few bits of numbers below 6e-5."""
    weights = torch.load(models / "llama.pt", weights_only=True)
    small = {name: value * 1e-4 for name, value in weights.items() if "norm" not in name}
    torch.save(
        {name: value.half().bfloat16().to(stored) for name, value in small.items()},
        tmp_path / "t.pt",
    )
    torch.save({name: value.bfloat16() for name, value in small.items()}, tmp_path / "r.pt")
    result = compare_files(tmp_path / "t.pt", tmp_path / "r.pt")
    assert {pair.mistake.kind for pair in result.mistakes} == {"rounding"}
    assert {pair.mistake.summary for pair in result.mistakes} == {
        "the reference's, cast to float16 on the way"
    }


@pytest.mark.parametrize("is_target", [True, False])
def test_numbers_of_8_bits_without_scales_are_named(
    tmp_path: Path, models: Path, is_target: bool
) -> None:
    """Every 8-bit number is exact in float16, so it is no cast through float16."""
    state = torch.load(models / "llama.pt")
    for name, value in state.items():
        if "_proj" in name:
            state[name] = value.to(torch.float8_e4m3fn)
    torch.save(state, tmp_path / "raw.pt")
    files = tmp_path / "raw.pt", models / "llama"
    result = compare_files(*(files if is_target else files[::-1]))
    assert {pair.mistake.summary for pair in result.mistakes} == {
        "rounded to float8_e4m3fn without scales"
    }
    assert len(result.mistakes) == 4 * 7


def test_8_bit_numbers_that_lost_their_scale_are_scaled(tmp_path: Path, models: Path) -> None:
    state = torch.load(models / "llama.pt")
    name = "model.layers.1.self_attn.o_proj.weight"
    state[name] = (state[name] * 1000).to(torch.float8_e4m3fn)
    torch.save(state, tmp_path / "raw.pt")
    (pair,) = compare_files(tmp_path / "raw.pt", models / "llama").mistakes
    assert pair.mistake.kind == "scaled"
    assert pair.mistake.summary.endswith("times the reference's: 8-bit numbers without their scale")


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_one_element_is_neither_a_constant_nor_a_factor(
    tmp_path: Path, models: Path, value: float
) -> None:
    """One element is always constant, and always a multiple of another."""
    state = torch.load(models / "llama.pt")
    name = "model.layers.1.input_layernorm.weight"
    state[name][5] = value
    torch.save(state, tmp_path / "one.pt")
    (pair,) = compare_files(tmp_path / "one.pt", models / "llama").mistakes
    assert pair.mistake.kind == "rows-wrong"
    assert f"1 of 64 rows (5) hold {value:g} where the reference has " in pair.mistake.summary


def test_a_cast_of_the_reference_is_named(tmp_path: Path, models: Path) -> None:
    state = torch.load(models / "llama.pt")
    small = {name: value * 1e-4 for name, value in state.items() if "proj" in name}
    once = {name: value.bfloat16() for name, value in small.items()}
    twice = {name: value.half().bfloat16() for name, value in small.items()}
    torch.save(once, tmp_path / "once.pt")
    torch.save(twice, tmp_path / "twice.pt")
    result = compare_files(tmp_path / "once.pt", tmp_path / "twice.pt")
    assert {pair.mistake.summary for pair in result.mistakes} == {
        "the reference's, which was cast to float16 on the way"
    }


def test_a_transposed_weight_of_another_shape_is_wrong(tmp_path: Path, models: Path) -> None:
    state = torch.load(models / "llama.pt")
    name = "model.layers.1.mlp.down_proj.weight"
    state[name] = state[name].T.contiguous()
    torch.save(state, tmp_path / "transposed.pt")
    (pair,) = compare_files(tmp_path / "transposed.pt", models / "llama").mistakes
    assert (pair.path, pair.mistake.kind) == ("layers.1.mlp.down_proj.weight", "transposed")


def test_a_tied_head_that_drifted_is_named(tmp_path: Path, models: Path) -> None:
    weights = torch.load(models / "gpt2.pt", weights_only=True)
    embedding = weights["transformer.wte.weight"]
    weights["lm_head.weight"] = embedding + 1e-5 * torch.sign(torch.randn_like(embedding))
    torch.save(weights, tmp_path / "t.pt")
    result = compare_files(tmp_path / "t.pt", models / "gpt2")
    assert {pair.path: pair.mistake.kind for pair in result.mistakes} == {
        "head.weight": "tied-head"
    }
    assert "elements moved" in result.mistakes[0].mistake.summary


def save_megatron_ranks(folder: Path, ranks: Mapping[tuple[int, int], Weights]) -> Path:
    stages = 1 + max(stage for _, stage in ranks)
    return layouts.save_megatron(
        folder, ranks, {**ARGUMENTS, "pipeline_model_parallel_size": stages}
    )


def test_norms_that_are_not_zero_centered_contrary_to_the_settings_are_wrong(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    ranks = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 1, 1)
    arguments = {**ARGUMENTS, "pipeline_model_parallel_size": 1, "apply_layernorm_1p": True}
    result = compare_files(layouts.save_megatron(tmp_path, ranks, arguments), models / "llama")

    assert {pair.mistake.kind for pair in result.mistakes} == {"offset"}
    assert all(
        "although the target stores norm weights minus one" in pair.mistake.summary
        for pair in result.mistakes
    )
    assert len(result.mistakes) == 9


def test_norms_of_one_model_that_are_stored_differently_are_wrong(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    """No setting says whether the target's norms are zero-centered; all but one seem to be."""
    weights, _ = hugging_face("llama")
    norms = [name for name in weights if name.endswith("norm.weight")]
    target = {
        name: value - np.float32(1) if name in norms[1:] else value
        for name, value in weights.items()
    }
    result = compare_files(save_weights(tmp_path / "t.safetensors", target), models / "llama")

    assert {pair.mistake.kind for pair in result.mistakes} == {"offset"}
    assert len(result.mistakes) == len(norms) - 1


def test_exchanged_pipeline_stages_are_found(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    ranks = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 1, 2)
    result = compare_files(
        save_megatron_ranks(tmp_path, {(0, 0): ranks[0, 1], (0, 1): ranks[0, 0]}), models / "llama"
    )

    assert {pair.mistake.kind for pair in result.mistakes} == {"swapped"}
    assert len(result.mistakes) == 36
    assert {line.message.partition("(")[2] for line in group_mistakes(result.mistakes)} == {
        "2 for 0; 3 for 1; 0 for 2; 1 for 3)"
    }


def test_exchanged_tensor_parallel_ranks_are_found(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    ranks = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 2, 1)
    result = compare_files(
        save_megatron_ranks(tmp_path, {(0, 0): ranks[1, 0], (1, 0): ranks[0, 0]}), models / "llama"
    )

    assert {pair.mistake.kind for pair in result.mistakes} == {
        "blocks-permuted",
        "columns-permuted",
    }
    assert all("the two halves" in pair.mistake.summary for pair in result.mistakes)


def test_ranks_that_should_be_replicas_but_differ_are_a_problem(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    ranks = layouts.shard_weights(layouts.convert_to_mcore(*hugging_face("llama")), 2, 1)
    ranks[1, 0]["decoder.layers.2.input_layernorm.weight"] = np.ones(64, np.float32)
    result = compare_files(save_megatron_ranks(tmp_path, ranks), models / "llama")
    assert [
        "decoder.layers.2.input_layernorm.weight differs between" in str(p) for p in result.problems
    ] == [True]


def test_padding_at_the_front_shifts_the_vocabulary(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights = pad_vocabulary(layouts.convert_to_mcore(*hugging_face("llama")))
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        weights[name] = np.roll(weights[name], 6, axis=0)
    result = compare_files(
        save_megatron_ranks(tmp_path, layouts.shard_weights(weights, 1, 1)), models / "llama"
    )
    assert {pair.path: pair.mistake.summary for pair in result.mistakes} == {
        "embedding.weight": "rows shifted by 6",
        "head.weight": "rows shifted by 6",
    }


def test_missing_and_additional_parameters_are_listed(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    fewer = {name: value for name, value in weights.items() if ".layers.3." not in name}
    file = save_weights(tmp_path / "fewer.safetensors", fewer)

    result = compare_files(file, models / "llama")
    assert (result.verdict, len(result.missing), result.unknown) == ("differ", 9, ())
    result = compare_files(models / "llama", file)
    assert (result.verdict, len(result.unknown), result.missing) == ("differ", 9, ())


def test_a_bias_of_zeros_on_one_side_agrees(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    weights, _ = hugging_face("llama")
    file = save_weights(
        tmp_path / "t.safetensors",
        {**weights, "model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)},
    )
    result = compare_files(file, models / "llama")
    assert result.verdict == "agree"
    assert any("zeros, and the reference has no such bias" in note for note in result.notes)


def test_another_model_differs(models: Path) -> None:
    result = compare_files(models / "qwen3", models / "mixtral")
    assert result.verdict == "differ"
    assert {pair.mistake.kind for pair in result.mistakes} >= {"shape"}
    assert result.missing


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("reference", ["float64", "float32", "bfloat16", "float16"])
def test_random_bits_are_compared_without_a_warning(
    tmp_path: Path, target: str, reference: str
) -> None:
    """NaN, infinities and numbers whose sum overflows cause no warning."""
    for dtype, file in ((target, "t.pt"), (reference, "r.pt")):
        random_bytes = np.random.default_rng(len(dtype)).bytes(32 * 32 * 8)
        matrix = torch.frombuffer(bytearray(random_bytes), dtype=getattr(torch, dtype))[
            : 32 * 32
        ].reshape(32, 32)
        weights = {
            "model.layers.0.self_attn.q_proj.weight": matrix,
            "model.norm.weight": matrix[0],
            "none": matrix[:0],
        }
        torch.save({**weights, "turn": torch.ones(3, dtype=torch.complex64)}, tmp_path / file)
    result = compare_files(tmp_path / "t.pt", tmp_path / "r.pt")
    assert result.verdict == ("agree" if target == reference else "differ")


def test_wrong_rows_of_a_weight_with_an_unknown_name_are_named(
    tmp_path: Path, models: Path, hugging_face: HuggingFace
) -> None:
    """Not: one parameter is missing, and one is not in the reference."""
    weights, _ = hugging_face("llama")
    renamed = {
        name.replace("model.layers", "trunk.segment").replace("self_attn", "mix"): value.copy()
        for name, value in weights.items()
    }
    wrong = "trunk.segment.1.mix.k_proj.weight"
    renamed[wrong][3] *= np.float32(3)
    result = compare_files(save_weights(tmp_path / "m.safetensors", renamed), models / "llama")

    assert (result.missing, result.unknown) == ((), ())
    (pair,) = result.mistakes
    assert (pair.target, pair.reference) == (wrong, "model.layers.1.self_attn.k_proj.weight")
    assert "row" in pair.mistake.summary
