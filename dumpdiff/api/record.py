"""Record a training step: ``dumpdiff.record``, and scripts that run recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .inputs import PathLike

__all__ = ["record"]


def record(
    model: Any,
    folder: PathLike,
    *,
    tensors: bool = False,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    modules: Sequence[str] = (),
    like: PathLike | None = None,
) -> AbstractContextManager[Any]:
    """Return a context manager that records the training steps that run inside it.

    Operators of the forward and backward pass, module calls, gradients and updates of parameters
    are written to ``folder``, with statistics and a sketch of every tensor. What is recorded does
    not change what is computed. A step ends where the model is called after an optimizer has run,
    and at the end of the block.

    Parameters
    ----------
    model
        ``torch.nn.Module``, or ``mindspore.nn.Cell`` in PyNative mode; None for the first
        ``torch.nn.Module`` that is called.
    folder
        Folder to write; each step and rank gets a folder of its own in it.
    tensors
        Whether whole tensors are written, too.
    steps, ranks
        Which are recorded, counted from 0; default: all.
    modules
        Names of modules to record, with all modules in them; default: all.
    like
        File that ``dumpdiff.narrow`` wrote (``target_record.json``): its step and rank are
        recorded, with whole tensors of the calls that it asks for.

    Raises
    ------
    DumpError
        If the model is of another kind, the folder holds a recording of this rank, or ``like`` is
        no such file.
    """
    from ..recorder import RecordOptions, make_recorder
    from ..recorder.request import read_request

    options = RecordOptions(Path(folder), tensors, steps, ranks, tuple(modules))
    if like is not None:
        options = options.narrow(read_request(Path(like)))
    return make_recorder(model, options)
