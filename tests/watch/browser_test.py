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
import shutil
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


def write_run(folder: Path, values: dict[str, Values], *, end: str | None = "finish", age: float = 4000,
              **configuration: object) -> None:
    """A run whose steps are seconds, and which began `age` seconds ago."""
    folder.mkdir(parents=True)
    steps = sorted({step for one in values.values() for step in one})
    begin = time.time() - age
    lines: list[dict] = [{"time": begin, "event": "start", "schema": 1, "num_processes": 1},
                         {"time": begin, "event": "configuration", "values": configuration}]
    for step in steps:
        logged = {name: one[step] for name, one in values.items() if step in one}
        lines.append({"time": begin + step, "step": step, "values": {
            name: value if math.isfinite(value) else "NaN" for name, value in logged.items()}})
    if end:
        lines.append({"time": begin + steps[-1], "event": end})
    write_lines(folder / "metrics.jsonl", lines)


def log_more(folder: Path, step: int, **values: float) -> None:
    """Logs another step of a run that continues."""
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": time.time(), "step": step, "values": values}) + "\n")


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
        return self.tab.get(f"[...{self.card}.querySelectorAll('.key > span')].map((key) => key.textContent)")


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
        tab.wait("document.querySelectorAll('.card .key > span').length", lambda number: number >= 3)
        found = loss.point(20, 0, 99)
        assert found.pop("") == "step 20"
        assert {name: float(text) for name, text in found.items()} == {
            "long": six(long[20]), "short": six(short[20]), "broken": six(broken[20])}
        # There is no value after the end of a run, and none for NaN.
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
        loss.point(10, 0, 11_999)
        tab.get(f"{loss.card}.querySelector('.plot').focus()")
        tab.key("ArrowRight")
        tab.key("ArrowRight")
        assert re.search(r"steps [\d,]+ to [\d,]+", tab.get("document.getElementById('spoken').textContent"))
        tab.key("+", text="+")
        kept = tab.wait("decodeURIComponent(location.hash)", lambda text: "zoom" in text)
        # The third point is less than a quarter of the range away from the first.
        left, right = (float(text) for text in re.search(r"step:([-\d.]+),([\d.]+)", kept).groups())
        assert left == 0 and math.isclose(right, 11_999 / 2), kept
        tab.key("Escape")
        tab.wait("location.hash", lambda text: "zoom" not in text)


def test_tooltips_are_next_to_the_pointer_and_name_the_nearest_run_first(program: str, browser: Browser, root: Path) -> None:
    names = [f"a_name_that_is_much_too_long_for_any_legend_of_a_chart_seed_{i:02}" for i in range(20)]
    for i, name in enumerate(names):
        write_run(root / name, {"loss": {step: 1.25 * i for step in range(100)}})
    with served(program, root) as address:
        for width in (1440, 390):
            tab = browser.new_tab()
            tab.resize(width, 900)
            tab.open(address)
            tab.wait_for("20 runs, 8 drawn")
            tab.click("#runs thead input")
            loss = Chart(tab, "loss")
            tab.wait_for("and 12 more")
            # Names are shortened before their ends, which differ; values and titles are complete.
            keys = tab.get(f"[...{loss.card}.querySelectorAll('.key > span')].slice(0, 8).map((key) => {{"
                           "const [head, tail] = key.querySelectorAll('.short span'), [frame, value] = [key.parentElement, key.lastChild].map((one) => one.getBoundingClientRect());"
                           "return [key.title, head.scrollWidth > head.clientWidth, tail.textContent, value.right <= frame.right]; })")
            for title, is_short, tail, is_inside in keys:
                name, value = title.rsplit(" ", 1)
                assert float(value) == 1.25 * names.index(name) and name.endswith(tail)
                assert is_short and is_inside
            left, top, right, bottom = tab.get(f"(() => {{ const plot = {loss.card}.querySelector('.plot'); plot.scrollIntoView({{block: 'end'}});"
                                               "const box = plot.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; })()")
            for along in (0.2, 0.5, 0.97):
                for down in (0.05, 0.5, 0.85):
                    x, y = left + along * (right - left), top + down * (bottom - top)
                    tab.mouse("mouseMoved", x, y)
                    rows = tab.get(f"[...{loss.card}.querySelectorAll('.tip > div')].map((row) => row.innerText.replaceAll('\\n', ' '))")
                    assert rows[0].startswith("step ") and rows[-1] == "and 8 more" and len(rows) == 14, rows
                    # 20 lines at equal distances from 0 on, with 6 % free above.
                    near = 19 * 1.25 * 1.06 * (1 - (y - top - 8) / (bottom - top - 30))
                    found = [float(row.rsplit(" ", 1)[1]) for row in rows[1:-1]]
                    assert abs(found[0] - near) <= 1.26 or found[0] in (0, 19 * 1.25), (found, near)
                    distances = [abs(value - near) for value in found]
                    assert all(a <= b + 0.1 for a, b in zip(distances, distances[1:])), (found, near)
                    box = tab.get(f"(() => {{ const box = {loss.card}.querySelector('.tip').getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; }})()")
                    assert 0 <= box[0] and box[2] <= width and 0 <= box[1] and box[3] <= 900, box
                    assert not (box[0] - 4 <= x <= box[2] + 4 and box[1] - 4 <= y <= box[3] + 4), (box, x, y)


def test_zooming_reads_the_ranks_again(program: str, browser: Browser, root: Path) -> None:
    write_run(root / "run", {"loss": curve(4000, 8)}, end=None)
    begin = json.loads((root / "run" / "metrics.jsonl").read_text().splitlines()[0])["time"]
    waits = {}
    for rank in range(2):
        lines: list[dict] = [{"time": begin, "event": "start", "rank": rank}]
        # Rank 1 ends earlier.
        for second in range(1, 4000 - 400 * rank):
            waits[rank, second] = 0.01 * (1 + rank) + (0.5 if second == 2345 and rank == 1 else 0)
            lines.append({"time": begin + second, "step": 10 * second, "values": {
                "steps": 10, "data": 10 * waits[rank, second], "forward": 0.3}})
        (root / "run" / "ranks").mkdir(exist_ok=True)
        write_lines(root / "run" / "ranks" / f"rank_{rank}.jsonl", lines)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        data = Chart(tab, "Waiting for data")
        # 240 points at most: one is the mean of 32 seconds.
        assert data.point(2345, 0, 4000)["rank 1"] == "35.6 ms"
        found = data.point(3800, 0, 4000)
        assert set(found) == {"", "rank 0"} and found["rank 0"] == "10 ms", found
        data.drag(2300, 2400, 0, 4000)
        kept = tab.wait("decodeURIComponent(location.hash)", lambda text: "zoom" in text)
        left, right = (float(text) for text in re.search(r"time:([\d.]+),([\d.]+)", kept).groups())
        tab.wait_for("averaged over ranks and 1 s")
        for second in (2340, 2345, 2346):
            found = data.point(second - 0.5, left, right)
            milliseconds = {f"rank {rank}": round(1000 * waits[rank, second]) for rank in range(2)}
            assert {name: round(float(text.removesuffix(" ms"))) for name, text in found.items() if name} == milliseconds, (second, found)
        # The parts of a step are of the same range.
        parts = Chart(tab, "Step time")
        assert parts.point(2344.5, left, right)["waiting for data"] == "265 ms"


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
    # Over a ramp, the average is 0.9 / (1 - 0.9) = 9 steps late. Where points stand for 16 values each, these values are
    # not known one by one, so the average may be off by one point.
    write_run(root / "long", {"ramp": {step: float(step) for step in range(8000)}})
    with served(program, root / "long") as address:
        tab.open(address)
        tab.wait("location.hash === '' && !!document.querySelector('.card path')")
        tab.get("location.hash = '#smooth=0.9'")
        ramp = Chart(tab, "ramp")
        tab.wait(f"{ramp.card}.querySelectorAll('path.line.raw').length", lambda number: number == 1)
        found = ramp.point(4000, 0, 7999)
        last = int(re.search(r"to ([\d,]+)", found[""])[1].replace(",", ""))
        count, average = re.search(r"mean of (\d+): .*, smoothed (\S+)", found["ramp"]).groups()
        assert 8 <= int(count) <= 32 and abs(last - 9 - float(average)) <= int(count), found


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
        # This run has no log, which makes the page shorter.
        tab.wait("document.getElementById('log-section').hidden")
        tab.click("#settings-rows [data-rows=all]")
        tab.wait_for("python train.py --rate 0.0003")
        assert "1f0c3a9" in tab.text()


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
        tab.type("#filter", "lr=0.1")
        tab.wait_for("1 of 20 match. Enter draws them")
        tab.key("Enter")
        tab.wait_for("20 runs, 1 drawn")
        tab.type("#search", "acc")
        tab.wait("[...document.querySelectorAll('#metrics .card h3 b')].map((one) => one.textContent)", lambda found: found == ["eval/accuracy"])
        tab.click("#axis [data-axis=time]")
        kept = tab.get("location.href")
        assert "token" not in kept and "show=run_09" in kept
        tab.open("about:blank")
        tab.open(kept)
        tab.wait_for("20 runs, 1 drawn")
        # The filter says what it does, and can be cleared.
        tab.wait("document.getElementById('filter-count').textContent", lambda text: text == "1 of 20 match")
        assert tab.get("document.querySelector('#runs tbody th').innerText") == "run_09"
        assert tab.get("document.querySelector('#axis [data-axis=time]').getAttribute('aria-pressed')") == "true"
        accuracy = Chart(tab, "eval/accuracy")
        assert accuracy.legend() == ["run_09 0.45"]
        tab.wait_for("1 of 2 match")
        tab.click("#filter-clear")
        tab.wait("document.querySelectorAll('#runs tbody tr').length", lambda number: number == 20)
        assert tab.get("document.activeElement.id + filter.value + document.getElementById('filter-count').textContent") == "filter"
        assert "filter" not in tab.get("location.hash") and tab.get("document.getElementById('filter-clear').hidden")
        tab.type("#filter", "nothing like this")
        tab.wait_for("0 of 20 match")


def test_charts_are_on_the_first_screen_and_columns_can_be_chosen(program: str, browser: Browser, root: Path) -> None:
    now = time.time()
    for i in range(20):
        run = Run(root / f"run_{i:02}", 2, now - 90000 - 1000 * i, 60, i, rate=1e-4 * (1 + i))
        run.nan_from = 0.5 if i % 3 == 0 else None
        run.write(is_finished=i != 5)
        if i == 5:
            run.crash(1, "ValueError: bad batch")
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 900)
        tab.open(address)
        tab.wait_for("1 more note")
        Chart(tab, "loss")
        bottoms = tab.get("[...document.querySelectorAll('.plot')].slice(0, 3).map((plot) => plot.getBoundingClientRect().bottom)")
        assert len(bottoms) == 3 and max(bottoms) <= 900, bottoms
        # What is behind the table can be reached.
        assert tab.get("document.getElementById('runs-scroll').scrollHeight") > 400
        heads = "[...document.querySelectorAll('#runs thead th')].map((one) => one.innerText)"
        usual = tab.get(heads)
        assert usual.index("loss, last") < usual.index("loss, lowest") < usual.index("lr") and "layers" not in usual
        tab.click("#columns summary")
        label = "[...document.querySelectorAll('#columns label')].find((one) => one.innerText === '{}')"

        def press(title: str) -> None:
            x, y = tab.get(f"(() => {{ const one = {label.format(title)}; one.scrollIntoView({{block: 'nearest'}});"
                           "const box = one.getBoundingClientRect(); return [box.left + 30, box.top + 8]; })()")
            for kind in ("mousePressed", "mouseReleased"):
                tab.mouse(kind, x, y, button="left", clickCount=1)

        press("layers")
        tab.wait(heads, lambda found: found == [*usual, "layers"])
        # The menu stays open for more.
        press("Started")
        wanted = [one for one in [*usual, "layers"] if one != "Started"]
        tab.wait(heads, lambda found: found == wanted)
        tab.key("Escape")
        assert not tab.get("document.getElementById('columns').open")
        tab.get("window.isOld = true")
        tab.call("Page.reload")
        tab.wait("!window.isOld")
        tab.wait(heads, lambda found: found == wanted)
        tab.wait_for("1 more note")
        Chart(tab, "loss")
        tab.click("#columns summary")
        tab.click("#columns button")
        tab.wait(heads, lambda found: found == usual)
        tab.mouse("mousePressed", 20, 300, button="left", clickCount=1)
        assert not tab.get("document.getElementById('columns').open")


def test_runs_of_one_name_are_two_runs(program: str, browser: Browser, root: Path) -> None:
    for i, folder in enumerate(("one", "two")):
        write_run(root / folder / "same", {"loss": {step: step + i / 4 for step in range(40)}}, age=1000 * (i + 1))
        write_run(root / folder / f"other_{i}", {"loss": curve(40, i)}, age=1000 * (i + 3))
    with served(program, root / "one", root / "two") as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("4 runs, 4 drawn")
        loss = Chart(tab, "loss")
        tab.wait(f"{loss.card}.querySelectorAll('path.line').length", lambda number: number == 4)
        found = loss.point(20, 0, 39)
        assert found["one/same"] == "20" and found["two/same"] == "20.25"
        # Hiding one leaves the other.
        drawn = ("[...document.querySelectorAll('#runs tbody tr')].filter((row) => row.querySelector('input').checked)"
                 ".map((row) => row.querySelector('th').innerText).sort()")
        tab.click("#runs tbody tr:nth-child(1) input")
        assert tab.wait(drawn, lambda found: len(found) == 3) == ["other_0", "other_1", "two/same"]
        kept = tab.get("location.hash")
    # A bookmark opened with other folders: the names that are there are drawn, the others named.
    with served(program, root / "two") as address:
        tab.open(address)
        tab.wait_for("2 runs, 2 drawn")
        tab.get(f"location.hash = {json.dumps(kept)}")
        tab.wait_for("The address names runs that are not here: other_0")
        assert tab.wait(drawn, lambda found: found == ["other_1", "same"])
        tab.get("location.hash = '#show=same'")
        assert tab.wait(drawn, lambda found: found == ["same"])
        tab.click("#runs tbody tr[data-key='1'] input")
        tab.wait_for("No run is drawn. Tick runs in the table above.")
    # A name from before another run of this name was there means both.
    with served(program, root) as address:
        tab.open(address)
        tab.wait_for("4 runs, 4 drawn")
        tab.get("location.hash = '#show=same'")
        assert tab.wait(drawn, lambda found: found == ["one/same", "two/same"])
        tab.click("#runs tbody tr:nth-child(1) input")
        assert tab.wait(drawn, lambda found: found == ["two/same"])
        # Leaving the page and returning restores the view.
        tab.open("about:blank")
        tab.get("history.back()")
        tab.wait_for("4 runs, 1 drawn")
        assert tab.get(drawn) == ["two/same"]


def test_deleted_runs_and_damaged_lines_are_named(program: str, browser: Browser, root: Path) -> None:
    for i in range(3):
        write_run(root / f"run_{i}", {"loss": {step: i + 1.0 for step in range(20_000)}}, age=30_000 + i)
    with open(root / "run_2" / "metrics.jsonl", "ab") as file:
        file.write(b'{"time": 1, "st\0\xff\n[]\n')
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("run_2: 2 lines of metrics.jsonl cannot be read; the values are missing here")
        rows = "[...document.querySelectorAll('#runs tbody tr')].map((row) => [...row.children].slice(1).map((cell) => cell.innerText))"
        steps = {row[0]: row[4] for row in tab.wait(rows, lambda found: all(row[4] == "19,999" for row in found))}
        assert set(steps) == {"run_0", "run_1", "run_2"}
        shutil.rmtree(root / "run_1")
        tab.wait(rows, lambda found: found[-1][:2] == ["run_1", "deleted"])
        loss = Chart(tab, "loss")
        tab.wait("[...document.querySelectorAll('.card .key > span')].map((one) => one.textContent)",
                 lambda found: found == ["run_0 1", "run_2 3"])
        assert set(loss.point(100, 0, 19_999)) == {"", "run_0", "run_2"}


def test_nothing_overlaps_or_is_cut(program: str, browser: Browser, root: Path) -> None:
    now = time.time()
    for i, name in enumerate(("a", "b", "a_name_that_is_much_too_long_for_any_legend_of_a_chart")):
        Run(root / name, 2, now - 9000 * (i + 1), 300, i, rate=(1e-4 + 2e-4) * (1 + i)).write()
    # Its clock is ahead of ours.
    Run(root / "ahead", 2, now - 100, 300, 4, rate=1e-4).write(is_finished=False)
    with served(program, root) as address:
        for width in (1440, 390):
            tab = browser.new_tab()
            tab.resize(width, 900)
            tab.open(address)
            tab.wait_for("4 runs, 4 drawn")
            Chart(tab, "Device utilisation")
            tab.wait("[...document.querySelectorAll('.card .key')].every((key) => key.children.length >= 4)")
            # The page is no wider than the window, and no word of the first column and no short name is cut.
            assert tab.get("document.documentElement.scrollWidth") <= width
            assert tab.get("""[...document.querySelectorAll('#settings tbody th')].map((one) => one.getBoundingClientRect().height).every((height) => height < 130)
                && (() => { const range = document.createRange(); range.selectNodeContents([...document.querySelectorAll('#settings tbody th')]
                    .find((one) => one.textContent === 'command')); return range.getClientRects().length === 1; })()""")
            assert tab.get("""[...document.querySelectorAll('.key .short span:first-child')].filter((one) => one.scrollWidth > one.clientWidth)
                .map((one) => one.parentElement.textContent).filter((name) => name.length <= 24)""") == []
            assert tab.get("""(() => { const field = document.getElementById('filter'); const style = getComputedStyle(field);
                const pen = document.createElement('canvas').getContext('2d'); pen.font = style.font;
                return pen.measureText(field.placeholder).width <= field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight); })()""")
            # Cells of a row are at one height.
            assert tab.get("""[...document.querySelectorAll('#runs tr')].filter((row) => new Set([...row.children]
                .map((cell) => Math.round(4 * cell.getBoundingClientRect().bottom))).size > 1).length""") == 0
            # With collapsed borders, cells that stay in place while the table scrolls lose theirs.
            assert tab.get("getComputedStyle(document.getElementById('runs')).borderCollapse") == "separate"
            assert tab.get("[...document.querySelectorAll('#runs tr:not(:last-child) > *, #runs thead tr > *')].every((cell) => getComputedStyle(cell).borderBottomWidth === '1px')")
            # The axes of charts in a row are at one height.
            assert tab.get("""(() => { const rows = {};
                for (const card of document.querySelectorAll('.card')) (rows[Math.round(card.getBoundingClientRect().top)] ??= new Set())
                    .add(Math.round(card.querySelector('.plot').getBoundingClientRect().bottom));
                return Object.values(rows).filter((found) => found.size > 1).length; })()""") == 0
            tab.get("[...document.querySelectorAll('#runs tbody th button')].find((one) => one.textContent === 'ahead').click()")
            tab.wait("document.getElementById('ranks-of').textContent === 'ahead'")
            assert tab.get("[...document.querySelectorAll('#ranks tbody td:last-child')].map((one) => one.textContent)") == ["0 s ago"] * 2


def test_configurations_are_compared_side_by_side(program: str, browser: Browser, root: Path) -> None:
    same = {f"setting_{i}": i for i in range(30)}
    for i, (name, rate, data) in enumerate((("a", 0.1, "books"), ("b", 0.2, "books"), ("c", 0.2, "code"))):
        write_run(root / name, {"loss": curve(20, 1)}, age=1000 * (i + 1), lr=rate, data=data, **same)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        rows = "[...document.querySelectorAll('#settings tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
        assert sorted(tab.wait(rows, lambda found: len(found) == 3 and len(found[0]) == 4)) == [
            ["", "a", "b", "c"], ["data", "books", "books", "code"], ["lr", "0.1", "0.2", "0.2"]]
        tab.wait_for("of the 3 drawn runs; 30 equal rows are hidden")
        # Each run has the colour of its lines.
        colors = tab.get("[...document.querySelectorAll('#settings i')].map((one) => getComputedStyle(one).backgroundColor)")
        lines = Chart(tab, "loss").get("querySelectorAll('path.line').length")
        assert len(set(colors)) == lines == 3
        tab.click("#runs tbody tr[data-key='0'] input")
        tab.wait(rows, lambda found: found == [["", "b", "c"], ["data", "books", "code"]])
        tab.click("#settings-rows [data-rows=all]")
        tab.wait(rows, lambda found: len(found) == 33)
        assert tab.get("[...document.querySelectorAll('#settings tr.differs th')].map((one) => one.textContent)") == ["data"]
        assert "settings=all" in tab.get("location.hash")


# What people see who lack one kind of cones: G. M. Machado, M. M. Oliveira and L. A. F. Fernandes, 2009, severity 1.
MISSING_CONES = (
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)))


def oklab(linear: list[float]) -> list[float]:
    """B. Ottosson's space, in which distances are about as large as they look."""
    red, green, blue = linear
    cones = [max(0.0, cone) ** (1 / 3) for cone in (
        0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue,
        0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue,
        0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)]
    return [sum(a * b for a, b in zip(row, cones)) for row in (
        (0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660))]


def test_colours_of_runs_differ_and_stay(program: str, browser: Browser, root: Path) -> None:
    for i in range(12):
        write_run(root / f"run_{i:02}", {"loss": curve(40, i)}, age=1000 * (i + 1))
    with served(program, root) as address:
        for is_dark in (False, True):
            tab = browser.new_tab()
            tab.resize(1440, 1000, is_dark=is_dark)
            tab.open(address)
            tab.wait_for("12 runs, 8 drawn of at most 50")
            loss = Chart(tab, "loss")
            tab.wait(f"{loss.card}.querySelectorAll('path.line').length", lambda number: number == 8)
            colors = ("Object.fromEntries([...document.querySelectorAll('#runs tbody tr')].filter((row) => row.querySelector('input').checked)"
                      ".map((row) => [row.querySelector('th').innerText, getComputedStyle(row.querySelector('.pick')).getPropertyValue('--color')]))")
            first = tab.get(colors)
            found = []
            for text in first.values():
                parts = [int(text.strip()[i:i + 2], 16) / 255 for i in (1, 3, 5)]
                found.append([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts])
            for seen in (found, *([[sum(a * b for a, b in zip(row, color)) for row in cones] for color in found] for cones in MISSING_CONES)):
                lab = [oklab(color) for color in seen]
                # A step of 0.02 is just noticeable.
                assert min(math.dist(a, b) for i, a in enumerate(lab) for b in lab[:i]) > 0.08
            # Hiding, drawing another one, drawing again and reloading change no colour.
            tab.click("#runs tbody tr[data-key='2'] input")
            tab.wait_for("12 runs, 7 drawn")
            tab.click("#runs tbody tr[data-key='9'] input")
            tab.wait_for("12 runs, 8 drawn")
            assert {**tab.get(colors), "run_09": None, "run_02": first["run_02"]} == {**first, "run_09": None}
            tab.click("#runs tbody tr[data-key='2'] input")
            tab.wait_for("12 runs, 9 drawn")
            more = tab.get(colors)
            assert {**more, "run_09": None} == {**first, "run_09": None}
            tab.click("#runs tbody tr[data-key='0'] input")
            tab.wait_for("12 runs, 8 drawn")
            tab.get("window.isOld = true")
            tab.call("Page.reload")
            tab.wait("!window.isOld")
            tab.wait(colors, lambda found: found == {name: color for name, color in more.items() if name != "run_00"})
            # Each control says what it does.
            assert tab.get("[...document.querySelectorAll('header input, header button, .bar input, .bar button, .bar details, .card button, #runs button')]"
                           ".filter((one) => !one.closest('[title]') && !one.closest('.menu')).map((one) => one.outerHTML)") == []


def test_values_and_charts_can_be_saved(program: str, browser: Browser, root: Path, downloads: Path) -> None:
    # More than the server sends at once.
    values = curve(40_000, 6)
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
        assert not tab.get("document.getElementById('csv').checkVisibility({visibilityProperty: true})")
        assert 'Accelerator(log_with="jsonl"' in tab.text() and '.log_with = {"jsonl"}' in tab.text()
        write_run(root / "<img src=x>", {"loss": curve(10, 7)}, end=None)
        Chart(tab, "loss")
        # It has taken no step through the library.
        (root / "<img src=x>" / "ranks").mkdir()
        write_lines(root / "<img src=x>" / "ranks" / "rank_0.jsonl", [{"time": time.time(), "event": "start", "rank": 0}])
        tab.wait("!document.getElementById('ranks-section').hidden")
        assert tab.get("document.getElementById('steps-section').hidden && document.getElementById('csv').checkVisibility({visibilityProperty: true})")
        assert "–" in tab.get("document.getElementById('figures').innerText") and "– /s" not in tab.text()
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
        assert "median of 64 ranks" in tab.get("document.body.textContent")
        assert tab.get("document.querySelectorAll('path.band.c0').length") >= 5
        assert tab.get("document.querySelectorAll('path.line.slow').length") >= 5
        assert tab.get("document.querySelectorAll('path.stack').length") >= 5


def test_values_far_away_do_not_flatten_a_chart(program: str, browser: Browser, root: Path) -> None:
    usual = {step: 2 + 0.5 * math.sin(step / 9) for step in range(400)}
    for i in range(8):
        write_run(root / f"run_{i}", {"loss": {step: value + i / 20 for step, value in usual.items()}})
    # One run has two spikes and another one diverges.
    write_run(root / "spikes", {"loss": {**usual, 100: 5e4, 300: -7e4}, "rate": {step: 1 + step for step in usual}})
    write_run(root / "wild", {"loss": {step: 1e6 if step >= 50 else value for step, value in usual.items()}})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)
        tab.wait_for("10 runs, 8 drawn")
        tab.click("#runs thead input")
        tab.wait_for("10 runs, 10 drawn")
        loss = Chart(tab, "loss")
        ticks = f"[...{loss.card}.querySelectorAll('.plot > svg > text[text-anchor=end]')].map((one) => one.textContent)"
        notes = f"[...{loss.card}.querySelectorAll('.beyond-note')].map((one) => one.textContent)"
        marks = f"[...{loss.card}.querySelectorAll('path.beyond')].length"
        full = f"{loss.card}.querySelector('button.full')"

        def press(button: str) -> None:
            x, y = tab.get(f"(() => {{ const box = {button}.getBoundingClientRect(); return [box.left + 5, box.top + 5]; }})()")
            for kind in ("mousePressed", "mouseReleased"):
                tab.mouse(kind, x, y, button="left", clickCount=1)

        tab.wait(notes, lambda found: found == ["351 points above, up to 1 M", "1 point below, down to -70 k"])
        assert "2.5" in tab.get(ticks) and not any(" " in text for text in tab.get(ticks))
        assert tab.get(marks) > 20
        # What is outside is still read, and zooming to it shows it.
        found = loss.point(100, 0, 399)
        assert found["spikes"] == "50000" and found["wild"] == "1000000"
        press(full)
        tab.wait(ticks, lambda found: "1 M" in found)
        assert tab.get(notes) == [] and tab.get(marks) == 0
        assert "full=loss" in tab.get("location.hash")
        press(full)
        tab.wait(notes, lambda found: len(found) == 2)
        # A wide range alone is no reason to leave out anything.
        assert tab.get(f"{Chart(tab, 'rate').card}.querySelector('button.full').hidden")
        # A logarithmic axis has no place for what is not positive, and says so.
        press(f"{loss.card}.querySelector('button[title^=Logarithmic]')")
        tab.wait(notes, lambda found: "1 point at 0 or below not drawn" in found)
    # A part of a step is never far from the others, however large it is.
    own = root / "own"
    write_run(own, {"loss": usual}, age=500)
    (own / "ranks").mkdir()
    begin = time.time() - 500
    write_lines(own / "ranks" / "rank_0.jsonl", [{"time": begin, "event": "start", "rank": 0}, *(
        {"time": begin + second, "step": second, "values": {
            "steps": 1, "forward": 0.002, "backward": 0.003, "optimizer": 0.001, "data": 0.001, "other": 0.9}} for second in range(1, 400))])
    with served(program, own) as address:
        tab.open(address)
        tab.wait("document.title.startsWith('own')")
        parts = Chart(tab, "Step time")
        found = parts.point(200, 0, 400)
        assert found["your own code"] == "900 ms" and found["forward"] == "2 ms"
        assert parts.get("querySelectorAll('.beyond-note, path.beyond').length") == 0
        assert parts.get("querySelector('button.full').hidden")


def test_axes_are_readable_and_shared(program: str, browser: Browser, root: Path) -> None:
    steps = range(200)
    write_run(root / "run", {
        "train/loss": {step: 4 - step / 100 for step in steps}, "eval/loss": {step: 4.5 - step / 100 for step in steps},
        "train/accuracy": {step: step / 200 for step in steps}, "eval/accuracy": {step: 0.9 + step / 4000 for step in steps},
        "wide": {step: 10 ** (-12 + step / 10) for step in steps}, "narrow": {step: 2.1 + step / 100 for step in steps}})
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1440, 1000)
        tab.open(address)

        def ticks(title: str) -> list[list[float]]:
            return tab.get(f"[...{Chart(tab, title).card}.querySelectorAll('.plot > svg > text[text-anchor=end]')]"
                           ".filter((one) => one.getAttribute('x') < 58).map((one) => [one.textContent, Math.round(one.getAttribute('y'))])")

        def press_log(title: str) -> None:
            card = Chart(tab, title).card
            x, y = tab.get(f"(() => {{ const one = {card}.querySelector('button[title^=Logarithmic]'); one.scrollIntoView({{block: 'center'}});"
                           "const box = one.getBoundingClientRect(); return [box.left + 5, box.top + 5]; })()")
            for kind in ("mousePressed", "mouseReleased"):
                tab.mouse(kind, x, y, button="left", clickCount=1)
            tab.wait(f"{card}.querySelector('button[title^=Logarithmic]').getAttribute('aria-pressed') === 'true'")

        # Losses of 2 to 4 and 2.5 to 4.5 share an axis; accuracies of 0 to 1 and 0.9 to 0.95 do not.
        assert ticks("train/loss") == ticks("eval/loss") and {"2", "4"} <= {text for text, _ in ticks("train/loss")}
        assert ticks("train/accuracy") != ticks("eval/accuracy")
        press_log("train/loss")
        assert ticks("train/loss") != ticks("eval/loss")
        press_log("eval/loss")
        assert ticks("train/loss") == ticks("eval/loss")
        press_log("wide")
        press_log("narrow")
        # 20 powers of ten, and less than one.
        for title in ("train/loss", "wide", "narrow"):
            found = ticks(title)
            assert 3 <= len(found) <= 9, found
            assert all(before - after >= 15 for (_, before), (_, after) in zip(found, found[1:])), found
        exponents = [math.log10(float(text.replace(" M", "e6").replace(" G", "e9"))) for text, _ in ticks("wide")]
        assert all(exponent == round(exponent) for exponent in exponents)
        assert len({round(b - a) for a, b in zip(exponents, exponents[1:])}) == 1


def test_new_values_keep_the_focus_and_what_is_open(program: str, browser: Browser, root: Path) -> None:
    now = time.time()
    live = Run(root / "live", 4, now - 300, 290)
    live.write(is_finished=False)
    live.write_logs()
    log = root / "live" / "logs" / "run_20260101-a" / "attempt_0" / "rank_0" / "stdout.log"
    log.write_text("".join(f"line {i}\n" for i in range(4000)))
    for i in range(20):
        write_run(root / f"old_{i:02}", {f"metric_{name}": curve(20, i) for name in "abcdef"}, lr=i)
    with served(program, root) as address:
        tab = browser.new_tab()
        tab.resize(1000, 800)
        tab.open(address)
        tab.wait_for("21 runs, 8 drawn")
        tab.wait_for("line 3999")
        loss = Chart(tab, "loss")
        # The user closes a group, sorts, scrolls, and selects text of the log.
        tab.click("#metrics details:not(.plain) summary")
        tab.click("#runs thead th.name button")
        tab.get("""(() => {
            window.focused = document.activeElement;
            const [table, log] = [document.getElementById('runs').parentElement, document.getElementById('log')];
            [table.scrollTop, table.scrollLeft, log.scrollTop] = [120, 90, 700];
            const range = document.createRange();
            const begin = log.textContent.indexOf('line 3800');
            range.setStart(log.firstChild, begin);
            range.setEnd(log.firstChild, begin + 9);
            getSelection().removeAllRanges();
            getSelection().addRange(range);
            scrollTo(0, 400);
            window.state = () => [
                focused === document.activeElement && focused.isConnected, table.scrollTop, table.scrollLeft, getSelection().toString(),
                [...document.querySelectorAll('#metrics details')].map((one) => one.open), scrollY,
                range.getBoundingClientRect().top - log.getBoundingClientRect().top]; })()""")
        before = tab.get("state()")
        assert before[0] and before[1] == 120 and before[2] == 90 and before[3:5] == ["line 3800", [True, False]], before
        log_more(root / "live", 5000, loss=1.25, lr=1e-4)
        with open(log, "a") as file:
            file.write("line of later\n" * 100)
        tab.wait_for("line of later")
        tab.wait("[...document.querySelectorAll('#runs tbody tr')].find((row) => row.querySelector('th').innerText === 'live').innerText.includes('1.25')")
        assert tab.get("state()") == before
        # A range that is being dragged stays too.
        x, y = loss.x_of(0.25, 0, 1)
        selection = f"(() => {{ const one = {loss.card}.querySelector('.selection'); return [one.getAttribute('visibility'), Number(one.getAttribute('width')) > 50]; }})()"
        tab.mouse("mousePressed", x, y, button="left", clickCount=1)
        tab.mouse("mouseMoved", x + 80, y, button="left", buttons=1)
        assert tab.get(selection) == ["visible", True]
        log_more(root / "live", 5001, loss=1.5, lr=1e-4)
        tab.wait(f"{loss.card}.querySelector('.key').textContent.includes('live 1.5')")
        assert tab.get(selection) == ["visible", True]
        tab.mouse("mouseReleased", x + 80, y, button="left", clickCount=1)
        tab.wait("location.hash", lambda text: "zoom" in text)


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
