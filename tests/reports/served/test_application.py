"""What a server answers: only to the token, only to this machine, and never with a file."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
from run_results import make_finding, make_task
from werkzeug.test import Client, TestResponse

from dumpdiff.causes.comparison_index import ComparisonIndex
from dumpdiff.figures.pair_tensors import load_pair_tensors
from dumpdiff.figures.value_windows import find_largest_difference
from dumpdiff.model.errors import DumpError
from dumpdiff.model.result import Result
from dumpdiff.page_server.application import Application, ServedResult
from dumpdiff.run_divergence import locate_run

HEADERS = {"Host": "127.0.0.1:8765"}


def get(application: Application, path: str, **headers: str) -> TestResponse:
    return Client(application).get(path, headers={**HEADERS, **headers})


@pytest.fixture(scope="module")
def application(served: ServedResult) -> Application:
    return Application(served, "token")


def get_result(served: ServedResult) -> Result:
    assert isinstance(served.result, Result)
    return served.result


def test_the_page_asks_for_its_tables(application: Application) -> None:
    page = get(application, "/token/")
    assert page.status_code == 200
    assert "connect-src 'self'" in unescape(page.text)
    assert re.search(r'id="packed"></script>', page.text)
    assert get(application, "/token/packed").data.startswith(b"\x1f\x8b")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/other/", 404),
        ("/other/pair/0/figures", 404),
        ("/token/pair/-1/figures", 404),
        ("/token/pair/999999/figures", 409),
        ("/token/task/step0/rank0/", 409),
        ("/token/task/../../etc/passwd/", 409),
        ("/token/pair/0/values?start=a", 409),
        ("/token/pair/0/values?rows=x&columns=0", 409),
    ],
)
def test_another_address_gets_nothing(application: Application, path: str, status: int) -> None:
    answer = get(application, path)
    assert answer.status_code == status
    assert len(answer.text) < 200


def test_a_page_of_another_host_is_refused(application: Application) -> None:
    """An attacker's name can lead to this machine; the browser then sends that name."""
    assert get(application, "/token/", Host="attacker.example:8765").status_code == 403
    assert get(application, "/token/", Host="localhost:1234").status_code == 200


def test_no_request_changes_anything(application: Application) -> None:
    assert Client(application).post("/token/", headers=HEADERS).status_code == 405


def test_answers_are_kept_by_nobody(application: Application) -> None:
    headers = get(application, "/token/").headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"


def test_the_tensors_of_every_pair_are_those_that_were_compared(served: ServedResult) -> None:
    """Every error of the table follows from what is shown, but where mask fill was set aside."""
    pairs = get_result(served).pairs
    index = ComparisonIndex(served.open_dumps(""))
    for pair in pairs[pairs["masked"] == 0].itertuples():
        value_pair = index.find_tensor_pair(pair.target, pair.reference)
        assert value_pair is not None
        arrays = load_pair_tensors(index, value_pair)
        assert arrays is not None
        target, reference = (array.astype(np.float64) for array in arrays)
        norm = np.linalg.norm(reference)
        if norm:
            error = np.linalg.norm(target - reference) / norm
            assert error == pytest.approx(pair.relative_l2, rel=1e-6, abs=1e-12)
        largest = find_largest_difference(target, reference)
        assert largest is not None
        assert largest[1] == pytest.approx(pair.max_absolute, rel=1e-6)


def test_values_begin_around_the_largest_difference(
    application: Application, served: ServedResult
) -> None:
    finding = get_result(served).findings[0]
    pairs = get_result(served).pairs
    row = pairs.index[pairs["target_op"] == finding.target_ops[-1]][0]
    values = get(application, f"/token/pair/{row}/values")
    assert values.status_code == 200
    assert values.text.count(" largest") == 1
    assert "axis 2" in values.text
    corner = get(application, f"/token/pair/{row}/values?start=0,0,0&rows=0&columns=1")
    assert 'name="start-0" min="0" max="1" value="0"' in corner.text


def test_figures_are_those_of_a_finding(application: Application) -> None:
    figures = get(application, "/token/pair/100/figures").text
    assert 'class="histogram"' in figures
    assert 'class="difference"' in figures


def test_a_missing_dump_is_a_sentence(served: ServedResult) -> None:
    def open_dumps(task: str) -> None:
        raise DumpError("/moved: the target dump is missing")

    moved = ServedResult(served.result, served.load_task, open_dumps)  # type: ignore[arg-type]
    answer = get(Application(moved, "token"), "/token/pair/0/values")
    assert (answer.status_code, answer.text) == (409, "/moved: the target dump is missing\n")


def test_a_run_has_a_page_for_each_task(served: ServedResult) -> None:
    run = locate_run("target", "reference", [make_task(0), make_task(1, make_finding("linear.1"))])
    folders = []

    def load_task(folder: str) -> Result:
        folders.append(folder)
        return get_result(served)

    application = Application(ServedResult(run, load_task, served.open_dumps), "token")
    page = get(application, "/token/").text
    links = re.findall('href="(task/[^"]+)"', page)
    assert links == ["task/step0/rank0/", "task/step0/rank1/"]
    assert "All pairs" in get(application, f"/token/{links[1]}").text
    assert folders == ["step0/rank1"]
    assert get(application, "/token/task/step9/rank9/").status_code == 409
