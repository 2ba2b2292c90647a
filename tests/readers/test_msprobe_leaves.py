"""Names of tensors in ``msprobe compare``, checked against msprobe's own code for shipped dumps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import read
from dumpdiff.readers.msprobe.leaves import list_leaf_names, list_lookup_names, read_entry_leaves

#: msprobe's own list of leaves, and the names by which it looks for them on the reference's side.
_MSPROBE = """
import json, sys
from types import SimpleNamespace
from msprobe.core.compare.acc_compare import ParseData, ProcessDf
mode = SimpleNamespace(
    compared_file_type="dump.json", dump_mode="summary", stack_mode=False,
    first_diff_analyze=False, consistent_check=False, backend="", config={},
)
lookup_names = []
for file in sys.argv[1:]:
    frame = ParseData(mode, "", {}).gen_data_df(json.load(open(file)), None, "Bench")
    frame["op_name_update"] = frame["op_name"]
    updated_names = ProcessDf.update_backward_call(frame)["op_name_update"]
    lookup_names.append(dict(zip(frame["op_name"], updated_names)))
print(json.dumps(lookup_names))
"""

SHIPPED = ("pt_none", "ms_mf_none", "demo_pytorch")


@pytest.fixture(scope="module")
def files(dump: Callable[[str], Path]) -> dict[str, Path]:
    return {name: sorted(dump(name).rglob("dump.json"))[0] for name in SHIPPED}


@pytest.fixture(scope="module")
def msprobe_names(files: dict[str, Path]) -> dict[str, dict[str, str]]:
    run = subprocess.run(
        [sys.executable, "-c", _MSPROBE, *files.values()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(files, json.loads(run.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", SHIPPED)
def test_leaves_are_those_that_msprobe_compares(
    msprobe_names, files: dict[str, Path], name: str
) -> None:
    leaf_names = [leaf for leaves in read_entry_leaves(files[name]).values() for leaf in leaves]
    assert set(leaf_names) == set(msprobe_names[name])


@pytest.mark.parametrize("name", SHIPPED)
def test_backward_calls_are_numbered_as_msprobe_does(
    msprobe_names, files: dict[str, Path], name: str
) -> None:
    entries = read_entry_leaves(files[name])
    lookup_names_of_entries = list_lookup_names(entries, (26, 2))
    leaf_names = {
        leaf: lookup_names_of_entries[entry] + leaf.removeprefix(entry)
        for entry, leaves in entries.items()
        for leaf in leaves
    }
    assert leaf_names == msprobe_names[name]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_tensor_of_a_trace_is_a_leaf(files: dict[str, Path], name: str) -> None:
    leaf_names = {leaf for leaves in read_entry_leaves(files[name]).values() for leaf in leaves}
    assert set(list_leaf_names(read(files[name]))) <= leaf_names
