# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, with a real pointer. usage: browser_test.py PROGRAM [FOLDER_FOR_PICTURES]

What the page shows is compared with the files that it was read from."""
from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devtools import BROWSER, Browser, Tab, browsing
from simulate_runs import Run, write_lines

SKIPPED = 77
Values = dict[int, float]


@contextmanager
def served(program: str, *folders: Path) -> Iterator[str]:
    """The address of the page while it is served."""
    with subprocess.Popen([program, "watch", *map(str, folders)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = None
            while not found:
                line = server.stdout.readline()
                assert line, "no address"
                found = re.search(r"http://\S+", line)
            yield found[0]
        finally:
            server.terminate()


def write_run(folder: Path, values: dict[str, Values], *, end: str | None = "finish", **configuration: object) -> None:
    """A run whose steps are seconds."""
    folder.mkdir(parents=True)
    steps = sorted({step for one in values.values() for step in one})
    begin = time.time() - 4000
    lines: list[dict] = [{"time": begin, "event": "start", "schema": 1, "num_processes": 1},
                         {"time": begin, "event": "configuration", "values": configuration}]
    for step in steps:
        logged = {name: one[step] for name, one in values.items() if step in one}
        lines.append({"time": begin + step, "step": step, "values": {
            name: value if math.isfinite(value) else "NaN" for name, value in logged.items()}})
    if end:
        lines.append({"time": begin + steps[-1], "event": end})
    write_lines(folder / "metrics.jsonl", lines)


def curve(size: int, seed: int) -> Values:
    made = random.Random(seed)
    return {step: 3 * math.exp(-step / size) + made.gauss(0, 0.1) for step in range(size)}


def six(value: float) -> float:
    """As the page shows it."""
    return float(f"{value:.6g}")


class Chart:
    """The card of this title."""

    def __init__(self, tab: Tab, title: str) -> None:
        self.tab, self.title = tab, title
        self.card = f"[...document.querySelectorAll('.card')].find((one) => one.querySelector('h3 b').textContent === {json.dumps(title)})"
        tab.wait(f"!!{self.card}?.querySelector('path')")

    def x_of(self, x: float, left: float, right: float) -> tuple[float, float]:
        """Where the browser draws a value; the axis is 58 pixels wide, and 8 are free at the right."""
        box = self.tab.get(f"(() => {{ const plot = {self.card}.querySelector('.plot'); plot.scrollIntoView({{block: 'center'}});"
                           "const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()")
        return box[0] + 58 + (x - left) / (right - left) * (box[2] - 66), box[1] + box[3] / 2

    def point(self, x: float, left: float, right: float) -> dict[str, str]:
        """What the tooltip says of each series when the pointer is there; '' is the place."""
        self.tab.mouse("mouseMoved", *self.x_of(x, left, right))
        rows = self.tab.get(f"[...{self.card}.querySelectorAll('.tip:not([hidden]) > div')].map((row) => "
                            "[row.querySelector('span')?.textContent ?? '', row.querySelector('b')?.textContent ?? row.textContent])")
        return dict(rows)

    def drag(self, begin: float, end: float, left: float, right: float) -> None:
        x, y = self.x_of(begin, left, right)
        self.tab.mouse("mouseMoved", x, y)
        self.tab.mouse("mousePressed", x, y, button="left", clickCount=1)
        for at in (begin + (end - begin) / 2, end):
            x, y = self.x_of(at, left, right)
            self.tab.mouse("mouseMoved", x, y, button="left", buttons=1)
        self.tab.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def get(self, expression: str) -> object:
        return self.tab.get(f"{self.card}.{expression}")

    def legend(self) -> list[str]:
        return self.tab.get(f"[...{self.card}.querySelectorAll('.key span')].map((key) => key.textContent)")


def test_tooltips_show_only_what_was_logged(program: str, browser: Browser, root: Path) -> None:
    long, short, broken = curve(100, 1), curve(50, 2), curve(100, 3)
    for step in range(30, 40):
        broken[step] = math.nan
    broken[99] = math.nan
    write_run(root / "long", {"loss": long})
    write_run(root / "short", {"loss": short})
    write_run(root / "broken", {"loss": broken})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        loss = Chart(tab, "loss")
        tab.wait("document.querySelectorAll('.card .key span').length", lambda number: number >= 3)
        found = loss.point(20, 0, 99)
        assert found.pop("") == "step 20"
        assert {name: float(text) for name, text in found.items()} == {
            "long": six(long[20]), "short": six(short[20]), "broken": six(broken[20])}
        # Behind the end of a run it has no value, and NaN is no number.
        found = loss.point(80, 0, 99)
        assert set(found) == {"", "long", "broken"} and float(found["long"]) == six(long[80])
        assert loss.point(35, 0, 99)["broken"] == "NaN"
        legend = dict(key.rsplit(" ", 1) for key in loss.legend())
        assert legend["broken"] == "NaN"
        assert math.isclose(float(legend["short"]), short[49], rel_tol=1e-3)
        # The line stops at NaN, and a mark shows where.
        assert loss.get("querySelectorAll('.not-finite').length") == 2
        pieces = tab.get(f"[...{loss.card}.querySelectorAll('path.line')].map((line) => line.getAttribute('d').split('M').length - 1)")
        assert sorted(pieces) == [1, 1, 2], pieces
        assert "broken: loss was NaN at step 30; 11 values are not finite" in tab.text()


def test_merged_points_say_so_and_zooming_shows_each(program: str, browser: Browser, root: Path) -> None:
    values = curve(12_000, 4)
    values[7_777] = math.nan
    write_run(root / "many", {"loss": values, "lr": {step: 1e-3 for step in values}})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        loss = Chart(tab, "loss")

        def compare(at: int) -> tuple[int, int]:
            found = loss.point(at, 0, 11_999)
            first, last = (int(text.replace(",", "")) for text in re.findall(r"[\d,]+", found[""]))
            logged = [values[step] for step in range(first, last + 1)]
            finite = [value for value in logged if math.isfinite(value)]
            said = re.match(r"mean of ([\d,]+): (\S+), (\S+) to ([^\s,]+)(.*)", found["loss"])
            assert said, found
            assert int(said[1]) == len(finite) < 100
            assert float(said[2]) == six(sum(finite) / len(finite))
            assert (float(said[3]), float(said[4])) == (six(min(finite)), six(max(finite)))
            assert said[5] == (", NaN" if len(finite) < len(logged) else "")
            # A pixel is more than 30 steps wide.
            assert first - 40 <= at <= last + 40
            return first, last

        compare(5_000)
        assert compare(7_777) != compare(7_900)
        # The range is read from the file again, and each value is there.
        left, right = 0.0, 11_999.0
        for begin, end in ((7_000, 8_500), (7_740, 7_800)):
            before = tab.get("decodeURIComponent(location.hash)")
            loss.drag(begin, end, left, right)
            kept = tab.wait("decodeURIComponent(location.hash)", lambda text: "zoom" in text and text != before)
            pixel = (right - left) / 300
            left, right = (float(text) for text in re.search(r"step:([\d.]+),([\d.]+)", kept).groups())
            assert abs(left - begin) < 2 * pixel and abs(right - end) < 2 * pixel
        tab.wait(f"{loss.card}.querySelectorAll('.dot, .not-finite').length", lambda number: number > right - left - 2)
        assert loss.point(7_777, left, right) == {"": "step 7,777", "loss": "NaN"}
        found = loss.point(7_760, left, right)
        assert found[""] == "step 7,760" and float(found["loss"]) == six(values[7_760])
        # The other chart has the same range and shows the same place.
        rate = Chart(tab, "lr")
        cross = f"{rate.card}.querySelector('.cross').getAttribute('visibility')"
        assert tab.get(cross) == "visible"
        # Drawing again, as for new values, keeps it.
        tab.get("dispatchEvent(new Event('resize'))")
        assert tab.get(cross) == "visible"
        assert rate.point(7_760, left, right)[""] == "step 7,760"
        # Reloading keeps it; Reset zoom ends it.
        tab.call("Page.reload")
        loss = Chart(tab, "loss")
        tab.wait(f"{loss.card}.querySelectorAll('.dot').length", lambda number: number > 10)
        assert loss.point(7_760, left, right)[""] == "step 7,760"
        tab.click("#reset")
        compare(5_000)
        assert "zoom" not in tab.get("location.hash")
        # The keyboard reads and zooms too.
        tab.get(f"{loss.card}.querySelector('.plot').focus()")
        tab.key("ArrowRight")
        tab.key("ArrowRight")
        assert re.search(r"steps [\d,]+ to [\d,]+", tab.get("document.getElementById('spoken').textContent"))
        tab.key("+", text="+")
        tab.wait("location.hash", lambda text: "zoom" in text)
        tab.key("Escape")
        tab.wait("location.hash", lambda text: "zoom" not in text)


def test_smoothing_is_the_usual_average(program: str, browser: Browser, root: Path) -> None:
    values = curve(60, 5)
    write_run(root / "one", {"loss": values})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        loss = Chart(tab, "loss")
        assert "smoothed" not in loss.point(30, 0, 59)["loss"]
        tab.get("(() => { const one = document.getElementById('smooth'); one.value = 0.9; one.dispatchEvent(new Event('input')); })()")
        # TensorBoard's: corrected for its beginning.
        average = 0.0
        for step in range(31):
            average = 0.9 * average + 0.1 * values[step]
        average /= 1 - 0.9**31
        logged, smoothed = loss.point(30, 0, 59)["loss"].split(", smoothed ")
        assert float(logged) == six(values[30])
        assert math.isclose(float(smoothed), average, rel_tol=1e-5)
        assert loss.get("querySelectorAll('path.line.raw').length") == 1
        assert "smooth=0.9" in tab.get("location.hash")


def test_a_failed_run_is_on_top_with_its_log(program: str, browser: Browser, root: Path) -> None:
    now = time.time()
    good = Run(root / "a_good", 2, now - 100, 100)
    good.write()
    bad = Run(root / "bad", 2, now - 9000, 100)
    bad.write(is_finished=False)
    bad.write_logs()
    bad.crash(1, "ValueError: bad <b>batch</b>")
    Run(root / "silent", 2, now - 9000, 100).write(is_finished=False)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("bad: rank 1 on node1 failed with exit code 1: ValueError: bad <b>batch</b>")
        assert tab.get("document.querySelector('#runs tbody th').innerText") == "bad"
        tab.wait_for("warning of rank 1")
        assert tab.get("document.getElementById('log-choice').selectedOptions[0].textContent") == "rank 1 stderr"
        states = dict(tab.get("[...document.querySelectorAll('#runs tbody tr')].map((row) => "
                              "[row.querySelector('th').innerText, row.querySelector('.state').innerText])"))
        assert states["bad"] == "failed" and states["a_good"] == "finished"
        assert re.fullmatch(r"stopped writing 2 h \d+ min ago", states["silent"])
        # One step-time chart, of the selected run.
        titles = "[...document.querySelectorAll('.card h3 b')].map((one) => one.textContent).filter((one) => one.startsWith('Step time'))"
        assert tab.wait(titles) == ["Step time: bad"]
        tab.get("[...document.querySelectorAll('#runs tbody th button')].find((one) => one.textContent === 'a_good').click()")
        tab.wait(titles, lambda found: found == ["Step time: a_good"])
        assert "python train.py --rate 0.0003" in tab.text() and "1f0c3a9" in tab.text()


def test_the_table_sorts_filters_hides_and_the_address_keeps_it(program: str, browser: Browser, root: Path) -> None:
    best = {}
    for i in range(20):
        values = curve(40, 100 + i)
        best[f"run_{i:02}"] = min(values.values())
        write_run(root / f"run_{i:02}", {"loss": values, "eval/accuracy": {39: i / 20}}, lr=round(0.01 * (i + 1), 2), layers=12)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("20 runs, 8 drawn")
        heads = tab.wait("[...document.querySelectorAll('#runs thead th')].map((one) => one.innerText)", lambda found: len(found) > 6)
        assert "lr" in heads and "layers" not in heads and "loss, lowest" in heads and "eval/accuracy, highest" in heads
        column = heads.index("loss, lowest") + 1
        cells = f"[...document.querySelectorAll('#runs tbody tr')].map((row) => [row.querySelector('th').innerText, row.children[{column}].innerText])"
        assert {name: float(text) for name, text in tab.get(cells)} == {name: six(value) for name, value in best.items()}
        tab.get(f"document.querySelectorAll('#runs thead th')[{column - 1}].querySelector('button').click()")
        assert [name for name, _ in tab.get(cells)] == sorted(best, key=lambda name: best[name])
        tab.type("#filter", "lr=0.07")
        tab.wait_for("1 match")
        tab.key("Enter")
        tab.wait_for("20 runs, 1 drawn")
        tab.type("#search", "acc")
        tab.wait("[...document.querySelectorAll('#metrics .card h3 b')].map((one) => one.textContent)", lambda found: found == ["eval/accuracy"])
        tab.click("#axis [data-axis=time]")
        kept = tab.get("location.href")
        assert "token" not in kept and "show=run_06" in kept
        tab.open("about:blank")
        tab.open(kept)
        tab.wait_for("20 runs, 1 drawn, 1 match")
        assert tab.get("document.querySelector('#runs tbody th').innerText") == "run_06"
        assert tab.get("document.querySelector('#axis [data-axis=time]').getAttribute('aria-pressed')") == "true"
        accuracy = Chart(tab, "eval/accuracy")
        assert accuracy.legend() == ["run_06 0.3"]


def test_values_and_charts_can_be_saved(program: str, browser: Browser, root: Path, downloads: Path) -> None:
    values = curve(3000, 6)
    values[5] = math.nan
    write_run(root / "a, b", {"loss": values})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        Chart(tab, "loss")
        tab.click("#csv")
        wait_for_file(downloads / "values.csv")
        with open(downloads / "values.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["step"]) for row in rows] == list(values)
        assert rows[5]["value"] == "NaN" and {row["run"] for row in rows} == {"a, b"}
        assert all(float(row["value"]) == values[int(row["step"])] for row in rows if row["value"] != "NaN")
        tab.click(".card .save")
        wait_for_file(downloads / "loss.png")
        assert (downloads / "loss.png").read_bytes().startswith(b"\x89PNG")


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < deadline, f"{path} is not there"
        time.sleep(0.05)


def test_an_empty_folder_waits_and_an_ended_server_is_named(program: str, browser: Browser, root: Path) -> None:
    root.mkdir()
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(390, 844)
        tab.open(address)
        tab.wait_for("Waiting for the first run")
        assert 'Accelerator(log_with="jsonl"' in tab.text() and '.log_with = {"jsonl"}' in tab.text()
        write_run(root / "<img src=x>", {"loss": curve(10, 7)}, end=None)
        Chart(tab, "loss")
        assert tab.get("document.title").startswith("<img src=x>")
        # Nothing is wider than a telephone.
        assert tab.get("document.documentElement.scrollWidth") <= 390
    tab.wait_for("Disconnected: accelerate watch was stopped")


def test_sixty_four_ranks(program: str, browser: Browser, root: Path) -> None:
    Run(root / "many", 64, time.time() - 2700, 3000, 6, slow_rank=17).write(is_finished=False)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("Rank 17 on node3 is slow")
        Chart(tab, "Device utilisation")
        assert "median of 64 ranks" in tab.text()
        assert tab.get("document.querySelectorAll('path.band.c0').length") >= 5
        assert tab.get("document.querySelectorAll('path.line.slow').length") >= 5
        assert tab.get("document.querySelectorAll('path.stack').length") >= 5


def take_pictures(program: str, browser: Browser, root: Path, folder: Path) -> None:
    """20 runs, a crash, NaN, 64 ranks, several ranks with logs; wide and narrow, light and dark."""
    now = time.time()
    for i in range(20):
        run = Run(root / "twenty" / f"lr_{i:02}", 2, now - 90000 - 1000 * i, 600, i, rate=1e-4 * (1 + i))
        if i == 3:
            run.nan_from = 0.7
        run.write(is_finished=i != 5)
        if i == 5:
            run.write_logs()
            run.crash(1, "ValueError: mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)")
    Run(root / "many" / "ranks_64", 64, now - 2700, 3000, 6, slow_rank=17).write(is_finished=False)
    live = Run(root / "live" / "sky", 4, now - 600, 900, 1)
    live.write(restart_at=0.4, is_finished=False)
    live.write_logs()
    (root / "empty").mkdir()
    for name in ("twenty", "many", "live", "empty"):
        with served(program, root / name) as address:
            for width, height in ((1440, 1500), (390, 2200)):
                for is_dark in (False, True):
                    tab = browser.new_tab()
                    tab.resize(width, height, is_dark=is_dark)
                    tab.open(address)
                    tab.wait_for("Waiting for" if name == "empty" else "last checkpoint")
                    time.sleep(3)
                    tab.picture(folder / f"{name}_{width}_{'dark' if is_dark else 'light'}.png")
                    browser.close_tabs()


def main() -> int:
    program, pictures = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if not os.path.exists(BROWSER):
        print("skipped: Debian's chromium is not installed")
        return SKIPPED
    chosen = os.environ.get("WATCH_TEST", "")
    with tempfile.TemporaryDirectory() as folder:
        root, downloads = Path(folder), Path(folder) / "downloads"
        downloads.mkdir()
        with browsing(downloads) as browser:
            if pictures:
                take_pictures(program, browser, root / "pictures", pictures)
                return 0
            for name, test in [*globals().items()]:
                if not name.startswith("test_") or chosen not in name:
                    continue
                print(name, flush=True)
                more = (downloads,) if name == "test_values_and_charts_can_be_saved" else ()
                test(program, browser, root / name, *more)
                browser.close_tabs()
                assert not browser.complaints, browser.complaints
    return 0


if __name__ == "__main__":
    sys.exit(main())
