"""The command that looks at one stage of a case again: at the same files, read in the same way, to say more of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from ..training_logs.migration_standard import MIN_STEPS
from .case import SIDES, Case

if TYPE_CHECKING:
    from .evidence import Evidence

#: Field of a packing -> option of ``dumpdiff data``.
_PACKING = {
    "sequence_length": "seq-length",
    "global_batch": "global-batch-size",
    "micro_batch": "micro-batch-size",
    "data_parallel": "data-parallel",
    "samples": "samples",
    "seed": "seed",
    "split": "split",
    "loader": "loader",
}


def settings(case: Case, *more: str) -> str:
    """``dumpdiff settings``, with the versions and configurations that the case names."""
    told = (
        (f"--{side}-{option}", value)
        for side, run in zip(SIDES, (case.target, case.reference), strict=True)
        for option, value in (("version", run.version), ("config", run.model_config))
    )
    return _command("settings", *case.get_both("settings"), *_options(told), *more)


def data(case: Case, evidence: Evidence, *more: str) -> str:
    """``dumpdiff data``, with token files cut as the settings say."""
    files = (run.data or run.dump for run in (case.target, case.reference))
    return _command(
        "data",
        *files,
        *_options(_packing(evidence)),
        *_options([("--tokenizer", case.tokenizer)]),
        *more,
    )


def _packing(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What both sides say of token files; where they say different things, ``TARGET:REFERENCE``."""
    from ..batches.first_step import DEFAULT_PACKING
    from ..batches.packing_settings import derive_packings

    if evidence.settings is None or evidence.data is None:
        return
    sides = zip(
        derive_packings(evidence.settings),
        (evidence.data.target, evidence.data.reference),
        strict=True,
    )
    asked = [packing for packing, batch in sides if batch.kind == "dataset"]
    for name in (one.name for one in fields(DEFAULT_PACKING) if one.name in _PACKING):
        values = [getattr(packing, name) for packing in asked]
        if any(value != getattr(DEFAULT_PACKING, name) for value in values) and None not in values:
            yield f"--{_PACKING[name]}", ":".join(map(str, dict.fromkeys(values)))


def logs(case: Case, *more: str) -> str:
    """``dumpdiff logs``."""
    baselines = _options(("--baseline", path) for path in case.baseline_logs)
    least = () if case.min_steps == MIN_STEPS else ("--min-steps", str(case.min_steps))
    return _command("logs", *case.get_both("log"), *baselines, *least, *more)


def weights(case: Case, *more: str) -> str:
    """``dumpdiff weights``."""
    return _command("weights", *case.get_both("weights"), *_rules(case), *more)


def optimizer(case: Case, *more: str) -> str:
    """``dumpdiff optimizer``."""
    return _command("optimizer", *case.get_both("steps"), *more)


def align(case: Case, *more: str) -> str:
    """``dumpdiff align``: findings have the numbers that they have in the triage."""
    baseline = _options([("--baseline", case.baseline_dump)])
    return _command("align", *case.get_both("dump"), *baseline, *_rules(case), *more)


def _rules(case: Case) -> tuple[str, ...]:
    return _options(("--rules", path) for path in case.rules)


def _options(given: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those that have a value."""
    return tuple(word for option, value in given if value for word in (option, value))


def _command(name: str, *words: str) -> str:
    return shlex.join(("dumpdiff", name, *words))
