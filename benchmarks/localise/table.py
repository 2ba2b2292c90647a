"""Format the figures as Markdown, for a terminal and for a section of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import families
from faults import Case
from formats import FORMS
from peers import Verdict
from score import Score
from sensitivity import Point

_INTRODUCTION = """# Localization

`make benchmark-localise` inserts one fault at a time into one side of a pair of real recordings: \
MindSpore 2.10 in graph
mode against PyTorch 2.13, both on CPU. It asks dumpdiff where the runs diverge. The correct \
answer is not written by
hand: `truth.py` finds it by comparing the recording with the fault and the clean recording of the \
same framework.

- **top-1**: the verdict is *diverged* and the first finding names an op that is a root of the \
fault.
  **top-3**: one of the first three findings does.
- **tuned**: faults that were examined during the development of dumpdiff. **held out**: faults \
that were not: a third
  of the faults, and a whole model.
- **new**: other architectures ({families}). A held-out part is two faults each of six families, \
and two whole families.
  It is counted apart, so that the other rows stay comparable with those of earlier versions. Each \
part was written by
  people who had seen neither dumpdiff's answers to it nor the code that finds causes, was counted \
once, and was opened
  for tuning: on 26 November 2026, three times on 27 November, eleven times on 28 November, ten \
times on 29 November and
  fourteen times on 30 November and on 1 December. At present no part is held out.
- **tensors**: npy and graph against msprobe's whole tensors. **tensors-bare**: npy alone against \
a ptdbg_ascend `.pkl`
  with npy files.
- **statistics**: statistic.csv and graph against msprobe's statistics. **statistics-bare**: \
statistic.csv alone against
  a `.pkl` of statistics.
"""

_FINDINGS = """## Faults found, and false alarms

{table}

*Missed*: the verdict was *aligned*. *Ops named*: number of ops of the faulty side that a correct \
first finding names
(median). *Seconds*: median time of one comparison, two at a time on two cores.
"""

_ALIGNMENT = """## Alignment

*Precision*: share of the pairs that are correct, among those that can be judged. *Recall*: share \
of the reference's
values that have their correct partner, among those with a known partner. *Beyond*: values that \
the fault changed;
*before*: all others. Partners are known from the numbers of the clean recordings, independently \
of their names. Pairs of
low precision are not counted.

{table}
"""

_CAUSES = """## Causes

The first cause that is given with the correct finding. Where two descriptions of a fault are \
equally right (a loss
that is not divided by its tokens, and a loss times a constant), both count as the injected one. \
*Sentence right*: it is
the injected cause, and its sentence has the numbers and names of the fault, each for the side \
that has it.

{table}
"""

_MODELS = """## By model

Top-1, tuned and held-out faults together.

{table}
"""

_CURVE = """## How small an error is found

The output of one operator of the PyTorch side is changed by this share of its norm. The table \
shows the share of ten
operators, evenly spaced over the forward pass, for which the change is found.

{table}
"""

_PEERS = """## Comparison with msprobe

`msprobe compare` (mindstudio-probe 26.2) cannot pair a graph-mode dump with a PyTorch dump. So it \
gets the faults on the
PyTorch side against the clean PyTorch run, with equal names and equal bits up to the fault. This \
is easier than the task
above. Its answer is the first row that it marks. dumpdiff gets the same pair here.

{table}
"""


def format_document(
    scores: Sequence[Score], verdicts: Sequence[Verdict], points: Sequence[Point]
) -> str:
    """Return the whole section without what was not measured."""
    sections = [
        (_FINDINGS, _format_findings(scores)),
        (_ALIGNMENT, _format_alignment(scores)),
        (_CAUSES, _format_causes(scores)),
        (_MODELS, _format_models(scores)),
        (_CURVE, _format_curve(points) if points else ""),
        (_PEERS, _format_peers(verdicts) if verdicts else ""),
    ]
    introduction = _INTRODUCTION.format(families=", ".join(families.NAMES))
    filled_sections = [text.format(table=table) for text, table in sections if table]
    return "\n".join([introduction, *filled_sections]).rstrip() + "\n"


def write_section(file: Path, name: str, text: str) -> None:
    """Put the section between the markers of its name in a file, at the end if it has none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, after_begin = file.read_text().partition(begin)
    after = after_begin.partition(end)[2] or "\n"
    file.write_text(f"{before.rstrip()}\n\n{begin}\n{text}{end}{after}")


def format_failures(scores: Sequence[Score], held_out: bool) -> str:
    """Return the answers to the cases that went wrong; held-out cases only on request."""
    failed_scores = [
        s for s in scores if not s.void and (s.verdict != "aligned" if s.benign else not s.top1)
    ]
    lines = []
    for s in sorted(failed_scores, key=lambda s: (s.case, list(FORMS).index(s.form))):
        if s.held_out and not held_out:
            continue
        expected = "nothing" if s.benign else f"{s.truth} ({s.cause}, in {s.side})"
        lines += [
            f"### {s.case} [{s.form}]: {s.verdict}{', found in the first three' if s.top3 else ''}"
        ]
        lines += [
            f"- truth: {expected}",
            *(f"- {number}. {title}" for number, title in enumerate(s.said, 1)),
            "",
        ]
    hidden = sum(s.held_out for s in failed_scores)
    void = sorted(
        {
            f"{s.case} [{s.form}]: {s.void}"
            for s in scores
            if s.void and (held_out or not s.held_out)
        }
    )
    tail = (
        [f"{hidden} answers about held-out cases are wrong too."] if hidden and not held_out else []
    )
    return "\n".join([*lines, *tail, *(f"- not counted: {text}" for text in void)])


def _is_new(judged: Case | Score | Verdict) -> bool:
    return judged.model in families.NAMES


#: Name of a part -> whether it has a case, or what was found out about one.
PARTS: dict[str, Callable[[Case | Score | Verdict], bool]] = {
    "tuned": lambda s: not _is_new(s) and not s.held_out,
    "held out": lambda s: not _is_new(s) and s.held_out,
    "new, tuned": lambda s: _is_new(s) and not s.held_out,
    "new, held out": lambda s: _is_new(s) and s.held_out,
}


def _format_findings(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in PARTS.items():
        for form in FORMS:
            form_scores = [s for s in scores if belongs(s) and s.form == form and not s.void]
            faulty, benign = (
                [s for s in form_scores if not s.benign],
                [s for s in form_scores if s.benign],
            )
            if not form_scores:
                continue
            rows.append(
                [
                    part,
                    form,
                    len(faulty),
                    format_share(s.top1 for s in faulty),
                    format_share(s.top3 for s in faulty),
                    format_share(s.verdict == "inconclusive" for s in faulty),
                    format_share(s.verdict == "aligned" for s in faulty),
                    f"{_compute_median(s.named for s in faulty if s.top1):.0f}",
                    len(benign),
                    sum(s.verdict == "diverged" for s in benign),
                    sum(s.verdict == "inconclusive" for s in benign),
                    f"{_compute_median(s.seconds for s in form_scores):.1f}",
                ]
            )
    head = (
        "part",
        "form",
        "faults",
        "top-1",
        "top-3",
        "inconclusive",
        "missed",
        "ops named",
        "no fault",
        "false alarms",
        "inconclusive ",
        "seconds",
    )
    return format_table(head, rows)


def _format_alignment(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in PARTS.items():
        for form in FORMS:
            tallies = [
                s.pairs for s in scores if belongs(s) and s.form == form and s.pairs and not s.void
            ]
            if tallies:
                rows.append(
                    [
                        part,
                        form,
                        len(tallies),
                        *(
                            _format_ratio(tallies, region, right_key, wrong_key)
                            for right_key, wrong_key in (("right", "wrong"), ("found", "lost"))
                            for region in ("before", "beyond")
                        ),
                    ]
                )
    head = (
        "part",
        "form",
        "pairs of dumps",
        "precision before",
        "precision beyond",
        "recall before",
        "recall beyond",
    )
    return format_table(head, rows)


def _format_ratio(
    pairs: Iterable[dict[str, dict[str, int]]], region: str, right_key: str, wrong_key: str
) -> str:
    tallies = [tally[region] for tally in pairs]
    n_right, n_wrong = (
        sum(tally[right_key] for tally in tallies),
        sum(tally[wrong_key] for tally in tallies),
    )
    return f"{n_right / (n_right + n_wrong):.1%}" if n_right + n_wrong else "-"


def _format_causes(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in PARTS.items():
        for form in FORMS:
            located = [
                s for s in scores if belongs(s) and s.form == form and s.top3 and not s.benign
            ]
            if located:
                is_correct = [s.is_cause_right for s in located]
                is_sentence_right = [
                    right and not s.sentence_error
                    for right, s in zip(is_correct, located, strict=True)
                ]
                is_absent = [not s.said_cause for s in located]
                is_other = [not a and not b for a, b in zip(is_correct, is_absent, strict=True)]
                rows.append(
                    [
                        part,
                        form,
                        len(located),
                        format_share(is_correct),
                        format_share(is_sentence_right),
                        format_share(is_absent),
                        format_share(is_other),
                    ]
                )
    head = (
        "part",
        "form",
        "located",
        "the injected one",
        "sentence right",
        "none given",
        "another",
    )
    return format_table(head, rows)


def _format_models(scores: Sequence[Score]) -> str:
    faulty = [s for s in scores if not s.benign and not s.void]
    models = list(dict.fromkeys(s.model for s in faulty))
    rows = []
    for model in models:
        model_scores = [s for s in faulty if s.model == model]
        shares = [format_share(s.top1 for s in model_scores if s.form == form) for form in FORMS]
        rows.append([model, len({s.case for s in model_scores}), *shares])
    return format_table(("model", "faults", *FORMS), rows)


def _format_curve(points: Sequence[Point]) -> str:
    sizes = sorted({point.size for point in points})
    forms = list(dict.fromkeys(point.form for point in points))
    rows = [
        [
            form,
            *(
                format_share(p.found for p in points if p.form == form and p.size == size)
                for size in sizes
            ),
        ]
        for form in forms
    ]
    return format_table(("form", *(f"{size:g}" for size in sizes)), rows)


def _format_peers(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for part, belongs in PARTS.items():
        for form in dict.fromkeys(v.form for v in verdicts):
            form_verdicts = [v for v in verdicts if belongs(v) and v.form == form]
            if form_verdicts:
                rows.append(
                    [
                        part,
                        form,
                        len(form_verdicts),
                        format_share(v.msprobe for v in form_verdicts),
                        format_share(not v.marked for v in form_verdicts),
                        format_share(v.dumpdiff for v in form_verdicts),
                    ]
                )
    return format_table(
        ("part", "form", "faults", "msprobe top-1", "msprobe marks nothing", "dumpdiff top-1"), rows
    )


def format_share(flags: Iterable[bool]) -> str:
    """Return the share of true flags in percent, '-' if there are none."""
    values = list(flags)
    return f"{sum(values) / len(values):.0%}" if values else "-"


def _compute_median(values: Iterable[float]) -> float:
    return median(list(values) or [0.0])


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; the first two columns are words, the others numbers."""
    lines = [list(map(str, head)), ["---" if column < 2 else "--:" for column in range(len(head))]]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in (*lines, *(list(map(str, row)) for row in rows))
    )
