"""A triage as one HTML file that needs nothing else: the conclusion, the tree it was found by, a section per stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from ...diagnosis.decision import LEADS, SYMPTOMS
from ...diagnosis.evidence import STAGES
from ...diagnosis.outcome import TriageResult
from ...diagnosis.places import Place, answer_places
from ..page.renderer import Page, render
from ..stages.curves import draw_figures
from ..stages.sections import TableBlock
from .markdown import to_markdown
from .norm_chart import WIDTH, draw_norm_chart
from .sections import NOT_GIVEN, build_conclusion, build_sections, format_symptom

_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "triage.js")
_BARS = 40  #: parameters whose norms are drawn
_SHOWN = 50  #: rows of a table and lines of a list; the JSON has all of them


@dataclass(frozen=True)
class Step:
    """One stage in the strip of all."""

    name: str
    state: str  #: a class of the style sheet: agree, differ, inconclusive, absent
    spoken: str
    said: str  #: what it found, or why it was not looked at


@dataclass(frozen=True)
class Leaf:
    """A place where the mismatch may come from."""

    place: Place
    state: str
    spoken: str
    said: str
    by: str  #: the stage that says so, '' if none


@dataclass(frozen=True)
class Branch:
    """What the runs may show, and where it leads."""

    shows: str
    taken: bool
    leaves: tuple[Leaf, ...]


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the page; the same triage gives the same bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    stream.write(render(build_page(triaged)))


def build_page(triaged: TriageResult) -> Page:
    """The page of a triage."""
    evidence, decision = triaged.evidence, triaged.decision
    answer, _, said = decision.headline.partition(": ")
    context = {
        "triaged": triaged,
        "decision": decision,
        "answer": answer,
        "said": said,
        "symptom": format_symptom(triaged),
        "reasons": {part.title: part.lines for part in build_conclusion(triaged)},
        "steps": tuple(_steps(triaged)),
        "tree": tuple(_tree(triaged)),
        "sections": build_sections(evidence),
        "is_rows": lambda part: isinstance(part, TableBlock),
        "most": _SHOWN,
        "curves": () if evidence.logs is None else tuple(map(_markup, draw_figures(evidence.logs))),
        "bars": None if evidence.norms is None else draw_norm_chart(evidence.norms.rows[:_BARS]),
        "width": WIDTH,
    }
    return Page(
        title=f"{decision.outcome}: two trainings triaged",
        template="triage.html",
        context=context,
        tables={},
        data={
            "markdown": to_markdown(triaged),
            "stages": [f"stage-{stage.name}" for stage in evidence.stages],
        },
        styles=("page.css", "comparison.css", "triage.css"),
        scripts=_SCRIPTS,
    )


def _steps(triaged: TriageResult) -> Iterator[Step]:
    stages = {stage.name: stage for stage in triaged.evidence.stages}
    for name in STAGES:
        if name in stages:
            yield Step(name, stages[name].verdict, stages[name].verdict, stages[name].headline)
        else:
            yield Step(name, "absent", NOT_GIVEN, triaged.evidence.skipped.get(name, ""))


def _tree(triaged: TriageResult) -> Iterator[Branch]:
    known = answer_places(triaged.evidence)
    for shown, places in LEADS.items():
        leaves = (known[place] for place in places)
        yield Branch(
            shows=SYMPTOMS[shown],
            taken=shown == triaged.decision.symptom,
            leaves=tuple(
                Leaf(leaf.place, "absent", "not looked at", "", "")
                if leaf.verdict == "unseen"
                else Leaf(leaf.place, leaf.verdict, leaf.verdict, leaf.said, leaf.by)
                for leaf in leaves
            ),
        )


def _markup(svg: str) -> object:
    """A drawing whose texts are escaped already."""
    from markupsafe import Markup

    return Markup(svg)
