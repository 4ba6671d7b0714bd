"""A server in front of the real one for `chat_page.py`: it passes all on, keeps what was asked, and
plays answers in its place where a check wishes, those of proxies that fail among them."""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSED_ON = ("content-type", "content-security-policy", "cache-control", "www-authenticate",
             "x-request-id", "x-accel-buffering")


class Front:
    """The server; `plays` has what answers a message in the model's place."""

    def __init__(self, upstream):
        parts = urllib.parse.urlsplit(upstream)
        self.upstream = (parts.hostname, parts.port)
        self.plays, self.asked, self.password = {}, [], None
        front = self

        class Handler(Exchange):
            def setup(self):
                self.front = front
                super().setup()

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                """A browser that leaves is no error."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def last(self):
        """Messages of the last request for a reply."""
        return self.asked[-1]["messages"]

    @contextlib.contextmanager
    def away(self):
        """Nobody answers at its address meanwhile."""
        port = self.server.server_port
        handler = self.server.RequestHandlerClass
        self.server.shutdown()
        self.server.server_close()
        yield
        self.server = type(self.server)(("127.0.0.1", port), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Exchange(BaseHTTPRequestHandler):
    """One connection, which ends with its answer."""

    def log_message(self, *_):
        """Says nothing."""

    def do_GET(self):
        self.pass_on(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        play = None
        if self.path.endswith("/chat/completions"):
            asked = json.loads(body)
            self.front.asked.append(asked)
            content = asked["messages"][-1]["content"]
            play = self.front.plays.get(content if isinstance(content, str) else content[0]["text"])
        if play:
            with contextlib.suppress(OSError):
                play(self)
        else:
            self.pass_on(body)

    def pass_on(self, body):
        if self.front.password and self.headers["authorization"] != self.front.password:
            self.answer(401, "text/html", "<title>401 Authorization Required</title>",
                        {"www-authenticate": 'Basic realm="a proxy"'})
            return
        upstream = http.client.HTTPConnection(*self.front.upstream)
        headers = {name: value for name, value in self.headers.items()
                   if name.lower() not in ("connection", "authorization")}
        try:
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
        except OSError:
            self.answer(502, "text/html", "<title>502 Bad Gateway</title>")
            return
        self.send_response(answer.status)
        for name in PASSED_ON:
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.send_header("connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            while piece := answer.read1(1 << 16):
                self.wfile.write(piece)
        upstream.close()

    def answer(self, status, kind, text, headers=None):
        self.send_response(status)
        for name, value in {"content-type": kind, "connection": "close", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    # What plays are made of.

    def begin(self, comment=None):
        self.answer(200, "text/event-stream", f": {comment}\n\n" if comment else "")
        self.tokens = 0
        self.chunk({"role": "assistant", "content": ""}, 0)

    def chunk(self, delta, tokens=1, finish=None):
        self.wfile.write(self.event(delta, tokens, finish))

    def event(self, delta, tokens=1, finish=None):
        self.tokens += tokens
        usage = {"prompt_tokens": 10, "completion_tokens": self.tokens}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"

    def end(self, finish="stop"):
        self.chunk({}, 0, finish)
        self.wfile.write(b"data: [DONE]\n\n")

    def cut(self):
        """The connection ends in the middle."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


def saying(text, size=7, pause=0.0):
    """A play of a whole reply, some characters at a time."""
    def play(exchange):
        exchange.begin()
        for at in range(0, len(text), size):
            exchange.chunk({"content": text[at:at + size]})
            time.sleep(pause)
        exchange.end()
    return play


def chunks(count, word="word "):
    """A play of `count` chunks as fast as they can be sent."""
    def play(exchange):
        exchange.begin()
        for at in range(0, count, 100):
            exchange.wfile.write(b"".join(
                exchange.event({"content": word}) for _ in range(min(100, count - at))))
        exchange.end()
    return play


def calling(arguments, finish):
    """A play of a call, whose first tokens have no text."""
    def play(exchange):
        exchange.begin()
        for _ in range(3):
            exchange.chunk({})
            time.sleep(0.02)
        function = {"name": "get_weather", "arguments": ""}
        exchange.chunk({"tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": function}]}, 4)
        time.sleep(0.02)
        part = {"index": 0, "function": {"arguments": arguments}}
        exchange.chunk({"tool_calls": [part]}, 4)
        exchange.end(finish)
    return play


def refusing(status, kind, text):
    """A play of a proxy that answers itself."""
    return lambda exchange: exchange.answer(status, kind, text)


def breaking(text):
    """A play of a connection that is lost after `text`."""
    def play(exchange):
        exchange.begin()
        if text:
            exchange.chunk({"content": text})
        exchange.cut()
    return play


class Held:
    """A play of a reply that waits, then begins, and goes on when it is told to."""

    def __init__(self, first, rest, comment=None):
        self.first, self.rest, self.comment = first, rest, comment
        self.go = threading.Event()

    def __call__(self, exchange):
        exchange.begin(self.comment)
        if self.first:
            exchange.chunk({"content": self.first})
        self.go.wait(60)
        if self.comment:
            exchange.wfile.write(b": waited 31000 ms for a slot\n\n")
        exchange.chunk({"content": self.rest})
        exchange.end()
