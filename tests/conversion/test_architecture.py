"""Only known families are converted, and what a checkpoint cannot carry is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from weight_comparison.layouts import Weights
from weight_comparison.models import DEEPSEEK_SIZES

from dumpdiff import checkpoints
from dumpdiff.conversion import SourceOptions, TargetOptions, plan_conversion
from dumpdiff.model.errors import DumpError
from dumpdiff.rulebook import load_rules

from .conftest import RULES, Convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HuggingFace = Callable[[str], tuple[Weights, Mapping[str, object]]]

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 250,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


#: transformers builds no layers of multi-token prediction, and its configuration counts one.
NO_PREDICTIONS = {"num_nextn_predict_layers": 0}


def save_model(folder: Path, name: str, **settings: object) -> Path:
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return folder


def plan(source: Path, framework: str = "megatron") -> tuple[str, ...]:
    """Return the notes of a plan."""
    result = plan_conversion(
        checkpoints.open(source), SourceOptions(), TargetOptions(framework), RULES
    )
    return result.plan.notes


def read_arguments(folder: Path) -> Mapping[str, object]:
    return checkpoints.open(folder).settings


@pytest.mark.parametrize(
    ("name", "model_type", "reason"),
    [
        ("Cohere", "cohere", "attention and MLP read the same norm"),
        (
            "Gemma2",
            "gemma2",
            "Megatron-core does not have its norms behind attention and MLP, and its soft",
        ),
        ("Olmo2", "olmo2", "Megatron-core does not have its norms"),
        ("Glm4", "glm4", "Megatron-core does not have its norms"),
    ],
)
def test_what_no_target_computes_is_refused_with_the_reason(
    tmp_path: Path, name: str, model_type: str, reason: str
) -> None:
    """Each framework has a reason of its own."""
    source = save_model(tmp_path, name)
    reasons = {
        "megatron": reason,
        "mindspore": r"MindSpore Transformers 2\.1",
        "huggingface": "its checkpoints are compared only",
    }
    for framework, expected in reasons.items():
        message = f"{model_type} is not converted to {framework}: {expected}"
        with pytest.raises(DumpError, match=message):
            plan(source, framework)


@pytest.mark.parametrize("model_type", ["t5", "vit", "qwen2_5_vl", "qwen3_next"])
def test_what_has_no_converter_yet_is_refused_by_name(tmp_path: Path, model_type: str) -> None:
    source = rename_model_type(save_model(tmp_path, "Llama"), model_type)
    reasons = {"megatron": ".*Megatron-core", "mindspore": r"MindSpore Transformers 2\.1 has no"}
    for framework, reason in reasons.items():
        message = f"{model_type} is not converted to {framework}: {reason}"
        with pytest.raises(DumpError, match=message):
            plan(source, framework)


@pytest.mark.parametrize("name", ["Phi3", "Starcoder2"])
def test_a_target_without_the_family_is_refused(tmp_path: Path, name: str) -> None:
    source = save_model(tmp_path, name)
    with pytest.raises(DumpError, match=f"MindSpore Transformers 2.1 has no {name[:-1]}"):
        plan(source, "mindspore")


def rename_model_type(folder: Path, model_type: str) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = model_type
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("framework", ["megatron", "huggingface", "mindspore"])
def test_an_unknown_family_is_refused_by_name(tmp_path: Path, framework: str) -> None:
    source = rename_model_type(save_model(tmp_path, "Llama"), "new_model")
    with pytest.raises(DumpError, match=r"model_type new_model in .* is not converted"):
        plan(source, framework)


def test_a_rule_file_adds_a_family(tmp_path: Path) -> None:
    source = rename_model_type(save_model(tmp_path / "model", "Llama"), "new_model")
    file = tmp_path / "new_model.yaml"
    file.write_text(
        """families:
  new_model:
    extends: llama
    model_types: {new_model: NewModelForCausalLM}
    converts_to: [megatron]
"""
    )
    result = plan_conversion(
        checkpoints.open(source), SourceOptions(), TargetOptions("megatron"), load_rules([file])
    )
    assert len(result.plan.files[0].tensors) == 2 * 6 + 3
    with pytest.raises(DumpError, match="new_model is not converted to mindspore"):
        plan_conversion(
            checkpoints.open(source),
            SourceOptions(),
            TargetOptions("mindspore"),
            load_rules([file]),
        )


def test_another_architecture_is_not_written_under_the_name_of_the_source(tmp_path: Path) -> None:
    source = save_model(tmp_path, "Phi3")
    options = TargetOptions("huggingface", model_type="llama")
    with pytest.raises(DumpError, match="of the source says phi3"):
        plan_conversion(checkpoints.open(source), SourceOptions(), options, RULES)


def test_layers_without_a_norm_are_refused_without_a_configuration(tmp_path: Path) -> None:
    """Cohere has the names of Llama, but attention and MLP read one norm."""
    source = save_model(tmp_path, "Cohere")
    (source / "config.json").unlink()
    with pytest.raises(DumpError, match="layer 0 has no post_attention_norm"):
        plan(source, "huggingface")


def test_a_layer_norm_is_not_written_as_llama(tmp_path: Path, hugging_face: HuggingFace) -> None:
    weights, _ = hugging_face("llama")
    with_biases = dict(weights)
    for name, value in weights.items():
        if "norm" in name:
            with_biases[name.replace("weight", "bias")] = np.zeros_like(value)
    torch.save(
        {n: torch.from_numpy(np.array(v)) for n, v in with_biases.items()}, tmp_path / "m.pt"
    )
    with pytest.raises(DumpError, match="the source has LayerNorm, and llama has RMSNorm"):
        plan(tmp_path / "m.pt", "huggingface")


def test_the_rope_scaling_of_llama3_goes_to_megatron_and_back(
    tmp_path: Path, convert_to: Convert
) -> None:
    source = save_model(tmp_path / "llama3", "Llama", rope_parameters=LLAMA3_SCALING)
    megatron = convert_to("megatron", source)
    arguments = read_arguments(megatron)
    assert (arguments["use_rope_scaling"], arguments["rope_scaling_factor"]) == (True, 8.0)
    config = json.loads((convert_to("huggingface", megatron) / "config.json").read_text())
    expected = {key: value for key, value in LLAMA3_SCALING.items() if key != "rope_theta"}
    assert config["rope_scaling"] == expected
    assert config["rope_theta"] == 5e5


def test_linear_scaling_is_the_interpolation_factor_of_megatron(
    tmp_path: Path, convert_to: Convert
) -> None:
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    source = save_model(tmp_path / "linear", "Llama", rope_parameters=linear)
    assert plan(source) == ()
    megatron = convert_to("megatron", source)
    assert read_arguments(megatron)["rotary_seq_len_interpolation_factor"] == 4
    split_again = convert_to("megatron", megatron, tensor=2)
    assert read_arguments(split_again)["rotary_seq_len_interpolation_factor"] == 4
    config = json.loads((convert_to("huggingface", megatron) / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize("kind", [("dynamic", 2.0), ("linear", 2.5)], ids=str)
def test_a_scaling_that_megatron_lacks_is_said(tmp_path: Path, kind: tuple[str, float]) -> None:
    """The factor of linear scaling is an integer on Megatron's command line."""
    rope_type, factor = kind
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": factor}
    (note,) = plan(save_model(tmp_path, "Llama", rope_parameters=parameters))
    assert f"no place for the scaling of RoPE (rope_type {rope_type}, factor {factor})" in note


def test_a_plain_llama_has_nothing_to_say(tmp_path: Path) -> None:
    assert plan(save_model(tmp_path, "Llama")) == ()


@pytest.mark.parametrize(("name", "model_type"), [("V2", "deepseek_v2"), ("V3", "deepseek_v3")])
def test_deepseek_comes_back_as_the_version_that_it_was(
    tmp_path: Path, convert_to: Convert, name: str, model_type: str
) -> None:
    source = save_model(
        tmp_path / "deepseek",
        f"Deepseek{name}",
        **DEEPSEEK_SIZES,
        num_key_value_heads=8,
    )
    folder = convert_to("huggingface", convert_to("megatron", source))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.model_type == model_type
    original = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokens = torch.arange(3, 19).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, original(tokens).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "is_normalized", "pre_softmax"),
    [("Mixtral", None, False), ("Qwen3Moe", True, False), ("Qwen3Moe", False, True)],
)
def test_the_router_of_megatron_normalizes_as_the_source(
    tmp_path: Path, convert_to: Convert, name: str, is_normalized: bool | None, pre_softmax: bool
) -> None:
    settings = {} if is_normalized is None else {"norm_topk_prob": is_normalized}
    sizes = {"num_local_experts": 4} if name == "Mixtral" else {"num_experts": 4}
    source = save_model(
        tmp_path / "moe", name, **sizes, **settings, num_experts_per_tok=2, moe_intermediate_size=32
    )
    arguments = read_arguments(convert_to("megatron", source))
    assert arguments["moe_router_pre_softmax"] is pre_softmax
    assert arguments["moe_router_score_function"] == "softmax"


def test_numbers_that_the_source_does_not_state_are_options(
    convert_to: Convert, models: Path
) -> None:
    """A file of weights without a configuration, as MindSpore Transformers saves it."""
    facts = {"positions": 512, "rope_theta": 5e5, "norm_epsilon": 1e-6}
    stated = SourceOptions(
        heads=8, groups=4, facts=facts, norm="RMSNorm", position_embedding="rope"
    )
    arguments = read_arguments(convert_to("megatron", models / "llama.pt", stated))
    assert arguments["max_position_embeddings"] == 512
    assert arguments["rotary_base"] == 5e5
    assert arguments["norm_epsilon"] == 1e-6
    back = convert_to("huggingface", models / "llama.pt", stated)
    config = json.loads((back / "config.json").read_text())
    assert (config["max_position_embeddings"], config["rope_theta"]) == (512, 5e5)
    assert config["rms_norm_eps"] == 1e-6


def test_numbers_are_added_to_a_configuration_without_them(
    tmp_path: Path, convert_to: Convert
) -> None:
    source = save_model(tmp_path / "llama", "Llama")
    config = json.loads((source / "config.json").read_text())
    del config["rms_norm_eps"]
    (source / "config.json").write_text(json.dumps(config))
    back = convert_to("huggingface", source, SourceOptions(facts={"norm_epsilon": 2e-6}))
    assert json.loads((back / "config.json").read_text())["rms_norm_eps"] == 2e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            SourceOptions(facts={"rope_theta": 5e5}),
            r"--rotary-base 500000.0: the source says 10000",
        ),
        (
            SourceOptions(facts={"norm_epsilon": 1e-5}),
            "--norm-epsilon 1e-05: the source says 1e-06",
        ),
        (SourceOptions(norm="LayerNorm"), "--normalization LayerNorm: the norms of the source are"),
        (SourceOptions(position_embedding="learned_absolute"), "the source has no embedding of"),
    ],
)
def test_what_contradicts_the_source_is_refused(
    tmp_path: Path, options: SourceOptions, message: str
) -> None:
    source = checkpoints.open(save_model(tmp_path, "Llama"))
    with pytest.raises(DumpError, match=message):
        plan_conversion(source, options, TargetOptions("megatron"), RULES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"attention_bias": True},
            r"attention\.out has a bias and mlp\.down_proj has none: .* --bias",
        ),
        ({"mlp_bias": True}, r"mlp\.down_proj has a bias and attention\.out has none"),
    ],
)
def test_biases_that_megatron_cannot_have_are_refused(
    tmp_path: Path, convert_to: Convert, settings: dict[str, bool], message: str
) -> None:
    """Megatron has biases in attention and MLP or in none; zeros can be added."""
    source = save_model(tmp_path / "source", "Llama", **settings)
    with pytest.raises(DumpError, match=message):
        plan(source)
    arguments = read_arguments(convert_to("megatron", source, bias=True))
    assert arguments["add_bias_linear"] is True


def test_biases_come_back_with_their_settings(tmp_path: Path, convert_to: Convert) -> None:
    source = save_model(tmp_path / "source", "Llama", attention_bias=True, mlp_bias=True)
    back = convert_to("huggingface", convert_to("megatron", source))
    config = json.loads((back / "config.json").read_text())
    assert (config["attention_bias"], config["mlp_bias"]) == (True, True)


def test_a_family_cannot_have_dense_layers_where_its_configuration_has_none(
    tmp_path: Path, convert_to: Convert
) -> None:
    source = save_model(tmp_path / "source", "Qwen3Moe", mlp_only_layers=[1], num_experts=4)
    megatron = convert_to("megatron", source)
    assert read_arguments(megatron)["moe_layer_freq"] == [1, 0]
    config = json.loads((convert_to("huggingface", megatron) / "config.json").read_text())
    assert config["mlp_only_layers"] == [1]
    options = TargetOptions("huggingface", model_type="glm4_moe")
    with pytest.raises(DumpError, match="glm4_moe has all dense layers before those of experts"):
        plan_conversion(checkpoints.open(megatron), SourceOptions(), options, RULES)


@pytest.mark.parametrize(
    ("name", "settings", "lost"),
    [
        ("DeepseekV3", {"norm_topk_prob": False, **NO_PREDICTIONS}, "norm_topk_prob False"),
        ("DeepseekV2", {"topk_method": "greedy"}, ""),
        ("Phi3", {"original_max_position_embeddings": 4096}, ""),
        ("Mistral", {"sliding_window": 4}, ""),
    ],
)
def test_settings_of_the_computation_are_said_to_be_lost_or_have_no_effect(
    tmp_path: Path, name: str, settings: dict[str, object], lost: str
) -> None:
    notes = plan(save_model(tmp_path, name, **settings))
    assert [note for note in notes if "no place for" in note] == [
        f"Megatron's arguments have no place for {lost}: see to it that the target computes them"
    ] * bool(lost)
