"""The conditions under which a row has an effect: values that other rows must have.

Each condition takes the values of one side by row. It returns whether the row has an effect there,
None if that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..row_value import RowValue

SideValues = Mapping[str, RowValue]
Condition = Callable[[SideValues], bool | None]


def _test_row(row: str, predicate: Callable[[object], bool]) -> Condition:
    def test(side: SideValues) -> bool | None:
        row_value = side[row]
        return predicate(row_value.value) if row_value.is_known else None

    return test


def _test_known(row: str) -> Condition:
    return lambda side: side[row].is_known


def _combine_any(*conditions: Condition) -> Condition:
    def test(side: SideValues) -> bool | None:
        answers = [condition(side) for condition in conditions]
        if True in answers:
            return True
        if None in answers:
            return None
        return False

    return test


_FROM_SCRATCH: Condition = lambda side: side["load"].origin != "set"  # noqa: E731

CONDITIONS: Mapping[str, Condition] = {
    "learned_positions": _test_row("position_embedding", lambda value: value == "learned_absolute"),
    "rotary": _test_row(
        "position_embedding",
        lambda value: value not in ("learned_absolute", "none", "relative", "alibi"),
    ),
    "rope_scaling": _test_row("rope_scaling", bool),
    "random_weights": _FROM_SCRATCH,
    "random_draws": _combine_any(
        _FROM_SCRATCH, _test_row("hidden_dropout", bool), _test_row("attention_dropout", bool)
    ),
    "plain_attention": _test_row("flash_attention", lambda value: not value),
    "fp16": _test_row("compute_dtype", lambda value: value == "float16"),
    "latent_attention": _test_row("latent_attention", bool),
    "precision_aware_optimizer": _test_row("precision_aware_optimizer", bool),
    "first_last_layers_bf16": _test_row("first_last_layers_bf16", bool),
    "sgd": _test_row("optimizer", lambda value: value in ("sgd", "momentum")),
    "growing_decay": _test_row(
        "weight_decay_growth", lambda value: value not in (None, "constant")
    ),
    "decaying": _test_row("schedule", lambda value: value != "constant"),
    "warming": _test_row("warmup_steps", bool),
    "experts": _test_row("experts", bool),
    "expert_bias": _test_row("expert_bias", bool),
    "capacity": _test_row("capacity_factor", bool),
    "shared_experts": _test_row("shared_expert_size", bool),
    "mtp": _test_row("mtp_layers", bool),
    "lora": _test_row("finetuning", lambda value: value not in ("full", "freeze")),
    "split": _test_known("split"),
    "data_seed": _test_known("data_seed"),
}

#: Conditions that must hold on both sides. For the others one side is enough.
BOTH_SIDES = frozenset({"split", "data_seed"})
