"""Which operators are dumped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from ..fields import COMMON
from ..kernels import Kernel, parse_kernel
from ..settings import KERNELS, MARKED_CELLS, Settings
from ..violations import Rule, Violation

FIELD, DUMP_MODE = f"{COMMON}.kernels", f"{COMMON}.dump_mode"

SET_DUMP = Rule(
    "set-dump-backend",
    "error",
    "dump_mode 2, cells marked by set_dump, is for Ascend.",
    framework="Set dump is only supported in Ascend async dump. Please set dump_mode to 0 or 1.",
)
UNUSED_LIST = Rule("kernels-unused", "ignored", "kernels is read only with dump_mode 1.")
EMPTY_LIST = Rule(
    "kernels-empty", "ignored", "dump_mode 1 with an empty list of kernels dumps every operator."
)
NOT_TEXT = Rule(
    "kernel-type",
    "writes nothing",
    "An entry of kernels is a text.",
    framework="Unused Kernel in json:",
)
DUPLICATE = Rule(
    "kernel-twice",
    "ignored",
    "An entry of kernels stands there once.",
    framework="Duplicate dump kernel name:",
)
BAD_REGEX = Rule(
    "regex-invalid", "error", "The text in name-regex( ) is a regular expression (ECMAScript)."
)
NO_REGEX_YET = Rule(
    "regex-version", "writes nothing", "name-regex( ) is known since 2.3.", source="read"
)
BACKSLASH = Rule(
    "regex-backslash",
    "writes nothing",
    "A regular expression holds no backslash: it arrives doubled, and matches a backslash.",
    framework="Unused Kernel in json:",
)
PARTIAL = Rule(
    "regex-part",
    "writes nothing",
    "A regular expression matches whole names, from Default/ (or such) to -op0.",
    framework="Unused Kernel in json:",
)
SCOPE = Rule(
    "kernel-scope",
    "writes nothing",
    "A name ends in -op and a number; a cell selects nothing.",
    framework="Unused Kernel in json:",
)
FILE_NAME = Rule(
    "kernel-file-name",
    "writes nothing",
    "A name has '/', not the '_' that names of files have in its place.",
    framework="Unused Kernel in json:",
)
ABSENT = Rule(
    "kernel-absent",
    "writes nothing",
    "An entry selects an operator of the network; the numbers behind -op are those of the runtime.",
    framework="Unused Kernel in json:",
)
RULES = (
    SET_DUMP,
    UNUSED_LIST,
    EMPTY_LIST,
    NOT_TEXT,
    DUPLICATE,
    BAD_REGEX,
    NO_REGEX_YET,
    BACKSLASH,
    PARTIAL,
    SCOPE,
    FILE_NAME,
    ABSENT,
)

#: How the names of operators begin; a parameter's name is its path, in small letters.
_ROOTS = ("Default", "Gradients", "Expand")
_PLAIN = r"[A-Za-z0-9_/-]*"


def find_violations(settings: Settings) -> Iterator[Violation]:
    """What is wrong with the operators asked for."""
    if settings.dump_mode == MARKED_CELLS and not settings.target.on_ascend:
        yield SET_DUMP.build_violation(
            DUMP_MODE, f"2 is not for {settings.target.backend}; write 1 and name the kernels"
        )
    entries = settings.common.get("kernels")
    if entries is None:
        return
    if settings.dump_mode != KERNELS:
        if entries:
            yield UNUSED_LIST.build_violation(
                FIELD,
                f"is not read with dump_mode {settings.dump_mode}; write 1 to dump these operators only",
            )
        return
    if not any(entries):
        yield EMPTY_LIST.build_violation(
            FIELD, "is empty, which means every operator; name some, or write dump_mode 0"
        )
    seen_kernels = set()
    for entry in filter(None, entries):  # an empty one is passed over
        kernel = parse_kernel(entry)
        if kernel in seen_kernels:
            yield DUPLICATE.build_violation(FIELD, f"{entry!r} stands there twice; write it once")
        seen_kernels.add(kernel)
        entry_violations = [*_check_entry(entry, kernel, settings)]
        yield from entry_violations
        if (
            not entry_violations
            and settings.names is not None
            and not any(map(kernel.selects, settings.names))
        ):
            yield ABSENT.build_violation(
                FIELD, f"{entry!r} selects nothing: {_suggest_entry(kernel, settings.names)}"
            )


def _check_entry(entry: Any, kernel: Kernel, settings: Settings) -> Iterator[Violation]:
    if not isinstance(entry, str):
        yield NOT_TEXT.build_violation(
            FIELD,
            f"{entry!r} is no text, and is taken for the type {kernel.text!r}; put it in quotes",
        )
    elif kernel.form == "regex":
        yield from _check_regex(kernel, settings)
    elif kernel.form == "name" and "/" not in kernel.text:
        yield FILE_NAME.build_violation(
            FIELD,
            f"{entry!r} selects nothing: an operator's name has '/' where the name of its file has '_', as in "
            "Default/fc-Dense/MatMul-op0; dumpdiff's findings have such names",
        )
    elif kernel.form == "name" and not re.search(r"-op\d+$", kernel.text):
        yield SCOPE.build_violation(
            FIELD,
            f"{entry!r} selects nothing: it is the name of a cell or part of one; for the operators in it write "
            f"'name-regex({kernel.text}/.*)'",
        )


def _suggest_entry(kernel: Kernel, names: Sequence[str]) -> str:
    """What the network has where an entry selects none of its operators."""
    stem = kernel.text.rsplit("-op", 1)[0]
    same_stem_names = [
        name for name in names if kernel.form == "name" and name.rsplit("-op", 1)[0] == stem
    ]
    if same_stem_names:
        numbers = ", ".join(name[len(stem) :] for name in same_stem_names[:8])
        ellipsis = ", ..." if len(same_stem_names) > 8 else ""
        return f"of {stem!r} there are {numbers}{ellipsis}; graph files have other numbers than the runtime"
    close_names = get_close_matches(kernel.text, names, n=1)
    return (
        f"there is no such operator; the nearest is {close_names[0]!r}"
        if close_names
        else "there is no such operator"
    )


def _check_regex(kernel: Kernel, settings: Settings) -> Iterator[Violation]:
    text = kernel.text
    if settings.target.version < (2, 3):
        yield NO_REGEX_YET.build_violation(
            FIELD,
            f"name-regex( ) is known since 2.3, and taken for an operator type by {settings.target}; write names",
        )
        return
    if "\\" in text:
        yield BACKSLASH.build_violation(
            FIELD,
            f"'name-regex({text.replace(chr(92) * 2, chr(92))})' selects nothing: a backslash arrives doubled; "
            "write [0-9] for a digit, [.] for a dot",
        )
        return
    trouble = kernel.explain_bad_regex()
    if trouble:
        yield BAD_REGEX.build_violation(
            FIELD, f"'name-regex({text})' is no regular expression: {trouble}"
        )
        return
    mismatch = _explain_partial_match(text)
    if mismatch:
        inner = text.removeprefix(".*").removesuffix(".*")
        yield PARTIAL.build_violation(
            FIELD,
            f"'name-regex({text})' selects nothing: a whole name must match, {mismatch}; write 'name-regex(.*{inner}.*)'",
        )


def _explain_partial_match(text: str) -> str:
    """Why no name matches as a whole; '' if one may. Certain only for what stands at either end in plain letters."""
    if "|" in text:
        return ""
    head, tail = (re.search(pattern, text) for pattern in (f"^{_PLAIN}(?![?*{{])", f"{_PLAIN}$"))
    first = head[0] if head else ""
    if first[:1].isupper() and not any(
        root.startswith(first) or first.startswith(root) for root in _ROOTS
    ):
        return f"and none begins with {first!r}"
    last = tail[0] if tail else ""
    if first != text and re.search(r"[A-Z][A-Za-z]*$", last) and "-op" not in last:
        return f"and none ends with {last!r}"
    parameter = re.fullmatch("[a-z0-9]+(_[a-z0-9]+)+", text) is not None  # such as global_step
    if first == text and not parameter and not re.search(r"/.*-op\d+$", text):
        return "and this one ends before '-op' and a number"
    return ""
