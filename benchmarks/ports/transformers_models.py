"""Tiny models of transformers, and what its ports take from them."""

from __future__ import annotations

from typing import Any

import models
import transformers
from torch import nn

PREFIX = "hf_"


def read_config(name: str) -> tuple[str, Any]:
    """Return the class and the configuration of a model, for training."""
    class_name, config = models.read_model(name.removeprefix(PREFIX), "eager")
    config.use_cache = False
    if "classified" in models.read_batch_kind(name.removeprefix(PREFIX)):
        config.problem_type = "single_label_classification"  # a graph cannot find it out
    return class_name, config


def build(name: str) -> nn.Module:
    class_name, config = read_config(name)
    model: nn.Module = getattr(transformers, class_name)(config)
    return model


def draw_batch(name: str) -> dict[str, Any]:
    """Return the arrays of a batch, and its options."""
    batch = models.draw_batch(name.removeprefix(PREFIX))
    return {key: v.numpy() if hasattr(v, "numpy") else v for key, v in batch.items()}
