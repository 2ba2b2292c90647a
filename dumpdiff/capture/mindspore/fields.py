"""Every field of the configuration, for the check and for docs/dump-config.md."""

from __future__ import annotations

from dataclasses import dataclass

from .target import OLDEST, Target, Version

COMMON, E2E, ASYNC = "common_dump_settings", "e2e_dump_settings", "async_dump_settings"

#: Type -> what a value of it looks like in JSON.
TYPES = {
    "uint": "a whole number, 0 or more, without quotes",
    "string": "a string in quotes",
    "bool": "true or false, without quotes",
    "array": "a list in [ ]",
    "uint array": "a list of whole numbers in [ ]",
    "string array": "a list of strings in [ ]",
}

#: Evidence for a fact -> what it means.
SOURCES = {
    "run": "tested in runs of MindSpore 2.10 on CPU",
    "read": "read in the source code of MindSpore's parser, versions 1.6 to 2.10",
    "documented": "stated in MindSpore's documentation, versions 1.3 to 2.9",
}

#: Values of ``statistic_category`` that the host computes, in MindSpore's order.
HOST_STATISTICS = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
)
HASHES = ("hash", "hash:sha1", "hash:md5")  #: added in 2.10, also on the host
DEVICE_STATISTICS = ("max", "min", "avg", "l2norm")


@dataclass(frozen=True)
class Field:
    """One field, as MindSpore's parser reads it."""

    section: str
    name: str
    type: str  #: one of TYPES
    purpose: str  #: what it does
    allowed: tuple[object, ...] = ()  #: the only valid values; empty: see ``form``
    form: str = ""  #: format of a value, as text
    default: str = ""  #: value if the field is missing; '' if it must not be missing
    since: Version = OLDEST  #: first supported version that reads it
    until: Version | None = None  #: last version that reads it
    required: str = ""  #: when it must be present: 'always', or a condition as text
    source: str = "run"  #: the evidence for it, one of SOURCES
    #: values of ``allowed`` that were added later than the field
    newer: tuple[tuple[object, Version], ...] = ()

    def is_known_to(self, version: Version) -> bool:
        """Return whether this version reads the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def list_values(self, version: Version) -> tuple[object, ...]:
        """Return the values that this version accepts; empty if they are not a fixed list."""
        later = {value for value, since in self.newer if version < since}
        return tuple(value for value in self.allowed if value not in later)


FIELDS = (
    Field(
        COMMON,
        "op_debug_mode",
        "uint",
        "0 every operator; 3 operators that overflow (Ascend); 4 the operator that raised an "
        "exception (Ascend, since 2.4). 1 and 2 were overflow in AI Core and in atomic operators; "
        "since 2.3 they mean 3",
        allowed=(0, 1, 2, 3, 4),
        newer=((4, Version(2, 4)),),
        default="0",
        required="for an asynchronous dump",
    ),
    Field(
        COMMON,
        "dump_mode",
        "uint",
        "0 every operator; 1 the operators in kernels; "
        "2 the operators of cells marked by set_dump (Ascend, since 1.6)",
        allowed=(0, 1, 2),
        newer=((2, Version(1, 6)),),
        required="always",
    ),
    Field(
        COMMON,
        "path",
        "string",
        "the folder that contains rank_N/",
        form="absolute; letters, digits, '-', '_' and '/' only: no dot, no space",
        default="$MS_DIAGNOSTIC_DATA_PATH/debug_dump",
        required="before 1.5",
    ),
    Field(
        COMMON,
        "net_name",
        "string",
        "the folder under rank_N/",
        form="letters, digits, '-' and '_', at least one",
        required="always",
    ),
    Field(
        COMMON,
        "iteration",
        "string",
        "the steps to dump, counted from 0 for each compiled graph",
        form="'all', or numbers and ranges joined by '|', as in '0|5-8', without spaces",
        required="always",
    ),
    Field(
        COMMON,
        "saved_data",
        "string",
        "whole tensors, statistics, or both",
        allowed=("tensor", "statistic", "full"),
        default="tensor",
        since=Version(1, 6),
    ),
    Field(
        COMMON,
        "input_output",
        "uint",
        "0 inputs and outputs; 1 inputs; 2 outputs",
        allowed=(0, 1, 2),
        required="always",
    ),
    Field(
        COMMON,
        "kernels",
        "array",
        "the operators that dump_mode 1 dumps; an empty list: every operator",
        form="full names as in the runtime, parts of operator types, or (since 2.3) name-regex(…)",
        required="always",
    ),
    Field(
        COMMON,
        "support_device",
        "uint array",
        "the devices to dump, by their number on the machine; ignored on CPU",
        required="always",
    ),
    Field(
        COMMON,
        "statistic_category",
        "string array",
        "which statistics, in the order of the columns",
        form=f"host: {', '.join(HOST_STATISTICS)}; since 2.10 also {', '.join(HASHES)}; "
        f"device: {', '.join(DEVICE_STATISTICS)}",
        default="max, min, l2norm",
        since=Version(2, 3),
        source="read",
    ),
    Field(
        COMMON,
        "overflow_number",
        "uint",
        "the number of overflowing operators after which the dump stops; 0: no limit",
        form="only with op_debug_mode 3",
        default="0",
        since=Version(2, 4),
        source="read",
    ),
    Field(
        COMMON,
        "initial_iteration",
        "uint",
        "the number of the first step, for iteration and for the folders",
        default="0",
        since=Version(2, 6),
    ),
    Field(
        COMMON,
        "file_format",
        "string",
        "the format of the files of an asynchronous dump",
        allowed=("npy", "bin"),
        default="bin",
        since=Version(1, 6),
        source="read",
    ),
    Field(
        E2E,
        "enable",
        "bool",
        "true: the program waits for the dump of each operator; false, on Ascend: it does not "
        "wait. Before 2.4, false on Ascend means an asynchronous dump, as without the section",
        default="false",
        required="in the section, before 2.4",
    ),
    Field(
        E2E,
        "trans_flag",
        "bool",
        "convert tensors to the layout of the host before they are written",
        default="true",
        required="in the section, before 2.4",
        source="documented",
    ),
    Field(
        E2E,
        "stat_calc_mode",
        "string",
        "where statistics are computed; device (Ascend) is faster and has fewer statistics",
        allowed=("host", "device"),
        default="host",
        since=Version(2, 3),
        source="read",
    ),
    Field(
        E2E,
        "device_stat_precision_mode",
        "string",
        "precision of statistics on the device: high float32, low the type of the tensor",
        allowed=("high", "low"),
        default="high",
        since=Version(2, 4),
        source="documented",
    ),
    Field(
        E2E,
        "sample_mode",
        "uint",
        "1 keeps only the head and the tail of each tensor (Ascend)",
        allowed=(0, 1),
        default="0",
        since=Version(2, 3),
        source="documented",
    ),
    Field(
        E2E,
        "sample_num",
        "uint",
        "the number of elements that sample_mode 1 keeps at each end",
        form="1 or more",
        default="100",
        since=Version(2, 3),
        source="documented",
    ),
    Field(
        E2E,
        "save_kernel_args",
        "bool",
        "write the attributes of each operator to a JSON file (Ascend)",
        default="false",
        since=Version(2, 3),
        source="documented",
    ),
    Field(
        ASYNC,
        "enable",
        "bool",
        "whether the dump is asynchronous",
        since=Version(1, 0),
        until=Version(1, 2),
        source="read",
    ),
    Field(
        ASYNC,
        "op_debug_mode",
        "uint",
        "as in common_dump_settings",
        since=Version(1, 0),
        until=Version(1, 2),
        source="read",
    ),
)

BY_PLACE = {(field.section, field.name): field for field in FIELDS}
SECTIONS = tuple(dict.fromkeys(field.section for field in FIELDS))


def is_required(field: Field, target: Target, is_asynchronous: bool) -> bool:
    """Return whether the field must be in its section.

    ``is_asynchronous``: the file requests an asynchronous dump.
    """
    if field.required == "always":
        return True
    if field.section == E2E:
        return field.name in ("enable", "trans_flag") and target.version < (2, 4)
    if field.name == "path":
        return target.version < (1, 5)
    return field.name == "op_debug_mode" and is_asynchronous
