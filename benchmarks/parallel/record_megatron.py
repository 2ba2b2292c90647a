"""Record one training step of megatron-core 0.16.1 on CPU with msprobe: whole tensors.

    pip install --no-deps --target /tmp/megatron-core megatron-core==0.16.1
    PYTHONPATH=/tmp/megatron-core python benchmarks/parallel/record_megatron.py OUT --layout tp2

A GPT model of its local layers with the sizes of the benchmark, cut from the same full weights.
What megatron-core asks of CUDA is replaced. Tensor parallelism only; the step has no update.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from injections import Injection, parse_injection
from layouts import Layout, parse_layout
from msprobe.pytorch import PrecisionDebugger, seed_all
from network import NETWORKS, Network, build_batch, get_network
from record_pytorch import write_config
from shards import cut_weights

#: Our names of weights as megatron-core spells them.
_NAMES = {
    "input_norm": "input_layernorm.weight",
    "qkv": "self_attention.linear_qkv.weight",
    "proj": "self_attention.linear_proj.weight",
    "proj_bias": "self_attention.linear_proj.bias",
    "post_norm": "pre_mlp_layernorm.weight",
    "fc1": "mlp.linear_fc1.weight",
    "fc2": "mlp.linear_fc2.weight",
    "fc2_bias": "mlp.linear_fc2.bias",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--network", choices=list(NETWORKS), default="dense")
    parser.add_argument("--layout", type=parse_layout, default=Layout(), help="tp1, tp2, tp4")
    parser.add_argument(
        "--fault", type=parse_injection, default=Injection(), help="a fault of loading weights"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    out = args.out.resolve()
    out.mkdir(parents=True)
    write_config(out, "mix", 1)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _record_rank,
            args=(args, out, f"file://{folder}/store"),
            nprocs=args.layout.n_ranks,
            start_method="fork",
        )


def _replace_cuda() -> None:
    """Let megatron-core run on CPU."""
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda *_: None
    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()


def _record_rank(rank: int, args: argparse.Namespace, out: Path, store: str) -> None:
    torch.set_num_threads(1)
    layout, network = args.layout, get_network(args.network)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=layout.n_ranks)
    seed_all(seed=1, mode=True)
    _replace_cuda()
    net = _build_model(network, layout)
    _load_weights(net, cut_weights(network, layout, rank, args.fault))
    tokens, labels = (torch.from_numpy(ids.copy()) for ids in build_batch(network))
    positions = torch.arange(network.seq).expand_as(tokens)
    mask = torch.ones(1, 1, network.seq, network.seq, dtype=torch.bool).triu(1)

    debugger = PrecisionDebugger(config_path=str(out / "config.json"))
    debugger.start(model=net)
    loss = net(tokens, positions, mask, labels=labels).mean()
    loss.backward()
    debugger.stop()
    debugger.step()
    if rank == 0:
        print(f"losses {loss.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _build_model(network: Network, layout: Layout) -> torch.nn.Module:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(layout.tp)
    config = TransformerConfig(
        num_layers=network.layers,
        hidden_size=network.hidden,
        num_attention_heads=network.heads,
        num_query_groups=network.kv_heads,
        ffn_hidden_size=network.ffn,
        tensor_model_parallel_size=layout.tp,
        use_cpu_initialization=True,
        normalization="RMSNorm",
        layernorm_epsilon=network.eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=True,
        add_qkv_bias=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        pipeline_dtype=torch.float32,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=network.vocab,
        max_sequence_length=network.seq,
        share_embeddings_and_output_weights=network.tied,
        position_embedding_type="rope",
        rotary_base=int(network.rotary_base),
    )


def _load_weights(net: torch.nn.Module, weights: dict) -> None:
    """Copy our weights; the bias of fc1, which we lack, is zero."""
    renamed = {}
    for name, values in weights.items():
        renamed[_rename_weight(name)] = torch.from_numpy(values)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in renamed:
                parameter.copy_(renamed.pop(name))
            elif name.endswith((".linear_fc1.bias", ".linear_qkv.bias")):
                parameter.zero_()
            else:
                raise SystemExit(f"no weight for {name}")
    if renamed:
        raise SystemExit(f"not loaded: {sorted(renamed)}")


def _rename_weight(name: str) -> str:
    if name.startswith("layers."):
        _, number, kind = name.split(".", 2)
        return f"decoder.layers.{number}.{_NAMES[kind]}"
    return {
        "embedding": "embedding.word_embeddings.weight",
        "final_norm": "decoder.final_layernorm.weight",
        "output": "output_layer.weight",
    }[name]


if __name__ == "__main__":
    main()
