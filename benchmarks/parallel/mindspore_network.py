"""The network with tensor-parallel layers in MindSpore, for graph mode.

Activations are (sequence, batch, hidden), as in MindSpore Transformers' mcore models. A fault is a
branch next to the line it changes; branches are decided when the graph is compiled. The graph
parser recognizes a cell's methods only by a first argument called ``self``.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from network import build_rotary

MASKED = -10000.0


def constant(value):
    return Tensor(value, ms.float32)


class Identity(nn.Cell):
    def construct(self, x):
        return x


class CopyToRegion(nn.Cell):
    """Identity; the gradient is summed over the group."""

    def __init__(self, group):
        super().__init__()
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group)

    def construct(self, x):
        return x

    def bprop(self, x, out, dout):
        return (self.all_reduce(dout),)


class ReduceFromRegion(nn.Cell):
    """Sum over the group; the gradient is passed on."""

    def __init__(self, group):
        super().__init__()
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group)

    def construct(self, x):
        return self.all_reduce(x)

    def bprop(self, x, out, dout):
        return (dout,)


def copy_to_region(run):
    return CopyToRegion(run.tp_group) if run.layout.tp > 1 else Identity()


def reduce_from_region(run):
    return ReduceFromRegion(run.tp_group) if run.layout.tp > 1 else Identity()


class ColumnParallelLinear(nn.Cell):
    """The rows of the weight are spread; the input is the same on all ranks."""

    def __init__(self, run, weight, layer):
        super().__init__()
        self.weight = Parameter(Tensor(weight))
        skipped = run.has("input_grad_not_reduced", layer)
        self.copy = Identity() if skipped else copy_to_region(run)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x):
        x = self.copy(x)
        shape = x.shape
        y = self.matmul(x.reshape(-1, shape[-1]), self.weight)
        return y.reshape(shape[0], shape[1], -1)


class RowParallelLinear(nn.Cell):
    """The columns of the weight are spread; the results are summed over the ranks."""

    def __init__(self, run, weight, bias, layer, name):
        super().__init__()
        self.weight, self.bias = Parameter(Tensor(weight)), Parameter(Tensor(bias))
        skipped = run.has(f"{name}_not_reduced", layer)
        self.reduce = Identity() if skipped else reduce_from_region(run)
        self.again = None
        if run.has(f"{name}_reduced_twice", layer):
            self.again = reduce_from_region(run)
        self.early_bias = run.has(f"{name}_bias_each", layer)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x):
        shape = x.shape
        y = self.matmul(x.reshape(-1, shape[-1]), self.weight)
        y = y.reshape(shape[0], shape[1], -1)
        if self.early_bias:
            y = y + self.bias
        y = self.reduce(y)
        if self.again is not None:
            y = self.again(y)
        if not self.early_bias:
            y = y + self.bias
        return y


class VocabParallelEmbedding(nn.Cell):
    def __init__(self, run, weight):
        super().__init__()
        self.weight = Parameter(Tensor(weight))
        self.rows = weight.shape[0]
        self.begin = run.place["tp"] * self.rows
        self.is_spread = run.layout.tp > 1
        self.is_masked = not run.has("embedding_mask_off")
        self.reduce = reduce_from_region(run)
        self.gather = ops.Gather()

    def construct(self, tokens):
        if not self.is_spread:
            return ops.transpose(self.gather(self.weight, tokens, 0), (1, 0, 2))
        local_tokens = tokens - self.begin
        is_own = ops.logical_and(local_tokens >= 0, local_tokens < self.rows)
        local_tokens = local_tokens * is_own.astype(ms.int32)
        embedded = self.gather(self.weight, local_tokens, 0)
        if self.is_masked:
            embedded = embedded * ops.expand_dims(is_own.astype(ms.float32), -1)
        return self.reduce(ops.transpose(embedded, (1, 0, 2)))


class RMSNorm(nn.Cell):
    def __init__(self, run, weight, layer=-1):
        super().__init__()
        self.weight = Parameter(Tensor(weight))
        self.eps = 1e-2 if run.has("norm_eps", layer) else run.network.eps

    def construct(self, x):
        variance = ops.mean(ops.square(x), -1, True)
        return x * ops.rsqrt(variance + self.eps) * self.weight


class SelfAttention(nn.Cell):
    def __init__(self, run, weights, layer):
        super().__init__()
        network, name = run.network, f"layers.{layer}"
        self.linear_qkv = ColumnParallelLinear(run, weights[f"{name}.qkv"], layer)
        self.linear_proj = RowParallelLinear(
            run, weights[f"{name}.proj"], weights[f"{name}.proj_bias"], layer, "proj"
        )
        self.groups = network.kv_heads // run.layout.tp
        self.queries, self.dim = network.queries_per_group, network.head_dim
        self.heads, self.seq = self.groups * self.queries, network.seq
        self.scale = network.head_dim ** (-0.4 if run.has("score_scale", layer) else -0.5)
        offset = 1 if run.has("rotary_offset", layer) else 0
        cos, sin = build_rotary(network, np.arange(network.seq))
        self.cos, self.sin = Tensor(cos[:, None, None]), Tensor(sin[:, None, None])
        self.query_cos, self.query_sin = self.cos, self.sin
        if offset:
            cos, sin = build_rotary(network, np.arange(network.seq) + offset)
            self.query_cos, self.query_sin = Tensor(cos[:, None, None]), Tensor(sin[:, None, None])
        masked = np.triu(np.full((network.seq, network.seq), MASKED, np.float32), 1)
        self.mask = Tensor(masked)

    def rotate(self, x, cos, sin):
        half = self.dim // 2
        turned = ops.concat((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin

    def construct(self, x):
        mixed = self.linear_qkv(x)
        batch = x.shape[1]
        mixed = mixed.reshape(self.seq, batch, self.groups, self.queries + 2, self.dim)
        q = mixed[:, :, :, : self.queries].reshape(self.seq, batch, self.heads, self.dim)
        k, v = mixed[:, :, :, self.queries], mixed[:, :, :, self.queries + 1]
        q = self.rotate(q, self.query_cos, self.query_sin)
        k = self.rotate(k, self.cos, self.sin)
        q = ops.transpose(q, (1, 2, 0, 3))
        k = ops.transpose(ops.repeat_interleave(k, self.queries, 2), (1, 2, 3, 0))
        v = ops.transpose(ops.repeat_interleave(v, self.queries, 2), (1, 2, 0, 3))
        scores = ops.matmul(q, k) * self.scale + self.mask
        context = ops.matmul(ops.softmax(scores, -1), v)
        context = ops.transpose(context, (2, 0, 1, 3)).reshape(self.seq, batch, -1)
        return self.linear_proj(context)


class MLP(nn.Cell):
    def __init__(self, run, weights, layer):
        super().__init__()
        name = f"layers.{layer}"
        self.linear_fc1 = ColumnParallelLinear(run, weights[f"{name}.fc1"], layer=-2)
        self.linear_fc2 = RowParallelLinear(
            run, weights[f"{name}.fc2"], weights[f"{name}.fc2_bias"], layer, "fc2"
        )
        self.ffn = weights[f"{name}.fc2"].shape[1]
        self.is_gelu = run.has("gelu", layer)

    def construct(self, x):
        y = self.linear_fc1(x)
        gate, up = y[..., : self.ffn], y[..., self.ffn :]
        if self.is_gelu:
            return self.linear_fc2(ops.gelu(gate, approximate="none") * up)
        return self.linear_fc2(ops.silu(gate) * up)


class TransformerLayer(nn.Cell):
    def __init__(self, run, weights, layer):
        super().__init__()
        name = f"layers.{layer}"
        self.input_layernorm = RMSNorm(run, weights[f"{name}.input_norm"], layer)
        self.self_attention = SelfAttention(run, weights, layer)
        self.pre_mlp_layernorm = RMSNorm(run, weights[f"{name}.post_norm"])
        self.mlp = MLP(run, weights, layer)

    def construct(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class VocabCrossEntropy(nn.Cell):
    """The mean loss of logits whose vocabulary is spread over the group.

    The largest logit is not subtracted: the CPU's AllReduce only sums.
    """

    def __init__(self, run, rows):
        super().__init__()
        self.rows, self.begin = rows, run.place["tp"] * rows
        self.reduce_predicted = reduce_from_region(run)
        self.reduce_total = Identity() if run.has("ce_sum_local") else reduce_from_region(run)
        self.one_hot = ops.OneHot()
        self.on, self.off = constant(1), constant(0)

    def construct(self, logits, labels):
        # a label of another rank is outside of the range, so its row is zero
        chosen = self.one_hot(labels - self.begin, self.rows, self.on, self.off)
        predicted = self.reduce_predicted(ops.sum(logits * chosen, -1))
        total = self.reduce_total(ops.sum(ops.exp(logits), -1))
        return ops.mean(ops.log(total) - predicted)


class Decoder(nn.Cell):
    def __init__(self, run, weights):
        super().__init__()
        self.layers = nn.CellList(
            [TransformerLayer(run, weights, n) for n in range(run.network.layers)]
        )
        self.final_layernorm = RMSNorm(run, weights["final_norm"])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.final_layernorm(x)


class GPTModel(nn.Cell):
    """The loss of a batch; the output layer reads the embedding."""

    def __init__(self, run, weights):
        super().__init__()
        self.embedding = VocabParallelEmbedding(run, weights["embedding"])
        self.decoder = Decoder(run, weights)
        self.copy = copy_to_region(run)
        self.matmul = ops.MatMul(transpose_b=True)
        self.cross_entropy = VocabCrossEntropy(run, weights["embedding"].shape[0])

    def construct(self, tokens, labels):
        x = self.copy(self.decoder(self.embedding(tokens)))
        shape = x.shape
        logits = self.matmul(x.reshape(-1, shape[-1]), self.embedding.weight)
        return self.cross_entropy(logits, ops.transpose(labels, (1, 0)).reshape(-1))


class ReduceOverData(nn.Cell):
    """Average gradients over the data-parallel ranks, each in a collective of its own."""

    def __init__(self, run, weights):
        super().__init__(auto_prefix=False)
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, run.dp_group)
        self.divisor = constant(1 if run.has("data_sum") else run.layout.dp)
        counts = []
        for weight in weights:
            words = weight.name.split(".")
            layer = int(words[2]) if words[1] == "layers" else -1
            name = ".".join(words[-2:])
            is_skipped = run.has("grad_not_reduced", layer) and name == "linear_fc1.weight"
            is_doubled = run.has("grad_reduced_twice", layer) and name == "linear_fc2.weight"
            counts.append(0 if is_skipped else 2 if is_doubled else 1)
        self.counts = tuple(counts)

    def construct(self, gradients):
        reduced = ()
        for n in range(len(gradients)):
            gradient = gradients[n] / self.divisor
            if self.counts[n] > 0:
                gradient = self.all_reduce(gradient)
            if self.counts[n] > 1:
                gradient = self.all_reduce(gradient)
            reduced += (gradient,)
        return reduced


class ClipGradNorm(nn.Cell):
    """All gradients times one factor, so that the norm over all shards is at most the limit."""

    def __init__(self, run, weights):
        super().__init__(auto_prefix=False)
        replicated = [any(word in weight.name for word in ("norm", "bias")) for weight in weights]
        counts_all = run.place["tp"] == 0 or run.has("norm_counts_replicas")
        self.counted = tuple(counts_all or not is_replicated for is_replicated in replicated)
        self.reduce = None
        if run.layout.tp > 1 and not run.has("norm_local"):
            self.reduce = ops.AllReduce(ops.ReduceOp.SUM, run.tp_group)
        self.limit, self.one, self.tiny = constant(run.network.clip), constant(1), constant(1e-6)
        self.sum = ops.ReduceSum()

    def construct(self, gradients):
        squares = ()
        for n in range(len(gradients)):
            if self.counted[n]:
                squares += (self.sum(ops.square(gradients[n])),)
        total = ops.addn(squares)
        if self.reduce is not None:
            total = self.reduce(total)
        factor = ops.minimum(self.limit / (ops.sqrt(total) + self.tiny), self.one)
        clipped = ()
        for gradient in gradients:
            clipped += (gradient * factor,)
        return clipped


class AdamW(nn.Optimizer):
    """Decoupled weight decay with bias correction, as PyTorch's AdamW."""

    def __init__(self, run, weights):
        network = run.network
        super().__init__(network.learning_rate, weights)
        self.first = self._parameters.clone(prefix="exp_avg", init="zeros")
        self.second = self._parameters.clone(prefix="exp_avg_sq", init="zeros")
        self.kept = constant(1 - network.learning_rate * network.weight_decay)
        self.rate = constant(network.learning_rate)
        self.eps, self.one = constant(1e-8), constant(1)
        self.beta1, self.rest1 = constant(0.9), constant(1 - 0.9)
        self.beta2, self.rest2 = constant(0.95), constant(1 - 0.95)

    def construct(self, gradients):
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        step = ops.cast(self.global_step, ms.float32)
        short1 = self.one - ops.pow(self.beta1, step)
        short2 = self.one - ops.pow(self.beta2, step)
        for n in range(len(self._parameters)):
            weight, gradient = self._parameters[n], gradients[n]
            first = self.first[n] * self.beta1 + gradient * self.rest1
            second = self.second[n] * self.beta2 + ops.square(gradient) * self.rest2
            update = (first / short1) / (ops.sqrt(second / short2) + self.eps)
            ops.assign(self.first[n], first)
            ops.assign(self.second[n], second)
            ops.assign(weight, weight * self.kept - self.rate * update)
        return True


class TrainStep(nn.Cell):
    """Forward, backward, reduction, clipping and update in one graph."""

    def __init__(self, run, net):
        super().__init__(auto_prefix=False)
        self.network = net
        self.weights = ms.ParameterTuple(net.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)
        self.reduce = ReduceOverData(run, self.weights) if run.layout.dp > 1 else None
        self.clip_grad_norm = ClipGradNorm(run, self.weights)
        self.optimizer = AdamW(run, self.weights)

    def construct(self, tokens, labels):
        loss = self.network(tokens, labels)
        gradients = self.grad(self.network, self.weights)(tokens, labels)
        if self.reduce is not None:
            gradients = self.reduce(gradients)
        gradients = self.clip_grad_norm(gradients)
        return ops.depend(loss, self.optimizer(gradients))
