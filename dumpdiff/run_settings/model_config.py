"""The structure of a model in its ``config.json``.

Megatron-SWIFT and core models of MindSpore Transformers take it from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import read_input_bytes
from .settings import Settings, SettingValue
from .table import MEGATRON_FAMILY, load_table

#: Where the structure is kept for frameworks that have no names of their own for it.
MODEL_CONFIG = "model_config."
_MAX_BYTES = 1 << 20
#: Architectures that normalize query and key although no key of their config.json says so.
_QK_NORM_ARCHITECTURES = ("Qwen3", "DeepseekV2", "DeepseekV3")


def add_model_config(settings: Settings, path: Path) -> Settings:
    """Return the settings with the structure in ``path``, a config.json or its folder.

    Values that are set in ``settings`` override it. Raises DumpError if it is no such file.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read_config(file)
    scalars = {
        key: value for key, value in config.items() if isinstance(value, (str, int, float, bool))
    }
    if settings.framework == "mindformers":
        structure = {
            f"model.model_config.{key}": value
            for key, value in scalars.items()
            if key != "model_type"
        }
    elif settings.framework in MEGATRON_FAMILY:
        structure = _translate_to_megatron(config, scalars)
    else:
        structure = {f"{MODEL_CONFIG}{key}": value for key, value in scalars.items()}
    values = {name: SettingValue(value, file.name) for name, value in structure.items()}
    return replace(settings, values={**values, **settings.values}, model=str(file))


def _read_config(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise DumpError(f"{file}: there is no such file; give the config.json of the model")
    try:
        config = json.loads(read_input_bytes(file, _MAX_BYTES))
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{file}: no valid JSON ({error})") from error
    if not isinstance(config, dict) or config.keys().isdisjoint(("hidden_size", "n_embd")):
        raise DumpError(f"{file}: expected the config.json of a model, with its hidden_size")
    return config


def _translate_to_megatron(config: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Megatron-LM that Megatron-SWIFT derives from a config.json."""
    arguments: dict[str, Any] = {}
    for key, name in load_table().config_json.items():
        if key in scalars:
            if name.startswith("!"):
                arguments[name[1:]] = not scalars[key]
            else:
                arguments[name] = scalars[key]
    if scalars.get("num_key_value_heads", 1) != 1:
        arguments["group_query_attention"] = True
    if scalars.get("hidden_act") == "silu":
        arguments["swiglu"] = True
    if "kv_lora_rank" in scalars:
        arguments["multi_latent_attention"] = True
    dtype = str(scalars.get("torch_dtype", scalars.get("dtype", "")))
    if dtype == "bfloat16":
        arguments["bf16"] = True
    elif dtype == "float16":
        arguments["fp16"] = True
    architectures = config.get("architectures")
    first_architecture = ""
    if isinstance(architectures, list) and architectures:
        first_architecture = str(architectures[0])
    if first_architecture.startswith(_QK_NORM_ARCHITECTURES):
        arguments["qk_layernorm"] = True
    layers = scalars.get("num_hidden_layers")
    dense_layers = scalars.get("first_k_dense_replace")
    if isinstance(layers, int) and isinstance(dense_layers, int):
        arguments["moe_layer_freq"] = f"[0]*{dense_layers}+[1]*{layers - dense_layers}"
    return arguments
