"""Converted weights in the target framework: all parameters fit, and the logits are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.conversion import SourceOptions, TargetOptions

from .conftest import Convert, convert_folder

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.record

NOISE = 2e-5  #: relative to the largest logit: float32 in two layers, summed in another order


def run_fixture(*arguments: object) -> None:
    """Run fixture_model.py."""
    script = Path(__file__).parent / "fixture_model.py"
    command = [sys.executable, script, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture(scope="session")
def mindspore_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with model.ckpt of the MindSpore model of fixtures/, and its logits."""
    folder = tmp_path_factory.mktemp("fixture")
    run_fixture("save", folder)
    return folder


def compute_logits(folder: Path, tokens: np.ndarray, **config: object) -> np.ndarray:
    """Return the logits of transformers with a checkpoint that has exactly its parameters."""
    from transformers import AutoModelForCausalLM

    model, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **config
    )
    assert not loading_info["missing_keys"]
    assert not loading_info["unexpected_keys"]
    assert not loading_info["mismatched_keys"]
    with torch.no_grad():
        return model.eval()(torch.from_numpy(tokens).long()).logits.numpy()


def assert_close(logits: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(expected).max() > 0.1
    assert np.abs(logits - expected).max() <= NOISE * np.abs(expected).max()


def test_mindspore_to_hugging_face(tmp_path: Path, mindspore_model: Path) -> None:
    """A hand-written model: names by the rules, configuration from shapes and the given heads."""
    options = TargetOptions("huggingface")
    result = convert_folder(
        mindspore_model / "model.ckpt", tmp_path / "hf", options, SourceOptions(heads=4)
    )
    assert result.verified
    assert any("rms_norm_eps, rope_theta" in note for note in result.plan.notes)

    hf_logits = compute_logits(
        tmp_path / "hf", np.load(mindspore_model / "tokens.npy"), rms_norm_eps=1e-5
    )
    assert_close(hf_logits, np.load(mindspore_model / "logits.npy"))


@pytest.mark.parametrize("file", ["model.safetensors", "model.ckpt"])
def test_hugging_face_to_mindspore(tmp_path: Path, mindspore_model: Path, file: str) -> None:
    """Another Llama of transformers, with the names of the MindSpore model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, rms_norm_eps=1e-5, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "hf")
    result = convert_folder(
        tmp_path / "hf",
        tmp_path / "ms",
        TargetOptions("mindspore", is_ckpt=file.endswith(".ckpt")),
        like=mindspore_model / "model.ckpt",
    )
    assert result.verified

    run_fixture("load", tmp_path / "ms" / file, tmp_path)
    assert_close(
        np.load(tmp_path / "loaded.npy"),
        compute_logits(tmp_path / "hf", np.load(tmp_path / "tokens.npy")),
    )


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mixtral", "deepseek"])
@pytest.mark.parametrize("over", ["megatron", "mindspore"])
def test_transformers_loads_what_comes_back(
    convert_to: Convert, models: Path, name: str, over: str
) -> None:
    """The configuration is restored from Megatron's arguments, so the logits are identical."""
    options = {"tensor": 2, "pipeline": 2} if over == "megatron" else {}
    back = convert_to("huggingface", convert_to(over, models / name, **options))
    tokens = np.arange(24).reshape(2, 12)
    assert np.array_equal(compute_logits(back, tokens), compute_logits(models / name, tokens))
