"""A triage in a terminal: the conclusion, what it rests on, every stage in a line, and what to do next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...diagnosis.outcome import TriageResult
from ...model.formatting import printable
from ..stages.sections import COLORS, write_blocks, write_stage
from .sections import build_conclusion, build_overview, build_sections


def write(
    triaged: TriageResult, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print it, with ``verbose`` also all of each stage; the first line is the conclusion, unbroken on any console."""
    decision = triaged.decision
    line = f"triage: {decision.headline}"
    console.print(Text(printable(line), style=COLORS[decision.verdict]), soft_wrap=True)
    if quiet:
        return
    write_blocks(console, build_conclusion(triaged))
    write_blocks(console, [build_overview(triaged.evidence)])
    _write_advice(triaged, console)
    for section in build_sections(triaged.evidence) if verbose else ():
        console.print()
        console.rule(section.stage.name, align="left", characters="-")
        write_stage(section.stage, section.sides, section.parts, console)


def _write_advice(triaged: TriageResult, console: Console) -> None:
    """Commands stand alone on their lines, unbroken, to be copied."""
    if not triaged.advice:
        return
    console.print()
    console.print(Text("next", style="bold"))
    for advice in triaged.advice:
        console.print(Text(f"  {printable(advice.why)}"), soft_wrap=True)
        for command in advice.commands:
            console.print(Text(f"    {printable(command)}", style="cyan"), soft_wrap=True)
