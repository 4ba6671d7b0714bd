"""Drives the chat page in headless Chromium: send, stream, stop, tool call, phone width, keyboard.

    atlas-cpu-tiny-nvfp4 serve --port 8000 &
    python3 scripts/chat_page.py http://127.0.0.1:8000 --screenshot src/http/ui/screenshot.png

Needs `chromium` on the path and nothing beyond Python's standard library: it speaks the browser's
protocol over a pair of pipes. Exits with 1 at the first thing that is not as it should be.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


class Browser:
    """One page of a headless browser."""

    def __init__(self, profile):
        out_read, self.out = os.pipe()
        self.incoming, in_write = os.pipe()

        def pipes():
            # The browser reads commands on descriptor 3 and writes answers on 4.
            high = [os.dup(fd) for fd in (out_read, in_write)]
            high = [os.dup2(fd, 20 + place) for place, fd in enumerate(high)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(out_read)
        os.close(in_write)
        self.held, self.number, self.events = b"", 0, []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def read(self):
        while b"\0" not in self.held:
            self.held += os.read(self.incoming, 1 << 16)
        message, self.held = self.held.split(b"\0", 1)
        return json.loads(message)

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, what, script):
        deadline = time.monotonic() + PATIENCE_S
        # Before the page has come, what the script looks at is not there.
        attempt = f"(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        while not self.value(attempt):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} does not happen; the page says: "
                                   + self.value("document.body.innerText"))
            time.sleep(0.05)

    def key(self, name, code):
        text = "\r" if name == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, text=text,
                      windowsVirtualKeyCode=code)

    def type(self, text):
        self.value("document.getElementById('prompt').focus()")
        self.call("Input.insertText", text=text)

    def size(self, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self):
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self.process.terminate()
        self.process.wait()


LAST = "[...document.querySelectorAll('article.assistant')].at(-1)"
IDLE = "document.getElementById('send').textContent === 'Send'"
BUSY = "document.getElementById('send').textContent === 'Stop'"


def check(holds, what):
    if not holds:
        raise RuntimeError(what)
    print("ok:", what)


def drive(browser, address, screenshot):
    browser.size(900, 760, "light")
    browser.call("Page.navigate", url=address + "/")
    browser.wait("the model's name", "/context \\d+/.test(document.getElementById('state')"
                 ".textContent)")

    browser.type("What is the capital of France?")
    browser.key("Enter", 13)
    browser.wait("the first piece", f"{LAST}?.querySelector('.text, .thought')")
    browser.wait("the end", IDLE)
    check("Paris" in browser.value(f"{LAST}.innerText"), "a message is sent and answered")
    check(browser.value(f"/first token \\d+ ms . [\\d.]+ tokens.s/.test({LAST}.innerText)"),
          "time to the first token and speed are shown")
    check(browser.value(f"{LAST}.querySelector('details')?.open === false"),
          "the thoughts are folded")

    browser.value("document.getElementById('tools').value = "
                  + json.dumps(json.dumps(WEATHER)))
    browser.type("What is the weather in Paris?")
    browser.key("Enter", 13)
    browser.wait("the call", f"{LAST}?.querySelector('.call textarea')")
    check("get_weather" in browser.value(f"{LAST}.innerText"), "a tool call is shown")
    if screenshot:
        browser.wait("the picture", IDLE)
        with open(screenshot, "wb") as file:
            file.write(browser.picture())
    browser.value(f"{LAST}.querySelector('.call textarea').value = '18 degrees, sunny'")
    browser.value(f"{LAST}.querySelector('article.assistant > button, button').click()")
    browser.wait("the answer to the result", f"{IDLE} && history.at(-1).role === 'assistant'"
                 " && history.at(-2).role === 'tool'")
    check(True, "the result of a tool goes back")

    browser.value("document.getElementById('tools').value = ''")
    browser.value("document.getElementById('temperature').value = '2'")
    for stop in ("key", "button"):
        for _ in range(20):
            browser.type("Tell me everything that you know about everything.")
            browser.key("Enter", 13)
            browser.wait("the reply", f"{BUSY} || {LAST}.innerText.length > 0")
            if stop == "key":
                browser.key("Escape", 27)
            else:
                browser.value(f"{BUSY} && document.getElementById('send').click()")
            browser.wait("the stop", IDLE)
            if browser.value(f"{LAST}.innerText").find("Stopped.") >= 0:
                break
        check("Stopped." in browser.value(f"{LAST}.innerText"), f"a {stop} stops the reply")

    browser.size(360, 640, "dark")
    time.sleep(0.2)
    check(browser.value("document.documentElement.scrollWidth <= innerWidth"),
          "the page fits a phone")
    dark = browser.value("getComputedStyle(document.body).backgroundColor")
    check(dark == "rgb(22, 24, 27)", "the page is dark where that is preferred")
    browser.value("document.getElementById('prompt').focus()")
    browser.key("Tab", 9)
    check(browser.value("document.activeElement.id") == "send", "Tab reaches the button")
    browser.value("document.getElementById('clear').click()")
    check(browser.value("document.querySelectorAll('article').length") == 0, "a new chat is empty")

    asked = [event["params"]["request"]["url"] for event in browser.events
             if event.get("method") == "Network.requestWillBeSent"]
    outside = [url for url in asked if not url.startswith((address, "data:", "about:"))]
    check(asked and not outside, f"nothing but {address} is asked ({len(asked)} requests)")
    problems = [event["params"] for event in browser.events
                if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    check(not problems, f"nothing is reported on the console {problems or ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("address", help="of a running server, as http://127.0.0.1:8000")
    parser.add_argument("--screenshot", help="where to write a picture of the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            drive(browser, options.address.rstrip("/"), options.screenshot)
        except RuntimeError as problem:
            sys.exit(f"failed: {problem}")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
