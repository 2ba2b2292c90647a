"""Mapping files as the real ``msprobe compare`` takes them: more is compared than without, and
nothing wrongly.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from traces import align_traces, load_shipped_rules

import dumpdiff
from dumpdiff.capture.msprobe.mapping_files import (
    NO_PARTNER,
    MappingKind,
    MsprobeMapping,
    build_mapping,
)
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace
from dumpdiff.reports.alignment import json as result_json

#: Several comparisons in one process: importing both frameworks takes longer than comparing.
_COMPARE = """
import json, sys
from msprobe.msprobe import main
for arguments in json.load(open(sys.argv[1])):
    sys.argv = ["msprobe", "compare", *arguments]
    main()
"""


@dataclass(frozen=True)
class Compared:
    """What msprobe compared: (target's name, reference's name) of every paired row."""

    pairs: list[tuple[str, str]]

    @staticmethod
    def of(folder: Path) -> Compared:
        (file,) = folder.glob("*.csv")
        with file.open(newline="") as stream:
            rows = [(row["NPU Name"], row["Bench Name"]) for row in csv.DictReader(stream)]
        return Compared([row for row in rows if row[1] != "N/A"])


def dump_json(folder: Path) -> Path:
    (file,) = folder.glob("**/statistics_mix/**/dump.json")
    return file


def write_forward_only(file: Path, folder: Path) -> Path:
    """The dump of a run that stopped before its backward pass."""
    content = json.loads(file.read_text())
    content["data"] = {
        name: entry
        for name, entry in content["data"].items()
        if "backward" not in name and "grad" not in name
    }
    folder.mkdir()
    for name in ("stack.json", "construct.json"):
        (folder / name).write_text((file.parent / name).read_text())
    (folder / "dump.json").write_text(json.dumps(content))
    return folder / "dump.json"


def write_mapping(target: Path, reference: Path, kind: MappingKind, into: Path) -> Path:
    """The file that the library writes for the recorded result of the two."""
    recorded = into / f"{target.parent.name}.json"
    if not recorded.exists():
        with recorded.open("wb") as stream:
            result_json.write(dumpdiff.align(target, reference, explained=()), stream)
    file = into / f"{kind}.yaml"
    file.write_text(dumpdiff.mapping(recorded, kind).to_yaml())
    return file


@pytest.fixture(scope="module")
def compared(
    dump: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Compared]:
    """msprobe's comparisons of a MindSpore dump, in which attention of layer 1 is wrong, with
    PyTorch's.
    """
    into = tmp_path_factory.mktemp("mapping")
    target, reference = dump_json(dump("ms_mf_attn_scale")), dump_json(dump("pt_none"))
    early = tuple(
        write_forward_only(dump_json(dump(name)), into / name) for name in ("ms_mf_none", "pt_none")
    )
    runs: dict[str, tuple[Path, Path, Sequence[str | Path]]] = {
        "none": (target, reference, ()),
        "data": (target, reference, ("-dm", write_mapping(target, reference, "data", into))),
        "cell": (target, reference, ("-cm", write_mapping(target, reference, "cell", into))),
        "api": (*early, ("-am", write_mapping(*early, "api", into))),
        "table": (*early, ("-am",)),
    }
    arguments = [
        [
            str(word)
            for word in ("-tp", ours, "-gp", theirs, "-o", into / f"compared_{name}", *options)
        ]
        for name, (ours, theirs, options) in runs.items()
    ]
    (into / "runs.json").write_text(json.dumps(arguments))
    run = subprocess.run(
        [sys.executable, "-c", _COMPARE, into / "runs.json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=into,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return {name: Compared.of(into / f"compared_{name}") for name in runs}


@pytest.fixture(scope="module")
def same(dump: Callable[[str], Path]) -> Callable[[tuple[str, str]], bool]:
    """Whether two names are of one value, by the numbers of the two runs without fault."""

    def numbers(name: str) -> dict[str, tuple[float, ...]]:
        found: dict[str, tuple[float, ...]] = {}

        def walk(at: str, value: object) -> None:
            if isinstance(value, dict) and "type" in value:
                kept = (value.get(key, value.get("value")) for key in ("Max", "Min"))
                found[at] = tuple(float(one) for one in kept if isinstance(one, int | float))
            elif isinstance(value, dict | list):
                for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                    walk(at if at.endswith(":grad") else f"{at}.{key}", item)

        for entry, content in json.loads(dump_json(dump(name)).read_text())["data"].items():
            if "parameters_grad" in entry:
                for parameter, value in content.items():
                    walk(f"{entry}.{parameter}:grad", value)
            for key in ("input_args", "input_kwargs", "input", "output", "parameters"):
                walk(f"{entry}.{key.partition('_')[0]}", content.get(key))
        return {name.removesuffix(":grad"): values for name, values in found.items()}

    ours, theirs = numbers("ms_mf_none"), numbers("pt_none")

    def told(pair: tuple[str, str]) -> bool:
        a, b = ours[pair[0]], theirs[pair[1]]
        return len(a) == len(b) and all(
            abs(x - y) <= 1e-4 * max(*map(abs, (*a, *b))) + 1e-12 for x, y in zip(a, b, strict=True)
        )

    return told


def test_by_itself_msprobe_compares_little_and_some_of_it_wrongly(compared, same) -> None:
    pairs = [pair for pair in compared["none"].pairs if "forward" in pair[0]]
    assert len(compared["none"].pairs) < 200
    assert not all(map(same, pairs))


def test_with_the_data_mapping_it_compares_all_that_was_aligned_and_nothing_wrongly(
    compared, same
) -> None:
    assert len(compared["data"].pairs) > 3 * len(compared["none"].pairs)
    assert [pair for pair in compared["data"].pairs if not same(pair)] == []


def test_with_the_cell_mapping_it_compares_modules_and_nothing_wrongly(compared, same) -> None:
    pairs = compared["cell"].pairs
    assert len(pairs) > len(compared["none"].pairs)
    assert sum(name.startswith("Cell.") for name, _ in pairs) > 150
    assert [pair for pair in pairs if not same(pair)] == []


def test_an_api_mapping_adds_what_it_pairs_rightly(compared, same) -> None:
    """Right are the rows that it adds; msprobe's own table, which it cannot switch off, pairs
    others wrongly.
    """
    added = set(compared["api"].pairs) - set(compared["table"].pairs)
    assert [pair for pair in added if not same(pair)] == []
    assert sum(map(same, compared["api"].pairs)) >= sum(map(same, compared["table"].pairs))


@pytest.fixture
def made(trace: Callable[[str], Trace]) -> Callable[..., MsprobeMapping]:
    """``made("pt_none", "pt_none", "cell")``: the mapping of two shipped dumps."""
    return lambda target, reference, *options: build_mapping(
        align_traces(trace(target), trace(reference)), load_shipped_rules(), *options
    )


def test_a_mapping_is_yaml_with_its_notes_as_comments(made) -> None:
    mapping = made("ms_mf_none", "pt_none")
    content = yaml.safe_load(mapping.to_yaml())
    assert content == {**mapping.pairs, **{name: name + NO_PARTNER for name in mapping.unpaired}}
    assert mapping.to_yaml().startswith(f"# {mapping.notes[0]}\n")


def test_a_dump_against_itself_is_mapped_onto_itself(made) -> None:
    mapping = made("pt_none", "pt_none", "data", (8, 3))
    assert len(mapping.pairs) > 700
    entries = {
        (name.partition("ward")[0], other.partition("ward")[0])
        for name, other in mapping.pairs.items()
    }
    assert sum(name != other for name, other in entries) < 0.05 * len(
        entries
    )  # copies of one value


def test_before_26_backward_calls_keep_their_numbers(made) -> None:
    name = "Functional.linear.28.backward.input.0"
    assert made("pt_none", "pt_none", "data", (8, 3)).pairs[name] == name
    assert (
        made("pt_none", "pt_none", "data", (26, 0)).pairs[name]
        == "Functional.linear.0.backward.input.0"
    )


def test_only_dumps_of_msprobe_can_be_mapped(made) -> None:
    with pytest.raises(
        DumpError, match="the target is a dump of mindspore; msprobe compares only its own dumps"
    ):
        made("demo_mindspore", "demo_pytorch")


def test_api_mappings_are_for_mindspore_targets(made) -> None:
    with pytest.raises(DumpError, match="msprobe accepts API mappings only for MindSpore targets"):
        made("pt_none", "pt_none", "api")


def test_a_mapping_that_would_pair_nothing_rightly_is_refused(made) -> None:
    with pytest.raises(
        DumpError, match="a mapping of kind api cannot pair anything correctly; use --kind data"
    ):
        made("ms_mf_none", "pt_none", "api")
