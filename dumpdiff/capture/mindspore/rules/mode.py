"""Which kind of dump it is: synchronous or not, of kernels or of whole graphs."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import E2E
from ..settings import Settings
from ..violations import Rule, Violation

SECTION_NEEDED = Rule(
    "e2e-needed",
    "writes nothing",
    "On Ascend, kernel by kernel, e2e_dump_settings must be there since 2.6.",
    framework="please configure 'e2e_dump_setting', otherwise there will be no data",
    source="read",
)
SWITCH = Rule(
    "e2e-enable",
    "ignored",
    "On CPU and GPU e2e_dump_settings.enable is no switch: false makes the same dump as true.",
)
WHOLE_GRAPHS_MOVED = Rule(
    "ge-moved",
    "writes nothing",
    "Dumps of whole graphs (jit level O2, GE) are made by msprobe since 2.6.",
    framework="[Dump Deprecated Alert",
    source="documented",
)
WHOLE_GRAPHS_SECTION = Rule(
    "ge-e2e",
    "ignored",
    "With whole graphs (jit level O2, GE) the dump is asynchronous: e2e_dump_settings is not for it.",
    source="documented",
)
RULES = (SECTION_NEEDED, SWITCH, WHOLE_GRAPHS_MOVED, WHOLE_GRAPHS_SECTION)


def find_violations(settings: Settings) -> Iterator[Violation]:
    """What is wrong with the kind of dump."""
    target, e2e = settings.target, settings.e2e
    if target.backend == "ascend-ge":
        if target.version >= (2, 6):
            yield WHOLE_GRAPHS_MOVED.build_violation(
                "",
                "whole graphs (jit level O2, GE) are no longer dumped by MINDSPORE_DUMP_CONFIG since 2.6; use msprobe "
                "('dumpdiff dump-config msprobe --framework mindspore'), or run with jit level O0 or O1",
            )
        if e2e is not None:
            yield WHOLE_GRAPHS_SECTION.build_violation(
                E2E,
                "whole graphs are dumped asynchronously; leave the section out and set file_format to npy",
            )
        return
    if target.backend == "ascend" and e2e is None and target.version >= (2, 6):
        yield SECTION_NEEDED.build_violation(
            E2E,
            'is missing, and without it nothing is dumped; add {"enable": true, "trans_flag": true}',
        )
    if not target.on_ascend and e2e is not None and e2e.get("enable") is False:
        yield SWITCH.build_violation(
            f"{E2E}.enable",
            f"false does not switch the dump off on {target.backend}; to make no dump, unset "
            "MINDSPORE_DUMP_CONFIG; to make one, write true",
        )
