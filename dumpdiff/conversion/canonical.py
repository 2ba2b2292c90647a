"""A checkpoint as canonical parameters: nothing is fused, stacked, transposed or split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..checkpoints import Checkpoint
from ..checkpoints.elements import FLOAT8
from ..model.errors import DumpError
from ..rulebook import Arrangement, Rules
from ..weight_comparison.block_scales import dequantize_weights
from ..weight_comparison.computed_matrix import cast_matrix
from ..weight_comparison.families import (
    HUGGINGFACE,
    META,
    MINDFORMERS,
    MINDFORMERS_LEGACY,
    ModelConfig,
    Naming,
)
from ..weight_comparison.family_layouts import is_stored_transposed
from ..weight_comparison.groups import collect_members, is_state
from ..weight_comparison.row_permutation import build_fused_order, invert_order, swap_row_axes
from ..weight_comparison.shards import join_shards
from ..weight_comparison.whole_model import WholeModel
from . import mamba
from .redundant_parameters import drop_padding, drop_prediction_copies, drop_tied_head
from .rows import Rows

#: Order of the rows of a fused weight: by query group, part after part, or row by row in turn.
FusionLayout = Arrangement

#: Family of names -> layout of q, k and v in one weight, where it is not 'grouped' and the model's
#: family does not say (docs/weights.md).
_QKV_LAYOUTS: Mapping[str, FusionLayout] = {HUGGINGFACE: "concatenated"}
#: Family of names -> layout of gate and up in a dense layer, where it is not 'concatenated'. In
#: experts it always is, unless the model's family says otherwise.
_GATE_UP_LAYOUTS: Mapping[str, FusionLayout] = {
    MINDFORMERS: "interleaved",
    MINDFORMERS_LEGACY: "interleaved",
}
#: dtypes that 8-bit weights with scales are written in.
_DECODED_DTYPES = ("bfloat16", "float16", "float32")
_FUSED = re.compile(r"^(.*\.)(qkv|gate_up_proj|(?<=\bmixer\.)(?:in_proj|conv1d))\.(weight|bias)$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_STACKED_EXPERTS = re.compile(r"\.experts\.(gate_up_proj|gate_proj|up_proj|down_proj)\.")
_PREDICTION = re.compile(r"^mtp\.(\d+)\.")
_LAYER_NUMBER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class SourceOptions:
    """What the user states about the source; None: as its files state it, or as its family does."""

    heads: int | None = None
    groups: int | None = None
    experts: int | None = None
    vocabulary: int | None = None  #: without padding
    qkv: FusionLayout | None = None
    gate_up: FusionLayout | None = None
    gated: bool | None = None
    norm: str | None = None  #: RMSNorm or LayerNorm
    position_embedding: str | None = None  #: rope or learned_absolute
    #: Facts that only a configuration contains: ``positions``, ``rope_theta``, ``norm_epsilon``.
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CanonicalCheckpoint:
    """The parameters of a model by canonical name, and its configuration."""

    parameters: Mapping[str, Rows]
    sources: Mapping[str, str]  #: canonical name -> name in the source
    config: ModelConfig
    settings: Mapping[str, Any]  #: of the source
    naming: Naming
    rules: Rules
    skipped: tuple[str, ...]  #: tensors that are no weights: optimizer states, counters, tables
    notes: tuple[str, ...] = ()
    is_decoded: bool = False  #: some weights were 8-bit, with scales
    #: Facts that the user states, see :class:`SourceOptions`.
    stated_facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return _count_layers(self.parameters)

    def has_parameter(self, suffix: str) -> bool:
        """Return whether any parameter's canonical name ends with ``suffix``."""
        return any(path.endswith(suffix) for path in self.parameters)

    @property
    def n_predictions(self) -> int:
        """Number of layers of multi-token prediction: ``mtp.0``, ``mtp.1``, ..."""
        matches = (_PREDICTION.match(path) for path in self.parameters)
        return len({match[1] for match in matches if match is not None})

    @property
    def has_mixers(self) -> bool:
        """Whether layers have mixers of Mamba."""
        return mamba.has_mixers(self.parameters)

    @property
    def has_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.has_parameter(".attention.kv_b.weight")


def _count_layers(paths: Iterable[str]) -> int:
    n_layers = 0
    for path in paths:
        match = _LAYER_NUMBER.match(path)
        if match is not None:
            n_layers = max(n_layers, int(match[1]) + 1)
    return n_layers


def read_canonical(
    checkpoint: Checkpoint, rules: Rules, options: SourceOptions, dtype: str | None = None
) -> CanonicalCheckpoint:
    """Return the canonical parameters of a checkpoint. Names, shapes and scales are read.

    8-bit weights with scales become the numbers that they represent, in ``dtype``; None: the dtype
    in the settings. Raises DumpError for a parameter that no rule knows, a fused one whose parts
    are unknown, and 8-bit weights whose scales are missing or impossible.
    """
    model = dequantize_weights(join_shards(checkpoint, rules))
    for problem in model.problems[len(checkpoint.problems) :]:
        file = problem.file or checkpoint.path
        raise DumpError(f"{file}: {problem.message}; fix the checkpoint first")
    model, decoding = _decode_weights(model, dtype)
    model = replace(model, config=_override_config(model.config, options))
    parameters: dict[str, Rows] = {}
    sources: dict[str, str] = {}
    for member in collect_members(model, model).values():
        shape = model.tensors[member.name].shape
        n_axes = len(shape)
        is_expert_bias = member.expert is not None and member.path.endswith(".bias")
        _check_convertible(model, member.name, member.path)
        inner_shape = () if n_axes < 3 or member.expert is not None else shape[1:]
        rows = Rows.from_matrix(member.matrix, n_axes < 2 or is_expert_bias, inner_shape)
        for path, part in _split_fused(member.path, rows, model, options):
            if path in parameters:
                raise DumpError(
                    f"{checkpoint.path}: {member.name} and {sources[path]} are both {path}"
                )
            parameters[path] = _convert_rope_pairs(path, part, model)
            sources[path] = member.label
    assumptions = _list_assumptions(model.naming.family, parameters, sources, options)
    _check_statements(parameters, options)
    parameters = drop_prediction_copies(parameters, sources)
    parameters = drop_tied_head(parameters, model.config)
    parameters = drop_padding(parameters, model.config)
    return CanonicalCheckpoint(
        parameters={path: parameters[path] for path in sorted(parameters, key=_get_natural_key)},
        sources=sources,
        config=model.config,
        settings=checkpoint.settings,
        naming=model.naming,
        rules=rules,
        skipped=_list_states(model),
        notes=(*map(str, checkpoint.problems), *decoding, *assumptions),
        is_decoded=bool(decoding),
        stated_facts=options.facts,
    )


def _check_statements(parameters: Mapping[str, Rows], options: SourceOptions) -> None:
    """Raise DumpError if the parameters contradict what the user states about the model."""
    norm = "LayerNorm" if "final_norm.bias" in parameters else "RMSNorm"
    if options.norm not in (None, norm):
        raise DumpError(f"--normalization {options.norm}: the norms of the source are {norm}")
    embedding = "learned_absolute" if "position_embedding.weight" in parameters else "rope"
    if options.position_embedding not in (None, embedding):
        has = "an" if embedding == "learned_absolute" else "no"
        raise DumpError(
            f"--position-embedding-type {options.position_embedding}: the source has {has}"
            " embedding of positions"
        )


def _decode_weights(model: WholeModel, dtype: str | None) -> tuple[WholeModel, tuple[str, ...]]:
    """Return a model with 8-bit weights in another dtype, and a note if there were any.

    The product of element and scale is rounded to float32 and then to ``dtype``, as by the decoder
    that DeepSeek publishes (weight_dequant in inference/kernel.py).
    """
    tensors = dict(model.tensors)
    n_decoded = 0
    for name, tensor in model.tensors.items():
        if tensor.matrix.precision not in FLOAT8:
            continue
        if tensor.dtype in FLOAT8:
            raise DumpError(
                f"{model.checkpoint.path}: {name} is {tensor.dtype} without {name}_scale_inv or"
                f" {name}_scale, so its numbers are unknown; add the scales"
            )
        stated = model.checkpoint.settings
        dtype = dtype or stated.get("torch_dtype") or stated.get("dtype")
        if dtype not in _DECODED_DTYPES:
            raise DumpError(
                f"{model.checkpoint.path}: {name} is 8-bit with scales, and the settings state no"
                " dtype for its numbers; give --dtype bfloat16, float16 or float32"
            )
        tensors[name] = replace(tensor, matrix=cast_matrix(tensor.matrix, dtype))
        n_decoded += 1
    if not n_decoded:
        return model, ()
    note = f"{n_decoded} 8-bit weights with scales are written as the numbers they represent"
    return replace(model, tensors=tensors), (f"{note}, in {dtype}",)


def _list_states(model: WholeModel) -> tuple[str, ...]:
    states = []
    for name, tensor in model.tensors.items():
        if is_state(model.resolve_name(name), tensor):
            states.append(name)
    return tuple(states)


def _get_natural_key(path: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers by value: layer 10 after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]


def _override_config(config: ModelConfig, options: SourceOptions) -> ModelConfig:
    """Return the configuration with the values that the user stated."""
    groups = config.groups
    if options.heads and options.heads != config.heads:
        groups = options.heads
    return replace(
        config,
        heads=options.heads or config.heads,
        groups=options.groups or groups,
        experts=options.experts or config.experts,
        vocabulary=options.vocabulary or config.vocabulary,
    )


def _check_convertible(model: WholeModel, name: str, path: str) -> None:
    """Raise DumpError for a tensor that cannot be converted; ``path`` is its canonical name."""
    file = model.checkpoint.path
    if _STACKED_EXPERTS.search(path):
        raise DumpError(f"{file}: the number of experts in {name} is unknown; give --experts N")
    if path.endswith(("weight_scale_inv", "weight_scale")):
        raise DumpError(f"{file}: {name} scales a weight that is missing or not 8-bit floating")
    if model.resolve_name(name) == name and path not in model.canonical:
        raise DumpError(f"{file}: no rule knows {name}; name it with --rules FILE")


class _FusedParts(NamedTuple):
    """The parts of a fused weight, and in how many groups their rows alternate."""

    names: Sequence[str]
    sizes: Sequence[int]  #: rows of each
    groups: int


def _split_fused(
    path: str, rows: Rows, model: WholeModel, options: SourceOptions
) -> Iterator[tuple[str, Rows]]:
    """Yield the parameters in a fused weight by canonical name; one that is not fused unchanged."""
    match = _FUSED.match(path)
    parts = None
    if match is not None:
        parts = _find_fused_parts(path, match[1], match[2], rows, model, options)
    if match is None or parts is None:
        yield path, rows
        return
    order = build_fused_order(parts.sizes, parts.groups)
    if order is None:
        raise DumpError(
            f"{model.checkpoint.path}: {path} of {sum(parts.sizes)} rows does not divide into "
            f"{parts.groups} groups"
        )
    positions = invert_order(order)
    start = 0
    for name, size in zip(parts.names, parts.sizes, strict=True):
        part = rows.pick_rows(positions[start : start + size])
        yield f"{match[1]}{name}.{match[3]}", part
        start += size


def _find_fused_parts(
    path: str, prefix: str, module: str, rows: Rows, model: WholeModel, options: SourceOptions
) -> _FusedParts | None:
    """Return the parts of a fused weight; None for ``gate_up_proj`` of an MLP without a gate."""
    if module in mamba.PARTS:
        return _FusedParts(*mamba.split_weight(path, prefix, module, _make_shape_reader(model)), 1)
    if module == "qkv":
        names, sizes = _compute_qkv_sizes(prefix, rows, model)
        layout = options.qkv or _get_layout(model.naming, "qkv", _QKV_LAYOUTS, "grouped")
        groups = model.config.groups or 1
        if layout != "grouped" or len(names) != 3:
            groups = 1
        return _FusedParts(names, sizes, groups)
    if not _has_gate(path, prefix, rows, model, options):
        return None
    size = rows.shape[0] // 2
    layouts = {} if _EXPERT.search(path) else _GATE_UP_LAYOUTS
    layout = _get_layout(model.naming, "gate_up_proj", layouts, "concatenated")
    if options.gate_up and not _EXPERT.search(path):
        layout = options.gate_up
    is_interleaved = layout == "interleaved"
    return _FusedParts(("gate_proj", "up_proj"), (size, size), size if is_interleaved else 1)


def _make_shape_reader(model: WholeModel) -> Callable[[str], tuple[int, ...] | None]:
    """Return the function from a canonical name to the shape of the parameter."""

    def get_shape(path: str) -> tuple[int, ...] | None:
        name = model.canonical.get(path)
        return None if name is None else model.tensors[name].shape

    return get_shape


def _get_layout(
    naming: Naming, module: str, layouts: Mapping[str, FusionLayout], default: FusionLayout
) -> FusionLayout:
    """Return the layout of a fused module: of the model's family, or of the family of names."""
    arrangement = None if naming.model is None else naming.model.rows.get(module)
    return arrangement or layouts.get(naming.family, default)


def _compute_qkv_sizes(
    prefix: str, rows: Rows, model: WholeModel
) -> tuple[Sequence[str], list[int]]:
    """Return the names and row counts of the parts of a fused qkv."""
    n_rows, path = rows.shape[0], model.checkpoint.path
    up_projection = model.canonical.get(f"{prefix}kv_b.weight")
    if up_projection is not None:
        return _compute_mla_sizes(prefix, n_rows, model.tensors[up_projection].shape[1], model)
    heads, groups = model.config.heads, model.config.groups
    if not heads or not groups:
        raise DumpError(
            f"{path}: the number of heads is unknown: neither config.json nor the arguments of the "
            "run state it; give --heads N"
        )
    if heads % groups or n_rows % (heads + 2 * groups):
        raise DumpError(
            f"{path}: {n_rows} rows of q, k and v do not divide into {heads} heads and "
            f"{groups} query groups"
        )
    size = n_rows // (heads + 2 * groups)
    return ("q", "k", "v"), [heads * size, groups * size, groups * size]


def _compute_mla_sizes(
    prefix: str, n_rows: int, latent_size: int, model: WholeModel
) -> tuple[Sequence[str], list[int]]:
    """Return names and row counts of the fused down projections of multi-head latent attention."""
    q_norm = model.canonical.get(f"{prefix}q_norm.weight")
    if q_norm is not None:
        q_latent_size = model.tensors[q_norm].size
        return ("q_a", "kv_a"), [q_latent_size, n_rows - q_latent_size]
    settings = model.checkpoint.settings
    rope_size = settings.get("qk_rope_head_dim")
    if not isinstance(rope_size, int):
        raise DumpError(
            f"{model.checkpoint.path}: the width of the rope part of a head is unknown; "
            "its config.json must give qk_rope_head_dim"
        )
    return ("q", "kv_a"), [n_rows - latent_size - rope_size, latent_size + rope_size]


def _has_gate(
    path: str, prefix: str, rows: Rows, model: WholeModel, options: SourceOptions
) -> bool:
    """Return whether the first matrix of an MLP is gate and up.

    It then has twice as many rows as the second matrix has columns.
    """
    if options.gated is not None:
        return options.gated
    if _EXPERT.search(path):
        return True
    down = model.canonical.get(f"{prefix}down_proj.weight")
    if down is None:
        raise DumpError(
            f"{model.checkpoint.path}: whether {path} has a gate is unknown, because it has no "
            "down_proj next to it"
        )
    shape = model.tensors[down].shape
    width = shape[0 if is_stored_transposed(model.naming, f"{prefix}down_proj.weight") else 1]
    return rows.shape[0] == 2 * width


def _convert_rope_pairs(path: str, rows: Rows, model: WholeModel) -> Rows:
    """Reorder q and k of Meta's files: from RoPE pairs to the two halves of each head.

    All other families have the halves, so their rows are returned unchanged.
    """
    is_query = path.endswith(".attention.q.weight")
    is_key = path.endswith(".attention.k.weight")
    if model.naming.family != META or not (is_query or is_key):
        return rows
    heads = model.config.heads if is_query else model.config.groups
    if not heads or rows.shape[0] % (2 * heads):
        raise DumpError(
            "Meta's files keep q and k in RoPE pairs, and the number of heads is unknown; "
            "give --heads N --query-groups N"
        )
    return rows.pick_rows(swap_row_axes(heads, rows.shape[0] // heads // 2, 2))


def _list_assumptions(
    family: str, parameters: Mapping[str, Rows], sources: Mapping[str, str], options: SourceOptions
) -> list[str]:
    """Return a note for each layout that was assumed because no file states it."""
    if family not in (MINDFORMERS, MINDFORMERS_LEGACY):
        return []
    n_layers = _count_layers(parameters)
    notes = []
    if options.qkv is None and _are_fused("attention.q", "attention.k", sources, n_layers):
        notes.append(
            "q, k and v were read by query group; use --from-qkv concatenated if they are "
            "concatenated"
        )
    if options.gate_up is None and _are_fused("mlp.gate_proj", "mlp.up_proj", sources, n_layers):
        notes.append(
            "gate and up were read as interleaved rows; use --from-gate-up concatenated if they "
            "are concatenated"
        )
    return notes


def _are_fused(module: str, other: str, sources: Mapping[str, str], n_layers: int) -> bool:
    """Return whether two modules of any layer come from the same tensor of the source."""
    for layer in range(n_layers):
        source = sources.get(f"layers.{layer}.{module}.weight")
        if source is not None and source == sources.get(f"layers.{layer}.{other}.weight"):
            return True
    return False
