"""Choose the recorder of a model's framework."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from ..model.errors import DumpError
from .options import RecordOptions


def make_recorder(model: Any, options: RecordOptions) -> AbstractContextManager[Any]:
    """Return the context manager that records a model.

    ``model`` is a ``torch.nn.Module`` or a ``mindspore.nn.Cell``; None for the first
    ``torch.nn.Module`` that is called. Raises DumpError for anything else, and if the folder cannot
    be used.
    """
    options.check_folder()
    if _is_instance(model, "mindspore.nn", "Cell"):
        from .mindspore_session import MindSporeRecorder

        return MindSporeRecorder(model, options)
    if model is None or _is_instance(model, "torch.nn", "Module"):
        from .pytorch.session import PyTorchRecorder

        return PyTorchRecorder(model, options)
    raise DumpError(
        f"record: the model is a {type(model).__name__}; "
        "expected a torch.nn.Module or a mindspore.nn.Cell"
    )


def _is_instance(model: Any, module_name: str, class_name: str) -> bool:
    """Return whether a model is of a class, without importing its framework."""
    module = sys.modules.get(module_name)
    return module is not None and isinstance(model, vars(module)[class_name])
