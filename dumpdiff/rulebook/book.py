"""All rules together: the questions that the rest of the program asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .decompositions import DecompositionRules, Sequences
from .document import Entry
from .explanation import Explanation, explain_name
from .mappings import NamedPairs
from .operators import OTHER, OperatorRules
from .scopes import ScopeRules
from .tolerances import ToleranceRules


class Rules:
    """Compiled rules; every answer is computed once. Made by :func:`dumpdiff.rules.load_rules`."""

    def __init__(
        self,
        scopes: Sequence[Sequence[Entry]],
        operators: Sequence[Sequence[Entry]],
        decompositions: Sequence[Sequence[Entry]],
        tolerances: Sequence[Sequence[Entry]],
        named: NamedPairs | None = None,
    ) -> None:
        self.named_pairs = named or NamedPairs()  #: what mapping files say belongs together
        self._tolerances = ToleranceRules(tolerances)
        self._operators = OperatorRules(operators, self._tolerances.classes)
        self._tolerances.check_kinds(self._operators.kinds)
        self._decompositions = DecompositionRules(decompositions, self._operators.kinds)
        self._scopes = ScopeRules(scopes)
        self._scope_of: dict[str, str] = {}
        self._parameter_of: dict[str, str] = {}
        self._kind_of: dict[str, str] = {}

    def resolve_scope(self, name: str) -> str:
        """Canonical module path of a recorded scope or full name, '' if nothing is known."""
        if (path := self._scope_of.get(name)) is None:
            path = self._scope_of[name] = self._scopes.resolve_scope(name).path
        return path

    def resolve_parameter(self, name: str) -> str:
        """Canonical name of a parameter, '' if nothing is known.

        ``n.n.layers.0.attention.wq.weight`` and ``model.layers.0.self_attn.q_proj.weight`` are
        ``layers.0.attention.q.weight``; optimizer states keep theirs in front (``exp_avg.layers.0...``).
        """
        if (path := self._parameter_of.get(name)) is None:
            path = self._parameter_of[name] = self._scopes.resolve_parameter(name).path
        return path

    def resolve_parameters(self, names: Iterable[str]) -> dict[str, str]:
        """Canonical names of one side's parameters: none of '', and none that two of them would share."""
        found = {name: path for name in dict.fromkeys(names) if (path := self.resolve_parameter(name))}
        claims = Counter(found.values())
        return {name: path for name, path in found.items() if claims[path] == 1}

    def resolve_kind(self, name: str) -> str:
        """Canonical operator kind; of an unknown operator its own name in lower case. Never ''."""
        if (kind := self._kind_of.get(name)) is None:
            kind = self._kind_of[name] = self._operators.find_kind(name)[0] or OTHER
        return kind

    def has_kind(self, kind: str) -> bool:
        """Whether a rule names this canonical kind, or for a gradient the operator that it differentiates."""
        return self._operators.find_rule(kind) is not None

    def get_kind_class(self, kind: str) -> str:
        """The class of a canonical kind, 'other' if unknown. A gradient has that of its operator."""
        rule = self._operators.find_rule(kind)
        return rule.kind_class if rule else OTHER

    def get_layout(self, kind: str) -> str:
        """'identity' if the output holds exactly the input's values, 'selecting' if some of them, else ''."""
        return self._operators.get_layout(kind)

    def get_conditioning(self, kind_or_class: str) -> float:
        """By how much a kind (or any kind of a class) may amplify an input's error without being at fault."""
        own = self._tolerances.kinds.get(kind_or_class) or self._tolerances.classes.get(
            kind_or_class
        )
        return (own or self._tolerances.classes[self.get_kind_class(kind_or_class)]).conditioning

    def compute_growth(self, kind: str, reduction_length: int) -> float:
        """Unit roundoffs (of the accumulator) that a sum of ``reduction_length`` terms may be off."""
        return self._tolerances.compute_growth(
            self._tolerances.get_tolerance(kind, self.get_kind_class(kind)), reduction_length
        )

    def compute_tolerance(self, dtype_a: str, dtype_b: str, kind: str, reduction_length: int = 1) -> float:
        """How far an agreeing pair may part, relative to the tensor's scale; 0 for exact dtypes."""
        rule = self._tolerances.get_tolerance(kind, self.get_kind_class(kind))
        return self._tolerances.compute_tolerance(rule, dtype_a, dtype_b, reduction_length)

    @property
    def decompositions(self) -> Mapping[str, Sequences]:
        """Canonical kind -> the sequences of kinds it may be on the other side; parts may decompose further."""
        return self._decompositions.operators

    @property
    def parameter_parts(self) -> Mapping[str, Sequences]:
        """Canonical path below a block -> the paths it may be made of: ``attention.qkv`` -> q, k, v."""
        return self._decompositions.parts

    def split_path(self, path: str) -> Sequences:
        """:attr:`parts` of a full canonical path: of ``layers.0.attention.qkv.weight``; () if none is known."""
        return self._decompositions.split_path(path)

    def explain_name(self, name: str) -> tuple[Explanation, ...]:
        """What ``name`` is as a scope, as a parameter and as an operator, which rules say so, or which came closest."""
        return explain_name(name, self._scopes, self._operators, self._decompositions)

    def count_rules(self) -> dict[str, int]:
        """How many rules there are, by what they are."""
        return {
            "scope patterns": len(self._scopes.rules),
            "operator kinds": len(self._operators.kinds),
            "operator members": len(self._operators.members),
            "decompositions": sum(map(len, self.decompositions.values())),
            "parameter parts": sum(map(len, self.parameter_parts.values())),
            "tolerance classes": len(self._tolerances.classes),
            **({"named pairs": len(self.named_pairs)} if len(self.named_pairs) else {}),
        }
