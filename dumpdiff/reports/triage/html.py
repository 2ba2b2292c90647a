"""A triage as one self-contained HTML file: conclusion, decision tree, one section per stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ...diagnosis.decision import LEADS, SYMPTOMS
from ...diagnosis.evidence import STAGES, Evidence
from ...diagnosis.likelihoods import Place
from ...diagnosis.observations import list_observations
from ...diagnosis.outcome import TriageResult
from ...diagnosis.places import PlaceAnswer, answer_places
from ..formats.blocks import Block, TableBlock
from ..language import translate, use_chosen_language
from ..page.renderer import Page, render
from ..sentences import translate_sentence
from ..stages.curves import draw_figures
from .markdown import to_markdown
from .norm_chart import WIDTH, draw_norm_chart
from .sections import NOT_GIVEN, build_conclusion, build_sections, format_symptom

_SCRIPTS = ("unpack.js", "elements.js", "hash.js", "frame.js", "triage.js")
_MAX_BARS = 40  #: parameters whose norms are drawn
_MAX_ITEMS = 50  #: rows of a table and lines of a list; the JSON has all of them


@dataclass(frozen=True)
class Step:
    """One stage in the strip of all stages."""

    name: str
    state: str  #: a class of the style sheet: agree, differ, inconclusive, absent
    label: str
    summary: str  #: its headline, or why there was nothing to compare


@dataclass(frozen=True)
class Leaf:
    """A place that a mismatch may come from."""

    place: Place
    state: str  #: a class of the style sheet: agree, differ, inconclusive, absent
    label: str
    summary: str
    stage: str  #: the stage that decided it, '' if none


@dataclass(frozen=True)
class Branch:
    """A symptom of the runs, and the places that it may come from."""

    symptom: str
    is_taken: bool
    leaves: tuple[Leaf, ...]


def write(triaged: TriageResult, stream: IO[bytes]) -> None:
    """Write the page; the same triage gives the same bytes.

    Raises DumpError if the packages that only this report needs are not installed.
    """
    markdown = to_markdown(triaged)
    with use_chosen_language():
        stream.write(render(build_page(triaged, markdown)))


def build_page(
    triaged: TriageResult, markdown: str, pages: Mapping[str, str] | None = None
) -> Page:
    """Return the page of a triage, with links to the pages of its stages (stage -> file).

    ``markdown`` is what its button copies.
    """
    evidence, decision = triaged.evidence, triaged.decision
    answer, _, explanation = decision.headline.partition(": ")
    context = {
        "triaged": triaged,
        "decision": decision,
        "answer": translate_sentence(answer),
        "explanation": translate_sentence(explanation),
        "symptom": format_symptom(triaged),
        "reasons": {block.title: block.lines for block in build_conclusion(triaged)},
        "steps": tuple(_list_steps(triaged)),
        "tree": tuple(_build_tree(triaged)),
        "sections": build_sections(evidence),
        "pages": pages or {},
        "drawings": build_drawings(evidence, _MAX_BARS, _MAX_ITEMS),
    }
    stage_ids = [f"stage-{stage.name}" for stage in evidence.stages]
    return Page(
        title=translate("{outcome}: two trainings triaged", outcome=translate(decision.outcome)),
        template="triage.html",
        context=context,
        tables={},
        data={"markdown": markdown, "stages": stage_ids},
        styles=("page.css", "comparison.css", "triage.css"),
        scripts=_SCRIPTS,
    )


def build_drawings(evidence: Evidence, max_bars: int, max_items: int) -> Mapping[str, Any]:
    """Return what the template of a stage needs besides its section."""
    curves = () if evidence.logs is None else draw_figures(evidence.logs)
    chart = None if evidence.norms is None else draw_norm_chart(evidence.norms.rows[:max_bars])
    return {
        "curves": tuple(map(_mark_safe, curves)),
        "norm_chart": chart,
        "chart_width": WIDTH,
        "max_items": max_items,
        "is_table": _is_table,
    }


def _is_table(block: Block) -> bool:
    return isinstance(block, TableBlock)


def _list_steps(triaged: TriageResult) -> Iterator[Step]:
    stages = {stage.name: stage for stage in triaged.evidence.stages}
    for name in STAGES:
        stage = stages.get(name)
        if stage is None:
            yield Step(name, "absent", translate(NOT_GIVEN), triaged.evidence.skipped.get(name, ""))
        else:
            yield Step(name, stage.verdict, translate(stage.verdict), stage.headline)


def _build_tree(triaged: TriageResult) -> Iterator[Branch]:
    answers = answer_places(list_observations(triaged.evidence))
    for symptom, places in LEADS.items():
        yield Branch(
            symptom=translate(SYMPTOMS[symptom]),
            is_taken=symptom == triaged.decision.symptom,
            leaves=tuple(_build_leaf(answers[place]) for place in places),
        )


def _build_leaf(answer: PlaceAnswer) -> Leaf:
    if answer.verdict == "unseen":
        return Leaf(answer.place, "absent", translate("not compared"), "", "")
    return Leaf(
        answer.place, answer.verdict, translate(answer.verdict), answer.message, answer.stage
    )


def _mark_safe(svg: str) -> object:
    """Return a drawing, whose texts are escaped already, as markup."""
    from markupsafe import Markup

    return Markup(svg)
