"""Record one training step of the parallel benchmark in MindSpore's graph mode, on CPU.

    python benchmarks/parallel/record_mindspore.py OUT --network dense --layout tp2

starts a process for each rank with msrun. Prints the loss; OUT holds rank_*/NAME/0/0/*.npy, graphs
and execution order. The path of OUT may only hold letters, digits, '-', '_' and '/'.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from injections import Injection, parse_injection
from layouts import Layout, parse_layout
from network import NETWORKS, Network, build_batch, get_network

NET_NAME = "GPTModel"


@dataclass(frozen=True)
class Run:
    """What every cell needs to know: network, layout, groups and the fault on this rank."""

    network: Network
    layout: Layout
    rank: int
    injection: Injection
    tp_group: str
    dp_group: str

    @property
    def place(self) -> dict[str, int]:
        """Return the rank within each kind of group."""
        return self.layout.locate(self.rank)

    def has(self, fault: str, layer: int = -1) -> bool:
        """Return whether this fault is active on this rank, in this layer."""
        return self.injection.is_active(fault, self.rank, layer)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--network", choices=list(NETWORKS), default="dense")
    parser.add_argument("--layout", type=parse_layout, default=Layout(), help="like tp2-dp2")
    parser.add_argument(
        "--fault", type=parse_injection, default=Injection(), help="NAME@LAYER/RANKS"
    )
    parser.add_argument("--as-rank", action="store_true", help="this process is one rank")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    out = args.out.resolve()
    if args.as_rank:
        _record_rank(args)
        return
    out.mkdir(parents=True)
    _write_config(out, args.layout.n_ranks)
    if args.layout.n_ranks == 1:
        os.chdir(out)
        _record_rank(args)
    else:
        _start_workers(out, args.layout.n_ranks)
    for report in ("kernel_meta", "rank_0/om", "log"):
        shutil.rmtree(out / report, ignore_errors=True)


def _write_config(out: Path, n_ranks: int) -> None:
    config = {
        "common_dump_settings": {
            "op_debug_mode": 0,
            "dump_mode": 0,
            "path": str(out),
            "net_name": NET_NAME,
            "iteration": "0",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": list(range(n_ranks)),
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }
    path = out / "dump_config.json"
    path.write_text(json.dumps(config, indent=1))
    os.environ["MINDSPORE_DUMP_CONFIG"] = str(path)


def _start_workers(out: Path, n_ranks: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("msrun")),
        f"--worker_num={n_ranks}",
        f"--local_worker_num={n_ranks}",
        f"--master_port={port}",
        "--join=True",
        f"--log_dir={out / 'log'}",
        str(Path(__file__).resolve()),
        *sys.argv[1:],
        "--as-rank",
    ]
    # msrun starts the first python of PATH
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=out, env=environment
    )
    logs = [log.read_text() for log in sorted((out / "log").glob("worker_*.log"))]
    losses = [line for log in logs for line in log.splitlines() if line.startswith("losses")]
    if run.returncode or len(losses) < n_ranks:
        sys.exit(f"{run.stdout[-1000:]}\n{run.stderr[-1000:]}\n{logs[-1][-3000:] if logs else ''}")
    print(losses[0])


def _record_rank(args: argparse.Namespace) -> None:
    import mindspore as ms
    import mindspore.communication as communication
    from mindspore import Tensor
    from mindspore_network import GPTModel, TrainStep
    from shards import cut_weights

    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    layout, network, rank = args.layout, get_network(args.network), 0
    names = {"tp": "", "dp": ""}
    if layout.n_ranks > 1:
        communication.init()
        rank = communication.get_rank()
        for kind in names:
            for members in layout.list_groups(kind):
                # groups of all ranks are the world group, which exists
                name = f"{kind}-{'-'.join(map(str, members))}"
                if len(members) == layout.n_ranks:
                    name = communication.GlobalComm.WORLD_COMM_GROUP
                elif len(members) > 1 and rank in members:
                    communication.create_group(name, list(members))
                if rank in members:
                    names[kind] = name
    run = Run(network, layout, rank, args.fault, names["tp"], names["dp"])
    net = GPTModel(run, cut_weights(network, layout, rank, args.fault))
    net.set_train()
    tokens, labels = build_batch(network)
    size = network.batch // layout.dp
    begin = 0 if run.has("same_batch") else run.place["dp"] * size
    batch = [Tensor(ids[begin : begin + size].astype("int32")) for ids in (tokens, labels)]
    loss = TrainStep(run, net)(*batch)
    print(f"losses {float(loss.asnumpy()):.7f}", flush=True)


if __name__ == "__main__":
    main()
