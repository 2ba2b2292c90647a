"""dumpdiff: where do two training runs part? Aligns MindSpore and PyTorch dumps without a hand-written map.

>>> import dumpdiff
>>> result = dumpdiff.align("ms_dump", "pt_dump")  # doctest: +SKIP
>>> result.first_divergence  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["DumpError", "Finding", "Result", "Trace", "__version__", "align", "read"]

if TYPE_CHECKING:
    from .api import align, read
    from .model.errors import DumpError
    from .model.result import Finding, Result
    from .model.trace import Trace

_HOME = {
    "align": "api",
    "read": "api",
    "DumpError": "model.errors",
    "Finding": "model.result",
    "Result": "model.result",
    "Trace": "model.trace",
}


def __getattr__(name: str) -> Any:
    """Load on first use: ``dumpdiff --help`` must not pay for pandas."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # found at once the next time
    return value
