"""gpt-oss: sinks, experts with biases and gate and up in turn, sliding windows, YaRN."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dumpdiff import checkpoints
from dumpdiff.conversion import ParallelSizes, SourceOptions, TargetOptions, plan_conversion
from dumpdiff.model.errors import DumpError

from .conftest import RULES, Convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

#: What Megatron's arguments say about the model below; the window is three keys and the query's.
MEGATRON = {
    "softmax_type": "learnable",
    "quick_geglu": True,
    "swiglu": False,
    "glu_linear_offset": 1.0,
    "activation_func_clamp_value": 5.0,
    "moe_router_pre_softmax": False,
    "window_size": [3, 0],
    "window_attn_skip_freq": [1, 0],
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 32.0,
}


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss with random weights, biases and sinks."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    config = transformers.GptOssConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        vocab_size=250,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
        swiglu_limit=5.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(7)
    model = transformers.GptOssForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return folder


def load_model(folder: Path) -> object:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("engine", [False, True], ids=["local", "transformer engine"])
def test_every_split_and_back(
    convert_to: Convert, gpt_oss: Path, engine: bool, tmp_path: Path
) -> None:
    megatron = convert_to(
        "megatron", gpt_oss, tensor=2, expert=2, expert_tensor=1, transformer_engine=engine
    )
    back = convert_to("huggingface", megatron)
    weights, written = (load_file(folder / "model.safetensors") for folder in (gpt_oss, back))
    assert weights.keys() == written.keys()
    for name, value in weights.items():
        assert np.array_equal(value, written[name]), name
    tokens = torch.arange(3, 27).reshape(2, 12)
    with torch.no_grad():
        logits, expected = (load_model(folder)(tokens).logits for folder in (back, gpt_oss))
    assert torch.equal(logits, expected)


def test_the_arguments_of_megatron_say_what_the_model_computes(
    convert_to: Convert, gpt_oss: Path
) -> None:
    megatron = convert_to("megatron", gpt_oss)
    arguments = checkpoints.open(megatron).settings
    assert {name: arguments[name] for name in MEGATRON} == MEGATRON
    sizes = {"tensor": 2, "expert": 2, "expert_tensor": 1}
    split_again = checkpoints.open(convert_to("megatron", megatron, **sizes)).settings
    assert {name: split_again[name] for name in MEGATRON} == MEGATRON
    assert split_again["tensor_model_parallel_size"] == 2
    config = json.loads((convert_to("huggingface", megatron) / "config.json").read_text())
    assert (config["model_type"], config["swiglu_limit"]) == ("gpt_oss", 5.0)
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["sliding_window"] == 4


def test_yarn_is_said_to_have_no_option_of_megatron(gpt_oss: Path) -> None:
    result = plan_conversion(
        checkpoints.open(gpt_oss), SourceOptions(), TargetOptions("megatron"), RULES
    )
    (note,) = result.plan.notes
    assert "no place for the scaling of RoPE (rope_type yarn, " in note


def test_an_expert_with_biases_is_not_split(gpt_oss: Path) -> None:
    """Megatron-core's configuration refuses it."""
    options = TargetOptions("megatron", sizes=ParallelSizes(tensor=2))
    with pytest.raises(DumpError, match="--etp 2: its experts have biases"):
        plan_conversion(checkpoints.open(gpt_oss), SourceOptions(), options, RULES)


def test_mindspore_transformers_is_refused(gpt_oss: Path) -> None:
    with pytest.raises(
        DumpError, match=r"gpt_oss is not converted to mindspore: .* has no gpt-oss"
    ):
        plan_conversion(
            checkpoints.open(gpt_oss), SourceOptions(), TargetOptions("mindspore"), RULES
        )
