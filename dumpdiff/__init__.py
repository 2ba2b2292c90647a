"""dumpdiff: find where two training runs diverge. Aligns MindSpore and PyTorch dumps without a
hand-written mapping.

Every command of the command line is a function here, with the same name and options.

>>> import dumpdiff
>>> result = dumpdiff.align("ms_dump", "pt_dump")  # doctest: +SKIP
>>> result.first_divergence  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import dump_config, golden, rules, weights
    from .api.capture import env, snippet
    from .api.completion import completion
    from .api.demo import demo
    from .api.dumps import align, inspect, read, verify
    from .api.invariants import check
    from .api.next_dump import graft, narrow
    from .api.record import record
    from .api.runs import checklist, data, logs, norms, optimizer, settings
    from .api.saved_results import explain, load, mapping, report
    from .api.serve import serve
    from .api.triage import find_case, triage
    from .model.errors import DumpError
    from .model.finding import Cause, Finding
    from .model.result import Result
    from .model.run_result import RunResult
    from .model.trace import Trace

#: Module -> the names that it offers here.
_OFFERS = {
    "api.dumps": ("align", "inspect", "read", "verify"),
    "api.saved_results": ("explain", "load", "mapping", "report"),
    "api.next_dump": ("graft", "narrow"),
    "api.invariants": ("check",),
    "api.runs": ("checklist", "data", "logs", "norms", "optimizer", "settings"),
    "api.record": ("record",),
    "api.serve": ("serve",),
    "api.triage": ("find_case", "triage"),
    "api.capture": ("env", "snippet"),
    "api.completion": ("completion",),
    "api.demo": ("demo",),
    "model.errors": ("DumpError",),
    "model.finding": ("Cause", "Finding"),
    "model.result": ("Result",),
    "model.run_result": ("RunResult",),
    "model.trace": ("Trace",),
}
_MODULE_OF = {name: module for module, names in _OFFERS.items() for name in names}
#: Modules of ``api`` that are offered themselves: commands that have commands of their own.
_NAMESPACES = ("dump_config", "golden", "rules", "weights")

__all__ = [
    "Cause",
    "DumpError",
    "Finding",
    "Result",
    "RunResult",
    "Trace",
    "__version__",
    "align",
    "check",
    "checklist",
    "completion",
    "data",
    "demo",
    "dump_config",
    "env",
    "explain",
    "find_case",
    "golden",
    "graft",
    "inspect",
    "load",
    "logs",
    "mapping",
    "narrow",
    "norms",
    "optimizer",
    "read",
    "record",
    "report",
    "rules",
    "serve",
    "settings",
    "snippet",
    "triage",
    "verify",
    "weights",
]


def __getattr__(name: str) -> Any:
    """Load on first use: ``dumpdiff --help`` must not pay for pandas."""
    from importlib import import_module

    value: Any
    if name in _NAMESPACES:
        value = import_module(f".api.{name}", __name__)
    elif name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    """List what the library offers, also what is not loaded yet."""
    return sorted({*globals(), *__all__})
