"""Sliding windows of attention, in the spelling of config.json and of Megatron's arguments.

Sources: transformers masking_utils.py (``sliding_window`` keys, the query's own included, in the
layers that ``layer_types`` calls ``sliding_attention``), models mistral, phi3 and starcoder2 (in
all layers: they have no ``layer_types``), qwen2 (``use_sliding_window``); megatron-core 0.16.1
transformer/utils.py (``window_size``: keys before the query, and ``window_attn_skip_freq``: 1 for a
layer with a window; a number N: every N-th layer has none).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_USED = "use_sliding_window"  #: of Qwen: without it, the other settings have no effect
_SETTINGS = frozenset({"sliding_window", "layer_types", _USED})


@dataclass(frozen=True)
class Windows:
    """Which layers attend to the last ``size`` keys only, the query's own included."""

    size: int
    layers: tuple[bool, ...]


def read_windows(settings: Mapping[str, Any], n_layers: int) -> Windows | None:
    """Return the windows in settings of either framework; None if no layer is said to have one."""
    size, kinds = settings.get("sliding_window"), settings.get("layer_types")
    if type(size) is int and kinds is None and _USED not in settings:
        return Windows(size, (True,) * n_layers)
    if type(size) is int and isinstance(kinds, (list, tuple)):
        has_other_kinds = not {_SLIDING, _FULL}.issuperset(kinds) or len(kinds) != n_layers
        if has_other_kinds or _SLIDING not in kinds:
            return None
        return Windows(size, tuple(kind == _SLIDING for kind in kinds))
    window = settings.get("window_size")
    if not isinstance(window, (list, tuple)) or len(window) != 2 or window[1] != 0:
        return None
    return Windows(window[0] + 1, _read_layers(settings.get("window_attn_skip_freq"), n_layers))


def list_carried_settings(settings: Mapping[str, Any], n_layers: int) -> frozenset[str]:
    """Return the settings of config.json that Megatron's arguments have, or that have no effect."""
    has_none = settings.get("layer_types") == [_FULL] * n_layers
    return _SETTINGS if has_none or read_windows(settings, n_layers) else frozenset()


def _read_layers(frequency: Any, n_layers: int) -> tuple[bool, ...]:
    """Return which layers have a window; without a frequency all of them."""
    if isinstance(frequency, (list, tuple)) and len(frequency) == n_layers:
        return tuple(map(bool, frequency))
    if type(frequency) is int and frequency > 0:
        return tuple(number % frequency != 0 for number in range(1, n_layers + 1))
    return (True,) * n_layers


def build_window_settings(windows: Windows) -> dict[str, Any]:
    """Return the settings of config.json."""
    kinds = [_SLIDING if has_window else _FULL for has_window in windows.layers]
    return {"sliding_window": windows.size, "layer_types": kinds, _USED: True}


def build_window_arguments(windows: Windows) -> dict[str, Any]:
    """Return Megatron's arguments."""
    return {
        "window_size": (windows.size - 1, 0),
        "window_attn_skip_freq": [int(has_window) for has_window in windows.layers],
    }
