"""Gradients are paired by the values they belong to, new weights and moments by their parameter.

That holds even if everything diverged, and however different the steps are.
"""

from dataclasses import replace

import numpy as np
import pytest
from traces import (
    add_noise,
    align_traces,
    edit_tensors,
    find_tensors_like,
    load_shipped_rules,
    locate_divergence,
    replace_arrays,
    scale_tensors,
    start_matching,
)

from dumpdiff import read
from dumpdiff.alignment import anchors
from dumpdiff.alignment.training_step import (
    _merge_axes,
    pair_by_update,
    pair_remaining_gradients,
)
from dumpdiff.graph import Gradients, build_flow, find_gradients, find_updates
from dumpdiff.model.trace import BACKWARD, FORWARD

#: Op that writes a moment in PyTorch's Adam -> factor of the moment if every gradient is halved.
MOMENTS = {"Tensor.lerp_": 0.5, "Tensor.addcmul_": 0.25}


def count_right_and_wrong(alignment, clean_alignment, phase):
    """Return how many pairs of a phase are those of the clean alignment, and how many are not."""
    clean_pairs = dict(
        zip(
            clean_alignment.classes["target"].tolist(),
            clean_alignment.classes["reference"].tolist(),
            strict=True,
        )
    )
    phases = alignment.target.list_column("phase")
    pairs = [
        (t, r) for t, r in alignment.classes[["target", "reference"]].itertuples(index=False)
        if phases[t] == phase and t in clean_pairs and alignment.target.producers[t] >= 0
    ]  # fmt: skip
    n_right = sum(clean_pairs[t] == r for t, r in pairs)
    return n_right, len(pairs) - n_right


@pytest.fixture(scope="module")
def alignments(recorded):
    """Two alignments: of frameworks that agree, and with random errors in the target's values."""
    target, reference = read(recorded("mindspore")), read(recorded("pytorch"))
    # the flow has the statistics of the whole tensors
    target_with_statistics = replace(target, tensors=build_flow(target).tensors)
    noisy_target = add_noise(target_with_statistics, 0.3)
    return align_traces(target, reference), align_traces(noisy_target, reference)


@pytest.mark.record
class TestByGradient:
    def test_without_a_value_that_agrees_most_gradients_find_their_partner(self, alignments):
        clean_alignment, noisy_alignment = alignments
        n_right, n_wrong = count_right_and_wrong(noisy_alignment, clean_alignment, BACKWARD)
        assert n_right > 60
        assert n_wrong == 0

    def test_the_evidence_of_paired_gradients_is_gradient(self, alignments):
        _, noisy_alignment = alignments
        phases = np.array(noisy_alignment.target.list_column("phase"), dtype=object)[
            noisy_alignment.classes["target"]
        ]
        evidence = noisy_alignment.classes["evidence"].to_numpy()
        assert (evidence[phases == BACKWARD] == "gradient").mean() > 0.5
        assert not (evidence[phases == FORWARD] == "gradient").any()


class TestRemainingGradient:
    """Graph mode does not name gradients; that of a table is one sum of rows, read by no op."""

    NAMED = "Module.embedding.Embedding.parameters_grad.0"
    UNNAMED = "Gradients/Default/network-Recurrent/embedding-Embedding/Grad_Gather/"

    @pytest.fixture
    def wrong_trace(self, trace):
        """Return the reference with the gradient of one row of the table set to 0."""

        def drop_row(gradient):
            changed_gradient = gradient.copy()
            changed_gradient[np.abs(gradient).sum(axis=1).argmax()] = 0
            return changed_gradient

        clean_trace = trace("pt_lstm")
        (row,) = np.flatnonzero(clean_trace.tensors["gradient_of"] == "embedding.weight")
        slot = clean_trace.tensors["slot"].iat[row]
        changed_trace = replace_arrays(clean_trace, self.NAMED, slot, drop_row)
        gradient = changed_trace.array(row)
        return edit_tensors(
            changed_trace,
            find_tensors_like(clean_trace, self.NAMED, slot),
            max=gradient.max(), min=gradient.min(), mean=gradient.mean(),
            norm=np.linalg.norm(gradient),
        )  # fmt: skip

    @pytest.mark.parametrize("is_exchanged", [False, True])
    def test_a_wrong_gradient_of_a_paired_parameter_is_the_finding(
        self, trace, wrong_trace, is_exchanged
    ):
        traces = (trace("ms_lstm"), wrong_trace)
        result = locate_divergence(*traces[:: -1 if is_exchanged else 1])
        ops = (result.findings[0].target_ops, result.findings[0].reference_ops)
        target_ops, reference_ops = ops[:: -1 if is_exchanged else 1]
        assert (result.verdict, len(result.findings)) == ("diverged", 1)
        assert reference_ops[-1] == self.NAMED
        assert target_ops[-1] == f"{self.UNNAMED}UnsortedSegmentSum-op0"

    @pytest.mark.parametrize("is_known", [False, True])
    def test_the_known_gradient_of_another_parameter_is_not_left_over(self, trace, is_known):
        """Equal gradients of two biases are one value on one side, and two on the other."""
        matching = start_matching(trace("ms_lstm"), trace("pt_lstm"))
        flows = matching.target, matching.reference
        biases = [find_parameter(flow, "head.bias") for flow in flows]
        (result,) = find_unread_results(matching.target, matching.target.sizes[biases[0]])
        gradient = flows[1].list_column("gradient_of").index("head.bias")
        matching.pair(*biases, "value", 1.0)
        other_weight = find_parameter(matching.target, "head.weight")
        target = Gradients({other_weight: result} if is_known else {}, {})
        pair_remaining_gradients(matching, target, Gradients({biases[1]: gradient}, {}))
        assert matching.classes_t[result] == (-1 if is_known else gradient)


@pytest.mark.parametrize(
    ("shape", "merged"),
    [
        ((14, 16, 3), {(14, 48), (3, 224)}),
        ((16, 14, 3), {(16, 42), (3, 224)}),
        ((1, 8, 1, 4), set()),
    ],
)
def test_neighboring_axes_of_a_gradient_may_be_merged(shape, merged):
    """Two are left at least, and axes of one place do not count."""
    assert _merge_axes(shape) == merged


def find_parameter(flow, name):
    """Return the value of the parameter whose name ends so."""
    names = flow.list_column("parameter")
    return next(value for value, full_name in enumerate(names) if full_name.endswith(name))


def find_unread_results(flow, size):
    """Return the results of the backward pass of a size that no op reads."""
    return [
        value
        for value, producer in enumerate(flow.producers.tolist())
        if producer >= 0
        and flow.phases[producer] == BACKWARD
        and flow.sizes[value] == size
        and not flow.consumers[value]
    ]


def find_outputs_of_kind(flow, kind):
    """Return the values that ops of a kind produce."""
    kinds = flow.trace.ops["kind"].tolist()
    return {value for op, writes in enumerate(flow.writes) if kinds[op] == kind for value in writes}


@pytest.fixture(scope="module")
def updated_matching(recorded):
    """The first step of Adam, and the same with halved gradients; named values are paired."""
    recording = read(recorded("pytorch", "--optimizer"))
    flow = build_flow(recording)
    trace = halved = replace(recording, tensors=flow.tensors)
    for kind, factor in MOMENTS.items():
        values = find_outputs_of_kind(flow, kind)
        halved = scale_tensors(
            halved,
            [row for row, value in enumerate(flow.tensor_class.tolist()) if value in values],
            factor,
        )
    matching = start_matching(halved, trace)
    anchors.pair_by_parameter_name(matching, load_shipped_rules())
    named_values = set(matching.evidence)
    updates_t, updates_r = (
        find_updates(flow, find_gradients(flow, kinds).by_value)
        for flow, kinds in (
            (matching.target, matching.kinds_t),
            (matching.reference, matching.kinds_r),
        )
    )
    assert pair_by_update(matching, updates_t, updates_r)
    return matching, set(matching.evidence) - named_values


@pytest.mark.record
class TestByUpdate:
    def test_every_moment_and_every_new_weight_has_a_partner(self, updated_matching):
        matching, updates = updated_matching
        for kind in (*MOMENTS, "Tensor.addcdiv_"):
            parameters = find_outputs_of_kind(matching.target, kind)
            assert len(parameters) > 10
            assert parameters <= updates

    def test_the_partner_is_produced_by_the_same_call(self, updated_matching):
        matching, updates = updated_matching
        assert {
            t
            for t in updates
            if matching.producer_t[t] != matching.producer_r[matching.classes_t[t]]
        } == set()

    def test_the_evidence_of_moments_and_new_weights_is_update(self, updated_matching):
        matching, updates = updated_matching
        assert {matching.evidence[t] for t in updates} == {"update"}


class TestTermsOfGradients:
    """The tied weight of an embedding and a head: its gradient is the sum of two."""

    WEIGHT = "transformer.wte.weight"
    EMBEDDING_TERM = (
        "Gradients/Default/network-TokenLoss/network-Decoder/embedding-Cell/"
        "word_embeddings-Embedding/Grad_Gather/UnsortedSegmentSum-op0"
    )

    @pytest.fixture
    def traces(self, trace):
        """Both sides by statistics; the gradient of the reference lacks that of the head."""
        sides = []
        for name in ("ms_gpt2", "pt_gpt2"):
            side = trace(name)
            sides.append(replace(side, tensors=build_flow(side).tensors.assign(file="")))
        target, reference = sides
        term = target.tensors.loc[find_tensors_like(target, self.EMBEDDING_TERM, "output.0")[0]]
        rows = reference.tensors.index[reference.tensors["gradient_of"] == self.WEIGHT]
        numbers = {name: term[name] for name in ("max", "min", "mean", "norm")}
        return target, edit_tensors(reference, rows, **numbers)

    @pytest.mark.parametrize("is_exchanged", [False, True])
    def test_a_gradient_is_not_taken_for_a_term_of_the_other(self, traces, is_exchanged):
        target, reference = traces[::-1] if is_exchanged else traces
        (finding,) = locate_divergence(target, reference).findings
        assert (finding.phase, finding.scope) == (BACKWARD, "embedding")
        ops = finding.reference_ops if is_exchanged else finding.target_ops
        assert ops[-1].endswith("word_embeddings-Embedding/AddN-op0")
