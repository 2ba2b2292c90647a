"""The answer about a run in one line, and its tables of ranks, steps and layers as words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.formatting import escape_control, format_percent
from ...model.run_result import (
    LayerState,
    Reception,
    RunResult,
    format_place,
)
from ...model.trace import PHASES
from ...model.verdict import AGREEING, DIFFERING_STATES, INTRODUCED, ISOLATED, RECONVERGED
from ..language import translate
from ..sentences import translate_sentence

#: States of a cell, worst first, and what they mean.
CELL_STATES = {
    "introduced": "a divergence begins here",
    "differs": "differs as a consequence, or was received",
    "agrees": "everything that was compared agrees",
    "not compared": "nothing could be compared",
}
_SIGNS = {"introduced": "X", "differs": "x", "agrees": ".", "not compared": "?"}


@dataclass(frozen=True)
class Cell:
    """One layer of one rank in one step, or one rank in one step."""

    state: str  #: of CELL_STATES
    ratio: float  #: largest error over its tolerance
    tooltip: str = ""


@dataclass(frozen=True)
class Matrix:
    """States of ranks (rows) by layer or step (columns)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def format_headline(result: RunResult) -> str:
    """Return the answer in one line.

    >>> format_headline(result)  # doctest: +SKIP
    'diverged: rank 3 (tp 1, dp 1), step 0: ...; ranks 0 to 2 receive it through all_reduce of tp'
    """
    parts = [_format_answer(result)]
    left_out = [*result.unpaired, *result.unread]
    if left_out and result.verdict != "inconclusive":
        parts += map(translate_sentence, left_out)
    return translate("; ").join(parts)


def _format_answer(result: RunResult) -> str:
    first = result.first_divergence
    colon, semicolon = translate(": "), translate("; ")
    verdict = f"{translate(result.verdict)}{colon}"
    if result.verdict == "diverged" and first is not None:
        title = escape_control(translate_sentence(first.title))
        clauses = [f"{verdict}{translate_sentence(first.place)}{colon}{title}"]
        clauses += [format_reception(reception) for reception in first.receptions]
        if len(first.steps) > 1:
            clauses.append(translate("again at {place}", place=format_place((), first.steps[1:])))
        return semicolon.join(clauses)
    if result.verdict == "diverged":
        diverged_tasks = [task for task in result.tasks if task.verdict == "diverged"]
        task = diverged_tasks[0]
        headline = escape_control(translate_sentence(task.headline))
        return f"{verdict}{translate_sentence(task.place)}{colon}{headline}"
    if result.verdict == "inconclusive" and result.notes:
        return f"{verdict}{escape_control(translate_sentence(result.notes[0]))}"
    return f"{verdict}{format_scope(result)}{semicolon}{_format_lowest_coverage(result)}"


def format_scope(result: RunResult) -> str:
    """Return what was compared: '8 ranks of 2 steps'."""
    n_ranks, n_steps = len(result.ranks), len(result.steps)
    ranks = translate("{count} ranks", count=n_ranks) if n_ranks > 1 else translate("1 rank")
    steps = translate("{count} steps", count=n_steps) if n_steps > 1 else translate("1 step")
    return translate("{ranks} of {steps} compared", ranks=ranks, steps=steps)


def list_lowest_shares(result: RunResult) -> dict[str, float]:
    """Return for each phase the lowest share of values that any task compared."""
    lowest_shares = {}
    for phase in PHASES:
        shares = []
        for task in result.tasks:
            for side in ("target", "reference"):
                figures = task.coverage.get(side, {}).get(phase)
                if figures and figures.get("values"):
                    shares.append(float(figures["value_share"]))
        if shares:
            lowest_shares[phase] = min(shares)
    return lowest_shares


def _format_lowest_coverage(result: RunResult) -> str:
    words = []
    for phase, share in list_lowest_shares(result).items():
        percent = format_percent(share)
        words.append(translate("{phase} at least {share}", phase=translate(phase), share=percent))
    if not words:
        return translate("nothing compared")
    return translate("values compared: {phases}", phases=translate(", ").join(words))


def format_reception(reception: Reception) -> str:
    """Return 'ranks 0 to 2 receive it through all_reduce of tp'."""
    group = f" of {reception.group}" if reception.group else ""
    exchange = f"{reception.kind}{escape_control(group)}"
    place = format_place(reception.ranks, ())
    if len(reception.ranks) > 1:
        return translate("{ranks} receive it through {exchange}", ranks=place, exchange=exchange)
    return translate("{rank} receives it through {exchange}", rank=place, exchange=exchange)


def label_rank(result: RunResult, rank: int | None) -> str:
    """Return 'rank 3 (tp 1, dp 1)'."""
    coordinates = result.coordinates.get(str(rank), "")
    place = format_place((rank,), ())
    return f"{place} ({coordinates})" if coordinates else place


def list_phases(result: RunResult, step: int | None) -> list[str]:
    """Return the phases of one step in which something was compared."""
    phases = {layer.phase for task in result.list_tasks(step) for layer in task.layers}
    return [phase for phase in PHASES if phase in phases]


def build_layer_matrix(result: RunResult, step: int | None, phase: str) -> Matrix:
    """Return the states of the layers of each rank in one step and phase."""
    tasks = list(result.list_tasks(step))
    origins = _find_origins(result)
    columns: dict[str, None] = {}
    for task in tasks:
        columns |= dict.fromkeys(layer.layer for layer in task.layers if layer.phase == phase)
    rows = []
    for task in tasks:
        layers = {layer.layer: layer for layer in task.layers if layer.phase == phase}
        is_origin = (task.step, task.rank) in origins
        cells = []
        for column in columns:
            is_known = column in layers
            cells.append(_join_layers([layers[column]], is_origin=is_origin) if is_known else None)
        rows.append((label_rank(result, task.rank), tuple(cells)))
    return Matrix(tuple(column or translate("elsewhere") for column in columns), tuple(rows))


def select_matrix(result: RunResult) -> tuple[int | None, str]:
    """Return the step and phase whose matrix shows the first divergence."""
    first = result.first_divergence
    step = result.steps[0] if first is None else first.step
    phases = list_phases(result, step)
    if first is not None and first.finding.phase in phases:
        return step, first.finding.phase
    return step, phases[0] if phases else ""


def build_step_matrix(result: RunResult) -> Matrix:
    """Return the state of each rank in each step."""
    columns = tuple(format_place((), (step,)) for step in result.steps)
    rows = []
    for rank in result.ranks:
        cells = tuple(_build_task_cell(result, rank, step) for step in result.steps)
        rows.append((label_rank(result, rank), cells))
    return Matrix(columns, tuple(rows))


def _find_origins(result: RunResult) -> set[tuple[int | None, int | None]]:
    """Return step and rank of the tasks in which a divergence begins; others received it."""
    origins: set[tuple[int | None, int | None]] = set()
    for finding in result.findings:
        for step in finding.steps or (None,):
            origins.update((step, rank) for rank in finding.ranks or (None,))
    return origins


def _build_task_cell(result: RunResult, rank: int | None, step: int | None) -> Cell | None:
    for task in result.tasks:
        if (task.rank, task.step) == (rank, step):
            if task.problem:
                return Cell("not compared", float("nan"), task.problem)
            is_origin = (task.step, task.rank) in _find_origins(result)
            return _join_layers(task.layers, is_origin=is_origin)
    return None


def _join_layers(layers: Sequence[LayerState], *, is_origin: bool) -> Cell:
    states = {layer.state for layer in layers}
    if is_origin and states & {INTRODUCED, ISOLATED}:
        state = "introduced"
    elif states & set(DIFFERING_STATES):
        state = "differs"
    elif states & {AGREEING, RECONVERGED}:
        state = "agrees"
    else:
        state = "not compared"
    ratios = [layer.ratio for layer in layers if layer.ratio == layer.ratio]
    differing = sum(layer.differing for layer in layers)
    values = sum(layer.values for layer in layers)
    tooltip = translate("{count} of {total} values differ", count=differing, total=values)
    return Cell(state, max(ratios, default=float("nan")), tooltip)


def label_matrix(step: int | None, phase: str) -> str:
    """Return 'step 0, forward'."""
    words = ("" if step is None else f"step {step}", translate(phase))
    return translate(", ").join(filter(None, words))


def fold_matrix(matrix: Matrix, labels: Sequence[str]) -> Matrix:
    """Return a matrix in which equal neighboring rows and columns are one each.

    ``labels`` are short names of the rows: numbers of ranks.
    """
    signs = [[cell.state if cell else "" for cell in cells] for _, cells in matrix.rows]
    column_runs = _find_runs(
        [tuple(row[column] for row in signs) for column in range(len(matrix.columns))]
    )
    row_runs = _find_runs([tuple(row) for row in signs])
    columns = []
    for start, end in column_runs:
        first, last = matrix.columns[start], matrix.columns[end - 1]
        is_single = end - start == 1
        columns.append(
            first if is_single else translate("{first} to {last}", first=first, last=last)
        )
    rows = []
    for start, end in row_runs:
        label = matrix.rows[start][0]
        if end - start > 1:
            label = translate("{first} to {last}", first=labels[start], last=labels[end - 1])
        cells = tuple(matrix.rows[start][1][column] for column, _ in column_runs)
        rows.append((label, cells))
    return Matrix(tuple(columns), tuple(rows))


def _find_runs(items: Sequence[object]) -> list[tuple[int, int]]:
    """Return start and end of each run of equal neighbors."""
    runs: list[tuple[int, int]] = []
    for number, item in enumerate(items):
        if runs and items[runs[-1][0]] == item:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def get_sign(cell: Cell | None) -> str:
    """Return one character for a cell: X where a divergence begins, x, ., ? and ''."""
    return "" if cell is None else _SIGNS[cell.state]


def list_signs() -> str:
    """Return what the characters of a table mean."""
    meanings = (f"{sign} {translate(CELL_STATES[state])}" for state, sign in _SIGNS.items())
    return translate(", ").join(meanings)
