"""A triage in a terminal: conclusion, reasons, every stage in one line, and what to do next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...diagnosis.outcome import TriageResult
from ...model.formatting import escape_control
from ..alignment.first_line import format_divergence
from ..formats.blocks import write_blocks
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from ..stages.stage import COLORS, write_first_line, write_stage
from .sections import (
    build_conclusion,
    build_overview,
    build_sections,
    find_first_finding,
    has_weaknesses,
)


@use_chosen_language()
def write(
    triaged: TriageResult, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the triage; the first line is the conclusion, short and unbroken on any console.

    With ``verbose``, also all of each stage.
    """
    _write_first_line(triaged, console, quiet=quiet)
    if quiet:
        return
    write_blocks(console, build_conclusion(triaged))
    write_blocks(console, [build_overview(triaged.evidence)])
    _write_advice(triaged, console)
    if not verbose:
        return
    for section in build_sections(triaged.evidence):
        console.print()
        console.rule(translate(section.stage.name), align="left", characters="-")
        write_stage(section.stage, section.sides, section.blocks, console)


def _write_first_line(triaged: TriageResult, console: Console, *, quiet: bool) -> None:
    """Print the conclusion; that of a phase of the dumps is the first finding there."""
    decision = triaged.decision
    label, style = translate("triage"), COLORS[decision.verdict]
    finding = find_first_finding(triaged)
    if finding is None:
        write_first_line(label, decision.headline, style, console, quiet=quiet)
        return
    place, _, _ = decision.headline.partition(": ")
    place = translate_sentence(place)
    if has_weaknesses(triaged):
        place = translate("{verdict}, in doubt", verdict=place)
    n_others = len(decision.other_causes)
    if n_others:  # before the finding: the end of a long line is cut
        place = translate("{place} (and {count} more)", place=place, count=n_others)
    line = format_divergence(f"{label}{translate(': ')}{place}", finding, ())
    console.print(Text(line, style=style), soft_wrap=True)


def _write_advice(triaged: TriageResult, console: Console) -> None:
    """Print the advice; each command is on a line of its own, unbroken, to be copied."""
    if not triaged.advice:
        return
    console.print()
    console.print(Text(translate("next"), style="bold"))
    for advice in triaged.advice:
        reason = escape_control(translate_sentence(advice.reason))
        console.print(Text(f"  {reason}"), soft_wrap=True)
        for command in advice.commands:
            console.print(Text(f"    {escape_control(command)}", style="cyan"), soft_wrap=True)
