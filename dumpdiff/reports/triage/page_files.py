"""The names of the pages of a triage."""

from __future__ import annotations

from collections.abc import Mapping

from ...diagnosis.evidence import STAGES

TRIAGE_PAGE = "triage.html"
_DUMPS_PAGE = "alignment.html"  #: of both passes
STAGE_PAGES: Mapping[str, str] = {
    **{name: f"{name}.html" for name in STAGES},
    "forward": _DUMPS_PAGE,
    "backward": _DUMPS_PAGE,
}
#: All pages that a folder may have.
PAGE_FILES: tuple[str, ...] = (TRIAGE_PAGE, *dict.fromkeys(STAGE_PAGES.values()))
