"""Every message that dumpdiff translates, found in its code, templates and scripts."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from jinja2 import Environment
from jinja2.ext import extract_from_ast

import dumpdiff
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.comparison import new_weights
from dumpdiff.diagnosis.decision import SYMPTOMS
from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.likelihoods import PLACES
from dumpdiff.divergence import tables
from dumpdiff.golden_reference.comparison import STATES
from dumpdiff.model.result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS
from dumpdiff.model.trace import PHASES
from dumpdiff.model.verdict import EXIT_CODES, OUTCOME_EXIT_CODES, VALUE_STATES
from dumpdiff.reports.alignment.html.findings import _METRIC_FORMATS
from dumpdiff.reports.page.assets import TEMPLATES
from dumpdiff.reports.page.renderer import find_script_messages
from dumpdiff.reports.runs.summary import CELL_STATES
from dumpdiff.reports.stages.checklist import MEANINGS
from dumpdiff.reports.triage.sections import NOT_GIVEN
from dumpdiff.reports.weights.html import LIST_TITLES, RELATIONS, SHEET_FIELDS
from dumpdiff.verification.contradictions import Kind

PACKAGE = Path(dumpdiff.__file__).parent
SCRIPTS = TEMPLATES.parent / "static"

#: Titles and columns of the tables and lists of the stages of a triage, which are values.
_BLOCK_FOLDERS = ("check", "golden", "stages", "weights", "triage")


def list_causes() -> set[str]:
    """Return the names of all causes: those of the hypotheses, and of the tables of their page."""
    page = (PACKAGE.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall("`([a-z0-9-]+)`", cell)}
    return documented | {hypothesis.cause for hypothesis in HYPOTHESES}


#: Words that are values of a result and are translated where they are shown.
VOCABULARY = {
    *VALUE_STATES,
    *VALUE_STATES.values(),
    *PHASES,
    *EXIT_CODES,
    *OUTCOME_EXIT_CODES,
    *STAGES,
    *("check", "golden", "verify"),
    *PLACES,
    *SYMPTOMS.values(),
    *CELL_STATES.values(),
    *STATES,
    *MEANINGS.values(),
    *get_args(Kind),
    NOT_GIVEN,
    *RELATIONS,
    *RELATIONS.values(),
    *LIST_TITLES,
    *(name.replace("_", " ") for name in SHEET_FIELDS),
    *("missing", "unknown", "problems", "names"),
    *list_causes(),
    new_weights.HIDDEN_STEP,
    new_weights.NOISE_STEP,
    *(name.replace("_", " ") for name in _METRIC_FORMATS),
    *("device", "edges verified", "graph files", "npy files", "npy matched", "op numbers"),
    *("path", "framework", "format", "part", "recorded", "size", "values", "ops"),
    *(value for name, value in vars(tables).items() if name.endswith("_REASON")),
}


def list_columns() -> set[str]:
    """Return the headings of the tables of a comparison."""
    names = [name for name in PAIR_COLUMNS if not name.startswith("reference_")]
    columns = {name.removeprefix("target_").replace("_", " ") for name in (*names, "ratio")}
    return columns | {*UNCOMPARED_COLUMNS, *UNMATCHED_COLUMNS}


@cache
def find_code_messages() -> tuple[tuple[str, set[str]], ...]:
    """Return (message, names of its values) of each call of ``translate``."""
    messages = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "translate":
                message = node.args[0]
                if isinstance(message, ast.Constant):
                    names = {str(keyword.arg) for keyword in node.keywords}
                    messages.append((str(message.value), names))
    return tuple(messages)


def find_template_messages() -> Iterator[str]:
    environment = Environment(autoescape=True)
    environment.filters.update(number=str, percent=str, prose=str, sentence=str)
    for file in sorted(TEMPLATES.rglob("*.html")):
        tree = environment.parse(file.read_text(encoding="utf-8"))
        for _, _, message in extract_from_ast(tree, ("_",)):
            text = message[0] if isinstance(message, tuple) else message
            if text is not None:  # else a word that is a value
                yield text


def find_block_messages() -> Iterator[str]:
    """Yield the titles and columns that are written out for TableBlock and ListBlock."""
    reports = PACKAGE / "reports"
    for pattern in ("verification.py", *(f"{folder}/*.py" for folder in _BLOCK_FOLDERS)):
        for file in sorted(reports.glob(pattern)):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if getattr(getattr(node, "func", None), "id", "") in ("TableBlock", "ListBlock"):
                    for argument in node.args[:2]:
                        yield from _find_constants(argument)
                elif isinstance(node, ast.Assign) and _is_columns(node):
                    yield from _find_constants(node.value)


def _is_columns(node: ast.Assign) -> bool:
    return any(getattr(target, "id", "") == "columns" for target in node.targets)


def _find_constants(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and node.value:
        yield str(node.value)
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _find_constants(element)


def find_messages() -> set[str]:
    messages = {message for message, _ in find_code_messages()}
    messages |= {*find_template_messages(), *find_block_messages(), *VOCABULARY, *list_columns()}
    for file in SCRIPTS.rglob("*.js"):
        messages |= set(find_script_messages(file.read_text(encoding="utf-8")))
    return messages


def list_placeholders(message: str) -> list[tuple[str, str | None]]:
    """Return (name, format) of the placeholders of a message, sorted."""
    fields = string.Formatter().parse(message)
    return sorted((name, form) for _, name, form, _ in fields if name is not None)
