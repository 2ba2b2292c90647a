"""Rules for the kind of dump: synchronous or not, of kernels or of whole graphs."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import E2E
from ..settings import Settings
from ..violations import Rule, Violation

SECTION_NEEDED = Rule(
    "e2e-needed",
    "writes nothing",
    "Since 2.6, Ascend in kernel-by-kernel mode needs e2e_dump_settings.",
    framework="please configure 'e2e_dump_setting', otherwise there will be no data",
    source="read",
)
SWITCH = Rule(
    "e2e-enable",
    "ignored",
    "On CPU and GPU e2e_dump_settings.enable has no effect: false makes the same dump as true.",
)
WHOLE_GRAPHS_MOVED = Rule(
    "ge-moved",
    "writes nothing",
    "Since 2.6, only msprobe dumps whole graphs (jit level O2, GE).",
    framework="[Dump Deprecated Alert",
    source="documented",
)
WHOLE_GRAPHS_SECTION = Rule(
    "ge-e2e",
    "ignored",
    "The dump of whole graphs (jit level O2, GE) is asynchronous: it ignores e2e_dump_settings.",
    source="documented",
)
RULES = (SECTION_NEEDED, SWITCH, WHOLE_GRAPHS_MOVED, WHOLE_GRAPHS_SECTION)


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern the kind of dump."""
    target, e2e = settings.target, settings.e2e
    if target.backend == "ascend-ge":
        if target.version >= (2, 6):
            yield WHOLE_GRAPHS_MOVED.build_violation(
                "",
                "since 2.6, MINDSPORE_DUMP_CONFIG does not dump whole graphs "
                "(jit level O2, GE); use msprobe ('dumpdiff dump-config msprobe --framework "
                "mindspore'), or run with jit "
                "level O0 or O1",
            )
        if e2e is not None:
            yield WHOLE_GRAPHS_SECTION.build_violation(
                E2E,
                "the dump of whole graphs is asynchronous; leave the section out and set "
                "file_format to npy",
            )
        return
    if target.backend == "ascend" and e2e is None and target.version >= (2, 6):
        yield SECTION_NEEDED.build_violation(
            E2E,
            'is missing, so that nothing is dumped; add {"enable": true, "trans_flag": true}',
        )
    if not target.on_ascend and e2e is not None and e2e.get("enable") is False:
        yield SWITCH.build_violation(
            f"{E2E}.enable",
            f"false does not switch the dump off on {target.backend}; to make no dump, unset "
            "MINDSPORE_DUMP_CONFIG; to make one, write true",
        )
