"""Process groups and the communication of parallel layers, as Megatron-LM writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from injections import Injection
from layouts import Layout
from network import Network
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """The group of this process for one kind of parallelism."""

    members: tuple[int, ...]
    rank: int  #: within the group
    handle: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Run:
    """What every layer needs to know: network, layout, groups and the fault on this rank."""

    network: Network
    layout: Layout
    rank: int
    injection: Injection
    tp: Group
    cp: Group
    dp: Group
    pp: Group
    ep: Group
    model: Group  #: tensor and pipeline parallel together
    data: Group  #: data and context parallel together
    ends: Group  #: first and last pipeline stage
    chunk: int = 0  #: which of the rank's model chunks this is
    micro: list[int] = field(default_factory=lambda: [0])  #: the current micro-batch
    sends: list[tuple[dist.Work, Tensor]] = field(default_factory=list)  #: not finished yet

    @property
    def stage(self) -> int:
        """Return the number of this model chunk among the pipeline stages."""
        return self.chunk * self.pp.size + self.pp.rank

    def has(self, fault: str, layer: int = -1) -> bool:
        """Return whether this fault is active on this rank, in this layer."""
        return self.injection.is_active(fault, self.rank, layer)

    def send(self, values: Tensor, rank: int) -> None:
        """Send without waiting: two stages may send to each other."""
        self.sends.append((dist.isend(values, dst=rank, group=self.pp.handle), values))

    def finish_sends(self) -> None:
        for work, _ in self.sends:
            work.wait()
        self.sends.clear()


def create_groups(layout: Layout, rank: int) -> dict[str, Group]:
    """Create all groups on all ranks in the same order."""
    first_last = [
        (*members[:1], *members[-1:]) if layout.pp > 1 else members
        for members in layout.list_groups("pp")
    ]
    tables = {
        "tp": layout.list_groups("tp"),
        "cp": layout.list_groups("cp"),
        "dp": layout.list_groups("dp"),
        "pp": layout.list_groups("pp"),
        "ep": layout.list_groups("dp") if layout.ep > 1 else layout.list_groups(),
        "model": layout.list_groups("tp", "pp"),
        "data": layout.list_groups("cp", "dp"),
        "ends": first_last,
    }
    handles: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    groups: dict[str, Group] = {}
    for kind, table in tables.items():
        for members in table:
            if members not in handles:
                handles[members] = dist.new_group(list(members)) if len(members) > 1 else None
            if rank in members:
                groups[kind] = Group(members, members.index(rank), handles[members])
    groups.setdefault("ends", Group((rank,), 0, None))
    return groups


def all_reduce(values: Tensor, group: Group, op: dist.ReduceOp = dist.ReduceOp.SUM) -> Tensor:
    """Reduce in place."""
    if group.size > 1:
        dist.all_reduce(values, op=op, group=group.handle)
    return values


def gather_first_axis(values: Tensor, group: Group) -> Tensor:
    if group.size == 1:
        return values
    gathered = torch.empty((group.size * values.shape[0], *values.shape[1:]), dtype=values.dtype)
    dist.all_gather_into_tensor(gathered, values.contiguous(), group=group.handle)
    return gathered


def reduce_scatter_first_axis(values: Tensor, group: Group) -> Tensor:
    if group.size == 1:
        return values
    part = torch.empty((values.shape[0] // group.size, *values.shape[1:]), dtype=values.dtype)
    dist.reduce_scatter_tensor(part, values.contiguous(), group=group.handle)
    return part


class CopyToRegion(torch.autograd.Function):
    """Identity; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return values

    @staticmethod
    def backward(ctx, grad: Tensor):
        return all_reduce(grad.clone(), ctx.group), None


class ReduceFromRegion(torch.autograd.Function):
    """Sum over the group, in place; the gradient is passed on."""

    @staticmethod
    def forward(ctx, values: Tensor, group: Group) -> Tensor:
        return all_reduce(values.contiguous(), group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


class GatherFromSequence(torch.autograd.Function):
    """Concatenate the sequence; the gradient is summed and scattered."""

    @staticmethod
    def forward(ctx, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gather_first_axis(values, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return reduce_scatter_first_axis(grad, ctx.group), None


class ReduceScatterToSequence(torch.autograd.Function):
    """Sum and scatter along the sequence; the gradient is gathered."""

    @staticmethod
    def forward(ctx, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return reduce_scatter_first_axis(values, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return gather_first_axis(grad, ctx.group), None


class SwapChunks(torch.autograd.Function):
    """Rotate the chunks of the first axis: a gather in the wrong order."""

    @staticmethod
    def forward(ctx, values: Tensor, n_chunks: int) -> Tensor:
        ctx.n_chunks = n_chunks
        return torch.roll(values, values.shape[0] // n_chunks, 0)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return torch.roll(grad, -(grad.shape[0] // ctx.n_chunks), 0), None


class ExchangeTokens(torch.autograd.Function):
    """Send rows to the ranks of the group and receive theirs; the gradient goes back."""

    @staticmethod
    def forward(ctx, rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
        ctx.counts = sent, received
        ctx.group = group
        return exchange_rows(rows, sent, received, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        sent, received = ctx.counts
        return exchange_rows(grad, received, sent, ctx.group), None, None, None


def exchange_rows(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    result = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype)
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group.handle)
    return result


class VocabCrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits whose vocabulary is spread over the group; a loss for each token."""

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, run: Run) -> Tensor:
        group = run.tp
        logits_max = torch.max(logits, dim=-1)[0]
        if not run.has("ce_max_local"):
            all_reduce(logits_max, group, dist.ReduceOp.MAX)
        logits = logits - logits_max.unsqueeze(-1)
        rows = logits.shape[-1]
        begin = group.rank * rows
        mask = (labels < begin) | (labels >= begin + rows)
        masked_labels = (labels - begin).masked_fill(mask, 0)
        predicted = torch.gather(logits, -1, masked_labels.unsqueeze(-1)).squeeze(-1)
        predicted = predicted.masked_fill(mask, 0.0)
        all_reduce(predicted, group)
        exponents = torch.exp(logits)
        total = exponents.sum(dim=-1)
        if not run.has("ce_sum_local"):
            all_reduce(total, group)
        losses = torch.log(total) - predicted
        ctx.save_for_backward(exponents / total.unsqueeze(-1), masked_labels, mask)
        return losses

    @staticmethod
    def backward(ctx, grad: Tensor):
        softmax, masked_labels, mask = ctx.saved_tensors
        update = torch.zeros_like(softmax).scatter_(
            -1, masked_labels.unsqueeze(-1), (~mask).to(softmax.dtype).unsqueeze(-1)
        )
        return (softmax - update) * grad.unsqueeze(-1), None, None
