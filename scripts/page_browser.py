"""Headless Chromium for `chat_page.py`, by its own protocol over a pair of pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PATIENCE_S = 60
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-quic", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--remote-debugging-pipe"]
ENTER, ESCAPE, TAB = ("Enter", 13), ("Escape", 27), ("Tab", 9)
INPUT_METHOD = 229


class Failed(Exception):
    """Something of the page is not as it should be."""


class Browser:
    """A browser, of which each page has storage of its own."""

    def __init__(self, profile, flags=()):
        out_read, self.out = os.pipe()
        self.incoming, in_write = os.pipe()

        def pipes():
            # The browser reads commands on descriptor 3 and writes answers on 4.
            high = [os.dup(fd) for fd in (out_read, in_write)]
            high = [os.dup2(fd, 20 + place) for place, fd in enumerate(high)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [shutil.which("chromium"), *FLAGS, *flags, f"--user-data-dir={profile}"],
            preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(out_read)
        os.close(in_write)
        self.held, self.number, self.events = b"", 0, []

    def send(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        return self.number

    def call(self, method, session=None, **params):
        number = self.send(method, session, **params)
        while True:
            answer = self.read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.hear(answer)

    def hear(self, message):
        if message.get("method") == "Page.javascriptDialogOpening":
            # Whoever is asked whether to delete something says yes.
            self.send("Page.handleJavaScriptDialog", message["sessionId"], accept=True)
        elif "method" in message:
            self.events.append(message)

    def event(self, method, wanted, heard):
        """Waits for an event that is `wanted`, after the first `heard` ones."""
        while not any(event["method"] == method and wanted(event["params"])
                      for event in self.events[heard:]):
            if b"\0" not in self.held and not select.select([self.incoming], [], [], PATIENCE_S)[0]:
                raise Failed(f"there is no {method}")
            self.hear(self.read())

    def read(self):
        while b"\0" not in self.held:
            piece = os.read(self.incoming, 1 << 16)
            if not piece:
                raise RuntimeError("the browser ended")
            self.held += piece
        message, self.held = self.held.split(b"\0", 1)
        return json.loads(message)

    def page(self, address, context=None):
        """A new tab at `address`, in a browser without memory unless `context` has one."""
        if context is None:
            context = self.call("Target.createBrowserContext")["browserContextId"]
        return Page(self, context, address)

    def close(self):
        self.process.terminate()
        self.process.wait()


class Page:
    """One tab."""

    def __init__(self, browser, context, address):
        self.browser, self.context = browser, context
        made = browser.call("Target.createTarget", url="about:blank", browserContextId=context)
        self.target = made["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        # Durations are the time of the page's own thread, whatever else the machine does.
        self.call("Performance.enable", timeDomain="threadTicks")
        self.size(900, 760)
        self.go(address)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def events(self, *methods):
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in own if event["method"] in methods]

    def go(self, address):
        self.call("Page.navigate", url=address)
        self.ready()

    def reload(self):
        # Marked, so that the page that comes is told from the one that goes.
        self.value("window.isLeft = true")
        self.call("Page.reload")
        self.wait("the page again", "!window.isLeft")
        self.ready()

    def ready(self):
        self.wait("the model's name", "/context \\d+/.test($('state').textContent)")

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True, userGesture=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, what, script, seconds=PATIENCE_S):
        deadline = time.monotonic() + seconds
        # Before the page has come, what the script looks at is not there.
        attempt = (f"(async () => {{ try {{ return Boolean(await ({script})); }}"
                   " catch { return false; } })()")
        while not self.value(attempt):
            if time.monotonic() > deadline:
                raise Failed(f"{what} does not happen; the page says: "
                             + self.value("document.body.innerText"))
            time.sleep(0.03)

    def text(self, selector="body"):
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def key(self, key, code=None):
        name, own = key
        text = "\r" if key == ENTER else ""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, text=text,
                      windowsVirtualKeyCode=code or own)

    def type(self, text):
        self.value("$('prompt').focus()")
        self.call("Input.insertText", text=text)

    def press(self, word, within="body"):
        """Clicks the last button with this word on it."""
        found = f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        found += f".filter((one) => one.textContent === {json.dumps(word)}).at(-1)"
        if not self.value(f"Boolean({found})"):
            raise Failed(f"there is no button {word!r}: {self.text()}")
        self.value(f"{found}.click()")

    def fill(self, field, text):
        """What is typed into a field, without the typing."""
        self.value(f"(() => {{ const field = document.querySelector({json.dumps(field)});"
                   f"field.value = {json.dumps(text)};"
                   "field.dispatchEvent(new Event('input', { bubbles: true }));"
                   "field.dispatchEvent(new Event('change', { bubbles: true })); })()")

    def size(self, width, height, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, file):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))

    def metric(self, name):
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == name)

    def named(self, role):
        """Names that a screen reader has for what is of a role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        own = [node for node in nodes if node.get("role", {}).get("value") == role]
        return [node.get("name", {}).get("value", "") for node in own]
