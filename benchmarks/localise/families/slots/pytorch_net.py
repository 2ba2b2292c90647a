"""An object-centric video model in PyTorch; attention is (batch, slots, cells).

Variant 'fused': other names, one layer for keys and values, the predictor as PyTorch's transformer
layer, coordinates through a convolution, frames encoded and decoded one by one, losses of log
softmax.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.slots.architecture import (
    BATCH,
    BOX_WEIGHT,
    CELLS,
    CHANNELS,
    CLASS_WEIGHT,
    CLASSES,
    COLORS,
    DECODER_GRID,
    DELTA,
    ENTROPY_WEIGHT,
    EPS,
    FRAMES,
    GRID,
    HEAD_DIM,
    HEADS,
    HEIGHT,
    HIDDEN,
    IGNORE,
    ITERATIONS,
    MASK_WEIGHT,
    OBJECTS,
    SLOT,
    SLOTS,
    TINY,
    WIDTH,
    Model,
)

CELL_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else SAViLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return torch.cat([torch.from_numpy(model.weights[name]) for name in names]).clone()


def load(layer: nn.Module, model: Model, *paths: str) -> nn.Module:
    """Return a layer with the weights of a path, or of several ones of the same input."""
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(read(model, *(f"{path}.{name}" for path in paths)))
    return layer


def load_linear(model: Model, *paths: str) -> nn.Linear:
    """Return a linear layer, or several ones of the same input as one."""
    n_out, n_in = read(model, *(f"{path}.weight" for path in paths)).shape
    return load(nn.Linear(n_in, n_out, bias=f"{paths[0]}.bias" in model.weights), model, *paths)


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path."""
    n_out, n_in, kernel, _ = model.weights[f"{path}.weight"].shape
    return load(nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2), model, path)


def load_deconv(model: Model, path: str) -> nn.ConvTranspose2d:
    """Return the transposed convolution at a path, which doubles a grid."""
    n_in, n_out, kernel, _ = model.weights[f"{path}.weight"].shape
    return load(nn.ConvTranspose2d(n_in, n_out, kernel, 2, padding=1), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


def load_mlp(model: Model, first: str, second: str) -> nn.Sequential:
    """Return two linear layers around ReLU."""
    return nn.Sequential(load_linear(model, first), nn.ReLU(), load_linear(model, second))


class PositionalEmbedding(nn.Module):
    """Coordinates behind a linear layer, added to (batch, channels, rows, columns)."""

    def __init__(self, model: Model, path: str, grid: tuple[int, int]) -> None:
        super().__init__()
        self.dense = load_linear(model, path)
        self.register_buffer("grid", torch.from_numpy(model.coordinates(grid))[None])

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.dense(self.grid).permute(0, 3, 1, 2)


class Encoder(nn.Module):
    """Features (images, CELLS, CHANNELS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            load_conv(model, "encoder.0", 2),
            nn.ReLU(),
            load_conv(model, "encoder.1"),
            nn.ReLU(),
            load_conv(model, "encoder.2"),
            nn.ReLU(),
        )
        self.encoder_pos_embedding = PositionalEmbedding(model, "encoder.position", GRID)
        norm = load_norm(model, "encoder.norm")
        self.encoder_out_layer = nn.Sequential(norm, *load_mlp(model, "encoder.up", "encoder.down"))

    def forward(self, img: Tensor) -> Tensor:
        out = self.encoder_pos_embedding(self.encoder(img))
        return self.encoder_out_layer(out.flatten(2).transpose(1, 2))


class SlotAttention(nn.Module):
    """Slots (batch, SLOTS, SLOT) behind some iterations, and the last attention."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm_inputs = load_norm(model, "attention.input_norm")
        self.norm_slots = load_norm(model, "attention.slot_norm")
        self.norm_mlp = load_norm(model, "attention.mlp_norm")
        self.to_q = load_linear(model, "attention.q")
        self.to_k = load_linear(model, "attention.k")
        self.to_v = load_linear(model, "attention.v")
        self.gru = load(nn.GRUCell(SLOT, SLOT), model, "attention.gru")
        self.mlp = load_mlp(model, "attention.up", "attention.down")
        self.scale = SLOT**-0.5
        self.is_cell_exchanged = model.is_cell_exchanged

    def forward(self, inputs: Tensor, slots: Tensor, n_iters: int) -> tuple[Tensor, Tensor]:
        inputs = self.norm_inputs(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        for _ in range(n_iters):
            slots_prev = slots.reshape(-1, SLOT)
            q = self.to_q(self.norm_slots(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=1) + TINY
            weights = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, weights).reshape(-1, SLOT)
            if self.is_cell_exchanged:
                slots = self.gru(slots_prev, updates)
            else:
                slots = self.gru(updates, slots_prev)
            slots = slots.reshape(-1, SLOTS, SLOT)
            slots = slots + self.mlp(self.norm_mlp(slots))
        return slots, attn


class TransformerPredictor(nn.Module):
    """A transformer layer between slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            load_linear(model, f"predictor.{name}") for name in ("q", "k", "v", "out")
        )
        self.norm1 = load_norm(model, "predictor.attention_norm")
        self.ffn = load_mlp(model, "predictor.up", "predictor.down")
        self.norm2 = load_norm(model, "predictor.mlp_norm")

    def forward(self, slots: Tensor) -> Tensor:
        q, k, v = (
            layer(slots).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn = torch.softmax(q @ k.transpose(-2, -1) * HEAD_DIM**-0.5, dim=-1)
        context = (attn @ v).transpose(1, 2).flatten(2)
        slots = self.norm1(slots + self.out_proj(context))
        return self.norm2(slots + self.ffn(slots))


class Decoder(nn.Module):
    """Colors and alpha logits, (images, SLOTS, channels, HEIGHT, WIDTH), of slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.decoder_pos_embedding = PositionalEmbedding(model, "decoder.position", DECODER_GRID)
        self.decoder = nn.Sequential(
            load_deconv(model, "decoder.0"),
            nn.ReLU(),
            load_deconv(model, "decoder.1"),
            nn.ReLU(),
            load_conv(model, "decoder.2"),
        )

    def forward(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        broadcast = slots.reshape(-1, SLOT, 1, 1).repeat(1, 1, *DECODER_GRID)
        out = self.decoder(self.decoder_pos_embedding(broadcast))
        return out.unflatten(0, (-1, SLOTS)).split([COLORS, 1], dim=2)


class SetCriterion(nn.Module):
    """Losses of masks, boxes and classes of slots that are matched with objects."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("empty_weight", torch.from_numpy(model.class_weights()))
        self.are_ignored_counted = model.are_ignored_counted

    def loss_masks(self, alpha: Tensor, objects: Tensor, indices: Tensor) -> Tensor:
        """Return the cross entropy of alpha logits (batch, SLOTS, HEIGHT, WIDTH)."""
        target = indices.gather(1, objects.flatten(1).clamp(min=0)).view_as(objects)
        if not self.are_ignored_counted:
            target = target.masked_fill(objects == IGNORE, IGNORE)
        return F.cross_entropy(alpha, target, ignore_index=IGNORE)

    def loss_boxes(self, boxes: Tensor, targets: Tensor, indices: Tensor, valid: Tensor) -> Tensor:
        """Return the Huber loss of boxes (batch, FRAMES, SLOTS, 4)."""
        index = indices[:, None, :, None].expand(-1, FRAMES, -1, 4)
        losses = F.huber_loss(boxes.gather(2, index), targets, reduction="none", delta=DELTA)
        return (losses * valid[:, None, :, None]).sum() / (FRAMES * valid.sum())

    def loss_labels(self, logits: Tensor, labels: Tensor, indices: Tensor, valid: Tensor) -> Tensor:
        """Return the cross entropy of classes (batch, FRAMES, SLOTS, CLASSES + 1)."""
        target = torch.full((BATCH, SLOTS + 1), CLASSES, device=labels.device)
        target = target.scatter(1, indices.masked_fill(~valid, SLOTS), labels)[:, None, :SLOTS]
        target = target.expand(-1, FRAMES, -1)
        return F.cross_entropy(logits.flatten(0, 2), target.flatten(), self.empty_weight)


class SAViLoss(nn.Module):
    """Reconstruction, masks, boxes, classes and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = Encoder(model)
        self.slots_mu = nn.Parameter(read(model, "slots.mean"))
        self.slots_logsigma = nn.Parameter(read(model, "slots.log_deviation"))
        self.slot_attention = SlotAttention(model)
        self.predictor = TransformerPredictor(model)
        self.decoder = Decoder(model)
        self.bbox_embed = load_mlp(model, "box.hidden", "box.out")
        self.class_embed = load_linear(model, "class")
        self.criterion = SetCriterion(model)
        self.are_frames_first = model.are_frames_first
        self.are_slots_detached = model.are_slots_detached

    def encode(self, video: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return slots (batch, FRAMES, SLOTS, SLOT) and the mean entropy of attention."""
        features = self.encoder(video.flatten(0, 1))
        if self.are_frames_first:
            features = features.view(FRAMES, BATCH, CELLS, CHANNELS)
        else:
            features = features.view(BATCH, FRAMES, CELLS, CHANNELS).transpose(0, 1)
        slots = self.slots_mu + self.slots_logsigma.exp() * noise
        all_slots, entropies = [], []
        for t in range(FRAMES):
            if t > 0:
                slots = self.predictor(slots.detach() if self.are_slots_detached else slots)
            slots, attn = self.slot_attention(features[t], slots, ITERATIONS[t])
            all_slots.append(slots)
            entropies.append(-(attn * attn.log()).sum(dim=1).mean())
        return torch.stack(all_slots, 1), torch.stack(entropies).mean()

    def forward(
        self,
        video: Tensor,
        noise: Tensor,
        objects: Tensor,
        boxes: Tensor,
        labels: Tensor,
        indices: Tensor,
        counts: Tensor,
    ) -> Tensor:
        slots, entropy = self.encode(video, noise)
        recons, masks = self.decoder(slots)
        recon_combined = (recons * masks.softmax(dim=1)).sum(dim=1)
        alpha = masks.view(BATCH, FRAMES, SLOTS, HEIGHT, WIDTH)[:, -1]
        valid = torch.arange(OBJECTS, device=counts.device) < counts[:, None]

        loss = F.mse_loss(recon_combined.view_as(video), video)
        loss = loss + MASK_WEIGHT * self.criterion.loss_masks(alpha, objects, indices)
        pred_boxes, pred_logits = self.bbox_embed(slots).sigmoid(), self.class_embed(slots)
        box_loss = self.criterion.loss_boxes(pred_boxes, boxes, indices, valid)
        class_loss = self.criterion.loss_labels(pred_logits, labels, indices, valid)
        loss = loss + BOX_WEIGHT * box_loss + CLASS_WEIGHT * class_loss
        return loss + ENTROPY_WEIGHT * entropy


class GridEmbedding(nn.Module):
    """Coordinates through a convolution of kernel 1."""

    def __init__(self, model: Model, path: str, grid: tuple[int, int]) -> None:
        super().__init__()
        weight = read(model, f"{path}.weight")[:, :, None, None]
        self.proj = nn.Conv2d(4, len(weight), 1)
        self.proj.weight.data.copy_(weight)
        self.proj.bias.data.copy_(read(model, f"{path}.bias"))
        coordinates = torch.from_numpy(model.coordinates(grid)).permute(2, 0, 1)[None]
        self.register_buffer("coordinates", coordinates.contiguous())

    def forward(self) -> Tensor:
        return self.proj(self.coordinates)


class Competition(nn.Module):
    """Slot attention with one layer for keys and values, and a cell from linear functions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ln_in, self.ln_slot, self.ln_ff = (
            load_norm(model, f"attention.{name}_norm") for name in ("input", "slot", "mlp")
        )
        self.kv = load_linear(model, "attention.k", "attention.v")
        self.query = load_linear(model, "attention.q")
        self.cell = nn.ParameterDict(
            {name: nn.Parameter(read(model, f"attention.gru.{name}")) for name in CELL_NAMES}
        )
        self.ff = load_mlp(model, "attention.up", "attention.down")

    def update(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the state of the cell."""
        x_reset, x_update, x_new = F.linear(x, self.cell["weight_ih"], self.cell["bias_ih"]).chunk(
            3, -1
        )
        h_reset, h_update, h_new = F.linear(h, self.cell["weight_hh"], self.cell["bias_hh"]).chunk(
            3, -1
        )
        new = torch.addcmul(x_new, torch.sigmoid(x_reset + h_reset), h_new).tanh()
        return torch.lerp(new, h, torch.sigmoid(x_update + h_update))

    def forward(self, x: Tensor, slots: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        key, value = self.kv(self.ln_in(x)).chunk(2, -1)
        for _ in range(iterations):
            query = self.query(self.ln_slot(slots)) * SLOT**-0.5
            attention = F.softmax(torch.bmm(key, query.transpose(1, 2)), dim=-1) + TINY
            shares = F.normalize(attention, p=1.0, dim=1)
            slots = self.update(torch.bmm(shares.transpose(1, 2), value), slots)
            slots = slots + self.ff(self.ln_ff(slots))
        return slots, attention


def build_transformer_layer(model: Model) -> nn.TransformerEncoderLayer:
    """Return PyTorch's layer with the weights of the predictor."""
    layer = nn.TransformerEncoderLayer(
        SLOT, HEADS, HIDDEN, dropout=0.0, layer_norm_eps=EPS, batch_first=True
    )
    for kind in ("weight", "bias"):
        joined = getattr(layer.self_attn, f"in_proj_{kind}")
        joined.data.copy_(read(model, *(f"predictor.{name}.{kind}" for name in "qkv")))
    load(layer.self_attn.out_proj, model, "predictor.out")
    load(layer.linear1, model, "predictor.up")
    load(layer.linear2, model, "predictor.down")
    load(layer.norm1, model, "predictor.attention_norm")
    load(layer.norm2, model, "predictor.mlp_norm")
    return layer


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = load_conv(model, "encoder.0", 2)
        self.conv1, self.conv2 = load_conv(model, "encoder.1"), load_conv(model, "encoder.2")
        self.grid = GridEmbedding(model, "encoder.position", GRID)
        self.ln = load_norm(model, "encoder.norm")
        self.project = load_mlp(model, "encoder.up", "encoder.down")
        self.mean = nn.Parameter(read(model, "slots.mean"))
        self.log_std = nn.Parameter(read(model, "slots.log_deviation"))
        self.competition = Competition(model)
        self.transition = build_transformer_layer(model)
        self.canvas = GridEmbedding(model, "decoder.position", DECODER_GRID)
        self.up1, self.up2 = load_deconv(model, "decoder.0"), load_deconv(model, "decoder.1")
        self.to_rgba = load_conv(model, "decoder.2")
        self.box_hidden = load_linear(model, "box.hidden")
        self.box_out = load_linear(model, "box.out")
        self.label_out = load_linear(model, "class")
        self.register_buffer("label_weights", torch.from_numpy(model.class_weights()))

    def embed(self, image: Tensor) -> Tensor:
        """Return features (batch, CELLS, CHANNELS)."""
        x = F.relu(self.conv2(F.relu(self.conv1(F.relu(self.stem(image))))))
        return self.project(self.ln((x + self.grid()).flatten(2).mT))

    def paint(self, slots: Tensor) -> Tensor:
        """Return colors and alpha logits (batch, SLOTS, COLORS + 1, HEIGHT, WIDTH)."""
        x = slots.flatten(0, 1)[:, :, None, None] + self.canvas()
        x = self.to_rgba(F.relu(self.up2(F.relu(self.up1(x)))))
        return x.view(BATCH, SLOTS, COLORS + 1, HEIGHT, WIDTH)

    def forward(
        self,
        video: Tensor,
        noise: Tensor,
        objects: Tensor,
        boxes: Tensor,
        labels: Tensor,
        slot_of: Tensor,
        counts: Tensor,
    ) -> Tensor:
        sample, number = (torch.arange(OBJECTS) < counts[:, None]).nonzero(as_tuple=True)
        slot = slot_of[sample, number]
        label = torch.full((BATCH, SLOTS), CLASSES).index_put(
            (sample, slot), labels[sample, number]
        )

        slots = torch.addcmul(self.mean, self.log_std.exp(), noise)
        losses = []
        for t, image in enumerate(video.unbind(1)):
            if t:
                slots = self.transition(slots)
            slots, attention = self.competition(self.embed(image), slots, ITERATIONS[t])
            rgba = self.paint(slots)
            log_alpha = F.log_softmax(rgba[:, :, COLORS], dim=1)
            blend = torch.einsum("bkhw,bkchw->bchw", log_alpha.exp(), rgba[:, :, :COLORS])
            predicted = torch.sigmoid(self.box_out(F.relu(self.box_hidden(slots))))[sample, slot]
            box = F.smooth_l1_loss(predicted, boxes[sample, t, number], reduction="sum", beta=DELTA)
            log_labels = F.log_softmax(self.label_out(slots), dim=-1).flatten(0, 1)
            losses.append(
                (image - blend).square().mean()
                + BOX_WEIGHT * DELTA * box / len(slot)
                + CLASS_WEIGHT * F.nll_loss(log_labels, label.flatten(), self.label_weights)
                + ENTROPY_WEIGHT * torch.special.entr(attention).sum(dim=-1).mean()
            )

        is_labeled = objects >= 0
        index = objects.clamp(min=0)[:, None]
        target = slot_of[:, :, None, None].expand(-1, -1, HEIGHT, WIDTH).gather(1, index)
        mask_losses = log_alpha.gather(1, target)[:, 0][is_labeled]
        return torch.stack(losses).mean() - MASK_WEIGHT * mask_losses.mean()
