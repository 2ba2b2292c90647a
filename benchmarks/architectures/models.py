"""The models of ``models.yaml``, tiny, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch import Tensor

HERE = Path(__file__).resolve().parent

Batch = dict[str, Tensor]

N_SEQUENCES, LENGTH, N_WORDS, N_CLASSES, IMAGE_SIZE = 2, 12, 60, 2, 32


def draw_tokens(*shape: int) -> Tensor:
    return torch.randint(3, N_WORDS, shape or (N_SEQUENCES, LENGTH))


def draw_classes(*shape: int) -> Tensor:
    return torch.randint(0, N_CLASSES, shape or (N_SEQUENCES,))


def draw_images() -> Tensor:
    return torch.randn(N_SEQUENCES, 3, IMAGE_SIZE, IMAGE_SIZE)


def draw_timed_series() -> Batch:
    return {
        "past_values": torch.randn(N_SEQUENCES, 18),
        "past_time_features": torch.randn(N_SEQUENCES, 18, 1),
        "past_observed_mask": torch.ones(N_SEQUENCES, 18),
        "future_values": torch.randn(N_SEQUENCES, 4),
        "future_time_features": torch.randn(N_SEQUENCES, 4, 1),
    }


BATCHES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "text": lambda: {"input_ids": draw_tokens(), "labels": draw_tokens()},
    "classified_text": lambda: {"input_ids": draw_tokens(), "labels": draw_classes()},
    "boxed_text": lambda: {
        "input_ids": draw_tokens(),
        "labels": draw_tokens(),
        "bbox": draw_tokens(N_SEQUENCES, LENGTH, 4).sort(-1).values,
    },
    "classified_inputs": lambda: {"inputs": draw_tokens(), "labels": draw_classes()},
    "classified_images": lambda: {"pixel_values": draw_images(), "labels": draw_classes()},
    "segmented_images": lambda: {
        "pixel_values": draw_images(),
        "labels": draw_classes(N_SEQUENCES, IMAGE_SIZE, IMAGE_SIZE),
    },
    "masked_images": lambda: {
        "pixel_values": draw_images(),
        "noise": torch.rand(N_SEQUENCES, 16),
    },
    "captioned_images": lambda: {
        "input_ids": draw_tokens(),
        "pixel_values": draw_images(),
        "return_loss": True,
    },
    "questions": lambda: {
        "input_ids": draw_tokens(),
        "pixel_values": draw_images(),
        "labels": torch.rand(N_SEQUENCES, N_CLASSES),
    },
    "spectrogram": lambda: {
        "input_features": torch.randn(N_SEQUENCES, 8, 32),
        "labels": draw_tokens(),
    },
    "classified_spectrogram": lambda: {
        "input_values": torch.randn(N_SEQUENCES, 16, 8),
        "labels": draw_classes(),
    },
    "waveform": lambda: {
        "input_values": torch.randn(N_SEQUENCES, 800),
        "labels": torch.randint(1, 20, (N_SEQUENCES, 6)),
    },
    "series": lambda: {
        "past_values": torch.randn(N_SEQUENCES, 32, 3),
        "future_values": torch.randn(N_SEQUENCES, 4, 3),
    },
    "timed_series": draw_timed_series,
}


def read_model(name: str, attention: str) -> tuple[str, Any]:
    """Return the name of a model's class and its configuration."""
    document = _read_document()
    entry = document["models"][name]
    settings: dict[str, Any] = {}
    for group in entry.get("like", ()):
        settings |= document["groups"][group]
    config = getattr(transformers, entry["config"])(**settings, **entry.get("settings", {}))
    config._attn_implementation = attention
    return entry["model"], config


def read_batch_kind(name: str) -> str:
    kind: str = _read_document()["models"][name]["batch"]
    return kind


def draw_batch(name: str) -> dict[str, Any]:
    """Return the batch of a model; the same in every call."""
    torch.manual_seed(11)
    return dict(BATCHES[read_batch_kind(name)]())


def _read_document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((HERE / "models.yaml").read_text())
    return document
