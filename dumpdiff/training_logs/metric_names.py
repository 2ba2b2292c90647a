"""The names under which programs record loss, gradient norm, learning rate and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: In the order in which they count if there are several: the loss of the model alone first.
LOSSES = (
    "loss",
    "lm loss",
    "lm_loss",
    "train/lm_loss",
    "train/loss",
    "train_loss",
    "training_loss",
    "reduced_train_loss",
    "loss_metrics/global_avg_loss",
    "actor/pg_loss",
    "actor/loss",
)
NORMS = (
    "grad_norm",
    "grad norm",
    "grad-norm",
    "train/grad_norm",
    "actor/grad_norm",
    "global_norm",
    "gradient_norm",
)
RATES = (
    "learning_rate",
    "learning rate",
    "learning-rate",
    "lr",
    "train/learning_rate",
    "train/lr",
    "actor/lr",
    "lr-Adam",
    "lr-AdamW",
)
#: A number that counts updates of the weights comes before one that counts lines (_step of W&B).
STEPS = (
    "global_step/max_steps",
    "current_steps",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "iteration",
    "step",
    "steps",
    "_step",
)


def find_name(names: Iterable[str] | Mapping[str, object], candidates: Iterable[str]) -> str:
    """Return the first of ``candidates`` that is among ``names``, ''  if none is.

    Case does not count: exports write Step.
    """
    by_lower_name = {name.lower(): name for name in names}
    for candidate in candidates:
        if candidate.lower() in by_lower_name:
            return by_lower_name[candidate.lower()]
    return ""
