"""A contrastive model (https://arxiv.org/abs/2103.00020, section 2) in NumPy: sizes, knobs,
weights and batch.

Images go through a small ConvNeXt (https://arxiv.org/abs/2201.03545, section 2), texts through a
causal transformer with quick gelu, x * sigmoid(1.702 x). The feature of a text is that of its last
token, the largest of the vocabulary; padding after it is 0. Weights:

    image.stem                        4x4 convolution of stride 4 with bias
    image.stem_norm, image.norm       layer norms of the channels
    image.blocks.N.: depthwise (IMAGE_WIDTH, 1, KERNEL, KERNEL), norm, up, down, scale
    image.projection                  (EMBED, IMAGE_WIDTH) without bias
    text.embedding, text.positions
    text.layers.N.: norm1, attention.{q,k,v,o}, norm2, mlp.{up,down}      all with bias
    text.norm, text.projection (EMBED, TEXT_WIDTH) without bias
    logit_scale                       () the logarithm of the factor of the similarities
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, IMAGE, PATCH, IMAGE_WIDTH, KERNEL, BLOCKS = 6, 32, 4, 24, 7, 2
VOCAB, SEQ, TEXT_WIDTH, HEADS, LAYERS, EMBED = 50, 10, 32, 4, 2, 32
HEAD_DIM = TEXT_WIDTH // HEADS
TEXT_LENGTHS = (10, 7, 8, 5, 9, 6)
END = VOCAB - 1  #: last token of a text
IMAGE_EPS, TEXT_EPS = 1e-6, 1e-5  #: of the layer norms
SEED = 61


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of a block are those of the last one of its tower.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'names' (PyTorch): Hugging Face's modules, with q, k and v
    #: apart; 'written' (PyTorch): attention, normalization and loss in plain arithmetic;
    #: 'channels_first' (MindSpore): blocks of images without transpositions; 'joined' (MindSpore):
    #: one projection for q, k and v, norms of features and both losses from other operators
    variant: str = ""
    image_eps: float = IMAGE_EPS  #: of the last norm of the images
    is_mask_causal: bool = True  #: in the last layer of the texts
    #: the rows of q, k and v in a fused projection: 'parts', or head by head, 'heads'
    fused_rows: str = "parts"
    activation: str = "quick_gelu"  #: of the texts, in all layers; or 'gelu'
    text_pooling: str = "end"  #: token that stands for a text: that of the end, or 'last' of all
    normalized_axis: int = -1  #: of the features of images and texts
    is_scale_exponential: bool = True  #: similarities are multiplied by exp(logit_scale)
    text_length: int = 2  #: order of the norm that features of texts are divided by
    is_text_scaled: bool = True  #: the similarities of the texts' loss are multiplied, too
    are_similarities_half: bool = False  #: similarities in float16
    are_gathered_detached: bool = False  #: no gradient to the images that texts are compared with
    loss_share: float = 0.5  #: of the losses of images and of texts in their sum
    label_offset: int = 0  #: added to the number of the text that belongs to an image
    are_images_normalized: bool = True  #: features of images are divided by their length
    is_text_loss_transposed: bool = True  #: the loss of texts reads similarities text by text
    text_gradient: float = 1.0  #: the gradient of the texts' features is multiplied by it
    is_pooled_first: bool = True  #: the last norm of the images reads their mean, not their cells
    are_images_reversed: bool = False  #: the channels of images are blue, green, red
    is_residual_normed: bool = False  #: the texts' mlp is added to what its norm returns
    is_query_scaled_twice: bool = False  #: in the last layer of the texts, by 1 / sqrt(HEAD_DIM)
    has_output_bias: bool = True  #: of the attention in the last layer of the texts
    text_heads: int = HEADS  #: of the attention in all layers of the texts
    sigmoid_gradient: float = 1.0  #: what goes into quick gelu's sigmoid gets its gradient times it

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, float32 (batch, 3, IMAGE, IMAGE), and tokens, int32 (batch, SEQ)."""
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
        tokens = rng.integers(1, END, (BATCH, SEQ)).astype(np.int32)
        for row, length in zip(tokens, TEXT_LENGTHS, strict=True):
            row[length - 1] = END
            row[length:] = 0
        if self.are_images_reversed:
            images = np.ascontiguousarray(images[:, ::-1])
        return images, tokens


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("image.stem", IMAGE_WIDTH, 3, PATCH, PATCH)
    weights.add_norm("image.stem_norm", IMAGE_WIDTH)
    for n in range(BLOCKS):
        path = f"image.blocks.{n}"
        weights.add_linear(f"{path}.depthwise", IMAGE_WIDTH, 1, KERNEL, KERNEL)
        weights.add_norm(f"{path}.norm", IMAGE_WIDTH)
        weights.add_linear(f"{path}.up", 4 * IMAGE_WIDTH, IMAGE_WIDTH)
        weights.add_linear(f"{path}.down", IMAGE_WIDTH, 4 * IMAGE_WIDTH)
        scale = weights.rng.uniform(0.3, 0.7, IMAGE_WIDTH)
        weights[f"{path}.scale"] = scale.astype(np.float32)
    weights.add_norm("image.norm", IMAGE_WIDTH)
    weights.add_matrix("image.projection", EMBED, IMAGE_WIDTH)
    weights.add_table("text.embedding", VOCAB, TEXT_WIDTH)
    weights.add_table("text.positions", SEQ, TEXT_WIDTH, deviation=0.3)
    for n in range(LAYERS):
        path = f"text.layers.{n}"
        weights.add_norm(f"{path}.norm1", TEXT_WIDTH)
        for projection in "qkvo":
            weights.add_linear(f"{path}.attention.{projection}", TEXT_WIDTH, TEXT_WIDTH)
        weights.add_norm(f"{path}.norm2", TEXT_WIDTH)
        weights.add_linear(f"{path}.mlp.up", 4 * TEXT_WIDTH, TEXT_WIDTH)
        weights.add_linear(f"{path}.mlp.down", TEXT_WIDTH, 4 * TEXT_WIDTH)
    weights.add_norm("text.norm", TEXT_WIDTH)
    weights.add_matrix("text.projection", EMBED, TEXT_WIDTH)
    weights["logit_scale"] = np.array(1.2345, dtype=np.float32)
    return Model("clip", weights)
