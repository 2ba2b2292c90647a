"""One framework's checkpoint as another's: canonical parameters, laid out and named as the target has them."""

from .canonical import SourceOptions
from .pipeline import ConversionResult, convert, plan_conversion
from .plan import TargetOptions

__all__ = ["ConversionResult", "SourceOptions", "TargetOptions", "convert", "plan_conversion"]
