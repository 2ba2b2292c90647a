"""One framework's checkpoint as another's: canonical parameters, laid out and named as the target has them."""

from .apart import Reading
from .converting import Converted, convert, planned
from .plan import Wanted

__all__ = ["Converted", "Reading", "Wanted", "convert", "planned"]
