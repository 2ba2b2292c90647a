"""What the stages observed of each place, as rows of the table of likelihoods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..gradient_norms import NormComparison
from ..gradient_norms.tolerance import get_noise_limits
from ..model.finding import Finding
from ..model.run_result import RunResult
from ..model.stage import Stage
from ..run_settings.comparison import ComparedSetting
from ..run_settings.table import load_table
from .dump_evidence import DumpEvidence
from .evidence import Evidence
from .likelihoods import PLACES, Observation, Place, qualify_kind
from .log_observations import observe_logs
from .stages import PHASES, compute_phase_coverage, select_phase_findings
from .symptom import check_first_norm

#: Kinds of findings in a dump that belong to a place before the forward pass.
_PLACES_BEFORE_FORWARD: Mapping[str, Place] = {"input": "data", "parameter": "weights"}
#: Patterns of local norms that only a gradient can cause; the others follow from anything.
_GRADIENT_PATTERNS = frozenset(
    {"no-gradient", "tied", "precision", "embedding", "vectors", "module", "one-layer", "layer"}
)
#: Inputs of the forward pass that a dump records, and what their observations are called.
_RECORDED_INPUTS: Mapping[Place, str] = {"data": "recorded tokens", "weights": "recorded weights"}
#: What a dump of the backward pass shows of its place: not what changes the gradients between it
#: and the update (averages over micro-batches and ranks, loss scales). That is where about half of
#: the faults are that change gradients and no value of the network.
_SHARE_BEFORE_UPDATE = 0.5
#: Share of the batch that was compared if its labels were not.
_SHARE_WITHOUT_LABELS = 0.5
#: Causes of a finding that are about labels: the batch has them, or the code took others. They
#: do not prove the code wrong.
_LABEL_CAUSES = frozenset({"loss-target", "label-shift", "ignore-index"})
#: Settings whose product is the number of ranks of a run.
_RANK_SETTINGS = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")


def list_observations(evidence: Evidence) -> list[Observation]:
    """Return what the stages observed."""
    return [
        *_observe_settings(evidence),
        *_observe_data(evidence),
        *_observe_weights(evidence),
        *_observe_dumps(evidence),
        *_observe_norms(evidence),
        *_observe_updates(evidence),
        *observe_logs(evidence),
    ]


def select_settings(evidence: Evidence, *places: Place) -> list[ComparedSetting]:
    """Return the settings that differ, matter, and show first at one of these places."""
    if evidence.settings is None:
        return []
    table = load_table()
    rows = evidence.settings.select_rows("differ", "unsupported", matters=True)
    return [row for row in rows if table.get_first_effect(row.setting, row.section) in places]


def select_findings(evidence: Evidence, place: Place) -> list[Finding]:
    """Return the findings of the dumps that belong to a place, in order."""
    if evidence.dumps is None:
        return []
    if place in ("backward", "optimizer"):
        return select_phase_findings(evidence.dumps, place)
    forward_findings = select_phase_findings(evidence.dumps, "forward")
    return [finding for finding in forward_findings if _find_place(finding, evidence) == place]


def _find_place(finding: Finding, evidence: Evidence) -> Place:
    """Return the place of a finding in the forward pass: data, weights or forward.

    Constants that the model computes, as the angles of a rotary embedding, belong to the forward
    pass. So does a finding about a weight if all checkpoints agree: the value then only looks like
    a weight.
    """
    place = _PLACES_BEFORE_FORWARD.get(finding.kind, "forward")
    if place == "weights" and evidence.weights is not None:
        return "forward" if evidence.weights.verdict == "agree" else "weights"
    return place


def _observe_settings(evidence: Evidence) -> Iterator[Observation]:
    """Observe the settings that act at a place.

    Settings of data and weights, as a seed, act through these alone: they do not matter if the
    data or the weights themselves are known to agree.
    """
    for place in PLACES[:-1]:
        settings = select_settings(evidence, place)
        stage = evidence.find_stage(place) if place in _RECORDED_INPUTS else None
        is_harmless = stage is not None and stage.verdict == "agree"
        if settings and not is_harmless:
            reasons = tuple(setting.reason for setting in settings)
            kind = f"{place} settings differ"
            yield Observation(kind, place, "differ", reasons[0], "settings", reasons)


def _convert_stage(
    stage: Stage, place: Place, kind: str, share: float, ranks: str = ""
) -> Observation:
    """Return the observation of a stage; an undecided stage observes nothing.

    ``ranks`` says which ranks agree, if not all were compared, and what else was not.
    """
    lines = (*stage.evidence, *stage.missing)
    if stage.verdict == "inconclusive":
        return Observation("", place, stage.verdict, stage.headline, stage.name, lines)
    message = stage.headline + (ranks if stage.verdict == "agree" else "")
    kind = f"{kind} {stage.verdict}"
    return Observation(kind, place, stage.verdict, message, stage.name, lines, share)


def _observe_data(evidence: Evidence) -> Iterator[Observation]:
    """Observe the batches.

    A saved batch that agrees may not be what the network read, unlike one in a dump.
    """
    stage = evidence.find_stage("data")
    if stage is None:
        return
    kind, share, ranks = "batches", 1.0, ""
    if evidence.data is not None:
        relation = evidence.data.relation
        if stage.verdict == "agree" and (relation is None or relation.kind != "identical"):
            # The same samples in another order or on other ranks change the mean loss of no step,
            # and every value of the network.
            yield Observation("", "data", "inconclusive", stage.headline, "data", stage.evidence)
            return
        batches = (evidence.data.target, evidence.data.reference)
        if stage.verdict == "agree" and {batch.kind for batch in batches} != {"dump"}:
            kind = "saved batches"
        if all(batch.kind == "dump" and batch.ranks is None for batch in batches):
            share = _compute_rank_share(evidence, 1)
            ranks = _format_ranks(evidence, 1)
        if not evidence.data.compares_labels:
            share *= _SHARE_WITHOUT_LABELS
            ranks += "; the labels were not compared"
    yield _convert_stage(stage, "data", kind, share, ranks)


def _observe_weights(evidence: Evidence) -> Iterator[Observation]:
    stage = evidence.find_stage("weights")
    if stage is not None:
        share = 1.0 if evidence.weights is None else evidence.weights.coverage
        yield _convert_stage(stage, "weights", "checkpoints", share)


def _observe_dumps(evidence: Evidence) -> Iterator[Observation]:
    if evidence.dumps is None:
        for phase in PHASES:
            stage = evidence.find_stage(phase)
            if stage is not None:
                yield _convert_stage(stage, phase, f"{phase} values", 1.0)
        return
    rank_share = _compute_rank_share(evidence, _count_ranks(evidence.dumps))
    yield from _observe_recorded_inputs(evidence, rank_share)
    for phase in PHASES:
        yield from _observe_pass(evidence, phase, rank_share)
    updates = select_findings(evidence, "optimizer")
    if updates:
        titles = tuple(finding.title for finding in updates)
        yield Observation(
            "recorded updates differ", "optimizer", "differ", titles[0], "backward", titles
        )


def _observe_recorded_inputs(evidence: Evidence, rank_share: float) -> Iterator[Observation]:
    """Observe tokens and weights in the dumps: those that differ, and weights that all agree."""
    assert evidence.dumps is not None
    for place, kind in _RECORDED_INPUTS.items():
        findings = select_findings(evidence, place)
        if findings:
            lines = tuple(_list_evidence(findings))
            message = summarize_finding(findings[0])
            yield Observation(f"{kind} differ", place, "differ", message, "forward", lines)
        elif place == "weights" and evidence.dumps.n_agreeing_parameters:
            count = evidence.dumps.n_agreeing_parameters
            ranks = _format_ranks(evidence, _count_ranks(evidence.dumps))
            message = f"{count} parameters in the dumps agree{ranks}"
            share = rank_share * evidence.dumps.agreeing_parameter_share
            yield Observation(f"{kind} agree", place, "agree", message, "forward", (), share)


def _observe_pass(evidence: Evidence, phase: Place, rank_share: float) -> Iterator[Observation]:
    """Observe the forward or backward pass, without findings about tokens and weights."""
    stage = evidence.find_stage(phase)
    if stage is None or evidence.dumps is None:
        return
    kind = f"{phase} values"
    if stage.verdict == "differ":
        findings = select_findings(evidence, phase)
        if findings:
            kind = f"{kind} differ"
            causes = findings[0].causes
            if causes and causes[0].name not in _LABEL_CAUSES:
                kind = f"explained {kind}"
            else:
                kind = qualify_kind(kind, evidence.has_half_precision)
            lines = tuple(_list_evidence(findings))
            message = summarize_finding(findings[0])
            yield Observation(kind, phase, "differ", message, phase, lines)
        else:
            message = f"differences in the {phase} pass follow from its inputs"
            yield Observation("", phase, "inconclusive", message, phase)
        return
    share = rank_share * compute_phase_coverage(evidence.dumps, phase)
    ranks = _format_ranks(evidence, _count_ranks(evidence.dumps))
    if phase == "backward" and not _compares_final_gradients(evidence):
        share *= _SHARE_BEFORE_UPDATE
        ranks += "; the gradients that the optimizer gets were not compared"
    observation = _convert_stage(stage, phase, kind, share, ranks)
    yield replace(observation, kind=qualify_kind(observation.kind, evidence.has_half_precision))


def _compares_final_gradients(evidence: Evidence) -> bool:
    """Return whether gradients agree as the optimizer gets them: in saved steps, or in the logs."""
    norms, logs = evidence.norms, evidence.logs
    if norms is not None and norms.verdict == "agree" and not _is_recorded(norms):
        return True
    check = None if logs is None else check_first_norm(logs, evidence.settings)
    return check is not None and check.verdict == "agree"


def _is_recorded(norms: NormComparison) -> bool:
    return norms.target.is_recorded or norms.reference.is_recorded


def summarize_finding(finding: Finding) -> str:
    """Return the layer, the cause and the lines of code of a finding, in one line."""
    text = finding.causes[0].text if finding.causes else finding.title
    lines = [f"{side} {line}" for side, line in finding.source.items()]
    return f"{text} ({', '.join(lines)})" if lines else text


def _list_evidence(findings: list[Finding]) -> Iterator[str]:
    """Yield the titles of findings, after the first why it is there."""
    for number, finding in enumerate(findings):
        yield finding.title
        if number == 0 and finding.causes:
            cause = finding.causes[0]
            yield f"why ({cause.name}): {cause.text}"


def _observe_norms(evidence: Evidence) -> Iterator[Observation]:
    stage = evidence.find_stage("norms")
    if stage is None:
        return
    kind = "norms"
    if stage.verdict == "differ" and not _may_be_rounding(evidence.norms):
        pattern = "" if evidence.norms is None else evidence.norms.pattern_kind
        kind = "most norms"
        if pattern in _GRADIENT_PATTERNS:
            kind = "few norms"
        elif pattern == "factor":
            kind = "norms by a factor"
    observation = _convert_stage(stage, "backward", kind, 1.0)
    if stage.verdict == "agree" and evidence.norms is not None and _is_recorded(evidence.norms):
        # The dumps' backward pass has the same values, and is counted once.
        observation = replace(observation, kind="", share=_SHARE_BEFORE_UPDATE)
    elif kind == "norms":
        is_half = stage.verdict == "differ" or evidence.has_half_precision
        observation = replace(observation, kind=qualify_kind(observation.kind, is_half))
    yield observation


def _may_be_rounding(norms: NormComparison | None) -> bool:
    """Whether no norm differs by more than half precision rounds, if that may be the precision."""
    if norms is None or norms.precision == "float32" or norms.factor != 1:
        return False
    _, largest_noise = get_noise_limits(norms.precision)
    return all(row.relative <= largest_noise for row in norms.select_rows("differ"))


def _observe_updates(evidence: Evidence) -> Iterator[Observation]:
    """Observe the rules of the updates; if only their rates differ, it is the schedule."""
    stage = evidence.find_stage("optimizer")
    if stage is None:
        return
    differences = () if evidence.optimizer is None else evidence.optimizer.differences
    if differences and all(difference.name == "learning-rate" for difference in differences):
        yield _convert_stage(stage, "schedule", "update rates", 1.0)
    else:
        yield _convert_stage(stage, "optimizer", "update rules", 1.0)


def _count_ranks(dumps: DumpEvidence) -> int:
    """Return the number of ranks that were compared."""
    return len(dumps.result.ranks) if isinstance(dumps.result, RunResult) else 1


def _count_ranks_of_run(evidence: Evidence) -> int:
    """Return the number of ranks of a run, by the settings of the larger one; 1 if unknown."""
    if evidence.settings is None:
        return 1
    rows = [row for row in evidence.settings.rows if row.setting in _RANK_SETTINGS]
    target_counts = [row.target.value for row in rows if isinstance(row.target.value, int)]
    reference_counts = [row.reference.value for row in rows if isinstance(row.reference.value, int)]
    return max(math.prod(target_counts), math.prod(reference_counts))


def _compute_rank_share(evidence: Evidence, n_compared: int) -> float:
    """Return the share of the ranks of a run that was compared."""
    return min(1.0, n_compared / _count_ranks_of_run(evidence))


def _format_ranks(evidence: Evidence, n_compared: int) -> str:
    """Return ', on 1 of 8 ranks', '' if the runs have no more ranks, or an unknown number."""
    n_ranks = _count_ranks_of_run(evidence)
    return f", on {n_compared} of {n_ranks} ranks" if n_ranks > n_compared else ""
