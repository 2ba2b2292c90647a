"""The command that repeats one stage of a case, with the same inputs, and shows more of it."""

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
_PACKING_OPTIONS = {
    "sequence_length": "seq-length",
    "global_batch": "global-batch-size",
    "micro_batch": "micro-batch-size",
    "data_parallel": "data-parallel",
    "samples": "samples",
    "seed": "seed",
    "split": "split",
    "loader": "loader",
}


def format_settings(case: Case, *options: str) -> str:
    """Return ``dumpdiff settings``, with the versions and the config.json of the case."""
    side_options = []
    for side, run in zip(SIDES, (case.target, case.reference), strict=True):
        side_options.append((f"--{side}-version", run.version))
        side_options.append((f"--{side}-config", run.model_config))
    return _format_command(
        "settings", *case.get_both("settings"), *_format_options(side_options), *options
    )


def format_data(case: Case, evidence: Evidence, *options: str) -> str:
    """Return ``dumpdiff data``; token files are cut into samples as the settings say."""
    inputs = [run.data or run.dump for run in (case.target, case.reference)]
    packing_options = _format_options(_list_packing_options(evidence))
    tokenizer_options = _format_options([("--tokenizer", case.tokenizer)])
    return _format_command("data", *inputs, *packing_options, *tokenizer_options, *options)


def _list_packing_options(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Iterate over the options of both sides' token files; different values as TARGET:REFERENCE."""
    from ..batches.first_step import DEFAULT_PACKING
    from ..batches.packing_settings import derive_packings

    if evidence.settings is None or evidence.data is None:
        return
    batches = (evidence.data.target, evidence.data.reference)
    packings = [
        packing
        for packing, batch in zip(derive_packings(evidence.settings), batches, strict=True)
        if batch.kind == "dataset"
    ]
    for field in fields(DEFAULT_PACKING):
        if field.name not in _PACKING_OPTIONS:
            continue
        values = [getattr(packing, field.name) for packing in packings]
        default = getattr(DEFAULT_PACKING, field.name)
        is_default = all(value == default for value in values)
        if not is_default and None not in values:
            yield f"--{_PACKING_OPTIONS[field.name]}", ":".join(map(str, dict.fromkeys(values)))


def format_logs(case: Case, *options: str) -> str:
    """Return ``dumpdiff logs``."""
    baselines = _format_options(("--baseline", path) for path in case.baseline_logs)
    min_steps = "" if case.min_steps == MIN_STEPS else str(case.min_steps)
    step_options = _format_options([("--min-steps", min_steps)])
    return _format_command("logs", *case.get_both("log"), *baselines, *step_options, *options)


def format_weights(case: Case, *options: str) -> str:
    """Return ``dumpdiff weights``."""
    return _format_command("weights", *case.get_both("weights"), *_format_rules(case), *options)


def format_optimizer(case: Case, *options: str) -> str:
    """Return ``dumpdiff optimizer``."""
    return _format_command("optimizer", *case.get_both("steps"), *options)


def format_align(case: Case, *options: str) -> str:
    """Return ``dumpdiff align``; its findings have the same numbers as in the triage."""
    baseline = _format_options([("--baseline", case.baseline_dump)])
    dumps = case.get_both("dump")
    return _format_command("align", *dumps, *baseline, *_format_rules(case), *options)


def _format_rules(case: Case) -> tuple[str, ...]:
    return _format_options(("--rules", path) for path in case.rules)


def _format_options(options: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the words of the options that have a value."""
    words: list[str] = []
    for option, value in options:
        if value:
            words += [option, value]
    return tuple(words)


def _format_command(name: str, *words: str) -> str:
    return shlex.join(("dumpdiff", name, *words))
