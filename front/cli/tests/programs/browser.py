"""Opens a page in headless Chromium, and prints what it finds as JSON.

    browser.py PAGE.html WIDTH light|dark [SCREENSHOT.png HEIGHT]

Chromium is driven by its DevTools protocol over two pipes.
"""

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile

# Width of the window and of what is in it, what was loaded, and the state of the plots.
MEASURE = """JSON.stringify({
    client: document.documentElement.clientWidth,
    scroll: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    background: getComputedStyle(document.body).backgroundColor,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    plots: document.querySelectorAll(".plot[role=slider]").length,
    focus: document.activeElement.className,
    value: document.activeElement.getAttribute("aria-valuetext"),
    cursors: document.querySelectorAll(".cursor:not([hidden])").length,
})"""
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
         "--disable-component-update", "--remote-debugging-pipe"]


class Browser:
    """Chromium; commands are sent one at a time, and events collected meanwhile."""

    def __init__(self, profile):
        read, commands = os.pipe()
        answers, write = os.pipe()
        # Chromium reads from 3 and writes to 4; out of the way of these.
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (read, write))

        def pipes():
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.number, self.rest, self.events, self.session = 0, b"", [], None

    def receive(self):
        while b"\0" not in self.rest:
            chunk = self.answers.raw.read(1 << 16)
            if not chunk:
                sys.exit("Chromium has ended")
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def open(self):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def measure(self):
        found = self.send("Runtime.evaluate", expression=MEASURE, returnByValue=True)
        return json.loads(found["result"]["value"])

    def errors(self):
        """What the console has, but for messages below warnings."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["exception"].get("description", "?"))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def visit(self, page, width, scheme, height):
        """Measures a page, also while the keyboard moves the cursor of a plot."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.send("Page.navigate", url="file://" + os.path.abspath(page))
        self.wait("Page.loadEventFired")
        before = self.measure()
        self.press("Tab")
        first = self.measure()["focus"]
        focus = "document.querySelector('.plot')?.focus()"
        self.send("Runtime.evaluate", expression=focus)
        self.press("ArrowRight")
        after = self.measure()
        self.press("Escape")
        end = self.measure()
        return {**before, "errors": self.errors(), "focus": first, "value": after["value"],
                "cursors": [after["cursors"], end["cursors"]]}

    def screenshot(self, path):
        self.send("Runtime.evaluate", expression="document.activeElement.blur();"
                  "scrollTo({top: 0, behavior: 'instant'})")
        picture = self.send("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))


def main():
    # Ends this process, and Chromium with its pipes.
    signal.alarm(120)
    page, width, scheme, *picture = sys.argv[1:]
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        browser.open()
        height = int(picture[1]) if picture else 844
        print(json.dumps(browser.visit(page, int(width), scheme, height)))
        if picture:
            browser.screenshot(picture[0])
        browser.session = None
        browser.send("Browser.close")
        browser.process.wait(30)


main()
