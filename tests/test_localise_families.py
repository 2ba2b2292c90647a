"""The architectures of the localization benchmark: what each family declares."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

LOCALISE = Path(__file__).parents[1] / "benchmarks" / "localise"
sys.path.insert(0, str(LOCALISE))

import families  # noqa: E402
import faults  # noqa: E402
import recordings  # noqa: E402
import sentences  # noqa: E402
import table  # noqa: E402


@pytest.mark.parametrize("family", families.NAMES)
class TestFamily:
    def test_it_has_four_sound_pairs_and_ten_faults(self, family: str) -> None:
        cases = [case for case in faults.CASES if case.model == family]
        assert sum(case.benign for case in cases) >= 4  # the clean pair, PyNative, two variants
        assert len({case.fault for case in cases if not case.benign}) >= 10
        assert {case.side for case in cases} == {"", "mindspore", "pytorch"}

    def test_all_cases_of_a_held_out_family_are_held_out(self, family: str) -> None:
        cases = [case for case in faults.CASES if case.model == family]
        n_held_out = sum(case.held_out for case in cases)
        assert (n_held_out == len(cases)) == (family in families.HELD_OUT)

    def test_held_out_faults_go_into_both_sides(self, family: str) -> None:
        faulty_cases = [case for case in faults.CASES if case.model == family and not case.benign]
        sides = {case.side for case in faulty_cases if case.held_out}
        assert sides in (set(), {"mindspore", "pytorch"})

    def test_every_fault_changes_the_model_or_its_batch(self, family: str) -> None:
        clean = recordings.Recording("pytorch", family)
        for fault in families.get_faults(family).FAULTS:
            faulty = recordings.Recording("pytorch", family, fault)
            assert recordings._compute_digest(faulty) != recordings._compute_digest(clean), fault

    def test_weights_and_batch_are_the_same_every_time(self, family: str) -> None:
        first, second = families.build(family), families.build(family)
        assert first.weights.keys() == second.weights.keys()
        for name, values in first.weights.items():
            assert values.dtype == np.float32
            assert np.array_equal(values, second.weights[name])
        for values, other_values in zip(first.batch(), second.batch(), strict=True):
            assert np.array_equal(values, other_values)

    def test_a_sentence_about_something_else_is_wrong(self, family: str) -> None:
        text = "layers.1 behaves as something else; residual 4.7e-7"
        for case in faults.CASES:
            if case.model == family and not case.benign:
                has_claims = bool(sentences._list_claims(case))
                assert bool(sentences.judge_sentence(text, case)) == has_claims, case.name


def test_a_net_of_one_family_is_no_source_of_another_recording() -> None:
    for family in families.NAMES:
        sources = recordings._list_sources("pytorch", family)
        assert {file.parent.name for file in sources} == {family}
    for file in recordings._list_sources("pytorch", "llama"):
        assert "families" not in file.parts


def test_two_families_and_two_faults_of_six_others_are_held_out_or_nothing() -> None:
    held_out = {
        (case.model, case.fault)
        for case in faults.CASES
        if case.model in families.NAMES and case.held_out and not case.benign
    }
    others = [model for model, _ in held_out if model not in families.HELD_OUT]
    counts = len(families.HELD_OUT), sorted(Counter(others).values())
    assert counts in ((2, 6 * [2]), (0, []))


def test_faults_of_the_update_are_recorded_with_it_next_to_a_pair_without_fault() -> None:
    for family in families.NAMES:
        family_faults = families.get_faults(family).FAULTS
        cases = [case for case in faults.CASES if case.model == family]
        updates = [case for case in cases if "--optimizer" in case.target_options]
        assert all("--optimizer" in case.reference_options for case in updates)
        expected = {name for name, fault in family_faults.items() if fault.optimizer}
        assert {case.fault for case in updates} == (expected | {"none"} if expected else set())


def test_held_out_pairs_exist_and_have_no_fault() -> None:
    benign = {case.name: case for case in faults.CASES if case.benign}
    assert set(families.HELD_OUT_PAIRS) <= set(benign)
    assert all(benign[name].held_out for name in families.HELD_OUT_PAIRS)


def test_families_are_counted_apart() -> None:
    assert list(table.PARTS) == ["tuned", "held out", "new, tuned", "new, held out"]
