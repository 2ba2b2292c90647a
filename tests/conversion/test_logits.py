"""Converted weights in the framework that is to load them: every parameter fits, and the logits are the source's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.conversion import SourceOptions, TargetOptions

from .conftest import To, converted

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.record

NOISE = 2e-5  #: of the largest logit: float32 through two layers, in another order of sums


def run_fixture(*arguments: object) -> None:
    """Run fixture_model.py."""
    script = Path(__file__).parent / "fixture_model.py"
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="session")
def mindspore_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.ckpt of the MindSpore model of fixtures/, and the logits it gives."""
    folder = tmp_path_factory.mktemp("fixture")
    run_fixture("save", folder)
    return folder


def logits(folder: Path, tokens: np.ndarray, **config: object) -> np.ndarray:
    """What transformers computes with a checkpoint, into which every parameter must come."""
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **config)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    with torch.no_grad():
        return model.eval()(torch.from_numpy(tokens).long()).logits.numpy()


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(wanted).max() > 0.1
    assert np.abs(found - wanted).max() <= NOISE * np.abs(wanted).max()


def test_mindspore_to_hugging_face(tmp_path: Path, mindspore_model: Path) -> None:
    """A hand-written model: its names by the rules, its configuration from the shapes and the heads that are given."""
    wanted = TargetOptions("huggingface")
    result = converted(mindspore_model / "model.ckpt", tmp_path / "hf", wanted, SourceOptions(heads=4))
    assert result.verified
    assert any("rms_norm_eps, rope_theta" in note for note in result.plan.notes)

    found = logits(tmp_path / "hf", np.load(mindspore_model / "tokens.npy"), rms_norm_eps=1e-5)
    assert_near(found, np.load(mindspore_model / "logits.npy"))


def test_hugging_face_to_mindspore(tmp_path: Path, mindspore_model: Path) -> None:
    """Another Llama of transformers, under the names that the MindSpore model has."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, rms_norm_eps=1e-5, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "hf")
    result = converted(
        tmp_path / "hf", tmp_path / "ms", TargetOptions("mindspore"), like=mindspore_model / "model.ckpt"
    )
    assert result.verified

    run_fixture("load", tmp_path / "ms" / "model.safetensors", tmp_path)
    assert_near(
        np.load(tmp_path / "loaded.npy"), logits(tmp_path / "hf", np.load(tmp_path / "tokens.npy"))
    )


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mixtral", "deepseek"])
@pytest.mark.parametrize("over", ["megatron", "mindspore"])
def test_transformers_loads_what_comes_back(to: To, models: Path, name: str, over: str) -> None:
    """The configuration too comes back, from Megatron's arguments: the very same logits."""
    options = {"tensor": 2, "stages": 2} if over == "megatron" else {}
    back = to("huggingface", to(over, models / name, **options))
    tokens = np.arange(24).reshape(2, 12)
    assert np.array_equal(logits(back, tokens), logits(models / name, tokens))
