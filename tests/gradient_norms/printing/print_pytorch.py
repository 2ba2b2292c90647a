"""Print the small model's gradient norms as PyTorch's users do, and save its gradients.

Arguments: OUT SNIPPET_FOLDER FIXTURES. OUT/printed_patch.txt is the print of the precision guide,
with the optimizer's groups; OUT/printed_lines.txt has lines with names and numbers.
OUT/grads.pt and OUT/fused hold the gradients, the second of the model with fused projections.
"""

from __future__ import annotations

import sys
from pathlib import Path

out, snippets, fixtures = map(Path, sys.argv[1:4])
sys.path[:0] = [str(snippets), str(fixtures)]

import torch  # noqa: E402
from model_spec import Size, clean  # noqa: E402
from pytorch_model import HF_NAMES, Llama, Style, load  # noqa: E402
from snippet_local_norm import print_local_norms  # noqa: E402
from snippet_save_grads import save_gradients  # noqa: E402

model = clean(Size(layers=2, hidden=32, ffn=88))
tokens, labels = (torch.from_numpy(ids).long() for ids in model.batch())


def backward(style):
    net = Llama(model, style)
    load(net, model, style)
    net(tokens, labels).backward()
    return net


net = backward(Style(HF_NAMES))
print_local_norms(net)
save_gradients(net, str(out / "gradients"))
torch.save({name: weight.grad for name, weight in net.named_parameters()}, out / "grads.pt")
save_gradients(backward(Style(HF_NAMES, fused="concat")), str(out / "fused"))

decayed = [weight for weight in net.parameters() if weight.ndim > 1]
not_decayed = [weight for weight in net.parameters() if weight.ndim == 1]
squares = [torch.norm(weight.grad, 2) ** 2 for weight in (*decayed, *not_decayed)]
(out / "printed_patch.txt").write_text(f"print torch local norm:\n{squares}\n")
with (out / "printed_lines.txt").open("w") as lines:
    for name, weight in net.named_parameters():
        print(f"rank 0 | {name} grad norm: {weight.grad.norm()}", file=lines)
