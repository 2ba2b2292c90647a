"""All rules together, as the rest of the program uses them."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from .arguments import ArgumentRules
from .decompositions import DecompositionRules, Sequences
from .document import Entry, parse_entry
from .explanation import Explanation, explain_name
from .mappings import NamedPairs
from .model_families import FamilyRules, ModelFamily
from .operators import OTHER, OperatorRules
from .relations import read_relation_rules
from .scopes import ScopeRules
from .tolerances import ToleranceRules

#: Module of a layer of multi-token prediction -> its name below the layer in files of transformers
#: (DeepSeek-V3, GLM-4-MoE). Embedding and head are copies of those of the model.
PREDICTION_MODULES: Mapping[str, str] = {
    "enorm": "enorm",
    "hnorm": "hnorm",
    "eh_proj": "eh_proj",
    "final_norm": "shared_head.norm",
    "embedding": "embed_tokens",
    "head": "shared_head.head",
}


class Rules:
    """Compiled rules, created by :func:`dumpdiff.rulebook.load_rules`.

    Every answer is computed once.
    """

    def __init__(
        self,
        scopes: Sequence[Sequence[Entry]],
        families: Sequence[Sequence[Entry]],
        operators: Sequence[Sequence[Entry]],
        arguments: Sequence[Sequence[Entry]],
        decompositions: Sequence[Sequence[Entry]],
        tolerances: Sequence[Sequence[Entry]],
        relations: Sequence[Sequence[Entry]],
        named_pairs: NamedPairs | None = None,
    ) -> None:
        self.named_pairs = named_pairs or NamedPairs()  #: pairs of names from mapping files
        self._tolerances = ToleranceRules(tolerances)
        self._operators = OperatorRules(operators, self._tolerances.classes)
        self._tolerances.check_kinds(self._operators.kinds)
        self._arguments = ArgumentRules(arguments, self._operators)
        self._decompositions = DecompositionRules(decompositions, self._operators.kinds)
        self._scope_sources = scopes
        self._scopes = ScopeRules(scopes)
        self.families = FamilyRules(families)  #: of models, with their names in transformers
        #: side -> name of a kind of values -> how its values are spread over the ranks of the run
        self.relations = read_relation_rules(relations)
        self._kind_of: dict[str, str] = {}

    def for_family(
        self, family: ModelFamily | None, prediction_layers: Sequence[int] = ()
    ) -> Rules:
        """Return the rules for the names of one model family.

        They have priority over the shipped names, and names of ``--rules`` over them.
        ``prediction_layers`` are the numbers under which a file has the layers of multi-token
        prediction, in the order of their depth: ``layers.61`` is ``mtp.0.block``.
        """
        sections = [] if family is None else [[section] for section in family.scopes]
        if prediction_layers:
            sections.append([_name_prediction_layers(prediction_layers)])
        if not sections:
            return self
        shipped, *extra = self._scope_sources
        rules = copy.copy(self)
        rules._scopes = ScopeRules([shipped, *sections, *extra])
        return rules

    def resolve_scope(self, name: str) -> str:
        """Return the canonical module path of a scope or full name, '' if no rule matches."""
        return self._scopes.resolve_scope(name).path

    def resolve_parameter(self, name: str) -> str:
        """Return the canonical name of a parameter, '' if no rule matches.

        ``n.n.layers.0.attention.wq.weight`` and ``model.layers.0.self_attn.q_proj.weight`` are both
        ``layers.0.attention.q.weight``. Optimizer states keep their prefix
        (``exp_avg.layers.0...``).
        """
        return self._scopes.resolve_parameter(name).path

    def resolve_parameters(self, names: Iterable[str]) -> dict[str, str]:
        """Return name -> canonical name for the parameters of one side.

        Where two towers of the model have a name in common, such as those of an encoder and of a
        decoder, all names are preceded by what tells them apart (``encoder.layers.0...``). Names
        without a canonical name, and names that would still share one, are left out.
        """
        readings = {name: self._scopes.resolve_parameter(name) for name in names}
        canonical_names = {name: reading.path for name, reading in readings.items() if reading.path}
        if len(set(canonical_names.values())) < len(canonical_names):
            n_common = _count_common_segments(readings[name].front for name in canonical_names)
            for name, path in canonical_names.items():
                canonical_names[name] = ".".join((*readings[name].front[n_common:], path))
        counts = Counter(canonical_names.values())
        return {name: path for name, path in canonical_names.items() if counts[path] == 1}

    def resolve_modules(
        self, scopes: Iterable[str], parameters: Iterable[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return scope -> module path, and parameter -> path of its module, of one model.

        Paths are canonical, '' if no rule matches; a parameter that no rule matches keeps its name.
        Where two towers of the model have a path in common, such as ``layers.0`` of an encoder and
        of a decoder, it is preceded by what tells them apart (``encoder.layers.0``).
        """
        readings_of_scopes = {name: self._scopes.resolve_scope(name) for name in set(scopes)}
        readings_of_parameters = {
            name: self._scopes.resolve_parameter(name) for name in set(parameters)
        }
        scope_paths = {name: reading.path for name, reading in readings_of_scopes.items()}
        parameter_paths = {
            name: (reading.path or name).rpartition(".")[0]
            for name, reading in readings_of_parameters.items()
        }
        all_readings = chain(readings_of_scopes.values(), readings_of_parameters.values())
        if len({reading.front for reading in all_readings if reading.path}) <= 1:
            return scope_paths, parameter_paths
        fronts_of_path: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        for readings, paths in (
            (readings_of_scopes, scope_paths),
            (readings_of_parameters, parameter_paths),
        ):
            for name, reading in readings.items():
                if reading.path:
                    fronts_of_path[paths[name]].add(reading.front)
        if any(len(fronts) > 1 for fronts in fronts_of_path.values()):
            n_common = _count_common_segments(set().union(*fronts_of_path.values()))
            for readings, paths in (
                (readings_of_scopes, scope_paths),
                (readings_of_parameters, parameter_paths),
            ):
                for name, reading in readings.items():
                    tower = reading.front[n_common:] if reading.path else ()
                    paths[name] = ".".join(filter(None, (*tower, paths[name])))
        return scope_paths, parameter_paths

    def resolve_kind(self, name: str) -> str:
        """Return the canonical operator kind, never ''.

        For an unknown operator, this is its name in lower case.
        """
        if name not in self._kind_of:
            self._kind_of[name] = self._operators.find_kind(name)[0] or OTHER
        return self._kind_of[name]

    def has_kind(self, kind: str) -> bool:
        """Whether a rule names this canonical kind, or for a gradient kind its operator."""
        return self._operators.find_rule(kind) is not None

    def get_kind_class(self, kind: str) -> str:
        """Return the class of a canonical kind, 'other' if unknown.

        A gradient has the class of its operator.
        """
        rule = self._operators.find_rule(kind)
        return rule.kind_class if rule else OTHER

    def get_layout(self, kind: str) -> str:
        """Return 'identity' if the output has all values of the input, 'selecting' if some, ''."""
        return self._operators.get_layout(kind)

    def get_argument_name(self, operator: str, argument: str) -> str:
        """Return the name of an argument that is recorded as a position ('2') or as a name ('eps').

        It is the same in all frameworks: ``epsilon`` for ``eps``. '' if it is not known.
        """
        return self._arguments.get_name(operator, argument)

    def get_shape_positions(self, operator: str) -> frozenset[int]:
        """Return the positions of which an operator reads only shape or dtype, no numbers."""
        return self._arguments.get_shape_positions(operator)

    def get_conditioning(self, kind_or_class: str) -> float:
        """Return the factor by which a correct kind (or class) may amplify an input's error."""
        kinds, classes = self._tolerances.kinds, self._tolerances.classes
        tolerance = kinds.get(kind_or_class) or classes.get(kind_or_class)
        if tolerance is None:
            tolerance = classes[self.get_kind_class(kind_or_class)]
        return tolerance.conditioning

    def compute_growth(self, kind: str, reduction_length: int) -> float:
        """Return the allowed error of a sum of ``reduction_length`` terms.

        The unit is the unit roundoff of the accumulator.
        """
        rule = self._tolerances.get_tolerance(kind, self.get_kind_class(kind))
        return self._tolerances.compute_growth(rule, reduction_length)

    def compute_tolerance(
        self, dtype_a: str, dtype_b: str, kind: str, reduction_length: int = 1
    ) -> float:
        """Return how far an agreeing pair may differ, relative to the tensor's scale.

        It is 0 for exact dtypes.
        """
        rule = self._tolerances.get_tolerance(kind, self.get_kind_class(kind))
        return self._tolerances.compute_tolerance(rule, dtype_a, dtype_b, reduction_length)

    @property
    def decompositions(self) -> Mapping[str, Sequences]:
        """Canonical kind -> the sequences of kinds that it may be on the other side.

        Elements of a sequence may decompose further.
        """
        return self._decompositions.operators

    @property
    def parameter_parts(self) -> Mapping[str, Sequences]:
        """Canonical path below a block -> its possible parts: ``attention.qkv`` -> q, k, v."""
        return self._decompositions.parts

    def split_path(self, path: str) -> Sequences:
        """Return :attr:`parameter_parts` of a full canonical path; () if none is known.

        An example of such a path is ``layers.0.attention.qkv.weight``.
        """
        return self._decompositions.split_path(path)

    def explain_name(self, name: str) -> tuple[Explanation, ...]:
        """Return what ``name`` is as a scope, a parameter and an operator, with the rules.

        If no rule matches, the explanation has the most similar rules.
        """
        return explain_name(name, self._scopes, self._operators, self._decompositions)

    def count_rules(self) -> dict[str, int]:
        """Return the number of rules of each sort."""
        counts = {
            "scope patterns": len(self._scopes.rules),
            "operator kinds": len(self._operators.kinds),
            "operator members": len(self._operators.members),
            "decompositions": sum(map(len, self.decompositions.values())),
            "parameter parts": sum(map(len, self.parameter_parts.values())),
            "tolerance classes": len(self._tolerances.classes),
        }
        n_relations = sum(map(len, self.relations.values()))
        if n_relations:
            counts["relations between ranks"] = n_relations
        if len(self.named_pairs):
            counts["named pairs"] = len(self.named_pairs)
        return counts


def _name_prediction_layers(layers: Sequence[int]) -> Entry:
    """Return the names of prediction layers in files of transformers, as a section of rules."""
    blocks, modules = [], []
    for depth, layer in enumerate(layers):
        blocks.append(f'mtp.{depth}.block: ["model.layers.{layer}", "layers.{layer}"]')
        for module, name in PREDICTION_MODULES.items():
            names = f'["model.layers.{layer}.{name}", "layers.{layer}.{name}"]'
            modules.append(f"mtp.{depth}.{module}: {names}")
    text = f"{{layers: {{{', '.join(blocks)}}}, model: {{modules: {{{', '.join(modules)}}}}}}}"
    return parse_entry(text, "names of prediction layers")


def _count_common_segments(fronts: Iterable[tuple[str, ...]]) -> int:
    """Return the number of leading segments that all fronts share."""
    n_common = 0
    for segments in zip(*fronts, strict=False):
        if len(set(segments)) > 1:
            break
        n_common += 1
    return n_common
