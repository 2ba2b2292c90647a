"""A triage in a terminal: conclusion, reasons, every stage in one line, and what to do next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...diagnosis.outcome import TriageResult
from ...model.formatting import escape_control
from ..formats.blocks import write_blocks
from ..language import translate, use_chosen_language
from ..sentences import translate_sentence
from ..stages.stage import COLORS, write_stage
from .sections import build_conclusion, build_overview, build_sections


@use_chosen_language()
def write(
    triaged: TriageResult, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the triage; the first line is the conclusion, unbroken on any console.

    With ``verbose``, also all of each stage.
    """
    decision = triaged.decision
    answer = translate_sentence(decision.headline)
    line = escape_control(f"{translate('triage')}{translate(': ')}{answer}")
    headline = Text(line, style=COLORS[decision.verdict])
    console.print(headline, soft_wrap=True)
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
