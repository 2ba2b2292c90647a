"""Conversions of each family to the other frameworks and back, and the logits of the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from . import megatron_model

_TOKENS, _SEED = (2, 9), 3  #: shape of the batch of random tokens
#: Keys of config.json that no checkpoint of another framework has, and that the class must get for
#: the tiny vocabulary to be valid.
_TOKEN_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")


class Outcome(NamedTuple):
    """What a conversion to a framework and back gave."""

    framework: str
    is_identical: bool  #: both written checkpoints hold the source's weights, bit for bit
    logits_error: float  #: largest difference over the largest logit
    refusal: str = ""  #: why it was not converted
    megatron_error: float | None = None  #: the same of the logits of real Megatron-core


def convert_both_ways(model: Any, source: Path, framework: str, folder: Path) -> Outcome:
    """Convert to a framework and back, and compare the logits of both models of transformers."""
    import dumpdiff
    from dumpdiff.model.errors import DumpError

    folder.mkdir(exist_ok=True)
    model_type = json.loads((source / "config.json").read_text())["model_type"]
    try:
        there = dumpdiff.weights.convert(source, framework, folder / "there")
    except DumpError as error:
        return Outcome(framework, is_identical=False, logits_error=0.0, refusal=str(error))
    back = dumpdiff.weights.convert(
        folder / "there", "huggingface", folder / "back", model_type=model_type
    )
    _copy_token_ids(source, folder / "back")
    error = compare_logits(model, _load(model, folder / "back"))
    megatron_error = None
    if framework == "megatron":
        megatron_error = _compare_with_megatron(model, folder / "there")
    is_identical = bool(there.verified and back.verified)
    return Outcome(framework, is_identical, error, megatron_error=megatron_error)


def _compare_with_megatron(model: Any, folder: Path) -> float:
    import torch

    tokens = _draw_tokens(model)
    logits = megatron_model.compute_logits(folder, tokens)[..., : model.config.vocab_size]
    with torch.no_grad():
        return _compute_error(logits, model(tokens).logits)


def _copy_token_ids(source: Path, target: Path) -> None:
    settings = json.loads((source / "config.json").read_text())
    config = json.loads((target / "config.json").read_text())
    for key in _TOKEN_KEYS:
        if key in settings:
            config[key] = settings[key]
    (target / "config.json").write_text(json.dumps(config))


def _load(model: Any, folder: Path) -> Any:
    import torch

    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def compare_logits(model: Any, other: Any) -> float:
    """Return the largest difference of the logits over the largest logit."""
    import torch

    tokens = _draw_tokens(model)
    with torch.no_grad():
        return _compute_error(other(tokens).logits, model(tokens).logits)


def _draw_tokens(model: Any) -> Any:
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(3, model.config.vocab_size, _TOKENS, generator=generator)


def _compute_error(logits: Any, expected: Any) -> float:
    return float((logits - expected).abs().max() / expected.abs().max())
