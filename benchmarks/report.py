"""Measure the HTML report: its size, the time to write it, and the time until it is usable.

    python benchmarks/report.py [--repeat 3]

needs the package installed with ``.[test]``, and Debian's chromium and chromium-driver. Prints a
Markdown table: the demo pair's result, then the same with its pairs repeated as further layers
(tests/results.py). A page is interactive once its chart and tables are drawn and respond; the clock
starts with the navigation. A search, a sort and a scroll are measured on the open page, each up to
the frame that shows it. The smallest of repeated measurements counts. On a machine with other load
the processor time tells more: it is that of the page's thread until the measurement asks for it.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

import dumpdiff
from dumpdiff.model.result import Result
from dumpdiff.reports.alignment import html

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from results import extend_result  # noqa: E402  (a helper of the tests, not a package)

SIZES = (1_000, 10_000, 20_000, 100_000)
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)

#: Milliseconds from the call to the frame that shows its effect.
FRAME = """const done = arguments[0], start = performance.now();
{};
requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"""


@dataclass(frozen=True)
class Figures:
    pairs: int
    megabytes: float
    writing: float  #: seconds
    interactive: float  #: seconds
    processor: float  #: seconds of it in which the page's own thread had a processor
    search: float  #: milliseconds, as all below
    sort: float
    scroll: float


def build_demo(folder: Path) -> Result:
    for name in ("demo_mindspore", "demo_pytorch"):
        with tarfile.open(ROOT / "fixtures" / "data" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    result = dumpdiff.align(folder / "demo_mindspore", folder / "demo_pytorch")
    return dumpdiff.load(result.save(folder / "result"))  # with what its drawings need


def start_browser() -> Chrome:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for switch in SWITCHES:
        options.add_argument(switch)
    return Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def measure_page(result: Result, file: Path) -> Figures:
    stream = io.BytesIO()
    start = time.perf_counter()
    html.write(result, stream)
    writing = time.perf_counter() - start
    file.write_bytes(stream.getvalue())
    driver = start_browser()  # a new one each time: nothing is warm
    try:
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        driver.get(file.as_uri())
        mark = "return performance.getEntriesByName('interactive')[0]?.startTime"
        interactive = WebDriverWait(driver, 60).until(lambda _: driver.execute_script(mark))
        processor = read_processor_time(driver)
        calls = (
            "navigate(report, {q: 'attention mul'})",
            "navigate(report, {q: '', sort: '-error'})",
            "document.getElementById('pairs-table').scrollTo(0, 12345)",
        )
        search, sort, scroll = (driver.execute_async_script(FRAME.format(call)) for call in calls)
    finally:
        driver.quit()
    size = len(stream.getvalue()) / 1e6
    return Figures(
        len(result.pairs), size, writing, interactive / 1000, processor, search, sort, scroll
    )


def read_processor_time(driver: Chrome) -> float:
    """Return the seconds that the tasks of the page's thread took of a processor so far."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def list_rows(repeat: int) -> Iterator[Figures]:
    with tempfile.TemporaryDirectory() as folder:
        small = build_demo(Path(folder))
        for result in (small, *(extend_result(small, size) for size in SIZES)):
            runs = [measure_page(result, Path(folder) / "report.html") for _ in range(repeat)]
            yield Figures(*map(min, zip(*map(astuple, runs), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "| pairs | file | written in | interactive after | of it processor | search | sort "
        "| scroll |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for row in list_rows(arguments.repeat):
        print(
            f"| {row.pairs:,} | {row.megabytes:.2f} MB | {row.writing:.2f} s | "
            f"{row.interactive:.2f} s | {row.processor:.2f} s "
            f"| {row.search:.0f} ms | {row.sort:.0f} ms | {row.scroll:.0f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
