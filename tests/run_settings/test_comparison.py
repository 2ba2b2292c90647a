"""The settings of two runs row by row: the state of each row, and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumpdiff.run_settings import (
    ComparedSetting,
    Settings,
    SettingsComparison,
    compare,
    read_settings,
)
from dumpdiff.run_settings.settings import Framework, SettingValue

SAMPLES = Path(__file__).parents[1] / "samples"
#: A launch without anything that could be told apart.
MEGATRON = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 16,
    "lr": 1e-3,
    "vocab_size": 128,
}


def make_settings(framework: Framework = "megatron", version: str = "", **values: Any) -> Settings:
    settings = {
        name.replace("__", "."): SettingValue(value, f"{framework}:1")
        for name, value in values.items()
    }
    return Settings(framework, framework, "test", settings, version=version)


def compare_row(name: str, target: Settings, reference: Settings) -> ComparedSetting:
    return next(row for row in compare(target, reference).rows if row.setting == name)


def read_changed(tmp_path: Path, name: str, *edits: tuple[str, str]) -> Settings:
    text = (SAMPLES / name).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / name).write_text(text)
    return read_settings(tmp_path / name)


@pytest.fixture
def pair() -> tuple[Settings, Settings]:
    return read_settings(SAMPLES / "llama.yaml"), read_settings(SAMPLES / "llama_megatron.sh")


def list_differing(comparison: SettingsComparison) -> set[str]:
    return {row.setting for row in comparison.select_rows("differ", "unsupported", matters=True)}


def test_a_yaml_and_a_script_that_say_the_same_agree(pair: tuple[Settings, Settings]) -> None:
    comparison = compare(*pair)
    assert comparison.verdict == "agree", comparison.to_stage()
    assert len(comparison.select_rows("agree")) > 60


def test_the_comparison_is_symmetric(pair: tuple[Settings, Settings]) -> None:
    forth, back = compare(*pair), compare(*reversed(pair))
    assert [o.state for o in forth.rows] == [o.state for o in back.rows]


@pytest.mark.parametrize(
    ("framework", "values", "setting", "reason"),
    [
        ("megatron", {"num_attention_heads": 0}, "head_dim", "num-attention-heads is 0"),
        (
            "megatron",
            {"train_iters": None, "train_samples": 64, "global_batch_size": 0},
            "train_iterations",
            "global-batch-size is 0",
        ),
        (
            "mindformers",
            {"model__model_config__hidden_size": 64, "model__model_config__num_heads": 0},
            "head_dim",
            "num_heads is 0",
        ),
    ],
)
def test_a_value_that_needs_a_division_by_zero_is_unknown(
    framework: Framework, values: dict[str, Any], setting: str, reason: str
) -> None:
    common_values = MEGATRON if framework == "megatron" else {}
    settings = make_settings(framework, **{**common_values, **values})
    row = compare_row(setting, settings, make_settings(**MEGATRON))
    assert (row.state, row.target.origin, row.target.reason) == ("inconclusive", "unknown", reason)


def test_a_side_against_itself_never_differs(pair: tuple[Settings, Settings]) -> None:
    for side in (*pair, read_settings(SAMPLES / "qwen_swift.sh")):
        assert compare(side, side).select_rows("differ", "unsupported") == []


@pytest.mark.parametrize(
    ("edit", "setting"),
    [
        (("rms_norm_eps: 1.e-5", "rms_norm_eps: 1.e-6"), "norm_epsilon"),
        (("num_hidden_layers: 2", "num_hidden_layers: 4"), "layers"),
        (("intermediate_size: 11008", "intermediate_size: 11264"), "ffn_hidden_size"),
        (
            ("num_attention_heads: 32", "num_attention_heads: 32\n    num_key_value_heads: 8"),
            "query_groups",
        ),
        (("gated_linear_unit: True", "gated_linear_unit: False"), "gated_linear_unit"),
        (("'silu'", "'gelu'"), "activation"),
        (("add_bias_linear: False", "add_bias_linear: True"), "linear_bias"),
        (("normalization: RMSNorm", "normalization: LayerNorm"), "normalization"),
        (("hidden_dropout: 0.0", "hidden_dropout: 0.1"), "hidden_dropout"),
        (("vocab_size: 32000", "vocab_size: 32128"), "vocabulary"),
        (
            ('compute_dtype: "bfloat16"\n    soft', 'compute_dtype: "float32"\n    soft'),
            "compute_dtype",
        ),
        (('params_dtype: "float32"', 'params_dtype: "bfloat16"'), "weight_dtype"),
        (
            ('softmax_compute_dtype: "bfloat16"', 'softmax_compute_dtype: "float32"'),
            "softmax_dtype",
        ),
        (("type: AdamW", "type: AdamWeightDecay"), "optimizer"),
        (("[0.9, 0.95]", "[0.9, 0.999]"), "betas"),
        (("  eps: 1.e-8", "  eps: 1.e-6"), "adam_epsilon"),
        (("weight_decay: 0.01", "weight_decay: 0.1"), "weight_decay"),
        (("learning_rate: 1.e-5", "learning_rate: 1.e-4"), "learning_rate"),
        (("ConstantWarmUpLR", "CosineWithWarmUpLR"), "schedule"),
        (("warmup_steps: 0", "warmup_steps: 10"), "warmup_steps"),
        (("use_clip_grad: True", "use_clip_grad: False"), "clip_grad"),
        (("gradient_accumulation_steps: 1", "gradient_accumulation_steps: 2"), "global_batch"),
        (('split: "1, 0, 0"', 'split: "9, 1, 0"'), "split"),
        (("      seed: 1234", "      seed: 4321"), "data_seed"),
        (
            (
                "position_embedding_type: rope",
                "position_embedding_type: rope\n    rope_theta: 500000.",
            ),
            "rotary_base",
        ),
        (
            (
                "position_embedding_type: rope",
                "position_embedding_type: rope\n    qk_layernorm: True",
            ),
            "qk_norm",
        ),
        (("    seq_length: 4096\n    rms", "    seq_length: 2048\n    rms"), "seq_length"),
    ],
)
def test_each_change_of_the_yaml_is_found(
    tmp_path: Path, edit: tuple[str, str], setting: str
) -> None:
    comparison = compare(
        read_changed(tmp_path, "llama.yaml", edit), read_settings(SAMPLES / "llama_megatron.sh")
    )
    assert comparison.verdict == "differ"
    assert setting in list_differing(comparison)
    assert len(list_differing(comparison)) <= 3


def test_the_reason_names_both_values_and_both_places(tmp_path: Path) -> None:
    target = read_changed(tmp_path, "llama.yaml", ("rms_norm_eps: 1.e-5", "rms_norm_eps: 1.e-6"))
    stage = compare(target, read_settings(SAMPLES / "llama_megatron.sh")).to_stage()
    assert stage.headline == "norm epsilon: 1e-06 (llama.yaml:55), 1e-05 (llama_megatron.sh:25)"


@pytest.mark.parametrize("parallel", ["model_parallel: 1", "pipeline_stage: 1"])
def test_parallel_settings_round_and_do_not_differ(tmp_path: Path, parallel: str) -> None:
    target = read_changed(tmp_path, "llama.yaml", (parallel, parallel.replace("1", "2")))
    comparison = compare(target, read_settings(SAMPLES / "llama_megatron.sh"))
    assert comparison.verdict == "agree"
    assert len(comparison.select_rows("differ", matters=False)) > 0


def test_an_option_the_other_framework_lacks_is_named_when_it_is_set(
    pair: tuple[Settings, Settings],
) -> None:
    reference = make_settings(
        **{name: setting.value for name, setting in pair[1].values.items()}, apply_layernorm_1p=True
    )
    row = compare_row("norm_one_plus", pair[0], reference)
    assert row.state == "unsupported"
    assert row.reason.endswith("MindSpore Transformers has no such option")
    assert compare_row("norm_one_plus", *pair).state == "unused"


def test_what_another_setting_makes_meaningless_is_not_compared() -> None:
    first, second = (
        make_settings(**MEGATRON, moe_router_topk=2),
        make_settings(**MEGATRON, moe_router_topk=8),
    )
    assert compare_row("topk", first, second).state == "unused"
    first, second = (make_settings(**MEGATRON, num_experts=8, moe_router_topk=k) for k in (2, 8))
    assert compare_row("topk", first, second).state == "differ"


def test_silence_means_the_default_of_the_framework() -> None:
    row = compare_row("betas", make_settings(**MEGATRON), make_settings("swift", **MEGATRON))
    assert (row.target.value, row.reference.value) == ((0.9, 0.999), (0.9, 0.95))
    assert (row.state, row.target.origin) == ("differ", "default")


def test_swift_takes_the_structure_from_a_file_that_is_not_here() -> None:
    row = compare_row("layers", make_settings(**MEGATRON), make_settings("swift"))
    assert row.state == "inconclusive"
    assert "config.json" in row.reason


def test_a_default_that_changed_needs_the_version() -> None:
    experts = {
        "use_legacy": False,
        "model__model_config__num_experts": 4,
        "model__model_config__moe_intermediate_size": 8,
    }

    def make_mindformers(version: str) -> Settings:
        return make_settings("mindformers", version, **experts)

    reference = make_settings(**MEGATRON, num_experts=4)
    assert compare_row("load_balancing", make_mindformers(""), reference).state == "inconclusive"
    assert compare_row("load_balancing", make_mindformers("1.6"), reference).state == "agree"
    assert compare_row("load_balancing", make_mindformers("1.7"), reference).state == "differ"


def test_a_condition_of_the_script_is_not_guessed(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(
        "A=(--num-layers 2 --hidden-size 64)\n"
        'if [ "$1" = x ]; then A+=(--swiglu); fi\ntorchrun pretrain_gpt.py ${A[@]}\n'
    )
    row = compare_row("activation", make_settings(**MEGATRON), read_settings(script))
    assert row.state == "inconclusive"
    assert "under a condition" in row.reason


@pytest.mark.parametrize(
    ("name", "megatron", "value"),
    [
        ("ffn_hidden_size", {}, 256),
        ("ffn_hidden_size", {"swiglu": True, "hidden_size": 4096}, 10880),
        ("head_dim", {}, 16),
        ("query_groups", {"num_query_groups": 2}, 4),
        ("query_groups", {"num_query_groups": 2, "group_query_attention": True}, 2),
        ("vocabulary", {"vocab_size": 4223}, 4224),
        ("vocabulary", {"vocab_size": 4223, "tensor_model_parallel_size": 8}, 5120),
        ("qkv_bias", {}, True),
        ("qkv_bias", {"add_bias_linear": False}, False),
        ("position_embedding", {"use_rotary_position_embeddings": True}, "rope"),
        ("position_embedding", {"add_position_embedding": False}, "none"),
        ("compute_dtype", {"bf16": True}, "bfloat16"),
        ("gradient_dtype", {"bf16": True}, "float32"),
        ("gradient_dtype", {"bf16": True, "grad_reduce_in_bf16": True}, "bfloat16"),
        (
            "global_batch",
            {"micro_batch_size": 2, "world_size": 16, "tensor_model_parallel_size": 4},
            8,
        ),
        (
            "data_parallel",
            {"world_size": 16, "tensor_model_parallel_size": 2, "context_parallel_size": 2},
            4,
        ),
        ("warmup_steps", {"lr_warmup_fraction": 0.05, "lr_decay_iters": 1000}, 50),
        (
            "warmup_steps",
            {"lr_warmup_fraction": 0.1, "train_samples": 800, "global_batch_size": 8},
            10,
        ),
        ("decay_steps", {"train_iters": 10}, 10),
        ("train_iterations", {"train_samples": 805, "global_batch_size": 8}, 100),
        ("sequence_parallel", {"sequence_parallel": True}, False),
        ("sequence_parallel", {"sequence_parallel": True, "tensor_model_parallel_size": 2}, True),
        ("flash_attention", {}, True),
        ("flash_attention", {"attention_backend": "AttnBackend.unfused"}, False),
        ("moe_layers", {"num_experts": 2, "moe_layer_freq": "([0]*1+[1]*3)"}, "0111"),
        ("moe_layers", {"num_experts": 2, "num_layers": 4, "moe_layer_freq": 2}, "1010"),
        ("split", {"split": "949,50,1"}, (0.949, 0.05, 0.001)),
        ("topk_normalised", {"num_experts": 2, "moe_router_pre_softmax": True}, False),
        ("router_dtype", {"num_experts": 2, "bf16": True}, "bfloat16"),
    ],
)
def test_what_follows_from_several_options_of_megatron(
    name: str, megatron: dict[str, Any], value: Any
) -> None:
    side = make_settings(version="0.12", **{**MEGATRON, **megatron})
    assert compare_row(name, side, side).target.value == value


YAML = {
    "use_legacy": False,
    "model__model_config__num_layers": 4,
    "model__model_config__hidden_size": 64,
    "model__model_config__num_heads": 4,
}
PLAIN = {"model__model_config__use_flash_attention": False}
PIPELINE = {"parallel_config__micro_batch_num": 4, "parallel_config__pipeline_stage": 2}
ACCUMULATED = {"micro_batch_interleave_num": 2, "runner_config__gradient_accumulation_steps": 3}
SIZES = {"train_dataset__data_loader__sizes": [100, 0, 0]}
EXPERTS = {"moe_config__expert_num": 8}
SHARED = {"moe_config__shared_expert_num": 2, "moe_config__moe_intermediate_size": 32}
DROPPED = {"moe_config__capacity_factor": 1.1, "moe_config__enable_sdrop": True}


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("global_batch", {"runner_config__batch_size": 2, "parallel_config__data_parallel": 4}, 8),
        (
            "global_batch",
            {"runner_config__batch_size": 2, "parallel_config__micro_batch_num": 4},
            2,
        ),
        ("global_batch", {"runner_config__batch_size": 2, **PIPELINE}, 8),
        ("global_batch", {"runner_config__batch_size": 1, **ACCUMULATED}, 6),
        (
            "train_iterations",
            {"runner_config__batch_size": 3, "runner_config__epochs": 2, **SIZES},
            66,
        ),
        ("adam_epsilon", {"optimizer__type": "AdamW"}, 1e-8),
        ("adam_epsilon", {"optimizer__type": "FP32StateAdamWeightDecay"}, 1e-6),
        ("betas", {"optimizer__beta1": 0.9, "optimizer__beta2": 0.95}, (0.9, 0.95)),
        ("clip_grad", {"runner_wrapper__use_clip_grad": False}, 0.0),
        ("clip_grad", {}, 1.0),
        ("gated_linear_unit", {"model__model_config__hidden_act": "swiglu"}, True),
        ("untied_embeddings", {"model__model_config__tie_word_embeddings": True}, False),
        ("schedule", {"lr_schedule__type": "PolynomialWithWarmUpLR"}, "linear"),
        ("schedule", {}, "constant"),
        ("warmup_steps", {"lr_schedule__warmup_ratio": 0.1, "lr_schedule__total_steps": 200}, 20),
        ("shared_expert_size", {**EXPERTS, **SHARED}, 64),
        ("moe_layers", {**EXPERTS, "moe_config__first_k_dense_replace": 1}, "0111"),
        ("router_score", {**EXPERTS, "moe_config__use_gating_sigmoid": True}, "sigmoid"),
        ("drop_policy", {**EXPERTS, **DROPPED}, "position"),
        ("head_dim", {}, 16),
        ("query_groups", {"model__model_config__n_kv_heads": 2}, 2),
        ("recompute", {"recompute_config__recompute": [1, 2]}, True),
        ("residual_fp32", {"model__model_config__fp32_residual_connection": True}, True),
        ("residual_fp32", {"model__model_config__residual_dtype": "float32"}, True),
        (
            "softmax_dtype",
            {**PLAIN, "model__model_config__attention_softmax_in_fp32": False},
            "bfloat16",
        ),
        ("softmax_dtype", PLAIN, "float32"),
        ("topk_normalised", {**EXPERTS, "moe_config__norm_topk_prob": False}, False),
    ],
)
def test_what_follows_from_several_keys_of_mindspore_transformers(
    name: str, keys: dict[str, Any], value: Any
) -> None:
    side = make_settings("mindformers", **{**YAML, **keys})
    assert compare_row(name, side, side).target.value == value


def test_a_legacy_llama_has_a_feed_forward_of_8_thirds() -> None:
    side = make_settings(
        "mindformers", model__model_config__hidden_size=4096, model__model_config__multiple_of=256
    )
    assert compare_row("ffn_hidden_size", side, side).target.value == 11008


def test_what_stands_in_no_row_is_listed() -> None:
    comparison = compare(make_settings(**MEGATRON, my_own_option=1), make_settings(**MEGATRON))
    assert comparison.unread == {"target": ("my_own_option",), "reference": ()}


@pytest.mark.parametrize(
    ("first_text", "second_text"),
    [("1e-5", 0.00001), ("1E-05", "1.0e-5"), (1, "1.0")],
)
def test_numbers_are_compared_as_numbers(first_text: Any, second_text: Any) -> None:
    assert (
        compare_row(
            "norm_epsilon",
            make_settings(**MEGATRON, norm_epsilon=first_text),
            make_settings(**MEGATRON, norm_epsilon=second_text),
        ).state
        == "agree"
    )


def test_a_value_of_the_wrong_kind_is_not_compared() -> None:
    row = compare_row("layers", make_settings(num_layers="many"), make_settings(num_layers=2))
    assert row.state == "inconclusive"
    assert "'many', which is no integer" in row.reason
