"""Rule files into rules: which files there are, and in which order they count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .book import Rules
from .document import Entry, Place, RuleError, read_document
from .mappings import NamedPairs, add_mapping, is_mapping

SECTIONS = ("scopes", "operators", "decompositions", "tolerances")

_PACKAGED = Path(__file__).parent / "data"  # in an installed wheel
_CHECKOUT = Path(__file__).parents[2] / "rules"


def find_shipped_root() -> Path:
    """The folder of the rule files that come with dumpdiff: of a wheel, or of a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def list_shipped_files() -> list[Path]:
    """The rule files about names that come with dumpdiff."""
    root = find_shipped_root()
    files = [
        *sorted((root / "scopes").glob("*.yaml")),
        *(root / f"{name}.yaml" for name in SECTIONS[1:]),
    ]
    missing = [path for path in files if not path.is_file()]
    if missing or not (root / "scopes").is_dir():
        raise RuleError(
            Place(str(missing[0] if missing else root), 1), "is missing; install dumpdiff again"
        )
    return files


def load_rules(extra: Sequence[str | Path] = ()) -> Rules:
    """The shipped rules, and those of ``extra`` files, which add to them and override them; later files win.

    An extra file may also be one of msprobe's mappings, see :mod:`dumpdiff.rules.mappings`.

    Raises RuleError, naming file, line and reason, at the first rule that cannot be used.
    """
    shipped = list_shipped_files()
    root = shipped[-1].parent
    named = NamedPairs()
    sources = [_sections([(path, path.relative_to(root).as_posix()) for path in shipped], named)]
    sources += [_sections([(Path(path), str(path))], named) for path in extra]
    scopes, operators, decompositions, tolerances = (
        [source[name] for source in sources] for name in SECTIONS
    )
    return Rules(scopes, operators, decompositions, tolerances, named)


def _sections(files: Sequence[tuple[Path, str]], named: NamedPairs) -> dict[str, list[Entry]]:
    """The top-level sections of one source's files; what mappings among them say goes into ``named``."""
    found: dict[str, list[Entry]] = {name: [] for name in SECTIONS}
    for path, shown in files:
        document = read_document(path, shown)
        if document is None:
            continue
        if is_mapping(document, SECTIONS):
            add_mapping(document, named)
            continue
        for name, entry in document.read_fields(SECTIONS).items():
            found[name].append(entry)
    return found
