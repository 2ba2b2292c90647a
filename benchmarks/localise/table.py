"""The figures as Markdown, for a terminal and for docs/benchmarks.md, where they stand between two markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from formats import FORMS
from peers import Verdict
from score import Score
from sensitivity import Point

BEGIN, END = "<!-- localise: begin -->", "<!-- localise: end -->"

_INTRODUCTION = """# Localization

`make benchmark-localise` inserts one fault at a time into one side of a pair of real recordings: MindSpore 2.10 in graph
mode against PyTorch 2.13, both on CPU. It asks dumpdiff where the runs diverge. The correct answer is not written by
hand: `truth.py` finds it by comparing the recording with the fault and the clean recording of the same framework.

- **top-1**: the verdict is *diverged* and the first finding names an op that is a root of the fault.
  **top-3**: one of the first three findings does.
- **tuned**: faults that were examined during the development of dumpdiff. **held out**: faults that were not: a third
  of the faults, and a whole model.
- **tensors**: npy and graph against msprobe's whole tensors. **tensors-bare**: npy alone against a ptdbg_ascend `.pkl`
  with npy files.
- **statistics**: statistic.csv and graph against msprobe's statistics. **statistics-bare**: statistic.csv alone against
  a `.pkl` of statistics.
"""

_FOUND = """## Faults found, and false alarms

{table}

*Missed*: the verdict was *aligned*. *Ops named*: number of ops of the faulty side that a correct first finding names
(median). *Seconds*: median time of one comparison, two at a time on two cores.
"""

_ALIGNMENT = """## Alignment

*Precision*: share of the pairs that are correct, among those that can be judged. *Recall*: share of the reference's
values that have their correct partner, among those with a known partner. *Beyond*: values that the fault changed;
*before*: all others. Partners are known from the numbers of the clean recordings, independently of their names. Pairs of
low precision are not counted.

{table}
"""

_CAUSES = """## Causes

The first cause that is given with the correct finding.

{table}
"""

_MODELS = """## By model

Top-1, tuned and held-out faults together.

{table}
"""

_CURVE = """## How small an error is found

The output of one operator of the PyTorch side is changed by this share of its norm. The table shows the share of ten
operators, evenly spaced over the forward pass, for which the change is found.

{table}
"""

_PEERS = """## Comparison with msprobe

`msprobe compare` (mindstudio-probe 26.2) cannot pair a graph-mode dump with a PyTorch dump. So it gets the faults on the
PyTorch side against the clean PyTorch run, with equal names and equal bits up to the fault. This is easier than the task
above. Its answer is the first row that it marks. dumpdiff gets the same pair here.

{table}
"""


def document(scores: Sequence[Score], verdicts: Sequence[Verdict], points: Sequence[Point]) -> str:
    """The whole section; what was not measured is left out."""
    sections = [
        (_FOUND, _found(scores)),
        (_ALIGNMENT, _alignment(scores)),
        (_CAUSES, _causes(scores)),
        (_MODELS, _by_model(scores)),
        (_CURVE, _curve(points) if points else ""),
        (_PEERS, _peers(verdicts) if verdicts else ""),
    ]
    return (
        "\n".join(
            [_INTRODUCTION, *(text.format(table=table) for text, table in sections if table)]
        ).rstrip()
        + "\n"
    )


def write(file: Path, text: str) -> None:
    """Put the section between the markers of a file, at its end if it has none."""
    before, _, rest = file.read_text().partition(BEGIN)
    after = rest.partition(END)[2] or "\n"
    file.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{text}{END}{after}")


def failures(scores: Sequence[Score], held_out: bool) -> str:
    """What was said of each case that went wrong; cases that are held out only if asked for."""
    wrong = [
        s for s in scores if not s.void and (s.verdict != "aligned" if s.benign else not s.top1)
    ]
    lines = []
    for s in sorted(wrong, key=lambda s: (s.case, list(FORMS).index(s.form))):
        if s.held_out and not held_out:
            continue
        wanted = "nothing" if s.benign else f"{s.truth} ({s.cause}, in {s.side})"
        lines += [
            f"### {s.case} [{s.form}]: {s.verdict}{', found in the first three' if s.top3 else ''}"
        ]
        lines += [
            f"- truth: {wanted}",
            *(f"- {number}. {said}" for number, said in enumerate(s.said, 1)),
            "",
        ]
    hidden = sum(s.held_out for s in wrong)
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


_PARTS: dict[str, Callable[[Score | Verdict], bool]] = {
    "tuned": lambda s: not s.held_out,
    "held out": lambda s: s.held_out,
}


def _found(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in _PARTS.items():
        for form in FORMS:
            ours = [s for s in scores if belongs(s) and s.form == form and not s.void]
            faulty, benign = [s for s in ours if not s.benign], [s for s in ours if s.benign]
            if not ours:
                continue
            rows.append([
                part, form, len(faulty), _share(s.top1 for s in faulty), _share(s.top3 for s in faulty),
                _share(s.verdict == "inconclusive" for s in faulty), _share(s.verdict == "aligned" for s in faulty),
                f"{_median(s.named for s in faulty if s.top1):.0f}", len(benign),
                sum(s.verdict == "diverged" for s in benign), sum(s.verdict == "inconclusive" for s in benign),
                f"{_median(s.seconds for s in ours):.1f}",
            ])  # fmt: skip
    head = (
        "part", "form", "faults", "top-1", "top-3", "inconclusive", "missed", "ops named", "no fault", "false alarms",
        "inconclusive ", "seconds",
    )  # fmt: skip
    return _markdown(head, rows)


def _alignment(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in _PARTS.items():
        for form in FORMS:
            ours = [
                s.pairs for s in scores if belongs(s) and s.form == form and s.pairs and not s.void
            ]
            if ours:
                rows.append([
                    part, form, len(ours),
                    *(_ratio(ours, where, good, bad)
                      for good, bad in (("right", "wrong"), ("found", "lost")) for where in ("before", "beyond")),
                ])  # fmt: skip
    head = (
        "part",
        "form",
        "pairs of dumps",
        "precision before",
        "precision beyond",
        "recall before",
        "recall beyond",
    )
    return _markdown(head, rows)


def _ratio(pairs: Iterable[dict[str, dict[str, int]]], where: str, good: str, bad: str) -> str:
    held = [tally[where] for tally in pairs]
    right, wrong = sum(tally[good] for tally in held), sum(tally[bad] for tally in held)
    return f"{right / (right + wrong):.1%}" if right + wrong else "-"


def _causes(scores: Sequence[Score]) -> str:
    rows = []
    for part, belongs in _PARTS.items():
        for form in FORMS:
            located = [
                s for s in scores if belongs(s) and s.form == form and s.top3 and not s.benign
            ]
            if located:
                right = [s.said_cause == s.cause for s in located]
                none = [not s.said_cause for s in located]
                other = [not a and not b for a, b in zip(right, none, strict=True)]
                rows.append([part, form, len(located), _share(right), _share(none), _share(other)])
    return _markdown(("part", "form", "located", "the injected one", "none given", "another"), rows)


def _by_model(scores: Sequence[Score]) -> str:
    faulty = [s for s in scores if not s.benign and not s.void]
    models = list(dict.fromkeys(s.model for s in faulty))
    rows = []
    for model in models:
        ours = [s for s in faulty if s.model == model]
        shares = [_share(s.top1 for s in ours if s.form == form) for form in FORMS]
        rows.append([model, len({s.case for s in ours}), *shares])
    return _markdown(("model", "faults", *FORMS), rows)


def _curve(points: Sequence[Point]) -> str:
    sizes = sorted({point.size for point in points})
    forms = list(dict.fromkeys(point.form for point in points))
    rows = [
        [
            form,
            *(
                _share(p.found for p in points if p.form == form and p.size == size)
                for size in sizes
            ),
        ]
        for form in forms
    ]
    return _markdown(("form", *(f"{size:g}" for size in sizes)), rows)


def _peers(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for part, belongs in _PARTS.items():
        for form in dict.fromkeys(v.form for v in verdicts):
            ours = [v for v in verdicts if belongs(v) and v.form == form]
            if ours:
                rows.append([
                    part, form, len(ours), _share(v.msprobe for v in ours), _share(not v.marked for v in ours),
                    _share(v.dumpdiff for v in ours),
                ])  # fmt: skip
    return _markdown(
        ("part", "form", "faults", "msprobe top-1", "msprobe marks nothing", "dumpdiff top-1"), rows
    )


def _share(flags: Iterable[bool]) -> str:
    held = list(flags)
    return f"{sum(held) / len(held):.0%}" if held else "-"


def _median(values: Iterable[float]) -> float:
    return median(list(values) or [0.0])


def _markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [list(map(str, head)), ["---" if column < 2 else "--:" for column in range(len(head))]]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in (*lines, *(list(map(str, row)) for row in rows))
    )
