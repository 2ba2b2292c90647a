"""The page docs/dump-config.md, from the tables of this package.

``python -m dumpdiff.capture.handbook > docs/dump-config.md`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .environment import VARIABLES
from .mindspore import BACKENDS, OLDEST, RULES, TESTED
from .mindspore.fields import FIELDS, SOURCES, TYPES, Field
from .mindspore.violations import SEVERITIES
from .msprobe import fields as msprobe_fields
from .msprobe.version import OLDEST as OLDEST_MSPROBE
from .msprobe.version import spoken
from .snippets import FRAMEWORKS, KINDS

_INTRODUCTION = f"""\
# Dump configurations

What MindSpore's own dump takes, field by field and rule by rule; how a run is made to repeat itself; what has to be
pasted into a training script. This page is written by `python -m dumpdiff.capture.handbook` from the tables that the
commands use.

    dumpdiff dump-config mindspore --saved-data statistic -o dump.json    # write a configuration, checked
    dumpdiff dump-config check dump.json --backend cpu                    # check one that is there
    dumpdiff dump-config msprobe --framework pytorch -o config.json       # msprobe's, and the lines for the script
    dumpdiff dump-config mindspore --like FIRST_DUMP -o dump.json         # what will it cost?
    eval "$(dumpdiff env dump.json)"                                      # the environment of the run
    dumpdiff snippet local-norm --framework megatron                      # code for the training script

Versions from {OLDEST} to {TESTED} are known, and these backends:
"""

_KERNELS = """\
## kernels

With `dump_mode` 1 the entries of `kernels` say which operators are dumped. An entry has one of three forms:

| form | selects |
|---|---|
| `name-regex(R)` | every operator whose whole name matches the regular expression R (ECMAScript) |
| a text with `/` or `-op` | the operator of exactly this name: `Default/network-WithLoss/fc-Dense/MatMul-op0` |
| any other text | every operator whose type contains it, whatever the case: `mul` means MatMul too |

Names are those of the runtime: the files of a dump have them, with `_` for `/`. On CPU and GPU those in the graph
files (`.ir`, `.pb`, execution order) were numbered before and are others; dumpdiff's findings have the runtime's.
A scope says where an operator was first built, not where it is used: with one function for all norms, those of layer 2
stand under layer 0. Spaces and double quotes are dropped from an entry, and a backslash arrives doubled: write `[.]`
for a dot, `[0-9]` for a digit.

## iteration

`all`, or numbers and ranges joined by `|`: `0|5-8|100-120`, without the spaces that some of MindSpore's examples have.
Counted from `initial_iteration` (0), for each compiled graph by itself: a second network, or another shape, has its
own count.
"""

_MSPROBE = """\
## msprobe

`config.json` of msprobe (`mindstudio-probe`), which `dumpdiff dump-config msprobe` writes: for PyTorch, and for
MindSpore in PyNative mode. `<task>` is the section that bears the task's name. Read in versions 1.1 to 26.2; what one
does not know it ignores without a word, so `dump-config msprobe` refuses it.
"""


def text() -> str:
    """The whole page."""
    return "\n".join(
        [
            _INTRODUCTION,
            table(
                ("backend", "what it is"), ((f"`{name}`", what) for name, what in BACKENDS.items())
            ),
            "## Fields\n",
            table(
                ("field", "value", "if missing", "versions", "what it does", "known"),
                (_field(field) for field in FIELDS),
            ),
            f"*Known*: {'; '.join(f'*{name}* is {what}' for name, what in SOURCES.items())}.\n",
            _KERNELS,
            "## Rules\n",
            "".join(f"- **{severity}**: {meaning}.\n" for severity, meaning in SEVERITIES.items()),
            table(
                ("rule", "severity", "what holds", f"what MindSpore {TESTED} says", "known"),
                (
                    (f"`{rule.id}`", rule.severity, rule.says, _code(rule.framework), rule.source)
                    for rule in RULES
                ),
            ),
            "## Environment\n",
            table(
                ("variable", "value", "what for", "since", "set for"),
                (
                    (
                        f"`{variable.name}`",
                        _code(variable.value) or "from the configuration",
                        variable.does,
                        variable.since,
                        ", ".join(variable.frameworks)
                        + (", if asked for by `--also`" if variable.asked else ""),
                    )
                    for variable in VARIABLES
                ),
            ),
            _MSPROBE,
            table(
                ("field", "what it says", "since", "only in"),
                (
                    (
                        f"`{field.section and '<task>.'}{field.name}`",
                        field.what,
                        spoken(field.since) if field.since > OLDEST_MSPROBE else "all",
                        field.only,
                    )
                    for field in msprobe_fields.FIELDS
                ),
            ),
            "## Snippets\n",
            table(
                ("kind", "what it does", *FRAMEWORKS),
                ((f"`{kind}`", does, *_places(kind)) for kind, does in KINDS.items()),
            ),
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


def _field(field: Field) -> tuple[str, ...]:
    value = ", ".join(str(value) for value in field.allowed) or field.form
    versions = f"{field.since} to {field.until}" if field.until else f"since {field.since}"
    missing = field.default if field.required != "always" else "refused"
    if field.required not in ("", "always"):
        missing = f"{missing}; refused {field.required}" if missing else f"refused {field.required}"
    kind = TYPES[field.type]
    return (
        f"`{field.section}`<br>`{field.name}`",
        f"{kind}: {value}" if value else kind,
        missing or "-",
        versions if field.since > OLDEST or field.until else "all",
        field.does,
        field.source,
    )


def _places(kind: str) -> list[str]:
    return [
        framework.where[kind].replace("\n", " ").replace("$seed", "SEED")
        for framework in FRAMEWORKS.values()
    ]


def _code(value: str) -> str:
    return f"`` {value} ``" if "`" in value else f"`{value}`" if value else ""


if __name__ == "__main__":
    print(text(), end="")
