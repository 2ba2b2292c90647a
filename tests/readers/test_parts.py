"""Which two parts of two dumps are compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.readers import files
from dumpdiff.readers.parts import Part, choose_parts


def make_part(name: str = "dump", **where: int | bool | None) -> Part:
    return Part("msprobe", Path(name), **where)  # type: ignore[arg-type]


def list_ranks(*values: int) -> list[Part]:
    return [make_part(step=0, rank=value) for value in values]


def list_steps(*values: int | None) -> list[Part]:
    return [make_part(step=value, rank=0) for value in values]


def test_the_first_common_step_and_rank_are_the_default():
    target = [make_part(step=step, rank=rank) for step in (1, 2, 5) for rank in (0, 1)]
    reference = [make_part(step=step, rank=rank) for step in (2, 3, 5) for rank in (1, 2)]

    assert [(part.step, part.rank) for part in choose_parts(target, reference)] == [
        (2, 1),
        (2, 1),
    ]


def test_the_requested_step_and_rank_are_taken():
    dumps = [make_part(step=step, rank=rank) for step in (0, 1) for rank in (0, 1)]

    assert [(part.step, part.rank) for part in choose_parts(dumps, dumps, step=1, rank=1)] == [
        (1, 1),
        (1, 1),
    ]


def test_a_part_without_step_matches_any():
    target, reference = choose_parts(list_steps(3, 4), list_steps(None))

    assert (target.step, reference.step) == (3, None)


def list_processes(*values: int | None) -> list[Part]:
    return [make_part(step=0, process=value) for value in values]


@pytest.mark.parametrize("process", [None, 57, 8336, 108488])
def test_a_process_without_rank_matches_any_rank(process: int | None):
    single_process = list_processes(process)

    assert choose_parts(single_process, list_ranks(2, 3))[1].rank == 2
    assert choose_parts(list_ranks(0), single_process)[1].process == process
    assert choose_parts(single_process, single_process, rank=0) == (
        single_process[0],
        single_process[0],
    )


def test_a_process_can_be_selected_by_its_id():
    for number in (473, 17848):
        target, reference = choose_parts(list_processes(17620, number), list_ranks(0), rank=number)

        assert (target.process, reference.rank) == (number, 0)


def test_a_number_that_is_a_rank_selects_the_rank():
    """A rank 2 of one side goes before a process 2 of the other; one process matches any rank."""
    target, reference = choose_parts(list_processes(2), list_ranks(1, 2), rank=2)

    assert (target.process, reference.rank) == (2, 2)
    with pytest.raises(DumpError, match="rank 3 is in neither dump: the target has rank 2"):
        choose_parts(list_processes(2), list_ranks(1, 2), rank=3)


@pytest.mark.parametrize(
    ("target", "reference", "choice", "message"),
    [
        (
            list_steps(0, 1),
            list_steps(5),
            {},
            "no step in common: the target has steps 0, 1, the reference has step 5",
        ),
        (
            list_steps(0),
            list_steps(0, 1),
            {"step": 1},
            "step 1 is not in both dumps: the target has step 0",
        ),
        (
            list_ranks(0),
            list_ranks(1, 2),
            {},
            "no rank in common: the target has rank 0, the reference has ranks 1, 2",
        ),
        (list_ranks(0), list_ranks(0), {"rank": 7}, "rank 7 is in neither dump"),
        (
            list_ranks(0),
            list_ranks(0, 7),
            {"rank": 7},
            "rank 7 is not in both dumps: the target has rank 0",
        ),
        (
            list_steps(0),
            list_steps(0),
            {"graph": 3},
            "graph 3 is in neither dump: the target has no graph",
        ),
        (
            [make_part(graph=1)],
            list_steps(None),
            {"graph": 3},
            "graph 3 is in neither dump: the target has graph 1",
        ),
        (
            [make_part("a"), make_part("b")],
            list_steps(None),
            {},
            r"the target holds 2 matching dumps; .*a \(msprobe\), b",
        ),
        ([], list_steps(0), {}, "the target holds no dump"),
    ],
)
def test_an_impossible_choice_reports_what_each_side_has(
    target: list[Part], reference: list[Part], choice: dict[str, int], message: str
):
    with pytest.raises(DumpError, match=message):
        choose_parts(target, reference, **choice)


def test_the_first_graph_is_the_default_and_a_side_without_graphs_matches_any():
    graphs = [make_part(step=0, graph=4), make_part(step=0, graph=2)]

    assert choose_parts(graphs, list_steps(0))[0].graph == 2
    assert choose_parts(graphs, list_steps(0), graph=4)[0].graph == 4


def test_of_two_recordings_of_one_run_the_one_with_whole_tensors_is_taken():
    recordings = [
        make_part("statistics_mix", step=0, process=17620),
        make_part("tensor_mix", step=0, process=17848, has_whole_tensors=True),
    ]

    assert choose_parts(recordings, list_ranks(0))[0].path == Path("tensor_mix")


def test_a_part_as_text(dump: Callable[[str], Path]):
    (part,) = readers.find_parts(dump("v6.0_api_stack"))

    assert str(part).endswith("api_stack_dump.pkl (ptdbg, step 0, process 108488, whole tensors)")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pkl", b"\x80\x04}.", "real pickle; not read"),
        ("a.json", b"", "an empty file"),
        ("a.npy", b"\x93NUMPY\x01\x00", "one NumPy array; give the folder"),
        ("a.pt", b"PK\x03\x04", "a zip archive or torch file"),
        ("a.txt", b"hello", "not a dump"),
        ("a.json", b'{"data": 1', "msprobe"),
    ],
)
def test_the_error_says_what_a_file_is_that_is_not_a_dump(
    tmp_path: Path, name: str, content: bytes, message: str
):
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(DumpError, match=message) as error:
        readers.read_part(readers.find_parts(file)[0])
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_missing_path(tmp_path: Path):
    with pytest.raises(DumpError, match="the folder is empty"):
        readers.find_parts(tmp_path)
    with pytest.raises(DumpError, match="no such file or folder"):
        readers.find_parts(tmp_path / "absent")


def test_a_folder_is_searched_once_for_all_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a.json", "b.log", "c.npy"):
        (tmp_path / name).write_text("{}")
    opened_files: list[str] = []

    def read_head(path: Path) -> bytes:
        opened_files.append(path.name)
        return b""

    monkeypatch.setattr(files, "read_head", read_head)
    assert readers.list_parts(tmp_path) == []
    assert opened_files == ["a.json", "b.log"]
