"""Rules for the place of the dump: folder, net name, devices."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..fields import COMMON
from ..settings import Settings
from ..violations import Rule, Violation

PATH, NET_NAME, DEVICES = (f"{COMMON}.{name}" for name in ("path", "net_name", "support_device"))
FALLBACK = "MS_DIAGNOSTIC_DATA_PATH"

NO_PATH = Rule(
    "path-missing",
    "error",
    f"The path is set, or the variable {FALLBACK} is.",
    framework="Dump path is empty. Please set it in dump json file or environment variable "
    f"`{FALLBACK}`.",
)
PATH_CHARACTERS = Rule(
    "path-characters",
    "error",
    "A path has only letters, digits, '-', '_' and '/'.",
    framework="Dump path only support alphabets, digit or {'-', '_', '/'}, but got:",
)
PATH_RELATIVE = Rule(
    "path-absolute",
    "error",
    "A path begins with '/'.",
    framework="Dump path only support absolute path and should start with '/'",
)
PATH_UNWRITABLE = Rule(
    "path-unwritable",
    "writes nothing",
    "The folder can be created and is writable.",
    framework="CreatePrefixPath failed.",
)
BAD_NET_NAME = Rule(
    "net-name",
    "error",
    "A net_name has only letters, digits, '-' and '_', and is not empty.",
    framework="net_name only supports alphabetic, digit, or {'-', '_'}, but got:",
)
LONG_NAME = Rule(
    "name-length",
    "writes nothing",
    "A net_name and each part of a path have at most 255 characters, and a path 4095.",
    framework="",
)
DEVICE_TYPE = Rule(
    "device-type",
    "error",
    "Devices are numbers.",
    framework="type must be number, but is",
)
DEVICE_VALUE = Rule(
    "device-odd",
    "ignored",
    "Devices are whole numbers of 32 bits, 0 or more; MindSpore silently converts others.",
)
NO_DEVICE = Rule(
    "device-none",
    "writes nothing",
    "On Ascend and GPU only the listed devices are dumped.",
    framework="Dump is not enabled. device_id:",
    source="read",
)
RULES = (
    NO_PATH,
    PATH_CHARACTERS,
    PATH_RELATIVE,
    PATH_UNWRITABLE,
    BAD_NET_NAME,
    LONG_NAME,
    DEVICE_TYPE,
    DEVICE_VALUE,
    NO_DEVICE,
)

_MAX_NAME_LENGTH, _MAX_PATH_LENGTH = 255, 4095  #: of Linux: NAME_MAX, and PATH_MAX without its end
_DEVICE_LIMIT = 1 << 32  #: numbers that MindSpore converts to others


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern the place of the dump."""
    if "path" in settings.common or (
        settings.target.version >= (1, 5) and "path" not in settings.invalid_names
    ):
        yield from _check_path(str(settings.common.get("path", "")), settings.run_is_local)
    net_name = settings.common.get("net_name")
    if net_name is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", net_name):
        problem = "is empty; it needs"
        if net_name:
            problem = f"{net_name!r} has characters other than"
        yield BAD_NET_NAME.build_violation(
            NET_NAME, f"{problem} letters, digits, '-' and '_'; write {_clean_name(net_name)!r}"
        )
    if net_name is not None and len(net_name) > _MAX_NAME_LENGTH:
        yield LONG_NAME.build_violation(
            NET_NAME, f"has {len(net_name)} characters; write at most {_MAX_NAME_LENGTH}"
        )
    if "support_device" in settings.common:
        yield from _check_devices(settings.common["support_device"], settings.target.backend)


def _check_path(path: str, run_is_local: bool) -> Iterator[Violation]:
    place = PATH
    if not path:
        if not run_is_local:
            return
        path, place = os.environ.get(FALLBACK, ""), FALLBACK
        if not path:
            yield NO_PATH.build_violation(
                PATH, f"is missing or empty, and {FALLBACK} is not set; write an absolute path"
            )
            return
    bad_characters = "".join(dict.fromkeys(re.sub(r"[A-Za-z0-9_/-]", "", path)))
    if bad_characters:
        yield PATH_CHARACTERS.build_violation(
            place,
            f"{path!r} contains {bad_characters!r}; only letters, digits, '-', '_' and '/' are "
            "allowed (no dot, no space); use a folder such as "
            f"{re.sub('[^A-Za-z0-9_/-]', '_', path)!r}",
        )
    longest_part = max(map(len, path.split("/")))
    if longest_part > _MAX_NAME_LENGTH or len(path) > _MAX_PATH_LENGTH:
        yield LONG_NAME.build_violation(
            place,
            f"has {len(path)} characters, its longest part {longest_part}; a part may have "
            f"{_MAX_NAME_LENGTH}, the path {_MAX_PATH_LENGTH}",
        )
        return
    if not path.startswith("/"):
        yield PATH_RELATIVE.build_violation(place, f"{path!r} is relative; write the absolute path")
    elif run_is_local and not bad_characters:
        reason = _explain_unwritable(Path(path))
        if reason:
            yield PATH_UNWRITABLE.build_violation(
                place, f"{reason}; the training would run but write no dump; use another folder"
            )


def _explain_unwritable(path: Path) -> str:
    """Return why a folder on this machine is not writable; '' if it is.

    Makes an empty folder and removes it.
    """
    existing_folder = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not existing_folder.is_dir():
        return f"{str(existing_folder)!r} is a file"
    try:
        # A test of the permissions is not enough (root, /proc).
        Path(tempfile.mkdtemp(prefix="dumpdiff-", dir=existing_folder)).rmdir()
    except OSError as error:
        return f"{str(existing_folder)!r} cannot be written to on this machine ({error.strerror})"
    return ""


def _clean_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name) or "Net"


def _check_devices(devices: list[object], backend: str) -> Iterator[Violation]:
    if not devices and backend != "cpu":
        yield NO_DEVICE.build_violation(
            DEVICES, "is empty: no device is dumped; list them, as in [0, 1, 2, 3, 4, 5, 6, 7]"
        )
    non_numbers = [device for device in devices if not isinstance(device, (int, float))]
    if non_numbers:
        yield DEVICE_TYPE.build_violation(
            DEVICES,
            f"{non_numbers[0]!r} is not a number; write the numbers without quotes, as in [0, 1]",
        )
    for device in devices:
        is_outside = isinstance(device, int) and not 0 <= device < _DEVICE_LIMIT
        if isinstance(device, (bool, float)) or is_outside:
            yield DEVICE_VALUE.build_violation(
                DEVICES, f"{device!r} is not a device; write whole numbers, 0 or more, as in [0, 1]"
            )
