"""Values that NeMo writes in a form of its own."""

from __future__ import annotations

from typing import Any

from ..row_value import SettingsLookup, UnknownValueError
from ..values import parse_dtype
from .forms import normalize_shares, require

_ACTIVATION = "model.activation"


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of trainer.precision: 16, 'bf16', 'bf16-mixed', '32-true'."""
    text = require(lookup.get_text("trainer.precision"), "trainer.precision")
    name = text.partition("-")[0]
    if name in ("16", "32", "64"):
        return f"float{name}"
    try:
        return parse_dtype(name)
    except ValueError:
        raise UnknownValueError(f"trainer.precision is {text}") from None


def derive_activation(lookup: SettingsLookup) -> str:
    """Return the activation as Megatron-LM names it; 'swiglu' is silu with a gate."""
    name = _get_activation(lookup)
    if name == "swiglu":
        return "silu"
    if name == "geglu":
        return "gelu"
    return name.replace("squared-relu", "squared_relu")


def derive_gated_linear_unit(lookup: SettingsLookup) -> bool:
    """Return whether the feed-forward layer is gated, which the name of the activation says."""
    return _get_activation(lookup).endswith("glu")


def _get_activation(lookup: SettingsLookup) -> str:
    name = require(lookup.get_text(_ACTIVATION), "activation")
    return name.removeprefix("fast-")


def derive_untied_embeddings(lookup: SettingsLookup) -> bool:
    """Return whether the output layer has its own weight."""
    return not lookup.get_boolean("model.share_embeddings_and_output_weights")


def derive_split(lookup: SettingsLookup) -> Any:
    """Return the shares of training, validation and test data, which sum to 1."""
    return normalize_shares(require(lookup.get_raw("model.data.splits_string"), "splits_string"))
