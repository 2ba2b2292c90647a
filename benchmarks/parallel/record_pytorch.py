"""Record training steps of the parallel benchmark in PyTorch with msprobe: whole tensors.

    python benchmarks/parallel/record_pytorch.py OUT --network dense --layout tp2-sp

starts a process for each rank (gloo, CPU). Prints the losses; OUT holds step*/rank*/dump.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from injections import Injection, parse_injection
from layouts import Layout, parse_layout
from msprobe.pytorch import PrecisionDebugger, seed_all
from network import NETWORKS, build_batch, get_network
from pytorch_network import GPTModel, list_positions
from pytorch_parallel import Run, all_reduce, create_groups
from shards import cut_weights, list_stage_layers
from torch import Tensor, nn

#: Parameters that every tensor-parallel rank holds whole.
REPLICATED = ("norm", "bias", "router")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--network", choices=list(NETWORKS), default="dense")
    parser.add_argument("--layout", type=parse_layout, default=Layout(), help="like tp2-sp-dp2")
    parser.add_argument(
        "--fault", type=parse_injection, default=Injection(), help="NAME@LAYER/RANKS"
    )
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--level", choices=["mix", "L1"], default="mix")
    parser.add_argument(
        "--summation", choices=["float32", "float64"], default="float32",
        help="how matrix products are summed: two correct runs that differ by rounding",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    out = args.out.resolve()
    out.mkdir(parents=True)
    write_config(out, args.level, args.steps)
    if args.layout.n_ranks == 1:
        _record_rank(0, args, out, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _record_rank,
            args=(args, out, f"file://{folder}/store"),
            nprocs=args.layout.n_ranks,
            start_method="fork",
        )


def write_config(out: Path, level: str, steps: int) -> None:
    everything = {"scope": [], "list": [], "data_mode": ["all"]}
    config = {
        "task": "tensor",
        "dump_path": str(out),
        "rank": [],
        "step": list(range(steps)),
        "level": level,
        "async_dump": False,
        "tensor": everything,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))


def _record_rank(rank: int, args: argparse.Namespace, out: Path, store: str) -> None:
    torch.set_num_threads(1)
    layout, network = args.layout, get_network(args.network)
    if store:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=layout.n_ranks)
    seed_all(seed=1, mode=True)
    if args.summation == "float64":
        _sum_in_float64()
    groups = create_groups(layout, rank)
    run = Run(network, layout, rank, args.fault, **groups)
    chunks = nn.ModuleList(
        GPTModel(replace(run, chunk=chunk), cut_weights(network, layout, rank, args.fault, chunk))
        for chunk in range(layout.vpp)
    )
    optimizer = torch.optim.AdamW(
        chunks.parameters(),
        lr=network.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=network.weight_decay,
        foreach=False,
    )
    debugger = PrecisionDebugger(config_path=str(out / "config.json"))
    losses = []
    for step in range(args.steps):
        if run.has("learning_rate") and step:
            optimizer.param_groups[0]["lr"] = 2 * network.learning_rate
        debugger.start(model=chunks[0] if layout.vpp == 1 else list(chunks))
        if layout.vpp == 1:
            loss = run_forward_backward(chunks[0], run, step)
        else:
            loss = run_chunks(chunks, run, step)
        finish_gradients(chunks, run)
        clip_gradients(chunks, run)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(report_loss(loss, run))
        debugger.stop()
        debugger.step()
    if run.pp.rank == run.pp.size - 1 and rank % (layout.tp * layout.cp * layout.dp) == 0:
        print("losses", " ".join(f"{loss:.7f}" for loss in losses), flush=True)
    if store:
        dist.barrier()
        dist.destroy_process_group()


def _sum_in_float64() -> None:
    """Compute matrix products of float32 in float64, below the calls that are recorded."""
    library = torch.library.Library("aten", "IMPL")
    _sum_in_float64.library = library  # kept, or the kernels are gone

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        product = np.matmul(a.detach().numpy().astype(np.float64), b.detach().numpy())
        return torch.from_numpy(product.astype(np.float32))

    library.impl("mm", multiply, "CPU")
    library.impl("bmm", multiply, "CPU")


def run_forward_backward(net: GPTModel, run: Run, step: int) -> Tensor:
    """Run all micro-batches; return the mean loss of this rank (0 before the last stage)."""
    micro_batches = [cut_batch(run, step, number) for number in range(run.layout.acc)]
    total = torch.zeros(())
    pending: list[tuple[Tensor, Tensor]] = []
    # one forward, one backward: as many forward passes first as stages follow
    warm_up = min(run.pp.size - 1 - run.pp.rank, len(micro_batches))
    for number, micro_batch in enumerate(micro_batches):
        run.micro[0] = number
        pending.append(_run_forward(net, run, *micro_batch))
        if net.is_last:
            total = total + pending[-1][1].detach()
        if len(pending) > warm_up:
            _run_backward(net, run, *pending.pop(0))
    for pair in pending:
        _run_backward(net, run, *pair)
    run.finish_sends()
    return total


def run_chunks(chunks: nn.ModuleList, run: Run, step: int) -> Tensor:
    """Run the forward passes of each model chunk, then the backward passes, last chunk first."""
    micro_batches = [cut_batch(run, step, number) for number in range(run.layout.acc)]
    total = torch.zeros(())
    pending: list[tuple[GPTModel, Tensor, Tensor]] = []
    for net in chunks:
        for number, micro_batch in enumerate(micro_batches):
            run.micro[0] = number
            received, result = _run_forward(net, net.run, *micro_batch)
            pending.append((net, received, result))
            if net.is_last:
                total = total + result.detach()
    for net in reversed(chunks):
        for its_net, received, result in pending:
            if its_net is net:
                _run_backward(net, net.run, received, result)
    run.finish_sends()
    return total


def cut_batch(run: Run, step: int, micro: int) -> tuple[Tensor, Tensor, Tensor, slice]:
    """Return tokens, labels, positions and the samples of a micro-batch of this rank."""
    network, layout = run.network, run.layout
    tokens, labels = build_batch(network, step)
    dp_rank = run.dp.rank
    if run.has("same_batch"):
        dp_rank = 0
    size = network.batch // (layout.dp * layout.acc)
    begin = (dp_rank * layout.acc + micro) * size
    samples = slice(begin, begin + size)
    positions = list_positions(network.seq, run.cp.size, run.cp.rank)
    labels_of_rank = labels[samples][:, positions]
    if run.has("labels_shifted"):
        labels_of_rank = np.roll(labels_of_rank, -1, 1)
    if run.has("cp_positions"):
        positions = np.split(np.arange(network.seq), run.cp.size)[run.cp.rank]
    tokens_of_rank = tokens[samples][:, list_positions(network.seq, run.cp.size, run.cp.rank)]
    return (
        torch.from_numpy(tokens_of_rank.copy()),
        torch.from_numpy(labels_of_rank.copy()),
        torch.from_numpy(positions.copy()),
        samples,
    )


def _run_forward(
    net: GPTModel, run: Run, tokens: Tensor, labels: Tensor, positions: Tensor, batch: slice
) -> tuple[Tensor, Tensor]:
    """Return the input of the stage and its result; the result of the last stage is the loss."""
    if net.is_first:
        received = tokens
    else:
        length = run.network.seq // run.cp.size // (run.tp.size if run.layout.sp else 1)
        received = torch.empty(length, tokens.shape[0], run.network.hidden)
        dist.recv(received, src=run.pp.members[run.pp.rank - 1], group=run.pp.handle)
        if run.has("stale_activation") and run.micro[0] == 1:
            received = net.first_received.detach().clone()
        net.first_received = received
        received.requires_grad_()
    result = net(received, labels, positions, batch)
    if not net.is_last:
        run.send(result.detach(), run.pp.members[(run.pp.rank + 1) % run.pp.size])
        return received, result
    divisor = 1 if run.has("accumulation_not_divided") else run.layout.acc
    return received, result.mean() / divisor


def _run_backward(net: GPTModel, run: Run, received: Tensor, result: Tensor) -> None:
    if net.is_last:
        result.backward()
    else:
        grad = torch.empty_like(result)
        source = run.pp.members[(run.pp.rank + 1) % run.pp.size]
        dist.recv(grad, src=source, group=run.pp.handle)
        torch.autograd.backward(result, grad)
    if not net.is_first:
        grad = received.grad
        if run.has("sent_grad_scaled"):
            grad = grad * 2
        run.send(grad, run.pp.members[run.pp.rank - 1])
    if run.has("micro_batch_lost") and run.micro[0] == 0:
        net.zero_grad()


def finish_gradients(chunks: nn.ModuleList, run: Run) -> None:
    """Reduce the gradients of this rank to those of the whole batch."""
    for name, parameter in chunks.named_parameters():
        is_partial = run.layout.sp and any(word in name for word in REPLICATED)
        if is_partial and run.tp.size > 1:
            is_final_norm = "final_layernorm" in name
            if is_final_norm and run.has("sp_norm_grad_not_reduced"):
                continue
            all_reduce(parameter.grad, run.tp)
            if is_final_norm and run.has("sp_norm_grad_averaged"):
                parameter.grad /= run.tp.size
    for net in chunks:
        shared = net.shared_weight
        if run.pp.size > 1 and shared is not None and not run.has("tied_grad_not_reduced"):
            all_reduce(shared.grad, run.ends)
    if run.data.size > 1:
        _reduce_over_data(chunks, run)


def _reduce_over_data(chunks: nn.ModuleList, run: Run) -> None:
    """Average over data and context parallel ranks; experts of other ranks are other weights."""
    group, size = run.data, run.data.size
    divisor = 1 if run.has("data_sum") else size
    if run.layout.flat:
        gradients = [parameter.grad for parameter in chunks.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients]) / divisor
        if not run.has("bucket_not_reduced"):
            all_reduce(flat, group)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return
    for name, parameter in chunks.named_parameters():
        gradient = parameter.grad
        if ".experts." in name and run.layout.ep > 1:
            gradient /= 1 if run.has("expert_grad_not_divided") else size
            continue
        if run.has("grad_not_reduced", _read_layer(name, run)) and name.endswith("fc1.weight"):
            gradient /= divisor
            continue
        if run.has("router_grad_not_reduced", _read_layer(name, run)) and "router" in name:
            gradient /= divisor
            continue
        gradient /= divisor
        if run.has("wrong_group", _read_layer(name, run)) and name.endswith("proj.weight"):
            all_reduce(gradient, run.tp)
            continue
        all_reduce(gradient, group)
        if run.has("grad_reduced_twice", _read_layer(name, run)) and name.endswith("fc2.weight"):
            all_reduce(gradient, group)


def _read_layer(name: str, run: Run) -> int:
    """Return the number of the layer of a parameter in the whole model, -1 if it has none.

    ``name`` begins with the number of the model chunk.
    """
    words = name.split(".")
    if "layers" not in words:
        return -1
    stage = int(words[0]) * run.pp.size + run.pp.rank
    return list_stage_layers(run.network, run.layout, stage)[int(words[words.index("layers") + 1])]


def clip_gradients(chunks: nn.ModuleList, run: Run) -> Tensor:
    """Scale the gradients of all ranks by the norm of the whole gradient; return the norm."""
    total = torch.zeros(())
    copies = {id(net.shared_weight) for net in chunks if not net.is_first}
    for name, parameter in chunks.named_parameters():
        is_replicated = any(word in name for word in REPLICATED)
        if is_replicated and run.tp.rank and not run.has("norm_counts_replicas"):
            continue
        if id(parameter) in copies and not run.has("norm_counts_tied_twice"):
            continue
        square = torch.sum(parameter.grad * parameter.grad)
        if ".experts." in name and run.layout.ep > 1:
            square = all_reduce(square, run.ep)
        total = total + square
    if not run.has("norm_local"):
        all_reduce(total, run.model)
    norm = torch.sqrt(total)
    factor = torch.clamp(run.network.clip / (norm + 1e-6), max=1.0)
    for parameter in chunks.parameters():
        parameter.grad.mul_(factor)
    return norm


def report_loss(loss: Tensor, run: Run) -> float:
    """Return the loss of the whole batch, which the last stage of every replica prints."""
    if run.pp.rank == run.pp.size - 1 and run.data.size > 1:
        loss = all_reduce(loss / run.data.size, run.data)
    return loss.item()


if __name__ == "__main__":
    main()
