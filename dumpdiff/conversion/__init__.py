"""One framework's checkpoint as another's: canonical parameters, laid out and named as the target has them."""

from .canonical import Reading
from .pipeline import Converted, convert, planned
from .plan import Wanted

__all__ = ["Converted", "Reading", "Wanted", "convert", "planned"]
