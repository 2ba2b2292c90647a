"""Compare and convert tiny models of every family: ``python -m checkpoints`` in ``benchmarks/``.

``--only PART`` selects families and variants by name. ``--write`` puts the tables into
docs/weights.md. For each family: a correct pair of transformers and Megatron (see
:mod:`.layouts`), in both directions; deliberate mistakes (:mod:`.mistakes`), a part of them held
out; conversions to each framework and back, with the logits of the result. Families with other
settings (:data:`.models.VARIANTS`) are converted only. Peak of disk: a few megabytes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import conversions, layouts, mistakes, models

_DOCUMENT = Path(__file__).parents[2] / "docs" / "weights.md"
_BEGIN, _END = "<!-- begin: families -->\n", "<!-- end: families -->\n"
_HEAD = (
    "| family | correct pair | mistakes named | held out"
    " | Megatron and back | MindSpore and back |\n"
    "|---|---|--:|--:|---|---|\n"
)
_VARIANT_HEAD = "| settings | Megatron and back | MindSpore and back |\n|---|---|---|\n"
#: The family whose other layout is timm's.
_TIMM = "ViT"


@dataclass
class Row:
    """The results of a family."""

    family: str
    is_silent: bool = False  #: the correct pair is identical in both directions
    n_named: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  #: by held out
    n_misnamed: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    n_mistakes: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    conversions: list[conversions.Outcome] = field(default_factory=list)


def main() -> None:
    """Run the benchmark and print the table."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of families")
    parser.add_argument("--write", action="store_true", help="write the table to docs/weights.md")
    options = parser.parse_args()
    rows = []
    for family in models.list_families(models.MODELS, options.only):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_measure_family(family, Path(folder)))
        print(_format_row(rows[-1]), end="", flush=True)
    table = _HEAD + "".join(map(_format_row, rows)) + _format_totals(rows)
    print(_format_totals(rows), end="")
    table += "\n" + _VARIANT_HEAD
    for variant in models.list_families(models.VARIANTS, options.only):
        with tempfile.TemporaryDirectory() as folder:
            line = _format_variant(variant, _convert_model(variant, Path(folder)))
        print(line, end="", flush=True)
        table += line
    if options.write:
        before, _, rest = _DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        text = f"{before}{_BEGIN}\n{table}\n{_END}{after}"
        _DOCUMENT.write_text(text, encoding="utf-8")


def _measure_family(family: str, folder: Path) -> Row:
    model = models.build_model(family)
    source = folder / "transformers"
    model.save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    weights = models.read_weights(source)
    row = Row(family)
    if family in layouts.MEMORY_FAMILIES:
        memory = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        target = layouts.save_memory(folder / "memory.pt", memory)
        wrong_files = _write_memory_mistakes(family, memory, config, folder)
    else:
        roles = layouts.read_roles(family, weights, config)
        target = _write_partner(family, roles, config, folder)
        write_mistakes = _write_timm_mistakes if family == _TIMM else _write_mistakes
        wrong_files = write_mistakes(family, weights, config, folder)
    row.is_silent = _is_identical(target, source) and _is_identical(source, target)
    for mistake, file in wrong_files:
        _judge_mistake(row, mistake, file, source)
    row.conversions = _convert_to_all(model, source, folder)
    return row


def _convert_model(variant: str, folder: Path) -> list[conversions.Outcome]:
    model = models.build_model(variant)
    source = folder / "transformers"
    model.save_pretrained(source)
    return _convert_to_all(model, source, folder)


def _convert_to_all(model: Any, source: Path, folder: Path) -> list[conversions.Outcome]:
    return [
        conversions.convert_both_ways(model, source, framework, folder / framework)
        for framework in ("megatron", "mindspore")
    ]


def _write_partner(family: str, roles: layouts.Roles, config: layouts.Config, folder: Path) -> Path:
    """Write the correct weights as another framework stores them."""
    if family == _TIMM:
        return layouts.save_timm(folder / "correct.safetensors", layouts.write_timm(roles))
    weights = layouts.write_megatron(family, roles, config)
    arguments = layouts.build_arguments(family, config, weights)
    return layouts.save_megatron(folder / "correct", weights, arguments)


def _write_mistakes(
    family: str, weights: layouts.Weights, config: layouts.Config, folder: Path
) -> Iterator[tuple[mistakes.Mistake, Path]]:
    """Yield the mistakes that change this family, each with its file."""
    correct = layouts.write_megatron(family, layouts.read_roles(family, weights, config), config)
    numbers = {}
    if family != "Mamba 2":
        numbers = dict(zip(("heads", "groups"), layouts.read_heads(family, config), strict=True))
    for number, mistake in enumerate(mistakes.MISTAKES):
        roles = layouts.read_roles(family, weights, config)
        if not mistake.applies_to(roles):
            continue
        if mistake.change is not None:
            mistake.change(roles, numbers)
        wrong = layouts.write_megatron(family, roles, config, mistake.fusions)
        if all(np.array_equal(wrong[name], value) for name, value in correct.items()):
            continue  # with one query group, both orders of q, k and v are the same
        arguments = layouts.build_arguments(family, config, wrong)
        yield mistake, layouts.save_megatron(folder / f"mistake_{number}", wrong, arguments)


def _write_timm_mistakes(
    family: str, weights: layouts.Weights, config: layouts.Config, folder: Path
) -> Iterator[tuple[mistakes.Mistake, Path]]:
    """Yield the mistakes that change timm's file of this family, each with its file."""
    correct = layouts.write_timm(layouts.read_roles(family, weights, config))
    heads, groups = layouts.read_heads(family, config)
    for number, mistake in enumerate(mistakes.MISTAKES):
        roles = layouts.read_roles(family, weights, config)
        if not mistake.applies_to(roles):
            continue
        if mistake.change is not None:
            mistake.change(roles, {"heads": heads, "groups": groups})
        fuse = layouts.concatenate_qkv
        if mistake.fusions is not layouts.CORRECT:
            fuse = mistake.fusions.qkv
        wrong = layouts.write_timm(roles, heads, fuse)
        if any(not np.array_equal(wrong[name], value) for name, value in correct.items()):
            file = folder / f"mistake_{number}.safetensors"
            yield mistake, layouts.save_timm(file, wrong)


def _write_memory_mistakes(
    family: str, memory: layouts.Weights, config: layouts.Config, folder: Path
) -> Iterator[tuple[mistakes.Mistake, Path]]:
    """Yield the mistakes that change the memory of this family, each with its file."""
    heads = config.get("text_config", config)
    numbers = dict(zip(("heads", "groups"), layouts.read_heads(family, heads), strict=True))
    for number, mistake in enumerate(mistakes.MISTAKES):
        roles, keys = layouts.read_memory(family, memory)
        if mistake.change is None or not mistake.applies_to(roles):
            continue
        mistake.change(roles, numbers)
        wrong = layouts.write_memory(memory, roles, keys)
        yield mistake, layouts.save_memory(folder / f"mistake_{number}.pt", wrong)


def _judge_mistake(row: Row, mistake: mistakes.Mistake, target: Path, source: Path) -> None:
    import dumpdiff

    result = dumpdiff.weights.compare(target, source)
    kinds = {pair.mistake.kind for pair in result.mistakes}
    row.n_mistakes[mistake.is_held_out] += 1
    if kinds and kinds <= set(mistake.kinds):
        row.n_named[mistake.is_held_out] += 1
    elif kinds:
        row.n_misnamed[mistake.is_held_out] += 1


def _is_identical(target: Path, reference: Path) -> bool:
    import dumpdiff

    result = dumpdiff.weights.compare(target, reference)
    is_same = (result.verdict, result.relation) == ("agree", "identical")
    return is_same and not result.mistakes and result.coverage == 1


def _format_row(row: Row) -> str:
    cells = [row.family, "identical" if row.is_silent else "**differs**"]
    for is_held_out in (False, True):
        count = row.n_mistakes[is_held_out]
        cells.append(f"{row.n_named[is_held_out]} of {count}" if count else "")
    cells += map(_format_conversion, row.conversions)
    return f"| {' | '.join(cells)} |\n"


def _format_variant(variant: str, outcomes: list[conversions.Outcome]) -> str:
    return f"| {variant} | {' | '.join(map(_format_conversion, outcomes))} |\n"


def _format_conversion(outcome: conversions.Outcome) -> str:
    if outcome.refusal:
        return "refused"
    if not outcome.is_identical:
        return "**other weights**"
    text = f"identical, logits {outcome.logits_error:.1g}"
    if outcome.megatron_error is not None:
        text += f", in Megatron-core {outcome.megatron_error:.1g}"
    return text


def _format_totals(rows: list[Row]) -> str:
    cells = ["all", f"{sum(row.is_silent for row in rows)} of {len(rows)}"]
    for is_held_out in (False, True):
        named, wrong, count = (
            sum(numbers[is_held_out] for numbers in counts)
            for counts in (
                [row.n_named for row in rows],
                [row.n_misnamed for row in rows],
                [row.n_mistakes for row in rows],
            )
        )
        cells.append(f"{named} of {count}, {wrong} wrong names")
    for index in range(2):
        converted = [row for row in rows if not row.conversions[index].refusal]
        cells.append(f"{len(converted)} families")
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main()
