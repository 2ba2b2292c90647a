"""A parameter that is the sum of two or three of the other side is found; chance sums are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpdiff.weight_comparison import WeightsResult

from .conftest import compare_files, save_weights

torch = pytest.importorskip("torch")

State = Mapping[str, "torch.Tensor"]
HuggingFace = Callable[[str], tuple[dict[str, np.ndarray], Mapping[str, object]]]


def compare_states(folder: Path, target: State, reference: State) -> WeightsResult:
    torch.save(dict(target), folder / "target.pt")
    torch.save(dict(reference), folder / "reference.pt")
    return compare_files(folder / "target.pt", folder / "reference.pt")


def assert_same(result: WeightsResult) -> None:
    assert [(pair.path, pair.mistake) for pair in result.mistakes] == []
    assert (result.verdict, result.missing, result.unknown) == ("agree", (), ())
    assert result.coverage == 1


@pytest.fixture(scope="module")
def lstm() -> State:
    torch.manual_seed(3)
    return torch.nn.LSTM(12, 24, num_layers=2, bidirectional=True).state_dict()


def merge_biases(lstm: State, rename: Callable[[str], str]) -> State:
    """Add the two biases of each gate, as frameworks with one bias store them."""
    merged = {name: value for name, value in lstm.items() if "bias" not in name}
    for name in lstm:
        if "bias_ih" in name:
            merged[rename(name)] = lstm[name] + lstm[name.replace("_ih", "_hh")]
    return merged


@pytest.mark.parametrize(
    "rename",
    [lambda name: name, lambda name: name.replace("_ih", "")],
    ids=["old name", "new name"],
)
def test_the_sum_of_the_two_biases_of_an_lstm_is_found(
    tmp_path: Path, lstm: State, rename: Callable[[str], str]
) -> None:
    result = compare_states(tmp_path, merge_biases(lstm, rename), lstm)

    assert_same(result)
    assert result.relation == "rounded"  # the sum is exact, and rounded once where it was stored
    sums = {pair.target: pair for pair in result.pairs if pair.evidence == "sum"}
    pair = sums[rename("bias_ih_l1_reverse")]
    assert pair.layout == "the target holds a sum: bias_ih_l1_reverse + bias_hh_l1_reverse"
    assert pair.rounding == "target rounded to float32, nearest"
    assert len(sums) == 4
    assert not set(sums) & set(result.correspondence)
    assert any("4 parameters are the sum of others" in note for note in result.notes)


def test_the_reference_may_hold_the_sum(tmp_path: Path, lstm: State) -> None:
    result = compare_states(tmp_path, lstm, merge_biases(lstm, lambda name: name))
    assert_same(result)
    assert {pair.layout for pair in result.pairs if pair.path == "bias_ih_l0"} == {
        "the reference holds a sum: bias_ih_l0 + bias_hh_l0"
    }


def test_the_sum_of_a_parametrization_of_torch_is_found(tmp_path: Path) -> None:
    class Added(torch.nn.Module):
        def forward(
            self, one: torch.Tensor, two: torch.Tensor, three: torch.Tensor
        ) -> torch.Tensor:
            return one + two - three

        def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            one, two = torch.randn_like(weight), torch.randn_like(weight)
            return one, two, one + two - weight

    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 32))
    for linear in model:
        torch.nn.utils.parametrize.register_parametrization(linear, "weight", Added())
    weights = {
        f"{i}.{name}": getattr(linear, name).detach()
        for i, linear in enumerate(model)
        for name in ("weight", "bias")
    }
    result = compare_states(tmp_path, weights, model.state_dict())

    assert_same(result)
    stem = "0.parametrizations.weight.original"
    assert {pair.layout for pair in result.pairs if pair.path == "0.weight"} == {
        f"the target holds a sum: {stem}0 + {stem}1 - {stem}2"
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_linear_of_a_llama_as_a_base_and_a_difference(
    tmp_path: Path, models: Path, dtype: torch.dtype
) -> None:
    weights = {
        name: value.to(dtype)
        for name, value in torch.load(models / "llama.pt", weights_only=True).items()
    }
    generator = torch.Generator().manual_seed(5)
    parts, sums = {}, {}
    for name, value in weights.items():
        sums[name] = value
        if "_proj" in name:
            parts[f"{name}.base"] = value
            parts[f"{name}.change"] = (0.01 * torch.randn(value.shape, generator=generator)).to(
                dtype
            )
            sums[name] = value + parts[f"{name}.change"]
        else:
            parts[name] = value
    result = compare_states(tmp_path, sums, parts)

    assert_same(result)
    assert result.relation == "rounded"
    assert sum(pair.evidence == "sum" for pair in result.pairs) == 4 * 7


def test_a_small_difference_of_two_checkpoints_in_bfloat16(tmp_path: Path) -> None:
    """The difference is as small as the rounding of its terms; every element is explained."""
    generator = torch.Generator().manual_seed(8)
    base = [torch.randn(40, 30, generator=generator).bfloat16() for _ in range(3)]
    tuned = [
        (tensor + 0.01 * torch.randn(40, 30, generator=generator)).bfloat16() for tensor in base
    ]
    parts = {f"{i}.base": tensor for i, tensor in enumerate(base)} | {
        f"{i}.tuned": tensor for i, tensor in enumerate(tuned)
    }
    changes = {
        f"{i}.change": tensor - other
        for i, (tensor, other) in enumerate(zip(tuned, base, strict=True))
    }
    result = compare_states(tmp_path, changes, parts)

    assert_same(result)
    assert {pair.path: pair.reference for pair in result.pairs} == {
        f"{i}.change": f"{i}.tuned - {i}.base" for i in range(3)
    }


def test_a_sum_with_a_changed_term_is_not_found(tmp_path: Path, lstm: State) -> None:
    target = dict(merge_biases(lstm, lambda name: name))
    target["bias_ih_l0"] = lstm["bias_ih_l0"] + 1.1 * lstm["bias_hh_l0"]
    result = compare_states(tmp_path, target, lstm)

    assert [pair.path for pair in result.mistakes] == ["bias_ih_l0"]
    assert result.missing == ("bias_hh_l0",)


def test_norms_near_one_are_no_sums(tmp_path: Path) -> None:
    """In bfloat16 one such norm, plus another, less a third, is nearly a fourth."""
    generator = torch.Generator().manual_seed(6)
    norms = [(1 + 0.002 * torch.randn(64, generator=generator)).bfloat16() for _ in range(8)]
    result = compare_states(
        tmp_path, {"a": norms[0]}, {f"b{i}": norm for i, norm in enumerate(norms[1:])}
    )
    assert result.pairs == ()
    assert result.verdict != "agree"


def test_ambiguous_sums_are_not_reported(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(7)
    a, b = torch.randn(64, generator=generator), torch.randn(64, generator=generator)
    result = compare_states(tmp_path, {"sum": a + b}, {"a": a, "b": b, "copy of b": b})
    assert result.pairs == ()


@st.composite
def draw_models_in_terms(
    draw: st.DrawFn,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Draw parameters, the terms that they are sums of, and the number of true sums."""
    rows, columns = draw(st.tuples(st.integers(4, 12), st.integers(4, 12)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    totals, terms_by_name, n_sums = {}, {}, 0
    for number in range(draw(st.integers(1, 6))):
        signs = draw(
            st.lists(st.sampled_from([1, -1]), min_size=1, max_size=3).filter(
                lambda signs: 1 in signs
            )
        )
        signs = [1] if len(signs) == 1 else signs
        terms = [
            random.normal(0, draw(st.sampled_from([0.02, 0.1, 1])), (rows, columns)) for _ in signs
        ]
        terms = [term.astype(np.float32) for term in terms]
        total = sum(sign * term.astype(np.float64) for sign, term in zip(signs, terms, strict=True))
        totals[f"w{number}"] = total.astype(np.float32)
        terms_by_name |= {f"p{number}.{i}": term for i, term in enumerate(terms)}
        n_sums += len(signs) > 1
    return totals, terms_by_name, n_sums


def compare_arrays(
    target: dict[str, np.ndarray], reference: dict[str, np.ndarray]
) -> WeightsResult:
    with TemporaryDirectory() as folder:
        return compare_files(
            save_weights(Path(folder) / "t.safetensors", target),
            save_weights(Path(folder) / "r.safetensors", reference),
        )


@settings(deadline=None, max_examples=40)
@given(draw_models_in_terms(), st.booleans())
def test_sums_of_any_terms_are_found(models_in_terms: tuple, reversed_sides: bool) -> None:
    totals, parts, sums = models_in_terms
    result = compare_arrays(parts, totals) if reversed_sides else compare_arrays(totals, parts)
    assert_same(result)
    assert sum(pair.evidence == "sum" for pair in result.pairs) == sums


@settings(deadline=None, max_examples=40)
@given(draw_models_in_terms(), st.integers(0, 2**32 - 1))
def test_unrelated_parameters_never_add_up(models_in_terms: tuple, seed: int) -> None:
    totals, parts, _ = models_in_terms
    random = np.random.default_rng([seed, 1])
    unrelated = {
        name: random.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in totals.items()
    }
    result = compare_arrays(unrelated, parts)
    assert result.pairs == ()
    assert result.verdict != "agree"
