"""Mapping files as evidence: right names add pairs, wrong ones move none that values made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from traces import load_shipped_rules

from dumpdiff.alignment import Alignment, align
from dumpdiff.capture.msprobe.mapping_files import MsprobeMapping, build_mapping
from dumpdiff.graph import Flow, build_flow
from dumpdiff.model.trace import Trace
from dumpdiff.rulebook import Rules, load_rules, split_module_name

Flows = Callable[[str], Flow]


@pytest.fixture
def clean_mapping(flow: Flows) -> MsprobeMapping:
    """What the two runs without fault taught."""
    return build_mapping(
        align(flow("ms_mf_none"), flow("pt_none"), load_shipped_rules()),
        load_shipped_rules(),
        "data",
        (8, 3),
    )


def load_rules_with_mapping(tmp_path: Path, name_pairs: dict[str, str]) -> Rules:
    file = tmp_path / "mapping.yaml"
    file.write_text("".join(f"{name}: {other}\n" for name, other in name_pairs.items()))
    return load_rules([file])


def list_pairs(alignment: Alignment, evidence: str = "") -> set[tuple[int, int]]:
    table = alignment.classes
    chosen_rows = table if not evidence else table[table["evidence"] == evidence]
    return set(zip(chosen_rows["target"].tolist(), chosen_rows["reference"].tolist(), strict=True))


def test_names_from_a_clean_pair_add_pairs_beyond_a_fault(
    flow: Flows, clean_mapping: MsprobeMapping, tmp_path: Path
) -> None:
    faulty, reference = flow("ms_mf_attn_scale"), flow("pt_none")
    forward = {
        name: second_flow
        for name, second_flow in clean_mapping.pairs.items()
        if ".forward." in name
    }
    plain_alignment = align(faulty, reference, load_shipped_rules())
    helped_alignment = align(faulty, reference, load_rules_with_mapping(tmp_path, forward))
    assert len(list_pairs(helped_alignment)) > len(list_pairs(plain_alignment))
    assert list_pairs(plain_alignment, "value") <= list_pairs(
        helped_alignment, "value"
    ) | list_pairs(helped_alignment, "name")
    true_pairs = list_pairs(align(flow("ms_mf_none"), reference, load_shipped_rules()))
    target_numbers = _match_slots(flow("ms_mf_none"), faulty)
    assert list_pairs(helped_alignment, "name") <= {
        (target_numbers[t], r) for t, r in true_pairs if t in target_numbers
    }


def _match_slots(first_flow: Flow, second_flow: Flow) -> dict[int, int]:
    """Return class of one run -> class of another run of the program, by op name and slot."""
    names = first_flow.trace.ops["name"].tolist(), second_flow.trace.ops["name"].tolist()
    slots = {
        (names[1][op], slot): value
        for op, slot, value in zip(
            second_flow.tensors["op"],
            second_flow.tensors["slot"],
            second_flow.tensor_class,
            strict=True,
        )
    }
    keys = (
        (value, first_flow.tensors.iloc[row])
        for value, row in enumerate(first_flow.classes["tensor"].tolist())
    )
    return {
        value: int(slots[key])
        for value, row in keys
        if (key := (names[0][row["op"]], row["slot"])) in slots
    }


def test_wrong_names_change_nothing_where_values_speak(
    flow: Flows, clean_mapping: MsprobeMapping, tmp_path: Path
) -> None:
    target, reference = flow("ms_mf_none"), flow("pt_none")
    names = list(clean_mapping.pairs)
    wrong_names = dict(
        zip(names, [clean_mapping.pairs[name] for name in names[7:] + names[:7]], strict=True)
    )
    plain_alignment, misled_alignment = (
        align(target, reference, rules)
        for rules in (load_shipped_rules(), load_rules_with_mapping(tmp_path, wrong_names))
    )
    assert list_pairs(misled_alignment) == list_pairs(plain_alignment)


def test_an_api_that_a_mapping_names_has_the_kind_of_the_other(flow: Flows, tmp_path: Path) -> None:
    rules = load_rules_with_mapping(tmp_path, {"Functional.softmax": "Functional.silu"})
    alignment = align(flow("ms_mf_none"), flow("pt_none"), rules)
    kinds = alignment.target.trace.ops["kind"].tolist()
    assert {
        alignment.target_kinds[op] for op, kind in enumerate(kinds) if kind == "Functional.softmax"
    } == {"silu"}
    assert "softmax" in alignment.reference_kinds


def test_a_layer_mapping_pairs_every_module_of_renamed_classes(
    trace: Callable[[str], Trace], tmp_path: Path
) -> None:
    """The same run with other names of modules; the mapping says what they are called there."""
    reference = trace("demo_pytorch")
    names = reference.ops["name"].str.replace(".self_attn", ".attention", regex=False)
    names = names.str.replace("Module.model.", "Module.backbone.", regex=False)
    target = replace(reference, ops=reference.ops.assign(name=names))
    layer_class = next(
        parts[1]
        for name in reference.ops["name"]
        if (parts := split_module_name(name)) and parts[0] == "model.layers.0"
    )
    file = tmp_path / "layers.yaml"
    file.write_text(f"TopLayer:\n  backbone: model\n{layer_class}:\n  attention: self_attn\n")
    named = load_rules([file]).named_pairs
    classes = {
        parts[0]: parts[1] for name in names if (parts := split_module_name(name)) is not None
    }
    renamed = {path: named.convert_path(path, classes) for path in classes}
    assert renamed["backbone.layers.1.attention"] == "model.layers.1.self_attn"
    paths = {
        parts[0] for name in reference.ops["name"] if (parts := split_module_name(name)) is not None
    }
    assert set(renamed.values()) == paths
    assert len(align(build_flow(target), build_flow(reference), load_rules([file])).ops) > 0
