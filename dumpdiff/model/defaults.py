"""What a comparison is asked for where nobody says otherwise."""

from __future__ import annotations

from typing import Final

#: A verdict 'aligned' needs this share of each side's forward (and backward) ops compared, or leading only to what was.
MIN_COVERAGE: Final = 0.7

#: Ranks of the findings that are explained unasked: later ones mostly follow from these, and each costs a moment.
EXPLAINED: Final = (1, 2, 3)
