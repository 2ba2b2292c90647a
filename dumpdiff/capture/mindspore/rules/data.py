"""Rules for the saved data of a tensor: values, statistics, samples."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import COMMON, DEVICE_STATISTICS, E2E, HASHES, HOST_STATISTICS
from ..settings import EXCEPTION, Settings
from ..violations import Rule, Violation

SAVED_DATA, CATEGORY = f"{COMMON}.saved_data", f"{COMMON}.statistic_category"

ON_CPU = Rule(
    "statistics-cpu",
    "error",
    "CPU cannot save statistics.",
    framework="storing statistic dump is only supported on GPU and Ascend, "
    "please set saved_data to tensor",
)
NEEDS_NPY = Rule(
    "statistics-npy",
    "error",
    "An asynchronous dump with statistics needs file_format npy.",
    framework="storing statistic dump is only supported on Ascend when file_format is set to "
    "'npy'.",
    source="read",
)
NOT_SYNCHRONOUS = Rule(
    "statistics-synchronous",
    "error",
    "Before 2.3, statistics on Ascend need an asynchronous dump.",
    source="read",
)
UNKNOWN_STATISTIC = Rule(
    "statistics-unknown",
    "error",
    "statistic_category has only names that MindSpore knows.",
    framework="The following statistic_category is invalid:",
    source="read",
)
HOST_ONLY = Rule(
    "statistics-host",
    "ignored",
    "The device computes only max, min, avg and l2norm.",
    framework="The following statistic_category only support to be compute on host:",
    source="read",
)
NO_STATISTIC = Rule(
    "statistics-none",
    "writes nothing",
    "statistic_category names at least one statistic.",
    source="read",
)
DEVICE_WHOLE = Rule(
    "device-statistics",
    "ignored",
    "The device computes statistics only on Ascend and only if saved_data is statistic.",
    framework="the device cannot be used to calculate statistics and the 'stat_calc_mode' is "
    "forced to 'host'.",
)
PRECISION = Rule(
    "device-precision",
    "ignored",
    "device_stat_precision_mode has an effect only with stat_calc_mode device.",
)
SAMPLING = Rule(
    "sampling-backend", "ignored", "Only Ascend in kernel-by-kernel mode saves samples of tensors."
)
SAMPLES = Rule(
    "sample-num",
    "error",
    "sample_num is 1 or more.",
    framework="Dump Json Parse Failed. sample_num should be greater than 0",
)
ARGUMENTS = Rule(
    "kernel-args-backend",
    "ignored",
    "Only Ascend in kernel-by-kernel mode saves attributes of operators.",
)
RULES = (
    ON_CPU,
    NEEDS_NPY,
    NOT_SYNCHRONOUS,
    UNKNOWN_STATISTIC,
    HOST_ONLY,
    NO_STATISTIC,
    DEVICE_WHOLE,
    PRECISION,
    SAMPLING,
    SAMPLES,
    ARGUMENTS,
)


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern the saved data."""
    if settings.saves_statistics and not (
        settings.op_debug_mode == EXCEPTION and settings.is_synchronous
    ):
        yield from _check_saved_data(settings)
        if settings.target.version >= (2, 3):
            yield from _check_categories(settings)
    e2e, backend = settings.e2e or {}, settings.target.backend
    if settings.computes_on_device and (settings.saved_data != "statistic" or backend != "ascend"):
        reason = f"saved_data is {settings.saved_data}, not statistic"
        if backend != "ascend":
            reason = f"{backend} has no such statistics"
        yield DEVICE_WHOLE.build_violation(
            f"{E2E}.stat_calc_mode",
            f"the device computes no statistics: {reason}; write host, or leave it out",
        )
    if "device_stat_precision_mode" in e2e and not settings.computes_on_device:
        yield PRECISION.build_violation(
            f"{E2E}.device_stat_precision_mode",
            "is only for statistics on the device; leave it out",
        )
    if settings.saves_samples and backend != "ascend":
        yield SAMPLING.build_violation(
            f"{E2E}.sample_mode", f"{backend} saves whole tensors; leave sample_mode out"
        )
    if settings.saves_samples and e2e.get("sample_num") == 0:
        yield SAMPLES.build_violation(
            f"{E2E}.sample_num", "0 elements are not a sample; write 1 or more"
        )
    if e2e.get("save_kernel_args") and backend != "ascend":
        yield ARGUMENTS.build_violation(
            f"{E2E}.save_kernel_args", f"{backend} saves no attributes; leave it out"
        )


def _check_saved_data(settings: Settings) -> Iterator[Violation]:
    target = settings.target
    if target.backend == "cpu":
        yield ON_CPU.build_violation(
            SAVED_DATA, f"{settings.saved_data} cannot be saved on CPU; write tensor"
        )
    elif (
        target.on_ascend
        and not settings.is_synchronous
        and settings.common.get("file_format", "bin") != "npy"
    ):
        yield NEEDS_NPY.build_violation(
            f"{COMMON}.file_format", "statistics of an asynchronous dump need npy; write npy"
        )
    elif target.on_ascend and settings.is_synchronous and target.version < (2, 3):
        yield NOT_SYNCHRONOUS.build_violation(
            f"{E2E}.enable",
            "before 2.3, statistics need an asynchronous dump; write false, and file_format npy",
        )


def _check_categories(settings: Settings) -> Iterator[Violation]:
    categories = settings.common.get("statistic_category")
    if categories is None:
        return
    known_categories = HOST_STATISTICS + (HASHES if settings.target.version >= (2, 10) else ())
    unknown = [str(name) for name in categories if name not in known_categories]
    if unknown:
        yield UNKNOWN_STATISTIC.build_violation(
            CATEGORY,
            f"{', '.join(unknown)}: unknown; {settings.target} has {', '.join(known_categories)}",
        )
    if not categories:
        yield NO_STATISTIC.build_violation(
            CATEGORY,
            'is empty, so that the table has no statistics; write ["max", "min", "avg", "l2norm"]',
        )
    on_device = (
        settings.computes_on_device
        and settings.saved_data == "statistic"
        and settings.target.backend == "ascend"
    )
    valid_categories = [name for name in categories if name in known_categories]
    host_only_categories = [name for name in valid_categories if name not in DEVICE_STATISTICS]
    if on_device and host_only_categories:
        yield HOST_ONLY.build_violation(
            CATEGORY,
            f"the device does not compute {', '.join(host_only_categories)}; leave them out, or "
            "set stat_calc_mode to host",
        )
