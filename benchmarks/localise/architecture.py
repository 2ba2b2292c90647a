"""The models of the benchmark: sizes, knobs, weights and batch, in NumPy, so that two frameworks
start from equal bits.

``MODELS`` holds five decoders and a small ResNet. A :class:`Model` is everything a recording script
needs. A fault turns a knob or changes a weight (see ``faults``); both frameworks' nets obey every
knob, so it can go into either.

Weights are float32, linear ones (out, in), named canonically:

    embedding.weight [position.weight] layers.N.* norm.weight [norm.bias] [head.weight]
    layers.N.: input_norm.weight [.bias], post_norm.weight [.bias]
               attention.{q,k,v,o}.weight [.bias], or, low rank, attention.{q_a,q_b,kv_a,kv_b,o}.weight and
               attention.{q_norm,kv_norm}.weight
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
    """What a model is made of."""

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
    mlp: str = (
        "swiglu"  #: 'swiglu', 'gelu' (two linear layers with bias) or 'experts' (swiglu each)
    )
    bias: bool = False  #: of q, k, v, o and the linear layers of a gelu mlp
    tied: bool = False  #: the head is the embedding
    experts: int = 0
    top_k: int = 2
    q_rank: int = 0  #: > 0: low-rank attention, as DeepSeek's
    kv_rank: int = 0
    rope_dim: int = (
        0  #: low rank: so many of a head's dimensions carry positions, beside head_dim that do not
    )
    padding: int = 3  #: the last so many labels of each sequence are padding: no loss
    image: int = 0  #: ResNet: pixels along an edge; channels are ``hidden``
    seed: int = 11

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Layer:
    """What a decoder layer (or a ResNet stage) computes beyond its weights."""

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
    residual: str = (
        "before"  #: 'before': x + f(norm(x)); 'after': norm(x) + f(norm(x)), for the mlp
    )
    residual_scale: float = 1.0  #: on the attention output before it is added
    detached: str = (
        ""  #: no gradient through: 'gate' (activated), 'attention' (its output), 'k', 'router'
    )
    gradient_scale: float = (
        1.0  #: of the gradient that flows back through the mlp output; forward is unchanged
    )
    norm_gradient: float = (
        1.0  #: factor of the gradient of the second norm's weight; its input's is unchanged
    )
    normalise_router: bool = True  #: the top-k weights sum to one
    router_sigmoid: bool = False  #: sigmoid scores in place of softmax
    capacity: int = (
        0  #: > 0: an expert takes so many tokens (in order), the rest get nothing from it
    )
    missing_expert: int = -1  #: contributes nothing
    expert_order: tuple[int, ...] = ()  #: the expert that stands in for expert E, by E
    norm_momentum: float = 0.1  #: ResNet: irrelevant to the forward pass in training
    stage_eps: float = 1e-5  #: ResNet: of both batch norms of the stage


@dataclass(frozen=True)
class Optimizer:
    """The rule of the one step that is recorded when a case asks for it."""

    kind: str = "adamw"  #: 'adamw' or 'sgd'
    learning_rate: float = 1e-3
    eps: float = 1e-8
    bias_correction: bool = True
    weight_decay: float = 0.01
    decay_all: bool = False  #: biases and norms too (else only matrices)
    clip: float = 1.0  #: global norm; 0 for none
    norm_factor: float = 1.0  #: the global norm is taken for so many times as large
    gradient_factor: float = 1.0  #: gradients are multiplied by it before clipping


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
    head_from: str = (
        ""  #: weight that the head uses in place of its own ('embedding.weight': tied by mistake)
    )
    #: 'tokens': mean over tokens that are no padding; 'all': padding counts too; 'sum'; 'twice'
    loss: str = "tokens"
    #: (the vocabulary counted twice in the log-sum-exp: cross entropy of the logits joined with
    #: themselves); 'fewer' (the mask lost two tokens more, ``batch`` sees to that)
    loss_scale: float = 1.0
    label_shift: int = 1  #: labels are the tokens moved by so many
    batch_order: tuple[int, ...] = ()  #: of the sequences, () as they come
    optimizer: Optimizer = field(default_factory=Optimizer)

    def rope(self, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine (seq, dim), float32, the angles of the pairs repeated in the two halves.

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
        """(seq, seq) bool, true where a query (row) must not look."""
        seq = self.size.seq
        if layer.mask == "none":
            return np.zeros((seq, seq), dtype=bool)
        return np.triu(np.ones((seq, seq), dtype=bool), 2 if layer.mask == "shifted" else 1)

    def dropout_mask(self, layer: Layer) -> np.ndarray:
        """(batch, seq, hidden) float32: 0 or 1 / (1 - p)."""
        rng = np.random.default_rng(self.size.seed + 7)
        kept = rng.random((self.size.batch, self.size.seq, self.size.hidden)) >= layer.dropout
        return (kept / (1 - layer.dropout)).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, labels, int32 (batch, seq), and the loss mask, float32 (batch, seq), 0 over
        padding.
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
        """ResNet: images float32 (batch, 3, image, image) and class labels int32 (batch,)."""
        size = self.size
        rng = np.random.default_rng(size.seed + 1)
        images = rng.standard_normal((size.batch, 3, size.image, size.image)).astype(np.float32)
        order = list(self.batch_order or range(size.batch))
        return images[order], rng.integers(0, size.vocab, size.batch).astype(np.int32)[order]

    def fused(self, layer: int, what: str, kind: str = "weight", within: str = "mlp") -> np.ndarray:
        """'qkv' per query group as Megatron-core has it (its queries, then k, then v); 'gate_up'
        one after the other.

        ``kind`` is 'weight' or 'bias'; ``within`` names the expert whose gate and up are meant, as
        'mlp.experts.E'.
        """
        at, size = f"layers.{layer}.", self.size
        if what == "gate_up":
            return np.concatenate(
                [self.weights[f"{at}{within}.{name}.{kind}"] for name in ("gate", "up")]
            )
        parts = [self.weights[f"{at}attention.{name}.{kind}"] for name in "qkv"]
        split = [part.reshape(size.kv_heads, -1, size.head_dim, *part.shape[1:]) for part in parts]
        return np.concatenate(split, axis=1).reshape(-1, *parts[0].shape[1:])


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even."""
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


def clean(name: str) -> Model:
    """A model of MODELS without a fault. Norm weights are near, not at, one: all ones carry no
    evidence.
    """
    size = MODELS[name]
    rng = np.random.default_rng(size.seed)
    weights: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int) -> None:
        fan_in = int(np.prod(shape[1:]))
        weights[name] = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    def bias(name: str, length: int) -> None:
        weights[name] = (0.1 * rng.standard_normal(length)).astype(np.float32)

    def norm(name: str, length: int) -> None:
        weights[f"{name}.weight"] = (1 + 0.1 * rng.standard_normal(length)).astype(np.float32)
        if size.norm != "rms":
            bias(f"{name}.bias", length)

    if size.image:
        _build_resnet(size, normal, bias, norm)
    else:
        _build_decoder(size, weights, rng, normal, bias, norm)
    return Model(name, size, (Layer(),) * size.layers, weights)


def _build_resnet(size: Size, normal, bias, norm) -> None:
    """A stem, stages of two 3x3 convolutions with a 1x1 short cut (channels double, stride 2),
    mean, a linear head.
    """
    width = size.hidden
    normal("stem.weight", width, 3, 3, 3)
    norm("stem_norm", width)
    for stage in range(size.layers):
        at, wider = f"stages.{stage}.", width * 2
        normal(at + "conv1.weight", wider, width, 3, 3)
        norm(at + "norm1", wider)
        normal(at + "conv2.weight", wider, wider, 3, 3)
        norm(at + "norm2", wider)
        normal(at + "short.weight", wider, width, 1, 1)
        width = wider
    normal("head.weight", size.vocab, width)
    bias("head.bias", size.vocab)


def _build_decoder(size: Size, weights, rng, normal, bias, norm) -> None:
    deviation = (
        0.25 if size.tied else 1.0
    )  # a tied head of unit rows would make logits that leave no doubt
    weights["embedding.weight"] = (
        deviation * rng.standard_normal((size.vocab, size.hidden))
    ).astype(np.float32)
    if size.positions == "learned":
        weights["position.weight"] = (
            0.3 * rng.standard_normal((size.seq + 4, size.hidden))
        ).astype(np.float32)
    for n in range(size.layers):
        at = f"layers.{n}."
        norm(at + "input_norm", size.hidden)
        if size.q_rank:
            wide = size.heads * (size.head_dim + size.rope_dim)
            normal(at + "attention.q_a.weight", size.q_rank, size.hidden)
            norm(at + "attention.q_norm", size.q_rank)
            normal(at + "attention.q_b.weight", wide, size.q_rank)
            normal(at + "attention.kv_a.weight", size.kv_rank + size.rope_dim, size.hidden)
            norm(at + "attention.kv_norm", size.kv_rank)
            normal(at + "attention.kv_b.weight", size.heads * 2 * size.head_dim, size.kv_rank)
            normal(at + "attention.o.weight", size.hidden, size.hidden)
        else:
            rows = {
                "q": size.hidden,
                "k": size.kv_heads * size.head_dim,
                "v": size.kv_heads * size.head_dim,
                "o": size.hidden,
            }
            for name, count in rows.items():
                normal(f"{at}attention.{name}.weight", count, size.hidden)
                if size.bias:
                    bias(f"{at}attention.{name}.bias", count)
        norm(at + "post_norm", size.hidden)
        _build_mlp(size, at + "mlp.", normal, bias)
    norm("norm", size.hidden)
    if not size.tied:
        normal("head.weight", size.vocab, size.hidden)


def _build_mlp(size: Size, at: str, normal, bias) -> None:
    if size.mlp == "gelu":
        for name, rows, columns in (("up", size.ffn, size.hidden), ("down", size.hidden, size.ffn)):
            normal(f"{at}{name}.weight", rows, columns)
            bias(f"{at}{name}.bias", rows)
        return
    inner = [f"{at}experts.{e}." for e in range(size.experts)] or [at]
    if size.experts:
        normal(at + "router.weight", size.experts, size.hidden)
    for prefix in inner:
        normal(prefix + "gate.weight", size.ffn, size.hidden)
        normal(prefix + "up.weight", size.ffn, size.hidden)
        normal(prefix + "down.weight", size.hidden, size.ffn)


def with_layer(model: Model, n: int, **changes: object) -> Model:
    """The model with knobs of one layer turned."""
    layers = list(model.layers)
    layers[n] = replace(layers[n], **changes)
    return replace(model, layers=tuple(layers))
