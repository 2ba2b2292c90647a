"""Foreign files are read for what they are, or refused by their name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.run_settings import Settings, SettingsComparison, compare, read_settings
from dumpdiff.run_settings.settings import Framework

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}
MODEL_CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
LLAMA_FACTORY = """\
model_name_or_path: model
stage: sft
finetuning_type: full
template: qwen
cutoff_len: 512
learning_rate: 1.0e-5
per_device_train_batch_size: 1
bf16: true
max_steps: 100
warmup_ratio: 0.1
"""
NEMO = """\
trainer: {precision: bf16, max_steps: 10}
exp_manager: {name: x}
model:
  micro_batch_size: 1
  global_batch_size: 8
  num_attention_heads: 4
  num_query_groups: ${model.num_attention_heads}
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "debugmodel"
[optimizer]
lr = 8e-4
[lr_scheduler]
warmup_steps = 2
[training]
local_batch_size = 8
seq_len = 2048
max_norm = 1.0
[parallelism]
tensor_parallel_degree = 1
"""


def read_text(tmp_path: Path, name: str, text: str) -> Settings:
    (tmp_path / name).write_text(text)
    return read_settings(tmp_path / name)


def compare_texts(tmp_path: Path, name: str, target: str, reference: str) -> SettingsComparison:
    (tmp_path / "other").mkdir()
    return compare(
        read_text(tmp_path, name, target), read_text(tmp_path / "other", name, reference)
    )


def list_differing(comparison: SettingsComparison) -> dict[str, tuple[object, object]]:
    return {
        row.setting: (row.target.value, row.reference.value)
        for row in comparison.select_rows("differ", "unsupported", matters=True)
    }


@pytest.mark.parametrize(
    ("name", "document", "kind"),
    [
        (
            "config.json",
            {"task": "statistics", "dump_path": "d", "level": "mix", "rank": [], "step": [0]},
            "msprobe's own config.json",
        ),
        ("config.json", MODEL_CONFIG, "a Hugging Face model config"),
        (
            "result.json",
            {"schema_version": "2.1", "verdict": "aligned", "target": {}, "reference": {}},
            "a dumpdiff result",
        ),
        ("dump.json", {"common_dump_settings": {"dump_mode": 0}}, "a dump configuration of"),
        ("notes.json", {"a": 1, "b": 2}, r"its keys \(a, b\) prove no kind of settings"),
    ],
)
def test_what_holds_no_settings_is_refused_by_its_name(
    tmp_path: Path, name: str, document: dict[str, object], kind: str
) -> None:
    with pytest.raises(DumpError, match=kind):
        read_text(tmp_path, name, json.dumps(document))


@pytest.mark.parametrize(
    ("name", "text", "framework"),
    [
        ("ds.json", json.dumps(DEEPSPEED), "deepspeed"),
        ("sft.yaml", LLAMA_FACTORY, "llamafactory"),
        ("llama.toml", TORCHTITAN, "torchtitan"),
        (
            "a.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 1\n"
            "num_processes: 8\nmixed_precision: bf16\n",
            "accelerate",
        ),
        (
            "gpt.yaml",
            NEMO,
            "nemo",
        ),
        ("a.sh", "swift sft --model m --tuner_type full --learning_rate 1e-5", "msswift"),
        ("a.sh", "NPROC_PER_NODE=2 megatron sft --load m --lr 1e-5", "swift"),
        (
            "a.sh",
            "python -m verl.trainer.main_ppo algorithm.adv_estimator=gae \\\n"
            "  data.train_batch_size=8 actor_rollout_ref.actor.optim.lr=1e-6 critic.optim.lr=1e-5",
            "verl",
        ),
        (
            "a.sh",
            "accelerate launch --num_processes 4 train.py --per_device_train_batch_size 2 \\\n"
            "  --num_train_epochs 1 --lr_scheduler_type cosine --bf16 --learning_rate 1e-5",
            "trainer",
        ),
        (
            "run.log",
            "parameters TrainingArguments(\nlearning_rate=1e-05,\nseed=42,\n)\n",
            "trainer",
        ),
    ],
)
def test_a_file_is_of_the_framework_that_its_keys_prove(
    tmp_path: Path, name: str, text: str, framework: Framework
) -> None:
    assert read_text(tmp_path, name, text).framework == framework


def test_options_that_many_programs_have_prove_no_framework(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no training is started"):
        read_text(tmp_path, "a.sh", "python train.py --lr 1e-3 --bf16 --load x --num-layers 2")


@pytest.mark.parametrize(
    ("name", "text", "old", "new", "differing"),
    [
        (
            "sft.yaml",
            LLAMA_FACTORY,
            "warmup_ratio: 0.1",
            "warmup_ratio: 0.2",
            {"warmup_steps": (10, 20)},
        ),
        (
            "sft.yaml",
            LLAMA_FACTORY,
            "bf16: true",
            "fp16: true",
            {"compute_dtype": ("bfloat16", "float16")},
        ),
        ("a.toml", TORCHTITAN, "lr = 8e-4", "lr = 4e-4", {"learning_rate": (8e-4, 4e-4)}),
        ("a.toml", TORCHTITAN, "seq_len = 2048", "", {}),
        (
            "ds.json",
            json.dumps(DEEPSPEED),
            '"gradient_clipping": 1.0',
            '"gradient_clipping": 0.5',
            {"clip_grad": (1.0, 0.5)},
        ),
    ],
)
def test_two_files_of_a_framework_differ_in_what_was_changed(
    tmp_path: Path, name: str, text: str, old: str, new: str, differing: dict[str, object]
) -> None:
    assert old in text
    comparison = compare_texts(tmp_path, name, text, text.replace(old, new))
    assert list_differing(comparison) == differing


def test_a_dtype_that_follows_from_the_model_is_not_float32(tmp_path: Path) -> None:
    """LLaMA-Factory without bf16 and fp16 computes in the dtype of the model's config.json."""
    plain = LLAMA_FACTORY.replace("bf16: true\n", "")
    comparison = compare_texts(tmp_path, "sft.yaml", LLAMA_FACTORY, plain)
    (row,) = [row for row in comparison.rows if row.setting == "compute_dtype"]
    assert (row.state, row.target.value) == ("inconclusive", "bfloat16")
    assert "config.json" in row.reference.reason


def test_a_nemo_file_is_not_read_with_the_defaults_of_megatron(tmp_path: Path) -> None:
    """Its 12 layers were once called '32 by default'."""
    text = NEMO.replace("model:\n", "model:\n  num_layers: 12\n")
    comparison = compare_texts(tmp_path, "gpt.yaml", text, text)
    rows = {row.setting: row.target for row in comparison.rows}
    assert (rows["layers"].value, rows["layers"].origin) == (12, "set")
    assert not [name for name, value in rows.items() if value.origin == "default"]


def test_without_the_structure_of_the_model_nothing_agrees(tmp_path: Path) -> None:
    comparison = compare_texts(tmp_path, "sft.yaml", LLAMA_FACTORY, LLAMA_FACTORY)
    assert comparison.verdict == "inconclusive"
    assert comparison.to_stage().headline.startswith("layers: the structure of the model is not in")


def test_a_key_without_a_row_that_differs_is_named(tmp_path: Path) -> None:
    reference = LLAMA_FACTORY + "use_badam: true\n"
    comparison = compare_texts(tmp_path, "sft.yaml", LLAMA_FACTORY, reference)
    assert comparison.unread_differences == (
        "use_badam: not set, true (sft.yaml:11) (in no row of the table: its effect is not known)",
    )


def test_the_structure_comes_from_the_config_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (tmp_path / "a.yaml").write_text(LLAMA_FACTORY)
    settings = read_settings(tmp_path / "a.yaml", model=tmp_path)
    rows = {row.setting: row.target for row in compare(settings, settings).rows}
    assert (rows["layers"].value, rows["head_dim"].value) == (2, 16)
    assert (rows["normalization"].value, rows["gated_linear_unit"].value) == ("rmsnorm", True)
    assert (rows["qkv_bias"].value, rows["untied_embeddings"].value) == (True, False)


def test_a_value_that_another_program_fills_in_is_unknown(tmp_path: Path) -> None:
    text = json.dumps({**DEEPSPEED, "gradient_clipping": "auto"})
    setting = read_text(tmp_path, "ds.json", text).values["gradient_clipping"]
    assert setting.doubt == "its value is auto, which the program fills in"


def test_a_reference_within_a_file_is_followed(tmp_path: Path) -> None:
    values = read_text(tmp_path, "gpt.yaml", NEMO).values
    groups = values["model.num_query_groups"]
    assert (groups.value, groups.doubt) == (4, "")
