"""Values that accelerate writes in a form of its own."""

from __future__ import annotations

from ..row_value import SettingsLookup, UnknownValueError
from ..values import parse_dtype
from .forms import require


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of mixed_precision; 'no' is the dtype of the weights, float32."""
    precision = require(lookup.get_text("mixed_precision"), "mixed_precision")
    if precision in ("no", "false"):  # YAML 1.1 reads 'no' as false
        return "float32"
    try:
        return parse_dtype(precision)
    except ValueError:
        raise UnknownValueError(f"mixed_precision is {precision}") from None
