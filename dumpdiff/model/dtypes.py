"""Numeric types of dumps: one name for each, its precision, and the constants that mask scores."""

from __future__ import annotations

_SPELLINGS = {
    "half": "float16", "float": "float32", "double": "float64", "long": "int64", "bool_": "bool",
    "boolean": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16",
}  # fmt: skip

#: Unit roundoff u = 2**-p for p significand bits (IEEE 754-2019 table 3.5; bfloat16 and float8: OCP
#: 8-bit floating point specification v1.0, section 5). A correctly rounded operation errs by at
#: most u, relatively.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3,
}  # fmt: skip

#: Floating dtypes of 16 bits.
HALF_PRECISIONS = ("float16", "bfloat16")
#: A number at or below minus this can be mask fill: a constant that replaces minus infinity. The
#: weakest in use is -1e4, because float16 must hold it (BERT adds (1 - mask) * -10000 to scores); a
#: score on top of it, at most some hundreds, leaves it beyond 9e3. Others are -65504, -1e5, -1e9
#: and the lowest number of the dtype. The limit is the same for all floating dtypes, because models
#: written for float16 keep -1e4 in wider ones. A real value may be as large, so the limit alone
#: decides nothing, see ``comparison.mask_fill``.
MASK_MAGNITUDE = 9e3
#: Where only extremes are known, a mask is this many times the other extreme. A judgment: scores of
#: a network that trains stay below 9e3 / 1e3 = 9 where the mask is -1e4; larger masks (-1e9,
#: finfo.min) leave room for any score.
MASK_GAP = 1e3


def normalize_dtype(spelling: str) -> str:
    """Return the one name of a dtype that dumps spell in many ways.

    Python scalars keep ``int``, ``float`` and ``bool``; no tensor dtype has these names here.

    >>> normalize_dtype("torch.float32"), normalize_dtype("BFloat16")
    ('float32', 'bfloat16')
    >>> normalize_dtype("<class 'float'>"), normalize_dtype("mindspore.int32")
    ('float', 'int32')
    """
    text = spelling.strip()
    if text.startswith("<class '"):
        text = text[len("<class '") : -len("'>")]
        return text.removeprefix("numpy.")
    text = text.lower()
    for prefix in ("torch.", "mindspore.", "ms.", "np."):
        text = text.removeprefix(prefix)
    return _SPELLINGS.get(text, text)


def is_floating(dtype: str) -> bool:
    """Return whether it is real or complex floating point, of a tensor or a Python float."""
    return dtype in UNIT_ROUNDOFF or dtype == "float" or dtype.startswith("float8")


def is_integer(dtype: str) -> bool:
    """Return whether it is a signed or unsigned integer, of a tensor or a Python int."""
    return dtype.startswith(("int", "uint"))


def is_discrete(dtype: str) -> bool:
    """Return whether it is an integer or bool: ids, masks, indices.

    Such values are equal or not; a relative error of them has no meaning.
    """
    return is_integer(dtype) or dtype == "bool"


def get_unit_roundoff(dtype: str) -> float:
    """Return the unit roundoff of a floating dtype, 0 for integers and bools, which are exact.

    A Python float counts as float64.
    """
    if dtype == "float":
        return UNIT_ROUNDOFF["float64"]
    return UNIT_ROUNDOFF.get(dtype, 0.0)
