# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser. usage: browser_test.py PROGRAM [FOLDER_FOR_PICTURES]

In a long run, or with a folder for pictures, all kinds of runs; else two of them."""
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulate_runs import Run

# Debian's, whatever other browser the PATH leads to.
BROWSER = "/usr/bin/chromium"
LIMIT_S = 120
SKIPPED = 77


@contextmanager
def served(program: str, folder: Path) -> Iterator[str]:
    """The address of the page while it is served."""
    with subprocess.Popen([program, "watch", str(folder)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "no address"
            yield found[0]
        finally:
            server.terminate()


def browse(address: str, *options: str, size: str = "1440,1000") -> str:
    """What the browser writes on stdout; whatever a page's console says is a failure."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [BROWSER, "--headless", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
             *(["--no-sandbox"] if os.geteuid() == 0 else []), "--force-device-scale-factor=1",
             f"--window-size={size}", "--virtual-time-budget=5000", f"--user-data-dir={profile}",
             *options, address],
            capture_output=True, text=True, timeout=LIMIT_S, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not said, said
    return done.stdout


def num_paths(page: str, names: str) -> int:
    """Paths of these classes that go somewhere."""
    return len(re.findall(rf'<path class="{names}" d="M[^"]+L', page))


def check_many(page: str) -> None:
    assert "Rank 17 on node3 is slow" in page
    assert "median of 64 ranks" in page
    assert num_paths(page, "band c0") >= 5 and num_paths(page, "line slow") >= 5
    assert num_paths(page, r"stack \w+") >= 5
    assert "Device utilisation" in page and "<td>85 %</td>" in page
    assert '<b class="running">running</b>' in page
    # The name of the run is text.
    assert "&lt;script&gt;alert(1)&lt;" in page and "<script>alert" not in page


def check_two(page: str) -> None:
    assert num_paths(page, "line c0") >= 4 and num_paths(page, "line c1") >= 4
    assert '<tr class="differs"><td>lr</td><td>0.001</td><td>0.0003</td>' in page
    assert page.count(">finished<") >= 2


def check_live(page: str) -> None:
    assert num_paths(page, r"line c\d") >= 8 and '<b class="running">running</b>' in page
    assert page.count('class="saved"') >= 10 and "restart</title>" in page
    assert "[RANK 0] INFO train: epoch 29" in page


def check_finished(page: str) -> None:
    assert '<b class="finished">finished</b>' in page and num_paths(page, "line c0") >= 4


def check_slow(page: str) -> None:
    assert "Rank 2 on node1 is slow" in page and '<tr class="slow"><td>rank 2</td>' in page


def make_runs(root: Path) -> None:
    # Those that are alive end a little later than now: the browser may take its time.
    now = time.time() + 300
    Run(root / "many" / "<script>alert(1)<", 64, now - 3000, 3000, 6, slow_rank=17).write(is_finished=False)
    Run(root / "two" / "lr_1e-3", 4, now - 80000, 900, 4, rate=1e-3).write()
    Run(root / "two" / "lr_3e-4", 4, now - 90000, 900, 3).write()
    live = Run(root / "live" / "sky", 4, now - 900, 900, 1)
    live.write(restart_at=0.4, is_finished=False)
    live.write_logs()
    Run(root / "finished" / "ocean", 4, now - 90000, 1800, 2).write()
    Run(root / "slow" / "hills", 4, now - 600, 600, 5, slow_rank=2).write(is_finished=False)


def main() -> int:
    program, pictures = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if not os.path.exists(BROWSER):
        print("skipped: Debian's chromium is not installed")
        return SKIPPED
    checks = {"many": check_many, "two": check_two, "live": check_live, "finished": check_finished,
              "slow": check_slow}
    is_long = os.environ.get("ACCELERATE_TEST_LONG") or pictures
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_runs(root)
        for name in checks if is_long else ("many", "two"):
            with served(program, root / name) as address:
                checks[name](browse(address, "--dump-dom"))
                if pictures:
                    for width, height in ((1440, 1060), (390, 2400)):
                        browse(address, f"--screenshot={pictures / name}_{width}.png",
                               size=f"{width},{height}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
