"""Default options of a comparison."""

from __future__ import annotations

from typing import Final

#: Minimum share of each side's forward (and backward) ops for the verdict 'aligned'. An op counts
#: if it was compared or if it reconverged: everything computed from it agrees.
MIN_COVERAGE: Final = 0.7

#: Ranks of the findings whose causes are searched by default. Later findings mostly follow from
#: these, and each search takes time.
EXPLAINED_RANKS: Final = (1, 2, 3)
#: Share of the bytes of whole tensors of everything that a narrowed dump may have.
NARROWED_SHARE = 0.03
