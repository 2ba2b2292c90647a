"""Which layers, experts and shards each rank of Megatron has in its own file.

Sources: Megatron-LM megatron/training/checkpointing.py (get_checkpoint_name; of the ranks with the
same experts the first one writes), megatron-core parallel_state.py (the order of ranks: tensor,
context, expert, data, pipeline) and transformer_block.py (the order of virtual stages).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.errors import DumpError
from .canonical import CanonicalCheckpoint
from .rows import Rows

_LAYER = re.compile(r"^layers\.(\d+)\.")
_EXPERT = re.compile(r"(?<=\.experts\.)(\d+)(?=\.)")


@dataclass(frozen=True)
class ParallelSizes:
    """How many ranks of each kind a model of Megatron is split over."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1  #: stages on each pipeline rank
    expert: int = 1
    expert_tensor: int | None = None  #: ranks that share an expert; None: ``tensor``
    #: Layers of each stage, in the order of the layers; (): as many in each.
    stage_layers: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages, virtual ones counted."""
        return self.pipeline * self.virtual

    @property
    def tensor_of_experts(self) -> int:
        """Number of ranks that share an expert."""
        return self.expert_tensor or self.tensor


@dataclass(frozen=True)
class Rank:
    """A rank that writes a file; ``expert_tensor`` is its number among those with its experts."""

    tensor: int
    pipeline: int
    expert: int
    expert_tensor: int


@dataclass(frozen=True)
class Stage:
    """The layers of a stage: ``first_layer`` and the ``n_layers`` from there."""

    number: int
    first_layer: int
    n_layers: int
    is_last: bool


def check_sizes(model: CanonicalCheckpoint, sizes: ParallelSizes) -> None:
    """Raise DumpError if layers, heads or experts do not divide as ``sizes`` says."""
    _check_stages(model, sizes)
    if not model.has_mixers:
        _check_heads(model, sizes)
    _check_experts(model, sizes)


def _check_heads(model: CanonicalCheckpoint, sizes: ParallelSizes) -> None:
    unit = "heads" if model.has_mla else "query groups"
    count = (model.config.heads if model.has_mla else model.config.groups) or 0
    if sizes.tensor > 1 and not count:
        raise DumpError("--tp: the number of heads is unknown; give --heads N --query-groups N")
    if count % sizes.tensor:
        raise DumpError(f"--tp {sizes.tensor}: {count} {unit} do not divide by it")


def _check_stages(model: CanonicalCheckpoint, sizes: ParallelSizes) -> None:
    n_stages = f"--pp {sizes.pipeline}"
    if sizes.virtual > 1:
        n_stages += f" --vpp {sizes.virtual}"
        if sizes.pipeline == 1:
            raise DumpError(f"{n_stages}: virtual stages need --pp of at least 2")
    if not sizes.stage_layers:
        if model.n_layers % sizes.stages:
            raise DumpError(
                f"{n_stages}: {model.n_layers} layers do not divide into {sizes.stages} stages of "
                "equal size; give the layers of each with --stage-layers"
            )
        return
    counts = ",".join(map(str, sizes.stage_layers))
    if len(sizes.stage_layers) != sizes.stages:
        raise DumpError(
            f"--stage-layers {counts}: expected {sizes.stages} numbers, one for each stage of"
            f" {n_stages}"
        )
    if sum(sizes.stage_layers) != model.n_layers or min(sizes.stage_layers) < 0:
        raise DumpError(f"--stage-layers {counts}: the model has {model.n_layers} layers")


def _check_experts(model: CanonicalCheckpoint, sizes: ParallelSizes) -> None:
    has_biases = any(is_expert(path) and path.endswith(".bias") for path in model.parameters)
    if has_biases and sizes.tensor_of_experts > 1:
        raise DumpError(
            f"--etp {sizes.tensor_of_experts}: its experts have biases, for which Megatron-core"
            " splits no expert over ranks; give --etp 1"
        )
    if sizes.expert == 1 and sizes.expert_tensor in (None, sizes.tensor):
        return
    n_experts = count_experts(model.parameters)
    options = f"--ep {sizes.expert} --etp {sizes.tensor_of_experts} --tp {sizes.tensor}"
    if not n_experts:
        raise DumpError(f"{options}: the model has no experts")
    if n_experts % sizes.expert:
        raise DumpError(f"--ep {sizes.expert}: {n_experts} experts do not divide by it")
    n_writers = sizes.expert * sizes.tensor_of_experts
    if sizes.tensor % sizes.tensor_of_experts or n_writers % sizes.tensor:
        raise DumpError(
            f"{options}: Megatron names files by tensor-parallel and expert-parallel rank, and with"
            " these sizes two ranks would share a file or one would have none; --tp must be a"
            " multiple of --etp, and --ep times --etp one of --tp"
        )


def count_experts(parameters: Mapping[str, Rows]) -> int:
    """Return the number of experts of a layer, 0 if there are none."""
    numbers = (_EXPERT.search(path) for path in parameters)
    return 1 + max((int(number[1]) for number in numbers if number is not None), default=-1)


def list_ranks(sizes: ParallelSizes) -> Iterator[Rank]:
    """Yield the ranks that write a file, in the order of the files."""
    shared = sizes.tensor_of_experts
    for pipeline in range(sizes.pipeline):
        if shared == sizes.tensor:
            for tensor in range(sizes.tensor):
                for expert in range(sizes.expert):
                    yield Rank(tensor, pipeline, expert, tensor)
            continue
        for number in range(sizes.expert * shared):
            expert, expert_tensor = divmod(number, shared)
            yield Rank(number % sizes.tensor, pipeline, expert, expert_tensor)


def build_folder_name(rank: Rank, sizes: ParallelSizes) -> str:
    """Return the name of a rank's folder: ``mp_rank_TT[_PPP][_EEE]``."""
    name = f"mp_rank_{rank.tensor:02d}"
    if sizes.pipeline > 1:
        name += f"_{rank.pipeline:03d}"
    if sizes.expert > 1:
        name += f"_{rank.expert:03d}"
    return name


def list_stages(n_layers: int, rank: Rank, sizes: ParallelSizes) -> list[Stage]:
    """Return the stages on a pipeline rank: every ``sizes.pipeline``-th one."""
    counts: Sequence[int] = sizes.stage_layers
    if not counts:
        counts = [n_layers // sizes.stages] * sizes.stages
    numbers = range(rank.pipeline, sizes.stages, sizes.pipeline)
    return [
        Stage(number, sum(counts[:number]), counts[number], number == sizes.stages - 1)
        for number in numbers
    ]


def select_stage(
    model: CanonicalCheckpoint, stage: Stage, is_only: bool
) -> tuple[dict[str, Rows], dict[str, str]]:
    """Return parameters and sources of one stage, with layers numbered from 0.

    Unless the stage ``is_only`` one, the last has a copy of an embedding that is also the head, or
    that its layers of multi-token prediction read.
    """
    parameters, sources = {}, {}
    has_embedding = stage.number == 0 or (stage.is_last and model.n_predictions > 0)
    for path, rows in model.parameters.items():
        local_path = path
        match = _LAYER.match(path)
        if match is not None:
            local_layer = int(match[1]) - stage.first_layer
            is_here = 0 <= local_layer < stage.n_layers
            local_path = _LAYER.sub(f"layers.{local_layer}.", path)
        elif "embedding" in path:
            is_here = has_embedding
        else:
            is_here = stage.is_last
        if is_here:
            parameters[local_path], sources[local_path] = rows, model.sources[path]
    if stage.is_last and not is_only and "head.weight" not in parameters:
        parameters["head.weight"] = model.parameters["embedding.weight"]
        sources["head.weight"] = model.sources["embedding.weight"]
    return parameters, sources


def select_experts(
    parameters: Mapping[str, Rows], sources: Mapping[str, str], rank: Rank, sizes: ParallelSizes
) -> tuple[dict[str, Rows], dict[str, str]]:
    """Return parameters and sources with the experts of a rank only, numbered from 0."""
    if sizes.expert == 1:
        return dict(parameters), dict(sources)
    n_local = count_experts(parameters) // sizes.expert
    local_parameters, local_sources = {}, {}
    for path, rows in parameters.items():
        local_path = path
        match = _EXPERT.search(path)
        if match is not None:
            expert, number = divmod(int(match[1]), n_local)
            if expert != rank.expert:
                continue
            local_path = _EXPERT.sub(str(number), path)
        local_parameters[local_path], local_sources[local_path] = rows, sources[path]
    return local_parameters, local_sources


def is_expert(path: str) -> bool:
    """Return whether a canonical parameter belongs to one of many experts."""
    return _EXPERT.search(path) is not None


def build_size_arguments(sizes: ParallelSizes, n_layers: int, n_predictions: int) -> dict[str, Any]:
    """Return Megatron's arguments of the sizes; ``n_predictions`` layers predict further tokens."""
    arguments: dict[str, Any] = {
        "tensor_model_parallel_size": sizes.tensor,
        "pipeline_model_parallel_size": sizes.pipeline,
    }
    if sizes.virtual > 1:
        arguments["virtual_pipeline_model_parallel_size"] = sizes.virtual
    if sizes.expert > 1 or sizes.expert_tensor is not None:
        arguments["expert_model_parallel_size"] = sizes.expert
        arguments["expert_tensor_parallel_size"] = sizes.tensor_of_experts
    counts = sizes.stage_layers
    if len(set(counts)) <= 1:
        if sizes.virtual > 1:
            arguments["num_layers_per_virtual_pipeline_stage"] = n_layers // sizes.stages
        return arguments
    if sizes.virtual == 1 and len(counts) > 2 and len(set(counts[1:-1])) == 1:
        arguments["decoder_first_pipeline_num_layers"] = counts[0]
        arguments["decoder_last_pipeline_num_layers"] = counts[-1]
        return arguments
    arguments["pipeline_model_parallel_layout"] = _build_layout(counts, n_predictions)
    return arguments


def _build_layout(counts: Sequence[int], n_predictions: int) -> str:
    """Return the layers of all stages as Megatron writes them: ``Ett|tt|tL``."""
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * n_predictions + "L"
    return "|".join(stages)
