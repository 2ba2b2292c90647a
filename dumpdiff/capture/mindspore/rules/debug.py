"""Rules for dumps of operators that overflow (op_debug_mode 3) or raise an exception (4)."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import COMMON, E2E
from ..settings import EXCEPTION, OVERFLOW, Settings
from ..violations import Rule, Violation

FIELD, NUMBER = f"{COMMON}.op_debug_mode", f"{COMMON}.overflow_number"

OLD_MODE = Rule("debug-old", "ignored", "Since 2.3, op_debug_mode 1 and 2 mean 3.")
ALL_KERNELS = Rule(
    "debug-dump-mode",
    "ignored",
    "An op_debug_mode other than 0 checks every operator: dump_mode becomes 0.",
    framework="Overflow dump or exception dump do not support specify kernels, "
    "the dump_mode is set to 0",
)
INPUT_OUTPUT = Rule(
    "overflow-input-output",
    "ignored",
    "op_debug_mode 3 dumps inputs and outputs: input_output becomes 0.",
    framework="When the `op_debug` mode is set to 3, `input_output` should be set to 0.",
)
HOST_STATISTICS = Rule(
    "overflow-statistics",
    "ignored",
    "With op_debug_mode 3 the device computes statistics only if e2e_dump_settings.enable is true.",
    framework="When op_debug_mode is set to 3 and e2e_enable is set to false,"
    "stat_calc_mode has been be set to 'host'.",
    source="read",
)
OVERFLOW_NUMBER = Rule(
    "overflow-number",
    "error",
    "overflow_number is allowed only with op_debug_mode 3.",
    framework="overflow_number only need to be set when op_debug_mode is 3.",
)
OVERFLOW_BACKEND = Rule(
    "overflow-backend", "ignored", "Only Ascend detects overflow; CPU and GPU dump every operator."
)
EXCEPTION_BACKEND = Rule(
    "exception-backend",
    "writes nothing",
    "Only Ascend dumps the operator that raised an exception.",
    framework="none operator data would be saved when abnormal dump is enabled",
)
EXCEPTION_STEPS = Rule(
    "exception-iteration",
    "ignored",
    "op_debug_mode 4 checks every step: iteration becomes all.",
    framework="For e2e exception dump, it is not support to specify iteration, "
    "set iteration to all.",
)
WHOLE_TENSORS_ONLY = Rule(
    "debug-data",
    "ignored",
    "op_debug_mode 3 and 4 save whole tensors: "
    "no statistics (saved_data) and no samples (sample_mode).",
    framework="For e2e exception dump, it is not support to sample dump, set sample_mode to 0",
)
RULES = (
    OLD_MODE,
    ALL_KERNELS,
    INPUT_OUTPUT,
    HOST_STATISTICS,
    OVERFLOW_NUMBER,
    OVERFLOW_BACKEND,
    EXCEPTION_BACKEND,
    EXCEPTION_STEPS,
    WHOLE_TENSORS_ONLY,
)


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern op_debug_mode."""
    common, mode, target = settings.common, settings.op_debug_mode, settings.target
    if target.version >= (2, 3) and common.get("op_debug_mode") in (1, 2):
        yield OLD_MODE.build_violation(
            FIELD, f"{common['op_debug_mode']} means 3, any overflow, since 2.3; write 3"
        )
    if target.version >= (2, 4) and "overflow_number" in common and mode != OVERFLOW:
        yield OVERFLOW_NUMBER.build_violation(
            NUMBER, f"is only for op_debug_mode 3, but the mode is {mode}; leave it out"
        )
    if mode == 0:
        return
    if settings.dump_mode != 0 and target.version >= (2, 3):
        yield ALL_KERNELS.build_violation(
            f"{COMMON}.dump_mode", f"becomes 0 with op_debug_mode {mode}; write 0"
        )
    if settings.saves_statistics and target.backend != "cpu":
        yield WHOLE_TENSORS_ONLY.build_violation(
            f"{COMMON}.saved_data", f"is for op_debug_mode 0, not {mode}; write tensor"
        )
    if settings.saves_samples:
        yield WHOLE_TENSORS_ONLY.build_violation(
            f"{E2E}.sample_mode", f"is for op_debug_mode 0, not {mode}; leave it out"
        )
    if mode == EXCEPTION:
        yield from _check_exception_mode(settings)
    elif target.backend in ("cpu", "gpu"):
        yield OVERFLOW_BACKEND.build_violation(
            FIELD, f"{target.backend} does not detect overflow and dumps every operator; write 0"
        )
    if (
        mode == OVERFLOW
        and settings.computes_on_device
        and (settings.e2e or {}).get("enable") is not True
    ):
        yield HOST_STATISTICS.build_violation(
            f"{E2E}.stat_calc_mode", "becomes host because enable is not true; write enable true"
        )
    if mode == OVERFLOW and common.get("input_output", 0) != 0:
        yield INPUT_OUTPUT.build_violation(
            f"{COMMON}.input_output", f"becomes 0 with op_debug_mode {mode}; write 0"
        )


def _check_exception_mode(settings: Settings) -> Iterator[Violation]:
    if not settings.target.on_ascend:
        yield EXCEPTION_BACKEND.build_violation(
            FIELD,
            f"{settings.target.backend} cannot dump the operator that raised an exception; write 0",
        )
    if not settings.is_synchronous:
        return
    if settings.common.get("iteration", "all") != "all":
        yield EXCEPTION_STEPS.build_violation(
            f"{COMMON}.iteration", "becomes all with op_debug_mode 4; write all"
        )
