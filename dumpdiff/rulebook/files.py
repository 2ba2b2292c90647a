"""Load rule files: which files there are, and which of them override others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .book import Rules
from .document import Entry, Place, RuleError, read_document
from .mappings import NamedPairs, add_mapping, is_mapping

_SHIPPED_SECTIONS = (
    "scopes",
    "families",
    "operators",
    "arguments",
    "decompositions",
    "tolerances",
)
#: How values are spread over ranks is said for a pair of dumps only, so no shipped file does.
SECTIONS = (*_SHIPPED_SECTIONS, "relations")
#: Sections with a folder of files; each other shipped section has one file.
_FOLDERS = ("scopes", "families")

_PACKAGED_ROOT = Path(__file__).parent / "data"  # in an installed wheel
_CHECKOUT_ROOT = Path(__file__).parents[2] / "rules"


def find_shipped_root() -> Path:
    """Return the folder of the rule files that come with dumpdiff, in a wheel or in a checkout."""
    return _PACKAGED_ROOT if _PACKAGED_ROOT.is_dir() else _CHECKOUT_ROOT


def list_shipped_files() -> list[Path]:
    """Return the rule files that come with dumpdiff. Raises RuleError if one is missing."""
    root = find_shipped_root()
    files = [path for name in _FOLDERS for path in sorted((root / name).glob("*.yaml"))]
    files += [root / f"{name}.yaml" for name in _SHIPPED_SECTIONS if name not in _FOLDERS]
    missing_paths = [path for path in files if not path.is_file()]
    if not all((root / name).is_dir() for name in _FOLDERS):
        missing_paths.append(root)
    if missing_paths:
        raise RuleError(Place(str(missing_paths[0]), 1), "is missing; install dumpdiff again")
    return files


def load_rules(extra: Sequence[str | Path] = ()) -> Rules:
    """Load the shipped rules and those of ``extra`` files, which add to them and override them.

    Later files override earlier ones. An extra file may also be one of msprobe's mappings, see
    :mod:`dumpdiff.rulebook.mappings`. Raises RuleError with file, line and reason at the first rule
    that cannot be used.
    """
    if not extra:
        return _load_shipped_rules()
    named_pairs = NamedPairs()
    sources = [_read_shipped_sections()]
    sources += [_read_sections({Path(file): str(file)}, named_pairs) for file in extra]
    sections = {name: [source[name] for source in sources] for name in SECTIONS}
    return Rules(**sections, named_pairs=named_pairs)


@cache
def _load_shipped_rules() -> Rules:
    """Load the shipped rules once: a triage needs them in six places."""
    sections = {name: [entries] for name, entries in _read_shipped_sections().items()}
    return Rules(**sections, named_pairs=NamedPairs())


@cache
def _read_shipped_sections() -> dict[str, list[Entry]]:
    """Return the sections of the shipped files, which nobody changes."""
    shipped_files = list_shipped_files()
    root = shipped_files[-1].parent
    shown_names = {path: path.relative_to(root).as_posix() for path in shipped_files}
    return _read_sections(shown_names, NamedPairs())


def _read_sections(files: dict[Path, str], named_pairs: NamedPairs) -> dict[str, list[Entry]]:
    """Return the top-level sections of the files of one source; add mappings to ``named_pairs``.

    ``files`` maps each path to its name in messages.
    """
    sections: dict[str, list[Entry]] = {name: [] for name in SECTIONS}
    for path, shown_name in files.items():
        document = read_document(path, shown_name)
        if document is None:
            continue
        if is_mapping(document, SECTIONS):
            add_mapping(document, named_pairs)
            continue
        for name, entry in document.read_fields(SECTIONS).items():
            sections[name].append(entry)
    return sections
