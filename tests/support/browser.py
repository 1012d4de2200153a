"""A page in Debian's headless Chromium, driven over its debugging pipe, so no driver is needed.

A test acts like a user: clicks and keys arrive as real browser events, at an element's position. Exceptions,
errors and policy violations of the page are in `complaints`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
_CLICKED = "clickArrived"  # a function on the page that notifies this module
_KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " ")}


_HOLD = """(() => {
    const ask = window.fetch;
    const later = new Promise((done) => { window.deliver = () => done(); });
    window.isHeld = window.isDelivered = false;
    window.fetch = async (path, options) => {
        const isMeant = path.includes(PART) && !(FIRST_ONLY && window.isHeld);
        window.isHeld ||= isMeant;
        const answer = await ask(path, options);
        if (!isMeant) return answer;
        const text = await answer.text();
        const whenDelivered = () => later.then(() => {
            setTimeout(() => { window.isDelivered = true; });
            return text;
        });
        return { ok: answer.ok, status: answer.status, text: whenDelivered };
    };
})()"""


def hold_answers(part: str, *, first_only: bool = False) -> str:
    """Return a script that holds back the answers to requests whose path contains `part`.

    On the page, `isHeld` says whether there was such a request, `deliver()` releases the answers, and
    `isDelivered` says whether the page has read one.
    """
    return _HOLD.replace("PART", json.dumps(part)).replace("FIRST_ONLY", json.dumps(first_only))


def executable() -> str:
    name = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert name is not None, "Chromium is missing: scripts/browser.sh installs it"
    return name


@contextmanager
def browsing(directory: Path, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """Yield a page of a separate browser, which keeps its files in the directory."""
    own, theirs = os.pipe(), os.pipe()
    # The descriptors are never 3 or 4, which the shell assigns below.
    ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 20) for one in (own[0], theirs[1])]
    command = [executable(), *_OPTIONS, f"--user-data-dir={directory / 'chromium'}", "about:blank"]
    script = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, *command], pass_fds=ends, stdout=log, stderr=log
        )
    for one in (own[0], theirs[1], *ends):
        os.close(one)
    try:
        page = Page(own[1], theirs[0])
        page.resize(width, height)
        yield page
    finally:
        os.close(own[1])  # the browser exits when its pipe is closed
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(theirs[0])


class Page:
    """The page; its methods raise AssertionError if the browser does not respond in time."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self._session: str | None = None
        self._loaded = 0
        self._clicks = 0
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Runtime.addBinding", name=_CLICKED)

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def resize(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, theme: str) -> None:
        """Make the system prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def go(self, url: str) -> None:
        """Go to an address, and wait until the page has loaded."""
        before, deadline = self._loaded, time.monotonic() + PATIENCE_S
        is_another = "loaderId" in self.send("Page.navigate", url=url)
        while is_another and self._loaded == before:
            self._note(self._message(deadline))

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; raise AssertionError if it throws an exception."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true on the page, and return its value, or true for an element."""
        script = f"((found) => found instanceof Node || found)({script})"
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.run(script)):
            text = self.run("document.documentElement.innerText")
            assert time.monotonic() < deadline, f"{script} is not so of:\n{text}\n{self.complaints}"
            time.sleep(0.05)
        return found

    def text(self, selector: str) -> str:
        """Wait for an element, and return its text."""
        return str(self.wait(f"document.querySelector({json.dumps(selector)})?.innerText"))

    def click(self, selector: str, saying: str = "") -> None:
        """Click the first line of the first visible element that matches a selector and contains a text.

        A page that is redrawn may move the element, or replace it, during the click, so the click is repeated
        until it arrives at the element.
        """
        place = f"""(() => {{
            const says = (one) => one?.textContent.includes({json.dumps(saying)});
            const found = [...document.querySelectorAll({json.dumps(selector)})].find((one) =>
                says(one) && one.checkVisibility() && !one.disabled);
            found?.scrollIntoView({{block: 'center'}});
            const box = found?.getClientRects()[0];
            const where = box && {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            if (!where || !found.contains(document.elementFromPoint(where.x, where.y))) return null;
            const note = (event) => says(event.target.closest({json.dumps(selector)})) && {_CLICKED}('');
            document.addEventListener('click', note, {{capture: true, once: true}});
            return where;
        }})()"""
        before, deadline = self._clicks, time.monotonic() + PATIENCE_S
        while self._clicks == before:
            assert time.monotonic() < deadline, f"no click arrives at {selector} {saying}"
            where: Mapping[str, float] = self.wait(place)
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, **where, button="left", clickCount=1)
            self.run("0")  # the page answers this after it has reported the click

    def press(self, key: str) -> None:
        """Press a key."""
        code, text = _KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code="Space" if key == " " else key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def write(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save the visible part, or the whole page, as PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1_000_000)
            assert piece, "the browser has ended"
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        return message

    def _note(self, event: Mapping[str, Any]) -> None:
        said = event.get("params", {})
        self._loaded += event.get("method") == "Page.loadEventFired"
        self._clicks += event.get("method") == "Runtime.bindingCalled" and said["name"] == _CLICKED
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        if event.get("method") == "Runtime.consoleAPICalled" and said["type"] == "error":
            self.complaints.append(json.dumps(said["args"]))
