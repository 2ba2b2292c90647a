"""Every dump that fixtures/README.md lists is there, and nothing else is."""

import re
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
LISTED = re.findall(
    r"^\| `([^`]+)\.tar\.xz` \|", (FIXTURES / "README.md").read_text(), re.MULTILINE
)


def test_every_archive_has_its_provenance():
    assert sorted(LISTED) == sorted(
        path.name.removesuffix(".tar.xz") for path in (FIXTURES / "data").glob("*.tar.xz")
    )


@pytest.mark.parametrize("name", LISTED)
def test_an_archive_unpacks_to_one_folder_of_its_name(dump, name):
    folder = dump(name)
    assert [path.name for path in folder.parent.iterdir()] == [name]
    assert any(path.is_file() for path in folder.rglob("*"))
