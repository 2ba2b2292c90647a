"""Logits of a converted checkpoint in real Megatron-core, on the CPU, with the local layer spec.

The model is built from the checkpoint's own arguments, as Megatron's training script does with
``--use-checkpoint-args``; every parameter must fit.
"""

from __future__ import annotations

import contextlib
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Prefix of a norm's parameters that Transformer Engine keeps in the projection of a mixer.
_FUSED_NORM = "mixer.in_proj.layer_norm_"
#: Fields of the configuration whose default is another value than None.
_OPTIONAL = frozenset({"q_lora_rank"})
_FILE = Path("release") / "mp_rank_00" / "model_optim_rng.pt"


def compute_logits(folder: Path, tokens: Any) -> Any:
    """Return the logits of tokens (batch, length): float32 (batch, length, padded vocabulary)."""
    import torch

    _initialize()
    content = torch.load(folder / _FILE, weights_only=False)
    arguments: Namespace = content["args"]
    model = build_model(arguments)
    load_strictly(model, content["model"])
    length = tokens.shape[1]
    positions = torch.arange(length).expand_as(tokens)
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
    with torch.no_grad():
        return model.eval()(tokens, positions, mask)


def load_strictly(model: Any, weights: Mapping[str, Any]) -> None:
    """Load weights into a model. Raises RuntimeError if a name is missing or unknown."""
    missing, unexpected = model.load_state_dict(separate_norms(weights), strict=False)
    lost = [name for name in missing if "_extra_state" not in name]
    if lost or unexpected:
        raise RuntimeError(f"missing {lost[:3]}, unexpected {unexpected[:3]}")


def _initialize() -> None:
    """Start a group of one process, without a device."""
    import torch

    if torch.distributed.is_initialized():
        return
    from megatron.core import parallel_state

    _replace_device()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel(1, 1)


def _replace_device() -> None:
    """Let the code for devices run without one."""
    import torch
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.moe import moe_utils

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda tensor, *_: tensor
    _replace_cuda_ones(torch)
    # The states of random numbers for dropout, which is zero here, are on a device.
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    # 0.16.1 reads this name, but defines it only with Transformer Engine.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)


def _replace_cuda_ones(torch: Any) -> None:
    """Make masks of sliding windows on the CPU, for which Megatron names the device."""
    from megatron.core.fusions import fused_softmax
    from megatron.core.transformer import utils

    def make_mask(n_queries: int, n_keys: int, window: tuple[int, int]) -> Any:
        ones = torch.ones(n_queries, n_keys, dtype=torch.bool)
        offset = n_keys - n_queries
        return ~torch.tril(torch.triu(ones, offset - window[0]), offset + window[1])

    utils.get_sliding_window_causal_mask = make_mask
    fused_softmax.get_sliding_window_causal_mask = make_mask


def build_model(arguments: Namespace, virtual_stage: int | None = None) -> Any:
    """Return the model of this rank; of several virtual stages one."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_mtp_block_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    _replace_device()
    if getattr(arguments, "hybrid_override_pattern", None):
        return _build_mamba(arguments)
    is_latent = arguments.multi_latent_attention
    config_class = MLATransformerConfig if is_latent else TransformerConfig
    values = _read_config_values(arguments, config_class)
    is_gated = arguments.swiglu or getattr(arguments, "quick_geglu", False)
    values |= {
        "layernorm_epsilon": arguments.norm_epsilon,
        "gated_linear_unit": is_gated,
        "activation_func": _choose_activation(arguments),
        "num_moe_experts": getattr(arguments, "num_experts", None),
        "use_cpu_initialization": True,
        "bias_activation_fusion": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        "transformer_impl": "local",
        "pipeline_dtype": torch.float32,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    config = config_class(**values)
    for name, value in vars(arguments).items():
        if name.startswith("yarn_"):  # GPTModel reads them, and the class has no fields for them
            setattr(config, name, value)
    spec = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization=arguments.normalization,
        vp_stage=virtual_stage,
    )
    if is_latent:
        _replace_latent_attention(spec)
    is_first = parallel_state.is_pipeline_first_stage(False, virtual_stage)
    is_last = parallel_state.is_pipeline_last_stage(False, virtual_stage)
    prediction_spec = None
    if config.mtp_num_layers:
        prediction_spec = get_gpt_mtp_block_spec(
            config, spec, use_transformer_engine=False, vp_stage=virtual_stage
        )
    return GPTModel(
        config=config,
        mtp_block_spec=prediction_spec,
        transformer_layer_spec=spec,
        vocab_size=arguments.padded_vocab_size,
        max_sequence_length=arguments.max_position_embeddings,
        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
        position_embedding_type=arguments.position_embedding_type,
        rotary_percent=getattr(arguments, "rotary_percent", 1.0),
        rotary_base=int(getattr(arguments, "rotary_base", 10000)),
        seq_len_interpolation_factor=getattr(
            arguments, "rotary_seq_len_interpolation_factor", None
        ),
        rope_scaling=getattr(arguments, "use_rope_scaling", False),
        rope_scaling_factor=getattr(arguments, "rope_scaling_factor", 8.0),
        pre_process=is_first,
        post_process=is_last,
        vp_stage=virtual_stage,
    )


def _replace_latent_attention(spec: Any) -> None:
    """Let layers of latent attention compute without Transformer Engine.

    Megatron-core's own attention has no arguments for values of another width than keys; with this
    one number, it computes them.
    """
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class LatentAttention(DotProductAttention):
        def __init__(
            self, *args: Any, k_channels: int = 0, v_channels: int = 0, **kwargs: Any
        ) -> None:
            super().__init__(*args, **kwargs)
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    multi_latent_attention.HAVE_TE = False  # 0.16.1 takes it for installed
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = LatentAttention


def _read_config_values(arguments: Namespace, config_class: Any) -> dict[str, Any]:
    """Return the fields of a configuration, as core_transformer_config_from_args does."""
    values = {
        name: value
        for name, value in vars(arguments).items()
        if name in config_class.__dataclass_fields__ and (value is not None or name in _OPTIONAL)
    }
    for place in ("first", "last"):
        n_layers = getattr(arguments, f"decoder_{place}_pipeline_num_layers", None)
        if n_layers is not None:
            values[f"num_layers_in_{place}_pipeline_stage"] = n_layers
    return values


def _build_mamba(arguments: Namespace) -> Any:
    """Return the model of Mamba of this rank, with local layers.

    Megatron-core has a specification with layers of Transformer Engine only, which keep a norm in
    the projection that follows it (see :func:`separate_norms`).
    """
    import torch

    from . import mamba_kernels

    with mamba_kernels.replace_kernels():
        from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.mamba.mamba_model import MambaModel
    from megatron.core.ssm import mamba_block
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_config import TransformerConfig

    mamba_block.TENorm = WrappedTorchNorm
    values = _read_config_values(arguments, TransformerConfig)
    values |= {
        "layernorm_epsilon": arguments.norm_epsilon,
        "use_cpu_initialization": True,
        "use_mamba_mem_eff_path": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "transformer_impl": "local",
        "pipeline_dtype": torch.float32,
        "hidden_dropout": 0.0,
        "is_hybrid_model": True,
    }
    config = TransformerConfig(**values)
    mixer = ModuleSpec(
        MambaMixer, submodules=MambaMixerSubmodules(ColumnParallelLinear, RowParallelLinear)
    )
    submodules = MambaLayerSubmodules(
        WrappedTorchNorm, mixer, get_bias_dropout_add, {"norm.": _FUSED_NORM}
    )
    layer = ModuleSpec(MambaLayer, submodules=submodules)
    stack = ModuleSpec(
        mamba_block.MambaStack, submodules=mamba_block.MambaStackSubmodules(mamba_layer=layer)
    )
    return MambaModel(
        config,
        stack,
        vocab_size=arguments.padded_vocab_size,
        max_sequence_length=1,
        hybrid_override_pattern=arguments.hybrid_override_pattern,
        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
        position_embedding_type=arguments.position_embedding_type,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )


def separate_norms(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights with the norms before mixers as modules of their own."""
    return {name.replace(_FUSED_NORM, "norm."): value for name, value in weights.items()}


def _choose_activation(arguments: Namespace) -> Callable[..., Any]:
    """Return the activation that core_transformer_config_from_args chooses."""
    import torch
    from megatron.core.activations import quick_gelu

    if getattr(arguments, "quick_geglu", False):
        return quick_gelu
    return torch.nn.functional.silu if arguments.swiglu else _gelu_tanh


def _gelu_tanh(values: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(values, approximate="tanh")
