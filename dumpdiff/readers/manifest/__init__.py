"""Reader of manifests: a folder of tensors with a ``manifest.json`` that says what they are.

``dumpdiff.record`` writes them, and any script can. The format is docs/manifest.schema.json.
"""

from .document import RECOGNITION_KEY, VERSION, Manifest, ManifestCall, ManifestTensor
from .reader import FORMAT, build_trace, find_parts, is_index_file, read_part

__all__ = [
    "FORMAT",
    "RECOGNITION_KEY",
    "VERSION",
    "Manifest",
    "ManifestCall",
    "ManifestTensor",
    "build_trace",
    "find_parts",
    "is_index_file",
    "read_part",
]
