"""Drive Debian's headless Chromium over its own pipe: load a page, look at it, list what it did."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium")
"""Programs of Debian's packages of the same names."""

OPTIONS = (
    "--headless",
    "--no-sandbox",  # containers have no namespaces for it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Return the path of a headless browser; None where none is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


PATIENCE_SECONDS = 120
"""How long an answer may take on a busy machine."""


class Browser:
    """One page of a running browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = os.fdopen(send, "wb", buffering=0)
        self._receive = receive
        self._unread = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        """What the page reported, in its order."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def close(self) -> None:
        """Hang up, which ends the browser."""
        self._send.close()
        os.close(self._receive)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the browser's protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path, anchor: str = "") -> None:
        """Load a file anew and wait until it is there."""
        self._navigate("about:blank")
        self._navigate(path.resolve().as_uri() + anchor)

    def _navigate(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def look(self, width: int, dark: bool = False, media: str = "screen") -> None:
        """Set the width of the window in pixels, the colour scheme and the medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path, clip: Mapping[str, float] | None = None) -> None:
        """Write a PNG of the whole page, or of a part of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        part = dict(clip or {"x": 0, "y": 0, "width": size["width"], "height": size["height"]})
        taken = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**part, "scale": 1}
        )
        path.write_bytes(base64.b64decode(taken["data"]))

    def complaints(self) -> list[str]:
        """Return messages on the console, exceptions, and requests for anything but the page."""
        found = []
        for event in self.events:
            method, values = event.get("method"), event.get("params", {})
            if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(values))
            elif method == "Network.requestWillBeSent":
                url = values["request"]["url"]
                found += [] if url.startswith(("file:", "data:", "about:")) else [url]
        requests = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        files = [e["params"]["request"]["url"] for e in requests]
        return found + [url for url in files if url.startswith("file:")][1:]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._receive], [], [], PATIENCE_SECONDS)
            assert ready, f"the browser has been silent for {PATIENCE_SECONDS} seconds"
            part = os.read(self._receive, 2**16)
            assert part, "the browser has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser whose files are in a folder, and end it with the block."""
    program = find_browser()
    assert program is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # It reads from descriptor 3 and writes to 4, which a shell makes of what it inherits.
    command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(30)
