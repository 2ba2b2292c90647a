"""When a row means anything: what other rows must say for it.

Each condition takes one side's values by row, None where a value cannot be told, and returns whether the row means
something there; None if that cannot be told either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..row_value import Seen

Side = Mapping[str, Seen]
Condition = Callable[[Side], bool | None]


def _asks(row: str, means: Callable[[object], bool]) -> Condition:
    def condition(side: Side) -> bool | None:
        seen = side[row]
        return None if seen.how == "unknown" else means(seen.value)

    return condition


def _is_known(row: str) -> Condition:
    return lambda side: side[row].how != "unknown"


def _any(*conditions: Condition) -> Condition:
    def condition(side: Side) -> bool | None:
        answers = [ask(side) for ask in conditions]
        return True if True in answers else None if None in answers else False

    return condition


_FROM_SCRATCH: Condition = lambda side: side["load"].how != "set"  # noqa: E731

CONDITIONS: Mapping[str, Condition] = {
    "learned_positions": _asks("position_embedding", lambda value: value == "learned_absolute"),
    "rotary": _asks(
        "position_embedding",
        lambda value: value not in ("learned_absolute", "none", "relative", "alibi"),
    ),
    "rope_scaling": _asks("rope_scaling", bool),
    "random_weights": _FROM_SCRATCH,
    "random_draws": _any(
        _FROM_SCRATCH, _asks("hidden_dropout", bool), _asks("attention_dropout", bool)
    ),
    "plain_attention": _asks("flash_attention", lambda value: not value),
    "fp16": _asks("compute_dtype", lambda value: value == "float16"),
    "latent_attention": _asks("latent_attention", bool),
    "precision_aware_optimizer": _asks("precision_aware_optimizer", bool),
    "first_last_layers_bf16": _asks("first_last_layers_bf16", bool),
    "sgd": _asks("optimizer", lambda value: value in ("sgd", "momentum")),
    "growing_decay": _asks("weight_decay_growth", lambda value: value not in (None, "constant")),
    "decaying": _asks("schedule", lambda value: value != "constant"),
    "warming": _asks("warmup_steps", bool),
    "experts": _asks("experts", bool),
    "expert_bias": _asks("expert_bias", bool),
    "capacity": _asks("capacity_factor", bool),
    "shared_experts": _asks("shared_expert_size", bool),
    "mtp": _asks("mtp_layers", bool),
    "split": _is_known("split"),
    "data_seed": _is_known("data_seed"),
}

#: Conditions that must hold on both sides; of the others one side is enough.
OF_BOTH = frozenset({"split", "data_seed"})
