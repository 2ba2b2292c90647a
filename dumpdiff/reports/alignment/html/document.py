"""The page of a comparison of two dumps: its facts, tables and drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....model.formatting import format_number, format_percent
from ....model.result import PAIR_COLUMNS, Baseline, Result, Side
from ....model.trace import PHASES
from ....model.verdict import VALUE_STATES
from ...language import translate
from ...page.renderer import Page
from ..state_counts import (
    SIDES,
    format_pair,
    list_occurring_states,
    list_reasons,
    list_state_rows,
)
from ..summary import format_differing_values, format_headline, format_part, label_sides
from .findings import view_findings
from .heat_map import build_heat_maps
from .tables import (
    build_pairs_table,
    build_uncompared_table,
    build_unmatched_table,
    find_nonfinite,
)

_STYLES = ("page.css", "comparison.css", "alignment.css")
_SCRIPTS = (
    "unpack.js",
    "elements.js",
    "hash.js",
    "frame.js",
    "table.js",
    "alignment/plot.js",
    "alignment/dots.js",
    "alignment/network.js",
    "alignment/pair.js",
    "alignment/model_tree.js",
    "alignment.js",
)
_MAX_ITEMS = 200  #: findings and problems that the page holds; the JSON has all of them
_RECORDER_DETAILS = ("version", "device", "task", "level")  #: how a dump was recorded


def build_page(result: Result, markdown: str) -> Page:
    """Return the page of a result; ``markdown`` is what its button copies."""
    findings = tuple(view_findings(result, _MAX_ITEMS))
    problems: list[tuple[str, str]] = []
    for side_name, side in label_sides(result):
        problems += [(side_name, str(problem)) for problem in side.problems]
    # Of an inconclusive result the headline is the first note.
    notes = result.notes[1:] if result.verdict == "inconclusive" else result.notes
    target, reference = result.target.source, result.reference.source
    state_rows = list_state_rows(result)
    differing_values = result.count_differing_values()
    first = None
    for view in findings:
        if view.finding is result.first_divergence:
            first = view
            break
    context = {
        "result": result,
        "headline": format_headline(result).partition(translate(": "))[2],
        "notes": notes,
        "first": first,
        "findings": findings,
        "facts": tuple(_list_facts(result)),
        "states": VALUE_STATES,
        "state_rows": state_rows,
        "occurring_states": list_occurring_states(state_rows),
        "differing_values": format_differing_values(differing_values) if differing_values else "",
        "reasons": list_reasons(result.uncompared, result.unmatched),
        "format_pair": format_pair,
        "counts": result.pairs["state"].value_counts().to_dict(),
        "nonfinite_count": int(find_nonfinite(result.pairs).sum()),
        "heat_maps": build_heat_maps(result.pairs),
        "problems": problems[:_MAX_ITEMS],
        "problem_count": len(problems),
        "judgment": tuple(_list_judgment(result)),
    }
    finding_rows = [
        {"id": view.finding.id, "row": view.row, "first": view is first} for view in findings
    ]
    return Page(
        title=translate(
            "{verdict}: {target} and {reference} runs compared",
            verdict=translate(result.verdict),
            target=target.framework,
            reference=reference.framework,
        ),
        template="alignment.html",
        context=context,
        tables={
            "pairs": build_pairs_table(result),
            "uncompared": build_uncompared_table(result),
            "unmatched": build_unmatched_table(result),
        },
        data={"markdown": markdown, "findings": finding_rows},
        styles=_STYLES,
        scripts=_SCRIPTS,
        words=_list_words(result),
    )


def _list_words(result: Result) -> tuple[str, ...]:
    """Return the words of the tables that are shown in the language of the page."""
    columns = [name.removeprefix("target_").replace("_", " ") for name in PAIR_COLUMNS]
    metrics = [metric.replace("_", " ") for metric in result.pairs["metric"].unique()]
    reasons = {*result.uncompared["reason"], *result.unmatched["reason"]}
    return (*VALUE_STATES, *PHASES, *SIDES, *columns, "ratio", *metrics, *sorted(reasons))


def _list_facts(result: Result) -> Iterator[tuple[str, str, str]]:
    """Yield (name, of the target, of the reference) of every fact that a side knows."""
    target_facts, reference_facts = _describe_dump(result.target), _describe_dump(result.reference)
    for name, target_value in target_facts.items():
        reference_value = reference_facts[name]
        if target_value or reference_value:
            yield translate(name), target_value, reference_value


def _describe_dump(side: Side) -> dict[str, str]:
    source = side.source
    details = {name: source.details.get(name) for name in _RECORDER_DETAILS}
    return {
        "path": source.path,
        "framework": source.framework,
        "format": f"{source.format}, {source.format_variant}",
        "part": ", ".join(format_part(source)),
        "recorded": ", ".join(f"{name} {value}" for name, value in details.items() if value),
        "size": translate("{ops:,} ops, {tensors:,} tensors", ops=side.ops, tensors=side.tensors),
    }


def _list_judgment(result: Result) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the numbers that the verdict depends on."""
    tolerances = result.pairs["tolerance"].dropna()
    if len(tolerances):
        lower, upper = format_number(tolerances.min()), format_number(tolerances.max())
        span = lower
        if upper != lower:
            span = translate("{lower} to {upper}", lower=lower, upper=upper)
        description = translate("{span}, by operator, dtype and length of sums", span=span)
        yield translate("tolerances"), description
    if not math.isnan(result.noise_floor):
        noise = format_number(result.noise_floor)
        description = translate("{noise}, the median error of the pairs that agree", noise=noise)
        yield translate("noise"), description
    if "min_coverage" in result.details:
        yield translate("required coverage"), format_percent(float(result.details["min_coverage"]))
    if result.baseline is not None:
        yield translate("second run of the reference"), _format_baseline(result.baseline)


def _format_baseline(baseline: Baseline) -> str:
    if baseline.unusable:
        return baseline.unusable
    spread = translate(
        "spread of {count:,} values, median {median}, largest {largest} ({op})",
        count=baseline.values,
        median=format_number(baseline.median),
        largest=format_number(baseline.largest),
        op=baseline.largest_op,
    )
    return f"{spread}, {baseline.source.path}"
