"""The ``config.json`` of a model: where Megatron-SWIFT, and core MindSpore Transformers, take the structure from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from .settings import Given, Settings
from .table import load_table

_LONGEST = 1 << 20  #: bytes
#: Architectures whose query and key are normalised without a key that says so.
_NORMED = ("Qwen3", "DeepseekV2", "DeepseekV3")


def with_model(settings: Settings, path: Path) -> Settings:
    """The settings over the structure that ``path``, a config.json or its folder, gives: what is set counts more.

    Raises DumpError if it is no such file.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    plain = {
        key: value for key, value in config.items() if isinstance(value, (str, int, float, bool))
    }
    if settings.framework == "mindformers":
        found = {
            f"model.model_config.{key}": value
            for key, value in plain.items()
            if key != "model_type"
        }
    else:
        found = dict(_as_megatron(config, plain))
    given = {name: Given(value, file.name) for name, value in found.items()}
    return replace(settings, values={**given, **settings.values}, model=str(file))


def _read(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise DumpError(f"{file}: there is no such file; give the config.json of the model")
    with file.open("rb") as stream:
        text = stream.read(_LONGEST)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{file}: no valid JSON ({error})") from error
    if not isinstance(config, dict) or "hidden_size" not in config:
        raise DumpError(f"{file}: expected the config.json of a model, with its hidden_size")
    return config


def _as_megatron(config: Mapping[str, Any], plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What Megatron-SWIFT sets for it."""
    for key, name in load_table().config_json.items():
        if key in plain:
            yield (name[1:], not plain[key]) if name.startswith("!") else (name, plain[key])
    if plain.get("num_key_value_heads", 1) != 1:
        yield "group_query_attention", True
    if plain.get("hidden_act") == "silu":
        yield "swiglu", True
    if "kv_lora_rank" in plain:
        yield "multi_latent_attention", True
    dtype = str(plain.get("torch_dtype", plain.get("dtype", "")))
    if dtype in ("bfloat16", "float16"):
        yield ("bf16" if dtype == "bfloat16" else "fp16"), True
    architectures = config.get("architectures") or [""]
    if str(architectures[0]).startswith(_NORMED):
        yield "qk_layernorm", True
    layers, dense = plain.get("num_hidden_layers"), plain.get("first_k_dense_replace")
    if isinstance(layers, int) and isinstance(dense, int):
        yield "moe_layer_freq", f"[0]*{dense}+[1]*{layers - dense}"
