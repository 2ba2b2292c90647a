"""Rules for the selection of operators."""

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
    "dump_mode 2 (cells marked by set_dump) is only for Ascend.",
    framework="Set dump is only supported in Ascend async dump. Please set dump_mode to 0 or 1.",
)
UNUSED_LIST = Rule("kernels-unused", "ignored", "kernels is read only with dump_mode 1.")
EMPTY_LIST = Rule(
    "kernels-empty", "ignored", "dump_mode 1 with an empty list of kernels dumps every operator."
)
NOT_TEXT = Rule(
    "kernel-type",
    "writes nothing",
    "An entry of kernels is a string.",
    framework="Unused Kernel in json:",
)
DUPLICATE = Rule(
    "kernel-twice",
    "ignored",
    "An entry of kernels occurs once.",
    framework="Duplicate dump kernel name:",
)
BAD_REGEX = Rule(
    "regex-invalid", "error", "The text in name-regex( ) is a regular expression (ECMAScript)."
)
NO_REGEX_YET = Rule(
    "regex-version", "writes nothing", "name-regex( ) exists since 2.3.", source="read"
)
REGEX_CASE = Rule(
    "regex-case",
    "writes nothing",
    "name-regex( ) is written in lower case.",
    framework="Unused Kernel in json:",
)
NO_TYPE = Rule(
    "kernel-no-type",
    "writes nothing",
    "An entry without '/' and -op is a part of an operator's type: letters, digits, '_' and '.'.",
    framework="Unused Kernel in json:",
)
BACKSLASH = Rule(
    "regex-backslash",
    "writes nothing",
    "A regular expression has no backslash: MindSpore doubles it, so that it matches a backslash.",
    framework="Unused Kernel in json:",
)
PARTIAL = Rule(
    "regex-part",
    "writes nothing",
    "A regular expression matches whole names, for example from Default/ to -op0.",
    framework="Unused Kernel in json:",
)
SCOPE = Rule(
    "kernel-scope",
    "writes nothing",
    "A name ends in -op and a number; the name of a cell selects nothing.",
    framework="Unused Kernel in json:",
)
FILE_NAME = Rule(
    "kernel-file-name",
    "writes nothing",
    "A name has '/', not the '_' of file names.",
    framework="Unused Kernel in json:",
)
ABSENT = Rule(
    "kernel-absent",
    "writes nothing",
    "An entry selects an operator of the network; the number after -op is that of the runtime.",
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
    REGEX_CASE,
    NO_TYPE,
    BACKSLASH,
    PARTIAL,
    SCOPE,
    FILE_NAME,
    ABSENT,
)

#: Beginnings of operator names. The name of a parameter is its path, in lower case.
_ROOTS = ("Default", "Gradients", "Expand")
_PLAIN = r"[A-Za-z0-9_/-]*"
#: What the type of an operator, or the name of a parameter, consists of.
_TYPE = re.compile(r"[A-Za-z0-9_.]+")
_MAX_SUGGESTIONS = 8  #: operators with another number that a message lists


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern the selected operators."""
    if settings.dump_mode == MARKED_CELLS and not settings.target.on_ascend:
        yield SET_DUMP.build_violation(
            DUMP_MODE,
            f"2 is not available on {settings.target.backend}; write 1 and list the kernels",
        )
    entries = settings.common.get("kernels")
    if entries is None:
        return
    if settings.dump_mode != KERNELS:
        if entries:
            yield UNUSED_LIST.build_violation(
                FIELD,
                f"is not read with dump_mode {settings.dump_mode}; write 1 to dump only these",
            )
        return
    if all(_is_blank(entry) for entry in entries):
        yield EMPTY_LIST.build_violation(
            FIELD, "is empty, which selects every operator; list some, or write dump_mode 0"
        )
    seen_kernels = set()
    for entry in entries:
        if _is_blank(entry):
            continue  # MindSpore ignores it
        kernel = parse_kernel(entry)
        if kernel in seen_kernels:
            yield DUPLICATE.build_violation(FIELD, f"{entry!r} occurs twice; write it once")
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


def _is_blank(entry: object) -> bool:
    return isinstance(entry, str) and not entry.replace(" ", "")


def _check_entry(entry: Any, kernel: Kernel, settings: Settings) -> Iterator[Violation]:
    if not isinstance(entry, str):
        yield NOT_TEXT.build_violation(
            FIELD,
            f"{entry!r} is not a string, and MindSpore reads it as the type {kernel.text!r}; "
            "put it in quotes",
        )
    elif kernel.form == "regex":
        yield from _check_regex(kernel, settings)
    elif kernel.form == "type" and kernel.text.lower().startswith("name-regex("):
        yield REGEX_CASE.build_violation(
            FIELD, f"{entry!r} selects nothing: write name-regex( ) in lower case, with its ')'"
        )
    elif kernel.form == "type" and not _TYPE.fullmatch(kernel.text):
        yield NO_TYPE.build_violation(
            FIELD,
            f"{entry!r} selects nothing: no operator has such a type; for the operators of a cell "
            f"write 'name-regex(.*/{re.sub('[^A-Za-z0-9_-]', '', kernel.text)}/.*)'",
        )
    elif kernel.form == "name" and "/" not in kernel.text:
        yield FILE_NAME.build_violation(
            FIELD,
            f"{entry!r} selects nothing: the name of an operator has '/' where its file name has "
            "'_', as in Default/fc-Dense/MatMul-op0; dumpdiff's findings have such names",
        )
    elif kernel.form == "name" and not re.search(r"-op\d+$", kernel.text):
        yield SCOPE.build_violation(
            FIELD,
            f"{entry!r} selects nothing: it is the name of a cell or a part of it; for the "
            f"operators in it write 'name-regex({kernel.text}/.*)'",
        )


def _suggest_entry(kernel: Kernel, names: Sequence[str]) -> str:
    """Return the closest names in the network, for an entry that selects nothing."""
    stem = kernel.text.rsplit("-op", 1)[0]
    same_stem_names = []
    if kernel.form == "name":
        same_stem_names = [name for name in names if name.rsplit("-op", 1)[0] == stem]
    if same_stem_names:
        numbers = [name[len(stem) :] for name in same_stem_names[:_MAX_SUGGESTIONS]]
        if len(same_stem_names) > _MAX_SUGGESTIONS:
            numbers.append("...")
        return (
            f"of {stem!r} there are {', '.join(numbers)}; "
            "the numbers in graph files differ from those in the runtime"
        )
    close_names = get_close_matches(kernel.text, names, n=1)
    if close_names:
        return f"there is no such operator; the closest name is {close_names[0]!r}"
    return "there is no such operator"


def _check_regex(kernel: Kernel, settings: Settings) -> Iterator[Violation]:
    text = kernel.text
    if settings.target.version < (2, 3):
        yield NO_REGEX_YET.build_violation(
            FIELD,
            f"name-regex( ) exists since 2.3, and {settings.target} reads it as an operator type; "
            "write names",
        )
        return
    if "\\" in text:
        yield BACKSLASH.build_violation(
            FIELD,
            f"'name-regex({text.replace(chr(92) * 2, chr(92))})' selects nothing: MindSpore "
            "doubles a backslash; write [0-9] for a digit, [.] for a dot",
        )
        return
    trouble = kernel.explain_bad_regex()
    if trouble:
        yield BAD_REGEX.build_violation(
            FIELD, f"'name-regex({text})' is not a regular expression: {trouble}"
        )
        return
    mismatch = _explain_partial_match(text)
    if mismatch:
        inner = text.removeprefix(".*").removesuffix(".*")
        yield PARTIAL.build_violation(
            FIELD,
            f"'name-regex({text})' selects nothing: a whole name must match, {mismatch}; "
            f"write 'name-regex(.*{inner}.*)'",
        )


def _explain_partial_match(text: str) -> str:
    """Return why the expression cannot match a whole name; '' if it may match one.

    Only its plain characters at both ends are looked at.
    """
    if "|" in text:
        return ""
    head_match = re.search(f"^{_PLAIN}(?![?*{{])", text)
    tail_match = re.search(f"{_PLAIN}$", text)
    head = head_match[0] if head_match else ""
    tail = tail_match[0] if tail_match else ""
    if head[:1].isupper() and not _is_start_of_name(head):
        return f"and no name begins with {head!r}"
    if head != text and re.search(r"[A-Z][A-Za-z]*$", tail) and "-op" not in tail:
        return f"and no name ends with {tail!r}"
    if head != text:
        return ""
    is_parameter = re.fullmatch("[a-z0-9]+(_[a-z0-9]+)+", text) is not None  # such as global_step
    if not is_parameter and not re.search(r"/.*-op\d+$", text):
        return "and this one ends before '-op' and a number"
    return ""


def _is_start_of_name(text: str) -> bool:
    return any(root.startswith(text) or text.startswith(root) for root in _ROOTS)
