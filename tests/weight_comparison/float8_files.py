"""Script: quantize a model of transformers to 8 bits with that library's own rounding.

``python float8_files.py SOURCE FOLDER BLOCK``: FOLDER/float8 holds the weights of SOURCE with all
projections in float8_e4m3fn and ``weight_scale_inv`` for BLOCK x BLOCK elements, as DeepSeek-V3 is
published; FOLDER/decoded the same as transformers reads them back, in bfloat16; FOLDER/bfloat16
what was rounded to 8 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace


def main(source: Path, folder: Path, block: int) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = FineGrainedFP8Config(weight_block_size=(block, block))
    quantizer = SimpleNamespace(quantization_config=config)
    quantized_weights, decoded = {}, {}
    narrow = {
        name: value.bfloat16() for name, value in load_file(source / "model.safetensors").items()
    }
    for name, value in narrow.items():
        if "_proj" not in name:
            quantized_weights[name] = decoded[name] = value
            continue
        quantized = Fp8Quantize(quantizer).convert({name: value})
        quantized_weights |= quantized
        parts = {key: [part] for key, part in quantized.items()}
        (read,) = (
            Fp8Dequantize(quantizer).convert(parts, full_layer_name=name)
            if len(quantized) > 1
            else parts
        ).values()
        decoded[name] = (read[0] if isinstance(read, list) else read).bfloat16()
    settings = json.loads((source / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block]}
    for kind, weights in (
        ("float8", quantized_weights),
        ("decoded", decoded),
        ("bfloat16", narrow),
    ):
        (folder / kind).mkdir()
        save_file(
            {name: value.contiguous() for name, value in weights.items()},
            folder / kind / "model.safetensors",
        )
        (folder / kind / "config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
