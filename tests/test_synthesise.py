"""The edits of fixtures/synthesise.py are the right answers of other tests: here they are checked
on a real dump.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "fixtures"))

import synthesise


@pytest.fixture(scope="module")
def real(dump):
    return synthesise.load(dump("pt_none"))


def partners(edited):
    """Only what an edit renamed: new name -> recorded name."""
    return {name: origin for name, origin in edited.origins().items() if name != origin}


def test_saving_and_loading_changes_nothing(real, tmp_path):
    again = synthesise.load(synthesise.save(real, tmp_path))
    assert again == real


def test_an_inserted_call_has_no_partner_and_shifts_the_later_calls_of_its_api_only(real):
    renamed = partners(synthesise.inserted(real, "Functional.linear.3.forward"))
    assert renamed["Functional.linear.4.forward"] is None
    assert renamed["Functional.linear.5.forward"] == "Functional.linear.4.forward"
    assert renamed["Functional.linear.5.backward"] == "Functional.linear.4.backward"
    assert all(name.startswith("Functional.linear.") for name in renamed)


def test_a_removed_call_takes_its_gradient_with_it(real):
    edited = synthesise.removed(real, "Functional.linear.3.forward")
    gone = {record.origin for record in real.records} - {record.origin for record in edited.records}
    assert gone == {"Functional.linear.3.forward", "Functional.linear.3.backward"}
    assert partners(edited)["Functional.linear.3.backward"] == "Functional.linear.4.backward"


def test_a_doubled_call_runs_again_before_its_gradient_which_takes_its_number(real):
    edited = synthesise.doubled(real, "Functional.linear.3.forward")
    again, gradient = partners(edited)
    assert partners(edited) == {again: None, gradient: "Functional.linear.3.backward"}
    assert gradient == again.removesuffix("forward") + "backward"
    assert list(edited.origins()).index(gradient) == list(edited.origins()).index(again) + 1


def test_swapped_calls_exchange_their_names(real):
    renamed = partners(
        synthesise.swapped(real, "Functional.linear.0.forward", "Functional.linear.1.forward")
    )
    assert renamed == {
        f"Functional.linear.{one}.{direction}": f"Functional.linear.{1 - one}.{direction}"
        for one in (0, 1)
        for direction in ("forward", "backward")
    }


def test_noise_moves_computed_numbers_by_rounding_and_leaves_weights_alone(real):
    edited = synthesise.noisy(real, 1e-7)
    name = "Functional.linear.0.forward"
    before, after = (side.records[side.at(name)].content for side in (real, edited))
    assert after["input_args"][1] == before["input_args"][1]
    assert after["output"][0] != before["output"][0]
    assert after["output"][0]["Norm"] == pytest.approx(before["output"][0]["Norm"], rel=1e-6)


def test_a_scaled_output_leaves_everything_before_it_alone(real):
    name = "Functional.linear.3.forward"
    edited, position = synthesise.scaled(real, name, 1.001), real.at(name)
    assert edited.records[:position] == real.records[:position]
    before, after = (side.records[position].content for side in (real, edited))
    assert after["input_args"] == before["input_args"]
    assert after["output"][0]["Norm"] == pytest.approx(
        1.001 * before["output"][0]["Norm"], rel=1e-6
    )


def test_a_dump_of_whole_tensors_is_refused(dump):
    with pytest.raises(ValueError, match="not a statistics dump"):
        synthesise.load(dump("demo_pytorch"))
