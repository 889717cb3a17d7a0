# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium, driven through its DevTools protocol over two pipes."""
from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Debian's, whatever other browser the PATH leads to.
BROWSER = "/usr/bin/chromium"
# Only bounds how long a starved machine may take.
LIMIT_S = 120


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width: int, height: int, *, is_dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def get(self, expression: str) -> Any:
        """The value of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, is_wanted: Callable[[Any], bool] = bool, limit_s: float = LIMIT_S) -> Any:
        """The value, as soon as it is the wanted one."""
        deadline = time.monotonic() + limit_s
        while True:
            value = self.get(expression)
            if is_wanted(value):
                return value
            assert time.monotonic() < deadline, f"{expression} is {value!r}\n{self.text()[:2000]}"
            time.sleep(0.03)

    def text(self) -> str:
        return self.get("document.body?.innerText ?? ''")

    def wait_for(self, text: str) -> None:
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        x, y = self.get(
            f"""(() => {{ const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: 'center'}}); const box = one.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()""")
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def key(self, name: str, **more: Any) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, **more)

    def type(self, selector: str, text: str) -> None:
        self.get(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


class Browser:
    def __init__(self, downloads: Path) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._targets: list[str] = []
        self._buffer = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        options = ["--headless", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
                   *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={self._profile.name}"]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "sh", BROWSER, *options,
             "about:blank"],
            pass_fds=(read_commands, write_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_commands)
        os.close(write_answers)
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))

    def close(self) -> None:
        os.close(self._commands)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def new_tab(self) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._targets.append(target)
        return Tab(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])

    def close_tabs(self) -> None:
        for target in self._targets:
            self.call("Target.closeTarget", targetId=target)
        self._targets.clear()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        """What the console of a page would say."""
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            # Tests end the server before the page.
            if "net::ERR_" not in values["entry"]["text"]:
                self.complaints.append(values["entry"]["text"] + " " + values["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(values["args"]))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)


@contextmanager
def browsing(downloads: Path) -> Iterator[Browser]:
    browser = Browser(downloads)
    try:
        yield browser
    finally:
        browser.close()
