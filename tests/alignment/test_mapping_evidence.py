"""Mapping files as evidence: right names add pairs, wrong ones move none that values made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from traces import load_shipped_rules

from dumpdiff.alignment import Alignment, align
from dumpdiff.capture.msprobe.mapping_files import MsprobeMapping, build_mapping
from dumpdiff.graph import Flow
from dumpdiff.rulebook import Rules, load_rules

Flows = Callable[[str], Flow]


@pytest.fixture
def clean(flow: Flows) -> MsprobeMapping:
    """What the two runs without fault taught."""
    return build_mapping(
        align(flow("ms_mf_none"), flow("pt_none"), load_shipped_rules()), load_shipped_rules(), "data", (8, 3)
    )


def with_mapping(tmp_path: Path, pairs: dict[str, str]) -> Rules:
    file = tmp_path / "mapping.yaml"
    file.write_text("".join(f"{name}: {other}\n" for name, other in pairs.items()))
    return load_rules([file])


def pairs(alignment: Alignment, evidence: str = "") -> set[tuple[int, int]]:
    table = alignment.classes
    chosen = table if not evidence else table[table["evidence"] == evidence]
    return set(zip(chosen["target"].tolist(), chosen["reference"].tolist(), strict=True))


def test_names_from_a_clean_pair_add_pairs_beyond_a_fault(
    flow: Flows, clean: MsprobeMapping, tmp_path: Path
) -> None:
    faulty, reference = flow("ms_mf_attn_scale"), flow("pt_none")
    forward = {name: other for name, other in clean.pairs.items() if ".forward." in name}
    plain = align(faulty, reference, load_shipped_rules())
    helped = align(faulty, reference, with_mapping(tmp_path, forward))
    assert len(pairs(helped)) > len(pairs(plain))
    assert pairs(plain, "value") <= pairs(helped, "value") | pairs(helped, "name")
    truth = pairs(align(flow("ms_mf_none"), reference, load_shipped_rules()))
    number = _same_slots(flow("ms_mf_none"), faulty)
    assert pairs(helped, "name") <= {(number[t], r) for t, r in truth if t in number}


def _same_slots(one: Flow, other: Flow) -> dict[int, int]:
    """Class of one run -> class of another run of the same program, by the slot of the tensor that stands for it."""
    names = one.trace.ops["name"].tolist(), other.trace.ops["name"].tolist()
    slots = {
        (names[1][op], slot): value
        for op, slot, value in zip(
            other.tensors["op"], other.tensors["slot"], other.tensor_class, strict=True
        )
    }
    keys = (
        (value, one.tensors.iloc[row]) for value, row in enumerate(one.classes["tensor"].tolist())
    )
    return {
        value: int(slots[key])
        for value, row in keys
        if (key := (names[0][row["op"]], row["slot"])) in slots
    }


def test_wrong_names_change_nothing_where_values_speak(
    flow: Flows, clean: MsprobeMapping, tmp_path: Path
) -> None:
    target, reference = flow("ms_mf_none"), flow("pt_none")
    names = list(clean.pairs)
    wrong = dict(zip(names, [clean.pairs[name] for name in names[7:] + names[:7]], strict=True))
    plain, misled = (
        align(target, reference, rules) for rules in (load_shipped_rules(), with_mapping(tmp_path, wrong))
    )
    assert pairs(misled) == pairs(plain)


def test_an_api_that_a_mapping_names_has_the_kind_of_the_other(flow: Flows, tmp_path: Path) -> None:
    rules = with_mapping(tmp_path, {"Functional.softmax": "Functional.silu"})
    alignment = align(flow("ms_mf_none"), flow("pt_none"), rules)
    kinds = alignment.target.trace.ops["kind"].tolist()
    assert {
        alignment.target_kinds[op] for op, kind in enumerate(kinds) if kind == "Functional.softmax"
    } == {"silu"}
    assert "softmax" in alignment.reference_kinds
