"""Models of the benchmark in NumPy: sizes, knobs, weights and batch, equal bits for two frameworks.

``MODELS`` holds five decoders and a small ResNet. A :class:`Model` is everything a recording script
needs. A fault turns a knob or changes a weight (see ``faults``). The nets of both frameworks
implement every knob, so a fault can go into either.

Weights are float32, linear ones (out, in), named canonically:

    embedding.weight [position.weight] layers.N.* norm.weight [norm.bias] [head.weight]
    layers.N.: input_norm.weight [.bias], post_norm.weight [.bias]
               attention.{q,k,v,o}.weight [.bias], or, low rank,
               attention.{q_a,q_b,kv_a,kv_b,o}.weight and attention.{q_norm,kv_norm}.weight
               mlp.{gate,up,down}.weight, or mlp.{up,down}.weight and .bias (GPT-2), or
               mlp.router.weight and mlp.experts.E.{gate,up,down}.weight
    ResNet: stem.weight stem_norm.{weight,bias} head.{weight,bias}
            stages.S.: {conv1,conv2,short}.weight {norm1,norm2}.{weight,bias}

A side may hold q, k, v (and gate, up) as one matrix: ``Model.fused`` gives the fused weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Size:
    """Sizes of a model and kinds of its parts."""

    layers: int = 2
    vocab: int = 96
    hidden: int = 48
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 112
    seq: int = 12
    batch: int = 2
    norm: str = "rms"  #: 'rms' or 'layer' (with bias)
    positions: str = "rope"  #: 'rope' or 'learned'
    #: 'swiglu', 'gelu' (two linear layers with bias) or 'experts' (swiglu each)
    mlp: str = "swiglu"
    bias: bool = False  #: of q, k, v, o and the linear layers of a gelu mlp
    tied: bool = False  #: the head is the embedding
    experts: int = 0
    top_k: int = 2
    q_rank: int = 0  #: > 0: low-rank attention, as DeepSeek's
    kv_rank: int = 0
    #: low rank: so many of a head's dimensions carry positions, beside head_dim that do not
    rope_dim: int = 0
    padding: int = 3  #: the last so many labels of each sequence are padding: no loss
    image: int = 0  #: ResNet: pixels along an edge; channels are ``hidden``
    seed: int = 11

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Layer:
    """Knobs of a decoder layer (or a ResNet stage): what it computes beyond its weights."""

    input_eps: float = 1e-5
    post_eps: float = 1e-5
    #: '' as the model has it; 'rms' or 'layer': the other arithmetic (bias only if there is one)
    input_norm_kind: str = ""
    score_scale: float = 1.0  #: on top of 1 / sqrt(head_dim) (low rank: of head_dim + rope_dim)
    mask: str = "causal"  #: 'causal', 'none', 'shifted' (a token sees the one after it)
    rope_interleaved: bool = False  #: pairs (0, 1), (2, 3), ... in place of the two halves
    position_offset: int = 0  #: added to the positions, of RoPE or learned
    #: '' as the model has it: silu, or gelu in the tanh form; 'silu', 'gelu_tanh', 'gelu_erf',
    #: 'relu'
    activation: str = ""
    softmax_half: bool = False  #: softmax computed in float16
    softmax_axis: int = -1
    #: 'float16' or 'bfloat16': the mlp of this layer runs in it (inputs and weights cast, result
    #: cast back)
    compute: str = ""
    #: on the attention output; a fixed mask from ``Model.dropout_mask``, as 1 / (1 - p) scaled
    dropout: float = 0.0
    no_bias: str = ""  #: name of a linear layer whose bias is left out: 'q', 'o', 'up', 'down'
    double_bias: str = ""  #: name of a linear layer whose bias is added twice
    #: 'before': x + f(norm(x)); 'after': norm(x) + f(norm(x)), for the mlp
    residual: str = "before"
    residual_scale: float = 1.0  #: on the attention output before it is added
    #: no gradient through: 'gate' (activated), 'attention' (its output), 'k', 'router'
    detached: str = ""
    #: of the gradient that flows back through the mlp output; forward is unchanged
    gradient_scale: float = 1.0
    #: factor of the gradient of the second norm's weight; its input's is unchanged
    norm_gradient: float = 1.0
    normalise_router: bool = True  #: the top-k weights sum to one
    router_sigmoid: bool = False  #: sigmoid scores in place of softmax
    #: > 0: an expert takes so many tokens (in order), the rest get nothing from it
    capacity: int = 0
    missing_expert: int = -1  #: contributes nothing
    expert_order: tuple[int, ...] = ()  #: the expert that stands in for expert E, by E
    norm_momentum: float = 0.1  #: ResNet: irrelevant to the forward pass in training
    stage_eps: float = 1e-5  #: ResNet: of both batch norms of the stage


#: Update rules that both recording scripts know. 'adam_weight_decay' is AdamW without bias
#: correction, 'assign_sub' the plain gradient step, on MindSpore's side without an operator for it.
OPTIMIZERS = ("adamw", "adam", "adam_weight_decay", "momentum", "sgd", "assign_sub")
#: Those whose step has the size of the gradient. They are used with learning rates around 0.05, not
#: 0.001.
GRADIENT_STEPS = ("momentum", "sgd", "assign_sub")
GRADIENT_STEP_FACTOR = 50.0


@dataclass(frozen=True)
class Optimizer:
    """The rule of the one step that is recorded when a case asks for it."""

    kind: str = "adamw"  #: one of OPTIMIZERS
    learning_rate: float = 1e-3
    eps: float = 1e-8
    bias_correction: bool = True
    weight_decay: float = 0.01
    decay_all: bool = False  #: biases and norms too (else only matrices)
    clip: float = 1.0  #: global norm; 0 for none
    norm_factor: float = 1.0  #: the global norm is taken for so many times as large
    gradient_factor: float = 1.0  #: gradients are multiplied by it before clipping
    beta2: float = 0.999
    #: 'matrices' or 'vectors': the weights that the following rules are for
    group: str = ""
    group_rate: float = 1.0  #: factor of their learning rate
    group_decay: float = 1.0  #: factor of their weight decay
    group_beta2: float = 0.0  #: their beta2, 0 for the one of all weights
    group_clipped: bool = True  #: their gradients are clipped

    def is_in_group(self, n_dimensions: int) -> bool:
        """Return whether a weight of so many dimensions is in the group."""
        return self.group == ("matrices" if n_dimensions > 1 else "vectors")

    def get_rate(self, n_dimensions: int) -> float:
        """Return the learning rate of a weight."""
        rate = self.learning_rate
        if self.kind in GRADIENT_STEPS:
            rate *= GRADIENT_STEP_FACTOR
        return rate * (self.group_rate if self.is_in_group(n_dimensions) else 1)

    def get_decay(self, n_dimensions: int) -> float:
        """Return the weight decay of a weight: of matrices, unless the rule says of all."""
        if not self.decay_all and n_dimensions == 1:
            return 0.0
        return self.weight_decay * (self.group_decay if self.is_in_group(n_dimensions) else 1)

    def get_beta2(self, n_dimensions: int) -> float:
        """Return the decay rate of a weight's second moment."""
        is_changed = self.group_beta2 and self.is_in_group(n_dimensions)
        return self.group_beta2 if is_changed else self.beta2

    def is_clipped(self, n_dimensions: int) -> bool:
        """Return whether the gradient of a weight is clipped."""
        return self.group_clipped or not self.is_in_group(n_dimensions)


@dataclass(frozen=True)
class Model:
    """Everything a recording script needs."""

    name: str
    size: Size
    layers: tuple[Layer, ...]
    weights: Mapping[str, np.ndarray]
    rope_theta: float = 10000.0
    rope_half: bool = False  #: inverse frequencies rounded to bfloat16
    final_eps: float = 1e-5
    #: weight that the head uses in place of its own ('embedding.weight': tied by mistake)
    head_from: str = ""
    #: 'tokens': mean over tokens that are no padding; 'all': padding counts too; 'sum'; 'twice'
    loss: str = "tokens"
    #: (the vocabulary counted twice in the log-sum-exp: cross entropy of the logits joined with
    #: themselves); 'fewer' (the mask lost two tokens more, ``batch`` sees to that)
    loss_scale: float = 1.0
    label_shift: int = 1  #: labels are the tokens moved by so many
    batch_order: tuple[int, ...] = ()  #: of the sequences, () as they come
    optimizer: Optimizer = field(default_factory=Optimizer)

    def rope(self, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
        """Return cosine and sine (seq, dim), float32, the pairs' angles repeated in both halves.

        For interleaved pairs a net takes cos[:, :dim/2] of them, each repeated twice in a row.
        """
        size = self.size
        half = (size.rope_dim or size.head_dim) // 2
        frequencies = (self.rope_theta ** (-np.arange(half) / half)).astype(np.float32)
        if self.rope_half:
            frequencies = round_bfloat16(frequencies)
        angles = np.outer(np.arange(size.seq) + layer.position_offset, frequencies)
        angles = np.concatenate([angles, angles], axis=1)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def mask(self, layer: Layer) -> np.ndarray:
        """Return (seq, seq) bool, true where a query (row) must not attend."""
        seq = self.size.seq
        if layer.mask == "none":
            return np.zeros((seq, seq), dtype=bool)
        return np.triu(np.ones((seq, seq), dtype=bool), 2 if layer.mask == "shifted" else 1)

    def dropout_mask(self, layer: Layer) -> np.ndarray:
        """Return (batch, seq, hidden) float32: 0 or 1 / (1 - p)."""
        rng = np.random.default_rng(self.size.seed + 7)
        is_kept = rng.random((self.size.batch, self.size.seq, self.size.hidden)) >= layer.dropout
        return (is_kept / (1 - layer.dropout)).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens and labels, int32 (batch, seq), and the loss mask, float32 (batch, seq).

        The mask is 0 on padding.
        """
        size = self.size
        rng = np.random.default_rng(size.seed + 1)
        tokens = rng.integers(0, size.vocab, (size.batch, size.seq + 2)).astype(np.int32)
        mask = np.ones((size.batch, size.seq), dtype=np.float32)
        mask[:, size.seq - size.padding :] = 0
        if self.loss == "all":
            mask[:] = 1
        if self.loss == "fewer":
            mask[:, :2] = 0
        order = list(self.batch_order or range(size.batch))
        labels = tokens[:, self.label_shift : self.label_shift + size.seq]
        return tokens[order, : size.seq].copy(), labels[order].copy(), mask

    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a ResNet's batch: images float32 (batch, 3, image, image), labels int32."""
        size = self.size
        rng = np.random.default_rng(size.seed + 1)
        images = rng.standard_normal((size.batch, 3, size.image, size.image)).astype(np.float32)
        order = list(self.batch_order or range(size.batch))
        return images[order], rng.integers(0, size.vocab, size.batch).astype(np.int32)[order]

    def fused(
        self, layer: int, projection: str, kind: str = "weight", within: str = "mlp"
    ) -> np.ndarray:
        """Return a fused weight or bias of a layer.

        ``projection`` is 'qkv' (per query group: its queries, then k, then v, as in Megatron-core)
        or 'gate_up' (one after the other). ``kind`` is 'weight' or 'bias'. ``within`` names the
        block that holds gate and up: 'mlp' or 'mlp.experts.E'.
        """
        prefix, size = f"layers.{layer}.", self.size
        if projection == "gate_up":
            return np.concatenate(
                [self.weights[f"{prefix}{within}.{name}.{kind}"] for name in ("gate", "up")]
            )
        parts = [self.weights[f"{prefix}attention.{name}.{kind}"] for name in "qkv"]
        split = [part.reshape(size.kv_heads, -1, size.head_dim, *part.shape[1:]) for part in parts]
        return np.concatenate(split, axis=1).reshape(-1, *parts[0].shape[1:])


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


#: Llama-like; GPT-2-like; grouped queries; mixture of experts; low-rank attention; images.
MODELS: Mapping[str, Size] = {
    "llama": Size(layers=3),
    "gpt2": Size(
        norm="layer", positions="learned", mlp="gelu", bias=True, tied=True, ffn=160, seed=12
    ),
    "gqa": Size(hidden=64, heads=8, kv_heads=2, ffn=144, seed=13),
    "moe": Size(mlp="experts", experts=4, ffn=56, seq=16, seed=14),
    "mla": Size(q_rank=24, kv_rank=20, rope_dim=8, seed=15),
    "resnet": Size(
        layers=3,
        hidden=12,
        vocab=10,
        image=16,
        batch=4,
        norm="batch",
        mlp="",
        positions="",
        seed=16,
    ),
}


def build_clean(name: str) -> Model:
    """Return a model of MODELS without a fault.

    Norm weights are near one but not equal to it: tensors of ones are no evidence for a pair.
    """
    size = MODELS[name]
    rng = np.random.default_rng(size.seed)
    weights: dict[str, np.ndarray] = {}

    def add_matrix(name: str, *shape: int) -> None:
        fan_in = int(np.prod(shape[1:]))
        weights[name] = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    def add_bias(name: str, length: int) -> None:
        weights[name] = (0.1 * rng.standard_normal(length)).astype(np.float32)

    def add_norm(name: str, length: int) -> None:
        weights[f"{name}.weight"] = (1 + 0.1 * rng.standard_normal(length)).astype(np.float32)
        if size.norm != "rms":
            add_bias(f"{name}.bias", length)

    if size.image:
        _build_resnet(size, add_matrix, add_bias, add_norm)
    else:
        _build_decoder(size, weights, rng, add_matrix, add_bias, add_norm)
    return Model(name, size, (Layer(),) * size.layers, weights)


def _build_resnet(size: Size, add_matrix, add_bias, add_norm) -> None:
    """Add a stem, stages, and a linear head after the mean.

    A stage has two 3x3 convolutions and a 1x1 shortcut; channels double, the stride is 2.
    """
    width = size.hidden
    add_matrix("stem.weight", width, 3, 3, 3)
    add_norm("stem_norm", width)
    for stage in range(size.layers):
        prefix, wider = f"stages.{stage}.", width * 2
        add_matrix(prefix + "conv1.weight", wider, width, 3, 3)
        add_norm(prefix + "norm1", wider)
        add_matrix(prefix + "conv2.weight", wider, wider, 3, 3)
        add_norm(prefix + "norm2", wider)
        add_matrix(prefix + "short.weight", wider, width, 1, 1)
        width = wider
    add_matrix("head.weight", size.vocab, width)
    add_bias("head.bias", size.vocab)


def _build_decoder(size: Size, weights, rng, add_matrix, add_bias, add_norm) -> None:
    # a tied head with unit rows would make logits that are too certain
    deviation = 0.25 if size.tied else 1.0
    weights["embedding.weight"] = (
        deviation * rng.standard_normal((size.vocab, size.hidden))
    ).astype(np.float32)
    if size.positions == "learned":
        weights["position.weight"] = (
            0.3 * rng.standard_normal((size.seq + 4, size.hidden))
        ).astype(np.float32)
    for n in range(size.layers):
        prefix = f"layers.{n}."
        add_norm(prefix + "input_norm", size.hidden)
        if size.q_rank:
            wide = size.heads * (size.head_dim + size.rope_dim)
            add_matrix(prefix + "attention.q_a.weight", size.q_rank, size.hidden)
            add_norm(prefix + "attention.q_norm", size.q_rank)
            add_matrix(prefix + "attention.q_b.weight", wide, size.q_rank)
            add_matrix(prefix + "attention.kv_a.weight", size.kv_rank + size.rope_dim, size.hidden)
            add_norm(prefix + "attention.kv_norm", size.kv_rank)
            add_matrix(
                prefix + "attention.kv_b.weight", size.heads * 2 * size.head_dim, size.kv_rank
            )
            add_matrix(prefix + "attention.o.weight", size.hidden, size.hidden)
        else:
            rows = {
                "q": size.hidden,
                "k": size.kv_heads * size.head_dim,
                "v": size.kv_heads * size.head_dim,
                "o": size.hidden,
            }
            for name, count in rows.items():
                add_matrix(f"{prefix}attention.{name}.weight", count, size.hidden)
                if size.bias:
                    add_bias(f"{prefix}attention.{name}.bias", count)
        add_norm(prefix + "post_norm", size.hidden)
        _build_mlp(size, prefix + "mlp.", add_matrix, add_bias)
    add_norm("norm", size.hidden)
    if not size.tied:
        add_matrix("head.weight", size.vocab, size.hidden)


def _build_mlp(size: Size, prefix: str, add_matrix, add_bias) -> None:
    if size.mlp == "gelu":
        for name, rows, columns in (("up", size.ffn, size.hidden), ("down", size.hidden, size.ffn)):
            add_matrix(f"{prefix}{name}.weight", rows, columns)
            add_bias(f"{prefix}{name}.bias", rows)
        return
    inner = [f"{prefix}experts.{e}." for e in range(size.experts)] or [prefix]
    if size.experts:
        add_matrix(prefix + "router.weight", size.experts, size.hidden)
    for expert_prefix in inner:
        add_matrix(expert_prefix + "gate.weight", size.ffn, size.hidden)
        add_matrix(expert_prefix + "up.weight", size.ffn, size.hidden)
        add_matrix(expert_prefix + "down.weight", size.hidden, size.ffn)


def replace_layer(model: Model, n: int, **changes: object) -> Model:
    """Return the model with changed knobs of one layer."""
    layers = list(model.layers)
    layers[n] = replace(layers[n], **changes)
    return replace(model, layers=tuple(layers))
