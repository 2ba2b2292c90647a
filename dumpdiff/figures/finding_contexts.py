"""Contexts of the first findings: what a drawing needs and the tables of a result do not hold."""

from __future__ import annotations

from ..alignment import Alignment
from ..causes.comparison_index import ComparisonIndex
from ..comparison import Comparison
from ..divergence.joint_graph import build_joint_graph
from ..model.finding_context import FindingContext
from ..model.result import Result
from .dataflow import build_dataflows
from .neighborhood import ComparedSides, build_neighborhoods, map_scopes
from .pair_tensors import load_pair_tensors
from .source_excerpts import find_excerpts, list_source_folders
from .tensor_figures import draw_tensors
from .value_states import read_value_states

MAX_FINDINGS = 10  #: findings with a context: later ones mostly follow from these


def collect_finding_contexts(comparison: Comparison, result: Result) -> tuple[FindingContext, ...]:
    """Return one context for each of the first ten findings of a result of this comparison."""
    findings = result.findings[:MAX_FINDINGS]
    if not findings:
        return ()
    index = ComparisonIndex(comparison)
    graph = build_joint_graph(comparison)
    sides = ComparedSides(
        flows=build_dataflows(graph),
        value_states=read_value_states(graph, result),
        partners=_map_partners(comparison.alignment),
        ops_by_name=index.ops_by_name,
        scopes=map_scopes(result),
    )
    folders = list_source_folders(result)
    contexts = []
    for finding in findings:
        value_pair = index.find_value_pair(finding)
        classes = None if value_pair is None else value_pair.classes
        target, reference = build_neighborhoods(sides, finding, classes)
        arrays = None if value_pair is None else load_pair_tensors(index, value_pair)
        histogram, difference = None, None
        if value_pair is not None and arrays is not None:
            histogram, difference = draw_tensors(*arrays, value_pair.has_mask_fill)
        sources = tuple(find_excerpts(finding, (target, reference), folders))
        contexts.append(
            FindingContext(finding.rank, target, reference, histogram, difference, sources)
        )
    return tuple(contexts)


def _map_partners(alignment: Alignment) -> tuple[dict[int, int], dict[int, int]]:
    """Return the op pairs as (target op -> reference op, reference op -> target op)."""
    target_ops = alignment.ops["target"].tolist()
    reference_ops = alignment.ops["reference"].tolist()
    to_reference = dict(zip(target_ops, reference_ops, strict=True))
    to_target = dict(zip(reference_ops, target_ops, strict=True))
    return to_reference, to_target
