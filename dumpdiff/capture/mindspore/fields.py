"""Every field of the configuration: one row each, for the check and for docs/dump-config.md."""

from __future__ import annotations

from dataclasses import dataclass

from .target import OLDEST, Target, Version

COMMON, E2E, ASYNC = "common_dump_settings", "e2e_dump_settings", "async_dump_settings"

#: Type -> what MindSpore calls a value of it.
TYPES = {
    "uint": "a whole number, 0 or more, without quotes",
    "string": "a text in quotes",
    "bool": "true or false, without quotes",
    "array": "a list in [ ]",
    "uint array": "a list of whole numbers in [ ]",
    "string array": "a list of texts in [ ]",
}

#: How a fact is known.
SOURCES = {
    "run": "seen in runs of MindSpore 2.10 on CPU",
    "read": "read in the source of MindSpore's parser, of 1.6 to 2.10",
    "told": "told by MindSpore's documentation, of 1.3 to 2.9",
}

#: What ``statistic_category`` may hold when the host computes, in MindSpore's order.
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
HASHES = ("hash", "hash:sha1", "hash:md5")  #: added by 2.10, host too
DEVICE_STATISTICS = ("max", "min", "avg", "l2norm")


@dataclass(frozen=True)
class Field:
    """One field, as MindSpore's parser takes it."""

    section: str
    name: str
    type: str  #: one of TYPES
    purpose: str  #: what it is for
    allowed: tuple[object, ...] = ()  #: the only values taken; empty: see ``form``
    form: str = ""  #: what else a value must look like, in words
    default: str = ""  #: what counts where the field is missing; '' if it must not be
    since: Version = OLDEST  #: the first version of those known here that reads it
    until: Version | None = None  #: the last that does
    required: str = ""  #: where it must be given: 'always', or a condition in words
    source: str = "run"  #: how it is known, one of SOURCES
    newer: tuple[
        tuple[object, Version], ...
    ] = ()  #: values of ``allowed`` that came later than the field

    def is_known_to(self, version: Version) -> bool:
        """Whether this version reads the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def list_values(self, version: Version) -> tuple[object, ...]:
        """The values that this version takes; none if it is not a matter of a few values."""
        later = {value for value, since in self.newer if version < since}
        return tuple(value for value in self.allowed if value not in later)


FIELDS = (
    Field(
        COMMON,
        "op_debug_mode",
        "uint",
        "0 every operator; 3 those that overflow (Ascend); 4 the one that raised (Ascend, since 2.4). "
        "1 and 2 were overflow in AI Core and in atomic operators; since 2.3 they mean 3",
        allowed=(0, 1, 2, 3, 4),
        newer=((4, Version(2, 4)),),
        default="0",
        required="for an asynchronous dump",
    ),
    Field(
        COMMON,
        "dump_mode",
        "uint",
        "0 every operator; 1 those of kernels; 2 those of cells marked by set_dump (Ascend, since 1.6)",
        allowed=(0, 1, 2),
        newer=((2, Version(1, 6)),),
        required="always",
    ),
    Field(
        COMMON,
        "path",
        "string",
        "the folder that rank_N/ is put into",
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
        "the steps to dump, counted from 0 for each compiled graph by itself",
        form="'all', or numbers and ranges joined by '|', as in '0|5-8', without spaces",
        required="always",
    ),
    Field(
        COMMON,
        "saved_data",
        "string",
        "whole tensors, their statistics, or both",
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
        form="full names as the runtime has them, parts of operator types, or (since 2.3) name-regex(…)",
        required="always",
    ),
    Field(
        COMMON,
        "support_device",
        "uint array",
        "the devices to dump, by their number on the machine; not looked at on CPU",
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
        "stop after so many operators that overflow; 0: never",
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
        "what an asynchronous dump writes",
        allowed=("npy", "bin"),
        default="bin",
        since=Version(1, 6),
        source="read",
    ),
    Field(
        E2E,
        "enable",
        "bool",
        "true: the program waits for the dump of each operator; false, on Ascend: it does not. "
        "Before 2.4, false on Ascend asks for an asynchronous dump, as without the section",
        default="false",
        required="in the section, before 2.4",
    ),
    Field(
        E2E,
        "trans_flag",
        "bool",
        "bring tensors into the host's layout before they are written",
        default="true",
        required="in the section, before 2.4",
        source="told",
    ),
    Field(
        E2E,
        "stat_calc_mode",
        "string",
        "where statistics are computed; device (Ascend) is faster and knows fewer",
        allowed=("host", "device"),
        default="host",
        since=Version(2, 3),
        source="read",
    ),
    Field(
        E2E,
        "device_stat_precision_mode",
        "string",
        "for statistics on the device: high float32, low the tensor's own type",
        allowed=("high", "low"),
        default="high",
        since=Version(2, 4),
        source="told",
    ),
    Field(
        E2E,
        "sample_mode",
        "uint",
        "1 keeps only the head and the tail of each tensor (Ascend)",
        allowed=(0, 1),
        default="0",
        since=Version(2, 3),
        source="told",
    ),
    Field(
        E2E,
        "sample_num",
        "uint",
        "how many elements sample_mode 1 keeps at each end",
        form="1 or more",
        default="100",
        since=Version(2, 3),
        source="told",
    ),
    Field(
        E2E,
        "save_kernel_args",
        "bool",
        "write the attributes of each operator to a JSON file (Ascend)",
        default="false",
        since=Version(2, 3),
        source="told",
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
    """Whether the field must stand in its section; ``asynchronous`` says what kind of dump the file asks for."""
    if field.required == "always":
        return True
    if field.section == E2E:
        return field.name in ("enable", "trans_flag") and target.version < (2, 4)
    return (field.name == "path" and target.version < (1, 5)) or (
        field.name == "op_debug_mode" and is_asynchronous
    )
