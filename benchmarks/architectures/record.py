"""Record one training step of tiny models of transformers, some with a fault.

    python benchmarks/architectures/record.py OUT llama:sdpa llama:eager llama:eager:epsilon

needs transformers, torch and mindstudio-probe. A name is a model of ``models.yaml``, its attention
(written out or fused) and a fault of ``model_faults.py``. Each is recorded with whole tensors in a
copy of this process, whose output is in OUT/NAME.log. What a model does not have is left out, with
the reason in that file.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "fixtures")]

from model_faults import FAULTS  # noqa: E402
from model_weights import fill  # noqa: E402
from msprobe.pytorch import PrecisionDebugger, seed_all  # noqa: E402
from msprobe_config import write_config  # noqa: E402

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


def build(name: str, attention: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with weights of a usual size, and its batch; the same in every call."""
    document = yaml.safe_load((HERE / "models.yaml").read_text())
    entry = document["models"][name]
    settings: dict[str, Any] = {}
    for group in entry.get("like", ()):
        settings |= document["groups"][group]
    config = getattr(transformers, entry["config"])(**settings, **entry.get("settings", {}))
    config._attn_implementation = attention
    torch.manual_seed(7)
    model = getattr(transformers, entry["model"])(config)
    fill(model)
    torch.manual_seed(11)
    return model.train(), dict(BATCHES[entry["batch"]]())


def record(out: Path, model_name: str, attention: str, fault: str = "") -> None:
    torch.set_num_threads(1)
    model, batch = build(model_name, attention)
    if fault:
        print(FAULTS[fault].apply(model, batch))
    seed_all(seed=1, mode=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    out.mkdir(parents=True)
    debugger = PrecisionDebugger(config_path=str(write_config(out, "tensor", "mix")))
    debugger.start(model=model)
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    (out / "loss.txt").write_text(f"{loss.item():.8f}\n")


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[2:]:
        if not (root / f"{name}.log").exists():
            process = os.fork()
            if process == 0:
                _record_and_exit(root, name)
            os.waitpid(process, 0)


def _record_and_exit(root: Path, name: str) -> None:
    log = os.open(root / f"{name}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        record(root / name, *name.split(":"))
    except Exception:  # the model has no such attention, or nothing to put the fault into
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
