"""Write the page docs/dump-config.md from the tables of dumpdiff.capture."""

from __future__ import annotations

from tables import format_code, format_table

from dumpdiff.capture.environment import VARIABLES
from dumpdiff.capture.mindspore import BACKENDS, OLDEST, RULES, TESTED
from dumpdiff.capture.mindspore.fields import FIELDS, SOURCES, TYPES, Field
from dumpdiff.capture.mindspore.violations import SEVERITIES
from dumpdiff.capture.msprobe import fields as msprobe_fields
from dumpdiff.capture.msprobe.version import OLDEST as OLDEST_MSPROBE
from dumpdiff.capture.msprobe.version import format_version
from dumpdiff.capture.snippets import FRAMEWORKS, KINDS

_INTRODUCTION = f"""\
# Dump configurations

Every field and rule of MindSpore's dump configuration, the environment of a deterministic run, the fields of msprobe's
configuration, and the snippets for training scripts. `make reference` writes this page from the tables that the commands
use.

    dumpdiff dump-config mindspore --saved-data statistic -o dump.json    # write a checked configuration
    dumpdiff dump-config check dump.json --backend cpu                    # check an existing one
    dumpdiff dump-config msprobe --framework pytorch -o config.json       # msprobe's, and the lines for the script
    dumpdiff dump-config mindspore --like FIRST_DUMP -o dump.json         # estimate the cost
    eval "$(dumpdiff env dump.json)"                                      # set the environment of the run
    dumpdiff snippet local-norm --framework megatron                      # code for the training script

Versions from {OLDEST} to {TESTED} are known, and these backends:
"""

_KERNELS = """\
## kernels

With `dump_mode` 1 the entries of `kernels` select the operators to dump. An entry has one of three forms:

| form | selects |
|---|---|
| `name-regex(R)` | every operator whose whole name matches the regular expression R (ECMAScript) |
| a text with `/` or `-op` | the operator of exactly this name: `Default/network-WithLoss/fc-Dense/MatMul-op0` |
| any other text | every operator whose type contains it, ignoring case: `mul` also selects MatMul |

Names are those of the runtime. The files of a dump have them, with `_` for `/`. On CPU and GPU the names in the graph files
(`.ir`, `.pb`, execution order) differ, because they were numbered earlier; dumpdiff's findings have the runtime's names. A
scope tells where an operator was first built, not where it is used: if one function builds all norms, the norms of
layer 2 have the scope of layer 0. MindSpore drops spaces and double quotes from an entry and doubles a backslash: write
`[.]` for a dot and `[0-9]` for a digit.

## iteration

`all`, or numbers and ranges separated by `|`: `0|5-8|100-120`, without the spaces that some of MindSpore's examples have.
Each compiled graph counts its own steps from `initial_iteration` (0): a second network, or another shape, has its own
count.
"""

_MSPROBE = """\
## msprobe

`config.json` of msprobe (`mindstudio-probe`), which `dumpdiff dump-config msprobe` writes, for PyTorch and for MindSpore in
PyNative mode. `<task>` is the section with the task's name. The fields are those of versions 1.1 to 26.2. A version
silently ignores a field that it does not know, so `dump-config msprobe` refuses it.
"""


def build_page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            _INTRODUCTION,
            format_table(
                ("backend", "what it is"), ((f"`{name}`", what) for name, what in BACKENDS.items())
            ),
            "## Fields\n",
            format_table(
                ("field", "value", "if missing", "versions", "what it does", "known"),
                (_field(field) for field in FIELDS),
            ),
            f"*Known*: {'; '.join(f'*{name}* is {what}' for name, what in SOURCES.items())}.\n",
            _KERNELS,
            "## Rules\n",
            "".join(f"- **{severity}**: {meaning}.\n" for severity, meaning in SEVERITIES.items()),
            format_table(
                ("rule", "severity", "what holds", f"what MindSpore {TESTED} says", "known"),
                (
                    (
                        f"`{rule.id}`",
                        rule.severity,
                        rule.statement,
                        format_code(rule.framework),
                        rule.source,
                    )
                    for rule in RULES
                ),
            ),
            "## Environment\n",
            format_table(
                ("variable", "value", "what for", "since", "set for"),
                (
                    (
                        f"`{variable.name}`",
                        format_code(variable.value) or "from the configuration",
                        variable.purpose,
                        variable.since,
                        ", ".join(variable.frameworks)
                        + (", if asked for by `--also`" if variable.is_optional else ""),
                    )
                    for variable in VARIABLES
                ),
            ),
            _MSPROBE,
            format_table(
                ("field", "what it says", "since", "only in"),
                (
                    (
                        f"`{field.section and '<task>.'}{field.name}`",
                        field.meaning,
                        format_version(field.since) if field.since > OLDEST_MSPROBE else "all",
                        field.limits,
                    )
                    for field in msprobe_fields.FIELDS
                ),
            ),
            "## Snippets\n",
            format_table(
                ("kind", "what it does", *FRAMEWORKS),
                ((f"`{kind}`", does, *_places(kind)) for kind, does in KINDS.items()),
            ),
        ]
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
        field.purpose,
        field.source,
    )


def _places(kind: str) -> list[str]:
    return [
        framework.places[kind].replace("\n", " ").replace("$seed", "SEED")
        for framework in FRAMEWORKS.values()
    ]


if __name__ == "__main__":
    print(build_page(), end="")
