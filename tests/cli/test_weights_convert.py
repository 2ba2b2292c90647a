"""``dumpdiff weights convert``: a plan, a conversion, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from schemas import check

from .conftest import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(5).standard_normal
    shapes = {
        "self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 16),
        "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24),
        "input_layernorm": (16,), "post_attention_layernorm": (16,),
    }  # fmt: skip
    weights = {
        f"model.layers.{layer}.{part}.weight": draw(shape).astype(np.float32)
        for layer in range(2)
        for part, shape in shapes.items()
    }
    for name, shape in {
        "model.embed_tokens": (40, 16),
        "model.norm": (16,),
        "lm_head": (40, 16),
    }.items():
        weights[f"{name}.weight"] = draw(shape).astype(np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


HEADS = ("--heads", "4", "--query-groups", "2")


def test_there_and_back(run: Run, source: Path, tmp_path: Path) -> None:
    outcome = run(
        "weights",
        "convert",
        source,
        "--to",
        "megatron",
        "--tp",
        "2",
        *HEADS,
        "-o",
        tmp_path / "megatron",
    )
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("written: 30 tensors in 2 files, ")
    assert "same weights, bit for bit" in outcome.stdout.splitlines()[0]

    back = run(
        "weights", "convert", tmp_path / "megatron", "--to", "huggingface", "-o", tmp_path / "hf"
    )
    assert back.exit_code == 0
    returned, original = load_file(tmp_path / "hf" / "model.safetensors"), load_file(source)
    assert returned.keys() == original.keys()
    for name, value in original.items():
        assert np.array_equal(returned[name], value)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_key_value_heads"] == 2


def test_a_plan_writes_nothing(run: Run, source: Path, tmp_path: Path) -> None:
    outcome = run(
        "weights", "convert", source, "--to", "megatron", *HEADS, "--plan", "-o", tmp_path / "out"
    )
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("would write 15 tensors in one file")
    assert (
        "  decoder.layers.0.mlp.linear_fc1.weight  float32 [48, 16]  "
        "<- model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight\n"
    ) in outcome.stdout
    assert not (tmp_path / "out").exists()


def test_json(run: Run, source: Path, tmp_path: Path) -> None:
    outcome = run(
        "weights",
        "convert",
        source,
        "--to",
        "mindspore",
        *HEADS,
        "-o",
        tmp_path / "out",
        "--json",
        "-",
    )
    document = json.loads(outcome.stdout)
    check(document, "convert")
    assert document["verified"] is True
    assert document["comparison"]["verdict"] == "agree"
    assert document["files"][0]["name"] == "model.safetensors"


def test_wrong_usage_is_one_line(run: Run, source: Path, tmp_path: Path) -> None:
    for arguments in (
        (source, "--to", "megatron", "--plan"),
        (source, "--to", "megatron", *HEADS, "-o", tmp_path),
        (source, "--to", "megatron", *HEADS, "--pp", "3", "--plan"),
        (tmp_path / "nothing", "--to", "megatron", "--plan"),
    ):
        outcome = run("weights", "convert", *arguments)
        assert outcome.exit_code == 2
        assert len(outcome.stderr.strip().splitlines()) == 1
    assert run("weights", "convert", source, "--to", "megatron").exit_code == 2


def test_help(run: Run) -> None:
    outcome = run("weights", "convert", "-h")
    assert outcome.exit_code == 0
    assert "--make-vocab-size-divisible-by" in outcome.stdout


def test_files_for_transformers_in_the_same_run(run: Run, source: Path, tmp_path: Path) -> None:
    outcome = run(
        "weights", "convert", source, "--to", "megatron", *HEADS, "-o", tmp_path / "megatron",
        "--huggingface-output", tmp_path / "hf", "--json", tmp_path / "result.json",
    )  # fmt: skip
    assert outcome.exit_code == 0
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("written: ")]
    assert [line.rpartition("same weights, ")[2][:11] for line in lines] == ["bit for bit"] * 2
    returned, original = load_file(tmp_path / "hf" / "model.safetensors"), load_file(source)
    assert all(np.array_equal(returned[name], value) for name, value in original.items())
    document = json.loads((tmp_path / "result.json").read_text())
    check(document, "convert")
    assert document["huggingface"]["verified"] is True


def test_nothing_is_written_if_the_second_folder_is_in_use(
    run: Run, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "file").touch()
    outcome = run(
        "weights", "convert", source, "--to", "megatron", *HEADS, "-o", tmp_path / "megatron",
        "--huggingface-output", tmp_path / "hf",
    )  # fmt: skip
    assert outcome.exit_code == 2
    assert "hf: exists, nothing is overwritten" in outcome.stderr
    assert not (tmp_path / "megatron").exists()
