"""Cases of the parallel benchmark: correct pairs and faults, each a pair of recordings.

A fault is written ``NAME@LAYER/RANKS`` as in :mod:`injections`. Every third fault, by name, is held
out: nobody looks at it while tuning, and only totals of held-out cases are printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from runs import HELD_OUT, MEGATRON, MINDSPORE, PYTORCH, RECORDINGS, Recording

#: Relations between the layouts of target and reference.
EQUAL, OTHER = "equal layout", "other layout"


@dataclass(frozen=True)
class Fault:
    """One fault in one layout, and what a right answer names.

    ``row`` is the row of the survey of published bugs that it stands for. ``is_invariant`` is true
    if it breaks a rule that any correct run obeys, so that ``check`` can see it without a
    reference.
    """

    network: str
    layout: str
    text: str  #: as :func:`injections.parse_injection` reads it
    summary: str
    is_invariant: bool
    row: str = ""
    framework: str = PYTORCH
    steps: int = 1

    @property
    def name(self) -> str:
        """Return the name of the case."""
        place = self.text.replace("@", "-at-").replace("/", "-on-").replace(",", "+")
        return f"{self.framework}-{self.network}-{self.layout}-{place}"

    @property
    def recording(self) -> Recording:
        """Return the run with the fault."""
        return Recording(self.framework, self.network, self.layout, self.text, steps=self.steps)


@dataclass(frozen=True)
class Case:
    """Two recordings to compare; without a fault every finding is a false alarm."""

    target: Recording
    reference: Recording
    relation: str
    fault: Fault | None = None

    @property
    def name(self) -> str:
        """Return a name for one line; that of a fault is the fault's."""
        if self.fault is not None:
            return self.fault.name
        return f"{self.target.name} / {self.reference.name}"

    @property
    def is_held_out(self) -> bool:
        """Return whether only totals of this case are printed."""
        return self.fault is not None and self.fault.name in list_held_out()


def _build_mindspore_fault(
    layout: str, text: str, summary: str, is_invariant: bool, row: str = ""
) -> Fault:
    return Fault("dense", layout, text, summary, is_invariant, row, MINDSPORE)


def _build_megatron_fault(
    layout: str, text: str, summary: str, is_invariant: bool, row: str = ""
) -> Fault:
    return Fault("dense", layout, text, summary, is_invariant, row, MEGATRON)


FAULTS = (
    Fault("dense", "tp2", "shard_twice@2/1", "rank 1 loads the shard of rank 0", True),
    Fault("dense", "tp2", "shards_swapped@1", "both ranks load the other's shard of fc1", False),
    Fault("dense", "tp2", "stale_norm@1/1", "a replicated weight is another on rank 1", True),
    Fault("dense", "tp4", "stale_weight@3/2", "rank 2 has an old shard of fc2", False),
    Fault("dense", "tp2", "fc2_not_reduced@2", "partial sums are not summed", True),
    Fault("dense", "tp2", "proj_reduced_twice@1", "the sum is summed once more", True),
    Fault("dense", "tp2", "input_grad_not_reduced@2", "gradient of the input stays partial", True),
    Fault("dense", "tp2", "proj_bias_each@1", "every rank adds the bias before the sum", False),
    Fault("dense", "tp2-sp", "sp_norm_grad_not_reduced", "final norm", True, "11"),
    Fault("dense", "tp2-sp", "sp_norm_grad_averaged", "mean in place of sum", False, "15"),
    Fault("dense", "tp2", "embedding_mask_off/1", "foreign tokens read row 0", False),
    Fault("dense", "tp2", "ce_max_local", "each rank subtracts its own maximum", True),
    Fault("dense", "tp2", "ce_sum_local", "each rank divides by its own sum", True, "33"),
    Fault("dropout", "tp2", "hidden_dropout_seed@0/1", "another seed where equal", True),
    Fault("dropout", "tp2", "attention_dropout_equal@1/1", "equal where it must differ", False),
    Fault("dense", "tp4", "kv_group@1/3", "keys and values are exchanged on one rank", False),
    Fault("dense", "cp2", "cp_positions/1", "positions of a contiguous slice", False),
    Fault("dense", "cp2", "cp_keys_order@1", "gathered keys stay in zigzag order", False),
    Fault("dense", "tp2-dp2", "rotary_offset@2/3", "positions of queries are one off", False),
    Fault("dense", "dp2", "grad_not_reduced@1", "one gradient is not reduced", True, "22"),
    Fault("dense", "dp2", "data_sum", "sum in place of mean over data-parallel ranks", False),
    Fault("dense", "dp2", "grad_reduced_twice@2", "one gradient is reduced twice", True, "21"),
    Fault("dense", "dp2", "stale_weight@1/1", "a replica has an old weight", True),
    Fault("dense", "dp2", "same_batch/1", "rank 1 reads the samples of rank 0", True),
    Fault("dense", "acc2", "accumulation_not_divided", "losses are summed", False, "9"),
    Fault("dense", "acc2", "micro_batch_lost", "gradients are zeroed in between", False),
    Fault("dense", "pp2", "tied_grad_not_reduced", "stages keep their own gradient", True),
    Fault("dense", "pp2-acc2", "stale_activation/1", "the buffer of micro-batch 0", True),
    Fault("dense", "pp2", "sent_grad_scaled/1", "the sent gradient is doubled", False),
    Fault("dense", "pp2", "norm_counts_tied_twice/1", "the copy counts, too", True, "27"),
    Fault("dense", "tp2", "norm_counts_replicas/1", "replicated weights count twice", True, "25"),
    Fault("dense", "tp2-dp2", "norm_local", "each rank clips by its own norm", True, "31"),
    Fault("moe", "dp2-ep2", "expert_mapping@1/1", "tokens go to the other expert", False),
    Fault("moe", "dp2-ep2", "expert_grad_not_divided", "expert gradients times 2", False, "20"),
    Fault("moe", "dp2-ep2", "combine_without_probabilities@0/1", "equal weights", False),
    Fault("moe", "dp2-ep2", "router_grad_not_reduced@1", "routers drift", True, "13"),
    Fault("moe", "dp2-ep2", "expert_order@0/0", "experts are loaded in another order", False),
    Fault("dense", "tp2-dp2", "wrong_group@1", "reduced over the tp group", True, "36"),
    Fault("dense", "tp2-sp", "sp_gather_order@2", "chunks are exchanged", True, "34"),
    Fault("dense", "tp2", "proj_half_sum@2/1", "one partial sum is rounded to bfloat16", False),
    Fault("dense", "tp2-dp2", "score_scale@1/2", "another scale on one rank", False),
    Fault("dense", "tp2", "gate_up_swapped@3/0", "halves of a shard are exchanged", False),
    Fault("dense", "tp2-pp2", "norm_eps@3/3", "another epsilon on one rank", True),
    Fault("untied", "tp2-dp2-flat", "bucket_not_reduced", "no gradient is reduced", True, "22"),
    Fault("dense", "tp2", "learning_rate", "twice the rate from step 1 on", False, steps=3),
    Fault("dense", "tp2", "gelu@2/1", "another activation on one rank", False),
    Fault("dense", "dp2", "labels_shifted/1", "labels of rank 1 are one off", False),
    Fault("dense", "tp2-pp2", "fc2_not_reduced@0", "partial sums on the first stage", True),
    Fault("dense", "pp2", "norm_eps@3/1", "another epsilon on the second stage", False),
    Fault("dense", "tp2", "qkv_not_grouped@1", "rows in another order", False, "42"),
    _build_mindspore_fault("tp2", "fc2_not_reduced@1", "partial sums are not summed", True),
    _build_mindspore_fault("tp2", "shard_twice@1/1", "rank 1 loads the shard of rank 0", True),
    _build_mindspore_fault("tp2", "stale_norm@2/0", "a replicated weight is another", True),
    _build_mindspore_fault("tp2", "proj_bias_each@2", "every rank adds the bias", False),
    _build_mindspore_fault("tp2", "embedding_mask_off/1", "foreign tokens read row 0", False),
    _build_mindspore_fault("tp2", "score_scale@2/1", "another scale on one rank", False),
    _build_mindspore_fault("tp2", "input_grad_not_reduced@1", "gradient stays partial", True),
    _build_mindspore_fault("tp2", "norm_local", "each rank clips by its own norm", True, "31"),
    _build_mindspore_fault("dp2", "data_sum", "sum in place of mean", False),
    _build_mindspore_fault("dp2", "grad_not_reduced@2", "one gradient is not reduced", True, "22"),
    _build_mindspore_fault("dp2", "same_batch/1", "rank 1 reads the samples of rank 0", True),
    _build_mindspore_fault("dp2", "grad_reduced_twice@0", "one gradient is doubled", True, "21"),
    _build_mindspore_fault("tp2-dp2", "rotary_offset@1/2", "positions are one off", False),
    _build_mindspore_fault("tp2-dp2", "stale_weight@2/3", "rank 3 has an old shard", True),
    _build_mindspore_fault("tp2-dp2", "norm_eps@2/1", "another epsilon on one rank", True),
    _build_megatron_fault("tp2", "shard_twice@1/0", "rank 0 loads the shard of rank 1", True),
    _build_megatron_fault("tp2", "stale_norm@2/1", "a replicated weight is another", True),
    _build_megatron_fault("tp2", "qkv_not_grouped@1", "rows in another order", False, "42"),
    _build_megatron_fault("tp4", "gate_up_swapped@2/2", "halves of a shard", False),
)


def list_held_out() -> frozenset[str]:
    """Return the names of the faults that are held out: every third of each framework."""
    names: set[str] = set()
    for framework in (PYTORCH, MINDSPORE, MEGATRON):
        ordered_names = sorted(fault.name for fault in FAULTS if fault.framework == framework)
        names.update(ordered_names[2::3])
    return frozenset(names)


#: Correct runs of each framework and network. All are compared with the run on one device.
LAYOUTS = {
    (PYTORCH, "dense"): (
        "tp2", "tp2-sp", "dp2", "acc2", "pp2", "tp4", "tp2-dp2", "tp2-pp2", "cp2", "dp2-flat",
        "pp2-acc2", "pp2-vpp2", "pp2-vpp2-acc2", "tp2-pp2-vpp2",
    ),
    (PYTORCH, "moe"): ("dp2-ep2",),
    (PYTORCH, "dropout"): ("tp2",),
    (PYTORCH, "untied"): ("tp2-dp2-flat",),
    (PYTORCH, "padded"): ("tp2",),
    (MINDSPORE, "dense"): ("tp2", "dp2", "tp2-dp2"),
    (MEGATRON, "dense"): ("tp2", "tp4"),
}  # fmt: skip

#: Further correct pairs of one framework and network, each in two layouts with several ranks.
LAYOUT_PAIRS = (
    (PYTORCH, "tp2-dp2", "tp2-pp2"),
    (PYTORCH, "tp4", "tp2"),
    (PYTORCH, "dp2", "acc2"),
    (PYTORCH, "tp2-sp", "tp2"),
    (PYTORCH, "cp2", "dp2"),
    (MINDSPORE, "tp2-dp2", "tp2"),
    (MEGATRON, "tp4", "tp2"),
)


def list_cases() -> list[Case]:
    """Return all pairs: the correct ones first."""
    return [*_list_correct_pairs(), *_list_fault_pairs()]


def _list_correct_pairs() -> Iterator[Case]:
    for (framework, network), layouts in LAYOUTS.items():
        for layout in layouts:
            run = Recording(framework, network, layout)
            if framework == PYTORCH:
                yield Case(run, replace(run, summation="float64"), EQUAL)
            yield Case(run, Recording(framework, network, "tp1"), OTHER)
    long_run = Recording(PYTORCH, "dense", "tp2", steps=3)
    yield Case(long_run, replace(long_run, summation="float64"), EQUAL)
    for framework, target, reference in LAYOUT_PAIRS:
        runs = (Recording(framework, "dense", layout) for layout in (target, reference))
        yield Case(*runs, OTHER)
    for framework in (MINDSPORE, MEGATRON):
        for layout in ("tp1", *LAYOUTS[framework, "dense"]):
            run = Recording(framework, "dense", layout)
            yield Case(run, Recording(PYTORCH, "dense", layout), EQUAL)
            if layout != "tp1":
                yield Case(run, Recording(PYTORCH, "dense", "tp1"), OTHER)


def _list_fault_pairs() -> Iterator[Case]:
    for fault in FAULTS:
        run = fault.recording
        if fault.framework == PYTORCH:
            twin = replace(run.clean(), summation="float64")
        elif fault.framework == MINDSPORE:
            twin = replace(run.clean(), framework=PYTORCH)
        else:
            twin = run.clean()
        yield Case(run, twin, EQUAL, fault)
        single = replace(run.clean(), layout="tp1")
        if fault.framework == MINDSPORE:
            single = replace(single, framework=PYTORCH)
        yield Case(run, single, OTHER, fault)


def list_recordings(cases: list[Case]) -> list[Recording]:
    """Return the recordings that the cases and their truths need, each once."""
    recordings: dict[Recording, None] = {}
    for case in cases:
        recordings.update(dict.fromkeys((case.target, case.reference, case.target.clean())))
    return list(recordings)


def get_path(recording: Recording, work: Path) -> Path:
    """Return the folder of a recording; held-out faults are in a folder of their own."""
    held_out = {fault.recording for fault in FAULTS if fault.name in list_held_out()}
    return work / (HELD_OUT if recording in held_out else RECORDINGS) / recording.name
