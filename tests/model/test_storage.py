"""Files of complete results that are damaged, or made by others; a round trip is in tests/api."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results import make_result

from dumpdiff.model.errors import DumpError
from dumpdiff.model.storage import FORMAT, read_result, write_result

Document = dict[str, Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A stored result."""
    write_result(make_result(), tmp_path / "complete.npz")
    return tmp_path / "complete.npz"


def read_members(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def change_document(file: Path, change: Callable[[Document], object]) -> None:
    """Write the file again after ``change`` has edited its JSON."""
    members = read_members(file)
    document = json.loads(members["result"].tobytes())
    change(document)
    members["result"] = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    np.savez(file, **members)


def test_an_unchanged_document_is_read(file: Path) -> None:
    change_document(file, lambda document: None)
    assert read_result(file).verdict == "diverged"


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("result"),
        lambda document: document["result"].pop("findings"),
        lambda document: document["result"].update(findings=3),
        lambda document: document["result"].update(findings=[{"rank": 1}]),
        lambda document: document["result"].update(target=None),
        lambda document: document["result"].update(verdict="fine"),
        lambda document: document["result"].update(noise_floor="small"),
        lambda document: document["result"].update(unknown=1),
        lambda document: document["result"].update(backend="os.system"),
        lambda document: document["result"]["findings"][0].update(explainer="os.system"),
        lambda document: document["result"]["findings"][0].update(rank="1"),
        lambda document: document["result"]["target"]["source"].update(path=7),
    ],
    ids=[
        "no result",
        "no findings",
        "findings are a number",
        "an incomplete finding",
        "no target",
        "an unknown verdict",
        "a text for a number",
        "an unknown field",
        "a backend",
        "a backend of a finding",
        "a text for a rank",
        "a number for a path",
    ],
)
def test_content_that_does_not_fit_is_an_error(
    file: Path, change: Callable[[Document], object]
) -> None:
    change_document(file, change)
    with pytest.raises(DumpError, match=r"complete\.npz: expected a complete result"):
        read_result(file)


def test_another_format_is_an_error_that_names_both(file: Path) -> None:
    change_document(file, lambda document: document.update(format=FORMAT + 1))
    with pytest.raises(DumpError, match=f"of format {FORMAT}, found format {FORMAT + 1}"):
        read_result(file)


@pytest.mark.parametrize("member", ["result", "pairs/columns", "pairs/json/state"])
def test_a_missing_member_is_an_error(file: Path, member: str) -> None:
    members = read_members(file)
    del members[member]
    np.savez(file, **members)
    with pytest.raises(DumpError, match="found something else"):
        read_result(file)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_is_an_error(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DumpError, match=r"complete\.npz: "):
        read_result(file)


@pytest.mark.parametrize("position", [0.2, 0.5, 0.8])
def test_flipped_bytes_are_an_error(file: Path, position: float) -> None:
    content = bytearray(file.read_bytes())
    start = int(len(content) * position)
    for index in range(start, start + 16):
        content[index] ^= 0xFF
    file.write_bytes(bytes(content))
    with pytest.raises(DumpError, match=r"complete\.npz: "):
        read_result(file)


def test_columns_of_another_version_are_an_error(file: Path) -> None:
    members = read_members(file)
    columns = json.loads(members["pairs/columns"].tobytes())
    without_state = json.dumps([column for column in columns if column != "state"])
    members["pairs/columns"] = np.frombuffer(without_state.encode(), dtype=np.uint8)
    np.savez(file, **members)
    with pytest.raises(DumpError, match="found something else"):
        read_result(file)


def test_an_array_of_numpy_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "complete.npz"
    with file.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(DumpError, match="found something else"):
        read_result(file)


def test_a_value_that_json_cannot_hold_is_an_error_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object cannot be stored in a result"):
        write_result(make_result(details={"value": object()}), tmp_path / "complete.npz")


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"complete\.npz: cannot be written"):
        write_result(make_result(), tmp_path / "missing" / "complete.npz")


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "complete.npz").mkdir()
    with pytest.raises(DumpError, match=r"complete\.npz: "):
        read_result(tmp_path / "complete.npz")
