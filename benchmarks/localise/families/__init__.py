"""Architectures beyond the six models of :mod:`architecture`: one package each.

    NAME/architecture.py   ``build_clean()`` returns a ``Model``: a frozen dataclass with ``name``,
                           ``variant``, knobs and ``weights`` (float32 arrays by canonical name);
                           ``batch()`` returns the arrays of one batch; ``optimizer`` is the rule of
                           the update, if a fault is in it
    NAME/faults.py         FAULTS: name -> :class:`fault.Fault`
                           CASES: (name of a fault, 'mindspore' or 'pytorch': the side that has it)
                           VARIANTS: name of a benign pair -> the variants of target and reference
    NAME/mindspore_net.py  ``build_loss(model)`` returns a Cell that computes the loss of a batch
    NAME/pytorch_net.py    the same as an nn.Module

A variant is another way to write the same model down: other module names, or another decomposition
of the same arithmetic. Only the nets import a framework. The recording scripts next to this file
are those of all families.

What was held out was opened for tuning on 26 November 2026, three times on 27 November, eleven
times on 28 November, ten times on 29 November, fourteen times on 30 November and on 1 December.
What is held out is written by people who have seen neither what dumpdiff answers to it nor the
code that finds causes. At present nothing is.
"""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from families.fault import Fault

#: All packages of this folder.
NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))
#: Families that nobody looks at while tuning, in addition to the held-out faults of the other ones.
HELD_OUT: tuple[str, ...] = ()
#: Benign pairs that nobody looks at while tuning.
HELD_OUT_PAIRS: tuple[str, ...] = ()


def get_faults(name: str) -> ModuleType:
    """Return a family's module of faults and cases."""
    return import_module(f"families.{name}.faults")


def get_fault(name: str, fault: str) -> Fault:
    """Return a fault of a family."""
    return get_faults(name).FAULTS[fault]


def build(name: str, fault: str = "none", variant: str = "") -> Any:
    """Return the model of a family, with a fault, written down in a variant."""
    model = import_module(f"families.{name}.architecture").build_clean()
    if fault != "none":
        model = get_fault(name, fault).apply(model)
    return replace(model, variant=variant)


def import_net(name: str, framework: str) -> ModuleType:
    """Return the module that has a family's ``build_loss`` in a framework."""
    return import_module(f"families.{name}.{framework}_net")
