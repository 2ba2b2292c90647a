"""Faults of the Temporal Fusion Transformer."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model
from families.tft.architecture import HEADS, PAST, Model


def _load_in_order_of_names(model: Model) -> Model:
    """Give the variables of the past the networks of the variables sorted by name."""
    weights = dict(model.weights)
    for name, other in zip(PAST, sorted(PAST), strict=True):
        prefix = f"past.networks.{other}."
        for path in model.weights:
            if path.startswith(prefix):
                layer = path.removeprefix(prefix)
                weights[f"past.networks.{name}.{layer}"] = model.weights[path]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "decoder_restarted": Fault(
        "the LSTM of the future begins with the static states, as that of the past, and not with "
        "the last state of the past",
        "input-source",
        change_model(is_decoder_restarted=True),
        equivalents=("hidden-state-reset", "missing-step", "skip-source", "layer-order"),
    ),
    "context_late": Fault(
        "the context of a gated residual network is added behind its ELU, not before it",
        "layer-order",
        change_model(is_context_late=True),
        equivalents=("input-source", "missing-step", "missing-term", "activation-kind"),
    ),
    "own_step_hidden": Fault(
        "a step of the future does not see its own inputs, only those of the steps before",
        "mask-shifted",
        change_model(mask_diagonal=0),
        equivalents=("mask-kind", "causal-shift", "cross-mask", "argument"),
    ),
    "known_late": Fault(
        "known inputs of the future are cut out from the last step of the past on: a step too late",
        "row-shift",
        change_model(known_offset=1),
        lambda *_: [Anywhere(r"(?i)shift|offset|row|-?\b1\b|position|slice|step|begin|start")],
        equivalents=(
            "position-offset",
            "causal-shift",
            "input-source",
            "split-order",
            "label-shift",
            "argument",
        ),
    ),
    "state_stopped": Fault(
        "the last state of the past is handed over without a gradient, as between batches of a "
        "stateful LSTM",
        "gradient-stopped",
        change_model(is_state_stopped=True),
        equivalents=("missing-term",),
    ),
    "value_gradient": Fault(
        "ranks have a head each; the gradient of the shared values is averaged over them, not "
        "summed up",
        "gradient-scaled",
        change_model(value_gradient=1 / HEADS),
        lambda faulty, clean: [Ratio(faulty.value_gradient / clean.value_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "heads_summed": Fault(
        "the outputs of the heads are summed up, not averaged",
        "pooling",
        change_model(are_heads_summed=True),
        lambda *_: [Anywhere(rf"(?i)sum|mean|average|\b{HEADS}\b|\b0\.5\b")],
        equivalents=("constant-factor", "scale", "missing-step", "missing-term"),
    ),
    "norm_first": Fault(
        "the norm is applied to the gated output, and the skip is added behind it",
        "residual-order",
        change_model(is_norm_first=True),
        equivalents=("layer-order", "input-source", "skip-source", "missing-step"),
    ),
    "keras_epsilon": Fault(
        "norms have Keras's default epsilon, 1e-3, not 1e-5",
        "epsilon",
        change_model(eps=1e-3),
        lambda faulty, clean: [Values(faulty.eps, clean.eps)],
        equivalents=("argument",),
    ),
    "low_unmasked": Fault(
        "without parentheses around the two terms of the pinball loss, the mask of valid steps "
        "multiplies only the second one, that of high forecasts",
        "mask-missing",
        change_model(are_low_forecasts_unmasked=True),
        equivalents=(
            "loss-weight",
            "layer-order",
            "input-source",
            "loss-reduction",
            "missing-step",
            "missing-term",
            "ignore-index",
        ),
    ),
    "elu_result": Fault(
        "in networks of single variables, the gradient of a fused ELU gets the result and takes it "
        "for the input",
        "gradient-scaled",
        change_model(is_elu_result_passed=True),
        lambda *_: [Anywhere(r"(?i)elu|activation|negative|exp")],
        equivalents=("activation-kind", "argument", "input-source", "missing-step"),
    ),
    "networks_sorted": Fault(
        "networks of the past's variables are loaded in the alphabetic order of their names, not "
        "in that of the variables",
        "weight-swapped",
        _load_in_order_of_names,
        lambda *_: [Anywhere("|".join(PAST))],
        equivalents=("experts-permuted", "input-order", "weight-rows"),
    ),
    "last_skip_short": Fault(
        "the last gate's skip begins behind the attention, not behind the LSTMs",
        "skip-source",
        change_model(is_last_skip_short=True),
        equivalents=("input-source", "residual-order"),
    ),
    "months_strings": Fault(
        "months are categories of strings: their codes are in the order 1, 10, 11, 12, 2",
        "batch",
        change_model(are_months_strings=True),
        equivalents=("input-source",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("decoder_restarted", "mindspore"),
    ("context_late", "mindspore"),
    ("own_step_hidden", "mindspore"),
    ("known_late", "mindspore"),
    ("state_stopped", "mindspore"),
    ("value_gradient", "mindspore"),
    ("heads_summed", "pytorch"),
    ("norm_first", "pytorch"),
    ("keras_epsilon", "pytorch"),
    ("low_unmasked", "pytorch"),
    ("elu_result", "pytorch"),
    ("networks_sorted", "pytorch"),
    ("last_skip_short", "mindspore"),
    ("months_strings", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "stacked": ("", "stacked"),
    "written": ("written", ""),
    "both": ("written", "stacked"),
}
