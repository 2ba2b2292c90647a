"""Launches that take the structure of the model from its config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.run_settings import compare, read_settings

SAMPLES = Path(__file__).parents[1] / "samples"


def test_what_swift_leaves_open_is_answered_by_the_file() -> None:
    script = SAMPLES / "qwen_swift.sh"
    incomplete, complete = (
        read_settings(script),
        read_settings(script, model=SAMPLES / "config.json"),
    )
    assert compare(incomplete, incomplete).verdict == "inconclusive"
    comparison = compare(complete, complete)
    assert comparison.verdict == "agree", comparison.to_stage()
    values = {row.setting: row.target.value for row in comparison.rows}
    expected = {
        "layers": 28,
        "query_groups": 4,
        "head_dim": 128,
        "norm_epsilon": 1e-6,
        "activation": "silu",
        "vocabulary": 152064,
        "rotary_base": 1e6,
        "compute_dtype": "bfloat16",
        "qkv_bias": True,
        "linear_bias": False,
        "untied_embeddings": True,
        "position_embedding": "rope",
    }
    assert {name: values[name] for name in expected} == expected


def test_what_the_script_sets_counts_more(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text("megatron sft --num_layers 2 --norm_epsilon 1e-5")
    values = read_settings(script, model=SAMPLES / "config.json").values
    assert (values["num_layers"].value, values["num_layers"].place) == ("2", "a.sh:1")
    assert (values["hidden_size"].value, values["hidden_size"].place) == (3584, "config.json")


def test_mindspore_transformers_takes_the_same_keys(tmp_path: Path) -> None:
    yaml = tmp_path / "a.yaml"
    yaml.write_text("use_legacy: False\nmodel:\n  model_config:\n    num_hidden_layers: 2\n")
    values = read_settings(yaml, model=SAMPLES).values
    assert values["model.model_config.num_hidden_layers"].value == 2
    assert values["model.model_config.num_key_value_heads"].value == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "no valid JSON"), ("[1]", "expected the config.json"), ("{}", "hidden_size")],
)
def test_another_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DumpError, match=message):
        read_settings(SAMPLES / "qwen_swift.sh", model=tmp_path)
