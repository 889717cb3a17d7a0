# SPDX-License-Identifier: Apache-2.0
"""The page of `accelerate watch` with hundreds of runs, in Debian's Chromium.

usage: watch_page.py PROGRAM [--runs 300] [--long 100] [--points 100000] [--folder FOLDER]

Prints one JSON line for each figure; `peer` is what the page aims at. On a busy machine, the processor seconds tell more
than the wall time: `server` is the process of `accelerate watch`, `page` the main thread of the page."""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "watch"))
from devtools import Tab, browsing  # noqa: E402


def write_runs(root: Path, number: int, num_long: int, points: int) -> None:
    """The newest ones are long. Values repeat, so that writing takes seconds."""
    made = random.Random(0)
    noise = [made.gauss(0, 0.05) for _ in range(1009)]
    begin = time.time() - 1_000_000
    for run in range(number):
        size = points if run < num_long else points // 100
        folder = root / f"run_{run:03}"
        folder.mkdir(parents=True)
        start = begin - 1000 * run
        lines = [json.dumps({"time": start, "event": "start", "schema": 1, "num_processes": 1}),
                 json.dumps({"time": start, "event": "configuration", "values": {"lr": 1e-4 * (run + 1), "layers": 12}})]
        lines += [f'{{"time": {start + step}, "step": {step}, "values": {{"loss": '
                  f"{1.6 + 3 * math.exp(-7 * step / size) + noise[(step + run) % 1009]:.6f}, "
                  f'"grad_norm": {0.6 + noise[(7 * step + run) % 1009]:.6f}}}}}' for step in range(size)]
        lines.append(json.dumps({"time": start + size, "event": "finish"}))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def say(case: str, ours: float, aim: float, unit: str) -> None:
    print(json.dumps({"bench": "watch_page", "case": case, "ours": round(ours, 3), "peer": aim, "unit": unit,
                      "ratio": round(aim / ours, 3) if ours else None}), flush=True)


def processor_s(pid: int) -> float:
    """The processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_s(tab: Tab) -> float:
    """The processor seconds of the page's main thread so far."""
    found = tab.call("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in found if one["name"] == "TaskDuration")


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def measure(program: str, root: Path, num_long: int, last: str) -> None:
    began = time.monotonic()
    with subprocess.Popen([program, "watch", str(root)], stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            say("server start", time.monotonic() - began, 1, "s")
            with tempfile.TemporaryDirectory() as downloads, browsing(Path(downloads)) as browser:
                tab = browser.new_tab()
                tab.resize(1440, 1000)
                tab.call("Performance.enable", timeDomain="threadTicks")
                began, server_began, page_began = time.monotonic(), processor_s(server.pid), page_s(tab)
                tab.open(address)
                tab.wait("document.querySelectorAll('.card path.line').length", lambda number: number >= 1)
                say("first picture", time.monotonic() - began, 2, "s")
                say("first picture, processor of the server", processor_s(server.pid) - server_began, 2, "s")
                say("first picture, processor of the page", page_s(tab) - page_began, 2, "s")
                tab.wait("[...document.querySelectorAll('.card')].every((one) => one.querySelectorAll('path.line').length >= 8)")
                say("all drawn runs", time.monotonic() - began, 10, "s")
                plot = tab.get("(() => { const box = document.querySelector('.plot').getBoundingClientRect(); return [box.left, box.top, box.width]; })()")
                # From the event to the next picture, as the browser sees it.
                tab.get("""window.delays = []; document.querySelector('.plot').addEventListener('pointermove', (event) => {
                    requestAnimationFrame(() => setTimeout(() => window.delays.push(performance.now() - event.timeStamp))); });""")
                page_began = page_s(tab)
                for i in range(40):
                    tab.mouse("mouseMoved", plot[0] + 70 + i * (plot[2] - 90) / 40, plot[1] + 60)
                    time.sleep(0.05)
                delays = sorted(tab.wait("window.delays", lambda found: len(found) >= 30))
                say("tooltip delay, median", delays[len(delays) // 2], 50, "ms")
                say("tooltip delay, 95 %", delays[int(0.95 * len(delays))], 50, "ms")
                say("40 tooltips, processor of the page", page_s(tab) - page_began, 2, "s")
                tab.wait(f"[...document.querySelectorAll('#runs tbody tr')].filter((row) => row.children[5].textContent === '{last}').length",
                         lambda number: number >= num_long, limit_s=600)
                say("whole table", time.monotonic() - began, 60, "s")
            say("server memory", memory_mb(server.pid), 500, "MB")
            say("load of the machine", os.getloadavg()[0], os.cpu_count() or 1, "processes")
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--long", type=int, default=100)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.folder or Path(folder)
        if not any(root.glob("run_*")):
            write_runs(root, given.runs, given.long, given.points)
        # As the table shows the last step.
        measure(given.program, root, given.long, f"{given.points - 1:,}")


if __name__ == "__main__":
    main()
