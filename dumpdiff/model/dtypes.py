"""The numeric types that dumps hold: one spelling for each, how exact each is, what stands for -Inf in them."""

from __future__ import annotations

_SPELLINGS = {
    "half": "float16", "float": "float32", "double": "float64", "long": "int64", "bool_": "bool",
    "boolean": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16",
}  # fmt: skip

#: Unit roundoff u = 2**-p for p significand bits (IEEE 754-2019 table 3.5; bfloat16 and float8: OCP 8-bit
#: floating point specification v1.0, section 5). A correctly rounded operation errs by at most u, relatively.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3,
}  # fmt: skip

#: A magnitude beyond this can be a constant that masks, in place of an infinity: the least in use is -1e4 (BERT adds
#: (1 - mask) * -10000 to scores), and a score on top of it, some hundreds at most, leaves it beyond 9e3. A judgement
#: call, since a real outlier may be as large: so a mask must also be far from all other elements, see MASK_GAP.
MASK = 9e3
#: Beyond this a single element is enough: float16 holds nothing past 65504, so that a network trained in it has no
#: such score; between MASK and this a constant must stand more than once.
LONE_MASK = 6e4
#: Where only extremes are known: a mask is this many times the other extreme. Judgement call: scores of a network that
#: trains stay below 9e3 / 1e3 = 9 where the mask is -1e4; larger masks (-1e9, finfo.min) leave room for any.
MASK_GAP = 1e3


def normalise(spelling: str) -> str:
    """One name for every way a dump spells a dtype.

    >>> normalise("torch.float32"), normalise("BFloat16"), normalise("<class 'float'>"), normalise("mindspore.int32")
    ('float32', 'bfloat16', 'float', 'int32')

    Python scalars keep ``int``, ``float`` and ``bool``, which no tensor dtype is called here.
    """
    text = spelling.strip()
    if text.startswith("<class '"):
        text = text[len("<class '") : -len("'>")]
        return text.removeprefix("numpy.")
    text = (
        text.lower()
        .removeprefix("torch.")
        .removeprefix("mindspore.")
        .removeprefix("ms.")
        .removeprefix("np.")
    )
    return _SPELLINGS.get(text, text)


def is_floating(dtype: str) -> bool:
    """Real or complex floating point, tensor or Python float."""
    return dtype in UNIT_ROUNDOFF or dtype == "float" or dtype.startswith("float8")


def is_integer(dtype: str) -> bool:
    """Signed or unsigned integers, tensor or Python int."""
    return dtype.startswith(("int", "uint"))


def is_discrete(dtype: str) -> bool:
    """Integers and bools: ids, masks, indices. They are equal or not; a relative error of them says nothing."""
    return is_integer(dtype) or dtype == "bool"


def unit_roundoff(dtype: str) -> float:
    """Unit roundoff of a floating dtype; 0 for integers and bools, which are exact; Python floats count as float64."""
    if dtype == "float":
        return UNIT_ROUNDOFF["float64"]
    return UNIT_ROUNDOFF.get(dtype, 0.0)
