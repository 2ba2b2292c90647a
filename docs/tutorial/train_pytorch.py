"""One training step of a small decoder in PyTorch, recorded by msprobe as CONFIG says: see ../tutorial.md.

python docs/tutorial/train_pytorch.py CONFIG
"""

import sys
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger, seed_all

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))

import model_spec
from pytorch_model import HF_NAMES, Llama, Style, load

seed_all(seed=1234, mode=True)
PrecisionDebugger(config_path=sys.argv[1])

spec = model_spec.clean(model_spec.Size())
model = Llama(spec, Style(HF_NAMES))
load(model, spec, Style(HF_NAMES))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tokens, labels = (torch.from_numpy(ids).long() for ids in spec.batch())

PrecisionDebugger.start(model=model)
loss = model(tokens, labels)
loss.backward()
optimizer.step()
PrecisionDebugger.stop()
PrecisionDebugger.step()
print(f"loss {loss.item():.6f}")
