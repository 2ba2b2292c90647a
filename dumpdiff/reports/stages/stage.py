"""What the reports of all stages share: the headline, and the head of the JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from ... import __version__
from ...model.formatting import escape_control
from ...model.stage import Stage
from ..alignment.first_line import format_sentence, join_label
from ..formats.blocks import Block, translate_block, write_blocks, write_sides
from ..language import translate, use_chosen_language
from ..sentences import translate_known_sentence, translate_sentence

#: Of the JSON of every stage. Major: programs that read the old form fail. Minor: something was
#: added.
#: History:
#:   1.0  first published form
#:   2.0  renamed keys and words:
#:        settings: of a value how -> origin and why -> reason
#:        checklist: of an item ask -> requirement
#:        data: order -> reference_samples; of a finding said -> summary; the relations same, order,
#:        part, some, other -> identical, reordered, subset, similar, different
#:        logs: begins -> onset, departure -> divergence_step, wander -> fluctuation; of it error ->
#:        standard_error, positive -> positive_share, around_zero -> unbiased; of the band inside ->
#:        contains_target; of a check said -> summary
#:        norms: allowed -> agree_limit, noise -> differ_limit, alone -> unpaired; of a side because
#:        -> squared_reason and together -> combined_norm; of a pattern said -> summary; of a row
#:        by -> evidence
SCHEMA_VERSION = "2.0"

COLORS = {"agree": "bold green", "differ": "bold red", "inconclusive": "bold yellow"}


@use_chosen_language()
def write_stage(
    stage: Stage,
    sides: tuple[str, str] | None,
    blocks: Iterable[Block],
    console: Console,
    *,
    quiet: bool = False,
) -> None:
    """Print a stage: its first line, then, unless ``quiet``, both sides and the blocks."""
    write_headline(stage, console, quiet=quiet)
    if quiet:
        return
    if sides is not None:
        write_sides(console, *map(translate_known_sentence, sides))
    write_blocks(console, map(translate_block, blocks))


def write_headline(stage: Stage, console: Console, *, quiet: bool = False) -> None:
    """Print the first line: the name of the stage, the verdict, and its reason."""
    label = translate(
        "{stage} {verdict}", stage=translate(stage.name), verdict=translate(stage.verdict)
    )
    write_first_line(label, stage.headline, COLORS[stage.verdict], console, quiet=quiet)


def write_first_line(
    label: str, headline: str, style: str, console: Console, *, quiet: bool = False
) -> None:
    """Print the first line, at most ``MAX_LENGTH`` characters; a headline that is cut follows.

    If ``quiet``, nothing follows, and the line has the whole headline: no problem is hidden.
    """
    sentence = escape_control(translate_sentence(headline))
    if quiet:
        console.print(Text(join_label(label, sentence), style=style), soft_wrap=True)
        return
    line = format_sentence(label, sentence, ())
    console.print(Text(line, style=style), soft_wrap=True)
    if not line.endswith(sentence):
        console.print()
        console.print(Text(sentence, overflow="fold"))


def build_document(stage: Stage, **fields: Any) -> dict[str, Any]:
    """Return the JSON of a stage: what all stages have, then its own ``fields``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        **convert_stage(stage),
        **fields,
    }


def convert_stage(stage: Stage) -> dict[str, Any]:
    """Return a stage as plain data: what all stages have."""
    return {
        "name": stage.name,
        "verdict": stage.verdict,
        "headline": stage.headline,
        "evidence": stage.evidence,
        "missing": stage.missing,
    }
