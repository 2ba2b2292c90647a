"""The answers to requests: pages, their tables, and views of pairs.

Every address begins with a token that only the user's terminal shows, so that no other user of the
machine and no page in the browser can read a result. Nothing is changed by a request, and no part
of an address becomes a path of a file: tasks are those that the result of the run lists.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..comparison import Comparison
from ..model.errors import DumpError
from ..model.result import Result
from ..model.run_result import RunResult
from ..reports.alignment.html import build_served_page
from ..reports.language import translate, use_chosen_language
from ..reports.page.renderer import render_served
from ..reports.runs.html import build_served_run_page
from .pair_views import PairViews

if TYPE_CHECKING:
    from werkzeug import Request, Response

_OPEN_TASKS = 2  #: results of a run, with their dumps, that stay in memory
_MAX_AXES = 32  #: of a tensor, as in NumPy before 2.0

#: A browser asks for the page by a name of this machine. Another name in the request is that of a
#: foreign page whose address was made to lead here.
_HOSTS = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class ServedResult:
    """What is served: a result, or a run with the results of its tasks."""

    result: Result | RunResult
    load_task: Callable[[str], Result]  #: folder of a task -> its result
    open_dumps: Callable[[str], Comparison]  #: folder of a task, '' without a run


class Application:
    """A WSGI application that answers requests with the token in their address."""

    def __init__(self, served: ServedResult, token: str) -> None:
        from werkzeug.routing import Map, Rule

        self._served = served
        self._token = token
        self._views = lru_cache(_OPEN_TASKS)(self._open_task)
        self._pages = lru_cache(_OPEN_TASKS)(self._render_page)
        places = {
            "page": "/",
            "packed": "/packed",
            "figures": "/pair/<int:row>/figures",
            "values": "/pair/<int:row>/values",
        }
        rules = []
        for prefix in ("/<token>", "/<token>/task/<path:task>"):
            for endpoint, place in places.items():
                rules.append(Rule(prefix + place, endpoint=endpoint, methods=["GET"]))
        self._map = Map(rules)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request."""
        from werkzeug import Request

        return self.answer(Request(environ))(environ, start_response)

    def answer(self, request: Request) -> Response:
        """Return the answer to a request; a wrong one gets a sentence and an error status."""
        from werkzeug import Response
        from werkzeug.exceptions import HTTPException

        try:
            if request.host.rpartition(":")[0] not in _HOSTS and request.host not in _HOSTS:
                return Response("this server answers only its own machine\n", 403)
            endpoint, values = self._map.bind_to_environ(request.environ).match()
            if not hmac.compare_digest(str(values["token"]).encode(), self._token.encode()):
                return Response("not found\n", 404)
            with use_chosen_language():
                content, kind = self._answer_endpoint(endpoint, values, request.args)
        except HTTPException as error:
            return Response(f"{error.name}\n".lower(), error.code or 400)
        except DumpError as error:
            return Response(f"{error}\n", 409)
        response = Response(content, mimetype=kind)
        response.headers["Cache-Control"] = "no-store"
        response.headers["Referrer-Policy"] = "no-referrer"  # the address holds the token
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        return response

    def _answer_endpoint(
        self, endpoint: str, values: Mapping[str, Any], query: Mapping[str, str]
    ) -> tuple[bytes, str]:
        """Return (content, media type). Raises DumpError with a sentence for the reader."""
        task = str(values.get("task", ""))
        if endpoint in ("page", "packed"):
            html, packed = self._pages(task)
            return (html, "text/html") if endpoint == "page" else (packed, "application/gzip")
        _, views = self._views(task)
        row = int(values["row"])
        if endpoint == "figures":
            return views.write_figures(row), "text/html"
        start = _parse_numbers(query["start"]) if "start" in query else None
        axes = None
        if "rows" in query and "columns" in query:
            axes = _parse_numbers(query["rows"])[0], _parse_numbers(query["columns"])[0]
        return views.write_values(row, start, axes), "text/html"

    def _render_page(self, task: str) -> tuple[bytes, bytes]:
        """Return the HTML of a page and its tables; its browser asks for both."""
        result = self._served.result
        if isinstance(result, RunResult) and not task:
            return render_served(build_served_run_page(result))
        return render_served(build_served_page(self._views(task)[0]))

    def _open_task(self, task: str) -> tuple[Result, PairViews]:
        result = self._served.result
        if isinstance(result, RunResult):
            if not task or task not in {known_task.folder for known_task in result.tasks}:
                raise DumpError(translate("The run has no such rank and step."))
            result = self._served.load_task(task)
        elif task:
            raise DumpError(translate("The run has no such rank and step."))
        return result, PairViews(result, lambda: self._served.open_dumps(task))


def _parse_numbers(text: str) -> tuple[int, ...]:
    """Return numbers separated by commas. Raises DumpError."""
    try:
        numbers = tuple(max(0, int(number)) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not 0 < len(numbers) <= _MAX_AXES:
        raise DumpError(translate("An index has a number for each axis, separated by commas."))
    return numbers
