"""Which two parts of two dumps are compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.readers.parts import Part, choose_parts


def part(name: str = "dump", **where: int | bool | None) -> Part:
    return Part("msprobe", Path(name), **where)  # type: ignore[arg-type]


def ranks(*values: int) -> list[Part]:
    return [part(step=0, rank=value) for value in values]


def steps(*values: int | None) -> list[Part]:
    return [part(step=value, rank=0) for value in values]


def test_the_first_common_step_and_rank_are_the_default():
    target = [part(step=step, rank=rank) for step in (1, 2, 5) for rank in (0, 1)]
    reference = [part(step=step, rank=rank) for step in (2, 3, 5) for rank in (1, 2)]

    assert [(chosen.step, chosen.rank) for chosen in choose_parts(target, reference)] == [
        (2, 1),
        (2, 1),
    ]


def test_what_is_asked_for_is_taken():
    dumps = [part(step=step, rank=rank) for step in (0, 1) for rank in (0, 1)]

    assert [
        (chosen.step, chosen.rank) for chosen in choose_parts(dumps, dumps, step=1, rank=1)
    ] == [
        (1, 1),
        (1, 1),
    ]


def test_a_part_without_step_matches_any():
    target, reference = choose_parts(steps(3, 4), steps(None))

    assert (target.step, reference.step) == (3, None)


def processes(*values: int | None) -> list[Part]:
    return [part(step=0, process=value) for value in values]


@pytest.mark.parametrize("process", [None, 57, 8336, 108488])
def test_a_process_without_rank_matches_any_rank(process: int | None):
    alone = processes(process)

    assert choose_parts(alone, ranks(2, 3))[1].rank == 2
    assert choose_parts(ranks(0), alone)[1].process == process
    assert choose_parts(alone, alone, rank=0) == (alone[0], alone[0])


def test_a_process_can_be_asked_for_by_its_id():
    for number in (473, 17848):
        target, reference = choose_parts(processes(17620, number), ranks(0), rank=number)

        assert (target.process, reference.rank) == (number, 0)


def test_a_number_that_is_a_rank_asks_for_the_rank():
    """Process 2 of one side is not meant where the other side has a rank 2; a run of one process goes with any rank."""
    target, reference = choose_parts(processes(2), ranks(1, 2), rank=2)

    assert (target.process, reference.rank) == (2, 2)
    with pytest.raises(DumpError, match="rank 3 is in neither dump: the target has rank 2"):
        choose_parts(processes(2), ranks(1, 2), rank=3)


@pytest.mark.parametrize(
    ("target", "reference", "asked", "said"),
    [
        (
            steps(0, 1),
            steps(5),
            {},
            "no step in common: the target has steps 0, 1, the reference has step 5",
        ),
        (steps(0), steps(0, 1), {"step": 1}, "step 1 is not in both dumps: the target has step 0"),
        (
            ranks(0),
            ranks(1, 2),
            {},
            "no rank in common: the target has rank 0, the reference has ranks 1, 2",
        ),
        (ranks(0), ranks(0), {"rank": 7}, "rank 7 is in neither dump"),
        (ranks(0), ranks(0, 7), {"rank": 7}, "rank 7 is not in both dumps: the target has rank 0"),
        (steps(0), steps(0), {"graph": 3}, "graph 3 is in neither dump: the target has no graph"),
        (
            [part(graph=1)],
            steps(None),
            {"graph": 3},
            "graph 3 is in neither dump: the target has graph 1",
        ),
        (
            [part("a"), part("b")],
            steps(None),
            {},
            r"the target holds 2 matching dumps; .*a \(msprobe\), b",
        ),
        ([], steps(0), {}, "the target holds no dump"),
    ],
)
def test_what_cannot_be_chosen_says_what_each_side_has(
    target: list[Part], reference: list[Part], asked: dict[str, int], said: str
):
    with pytest.raises(DumpError, match=said):
        choose_parts(target, reference, **asked)


def test_the_first_graph_is_the_default_and_only_the_side_with_graphs_is_asked():
    graphs = [part(step=0, graph=4), part(step=0, graph=2)]

    assert choose_parts(graphs, steps(0))[0].graph == 2
    assert choose_parts(graphs, steps(0), graph=4)[0].graph == 4


def test_of_two_recordings_of_one_run_the_one_with_whole_tensors_is_taken():
    both = [
        part("statistics_mix", step=0, process=17620),
        part("tensor_mix", step=0, process=17848, has_tensors=True),
    ]

    assert choose_parts(both, ranks(0))[0].path == Path("tensor_mix")


def test_a_part_says_what_it_is(dump: Callable[[str], Path]):
    (found,) = readers.find_parts(dump("v6.0_api_stack"))

    assert str(found).endswith("api_stack_dump.pkl (ptdbg, step 0, process 108488, whole tensors)")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pkl", b"\x80\x04}.", "real pickle; not read"),
        ("a.json", b"", "an empty file"),
        ("a.npy", b"\x93NUMPY\x01\x00", "one NumPy array; give the folder"),
        ("a.pt", b"PK\x03\x04", "a zip archive or torch file"),
        ("a.txt", b"hello", "not a dump"),
        ("a.json", b'{"data": 1', "msprobe"),
    ],
)
def test_a_file_that_is_no_dump_is_named_for_what_it_is(
    tmp_path: Path, name: str, content: bytes, said: str
):
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(DumpError, match=said) as error:
        readers.read_part(readers.find_parts(file)[0])
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_missing_path(tmp_path: Path):
    with pytest.raises(DumpError, match="the folder is empty"):
        readers.find_parts(tmp_path)
    with pytest.raises(DumpError, match="no such file or folder"):
        readers.find_parts(tmp_path / "absent")
