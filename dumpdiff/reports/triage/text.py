"""A triage in a terminal: the conclusion, what it rests on, every stage in a line, and what to do next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...diagnosis.outcome import Triaged
from ...model.formatting import printable
from ..stages.sections import COLOUR, write_parts, write_stage
from .sections import conclusion, overview, sections


def write(
    triaged: Triaged, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print it, with ``verbose`` also all of each stage; the first line is the conclusion, unbroken on any console."""
    decision = triaged.decision
    line = f"triage: {decision.headline}"
    console.print(Text(printable(line), style=COLOUR[decision.verdict]), soft_wrap=True)
    if quiet:
        return
    write_parts(console, conclusion(triaged))
    write_parts(console, [overview(triaged.evidence)])
    _write_advice(triaged, console)
    for section in sections(triaged.evidence) if verbose else ():
        console.print()
        console.rule(section.stage.name, align="left", characters="-")
        write_stage(section.stage, section.sides, section.parts, console)


def _write_advice(triaged: Triaged, console: Console) -> None:
    """Commands stand alone on their lines, unbroken, to be copied."""
    if not triaged.advice:
        return
    console.print()
    console.print(Text("next", style="bold"))
    for advice in triaged.advice:
        console.print(Text(f"  {printable(advice.why)}"), soft_wrap=True)
        for command in advice.commands:
            console.print(Text(f"    {printable(command)}", style="cyan"), soft_wrap=True)
