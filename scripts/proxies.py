"""Tries the files of `packaging/` for one proxy in front of a server, over a port and over a socket.

    python3 scripts/proxies.py nginx --binary .atlas/out/cpu/tiny/nvfp4/atlas-cpu-tiny-nvfp4

Needs the proxy and `openssl` on the path, nothing beyond Python's standard library, and tries the chat
page too where `chromium` is there. Exits with 1 at the first thing that is not as it should be.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import page_talk
from page_browser import Browser, Failed

HOST = "chat.example"
PATIENCE_S = 60
PACKAGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "packaging")
STORY = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
         "max_tokens": 400, "ignore_eos": True}
CHAT = "/v1/chat/completions"

NGINX = """user root; daemon off; pid {folder}/pid; error_log {folder}/log;
events {{ }}
http {{ access_log off; client_body_temp_path {folder}/1; proxy_temp_path {folder}/2;
fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
{inside} }}
"""
# What most people write first.
PLAIN = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; }} }}"
CADDY = "{{\n admin off\n auto_https disable_redirects\n storage file_system {folder}\n}}\n{inside}"


def check(holds, what):
    if not holds:
        raise Failed(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(what, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        check(time.monotonic() < deadline, f"{what} does not happen")
        time.sleep(0.05)


@contextlib.contextmanager
def running(arguments, log, **options):
    with open(log, "wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, **options)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def said(log, text):
    with open(log, encoding="utf-8", errors="replace") as lines:
        found = re.search(text, lines.read())
    return found and found.group(1)


@contextlib.contextmanager
def server(binary, folder, flags):
    """A server; yields what its log says of its address."""
    log = os.path.join(folder, "server" + flags[0])
    with running([binary, "serve", "--allow-host", HOST, *flags], log):
        wait("the server", lambda: said(log, r"(READY) "))
        yield said(log, r"READY (\S+)")


def certificate(folder):
    """A key and a certificate of the host, and both in one file."""
    paths = [os.path.join(folder, name) for name in ("chat.key", "chat.pem", "chat.both.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", f"/CN={HOST}",
                    "-addext", f"subjectAltName=DNS:{HOST}", "-keyout", paths[0], "-out", paths[1]],
                   check=True, capture_output=True)
    with open(paths[2], "w", encoding="utf-8") as both:
        for path in (paths[1], paths[0]):
            with open(path, encoding="utf-8") as part:
                both.write(part.read())
    return paths


def adapted(name, changes):
    """A file of `packaging/` with paths and addresses of this test; each must be in it."""
    with open(os.path.join(PACKAGING, name), encoding="utf-8") as file:
        text = file.read()
    for before, after in changes:
        check(before in text, f"{name} has no {before!r}")
        text = text.replace(before, after)
    return text


def nginx(folder, port, upstream, files):
    key, chain, _ = files
    inside = adapted("nginx.conf", [
        ("server 127.0.0.1:8000;", f"server {upstream};"), ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/chat.example.pem", chain), ("/etc/ssl/chat.example.key", key)])
    return written(folder, NGINX.format(folder=folder, inside=inside))


def nginx_command(file):
    return ["nginx", "-e", file + ".log", "-c", file]


def caddy(folder, port, upstream, files):
    key, chain, _ = files
    upstream = upstream.replace("unix:", "unix/")
    inside = adapted("Caddyfile", [
        ("127.0.0.1:8000", upstream), ("chat.example {", f"https://chat.example:{port} {{\n\tbind 127.0.0.1"),
        ("/etc/ssl/chat.example.pem", chain), ("/etc/ssl/chat.example.key", key)])
    return written(folder, CADDY.format(folder=folder, inside=inside))


def caddy_command(file):
    return ["caddy", "run", "--adapter", "caddyfile", "--config", file]


def haproxy(folder, port, upstream, files):
    upstream = upstream.replace("unix:", "unix@")
    inside = adapted("haproxy.cfg", [
        ("127.0.0.1:8000", upstream), ("bind :443", f"bind 127.0.0.1:{port}"),
        ("/etc/ssl/chat.example.both.pem", files[2])])
    return written(folder, "global\n    maxconn 100\n" + inside)


def haproxy_command(file):
    return ["haproxy", "-f", file]


PROXIES = {"nginx": (nginx, nginx_command), "caddy": (caddy, caddy_command),
           "haproxy": (haproxy, haproxy_command)}


def written(folder, text):
    file = os.path.join(folder, "proxy.conf")
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    return file


class Client:
    """Requests through the proxy at `port`, over TLS."""

    def __init__(self, port, prefix=""):
        self.port, self.prefix = port, prefix
        self.context = ssl._create_unverified_context()

    def connect(self):
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection = http.client.HTTPConnection(HOST)
        connection.sock = self.context.wrap_socket(raw, server_hostname=HOST)
        return connection

    def ask(self, method, path, body=None, **headers):
        connection = self.connect()
        # As a browser that shows the page.
        headers = {"host": HOST, "origin": f"https://{HOST}", "accept-encoding": "gzip",
                   "content-type": "application/json", **headers}
        connection.request(method, self.prefix + path, body, headers)
        return connection, connection.getresponse()

    def text(self, path):
        connection, answer = self.ask("GET", path)
        with contextlib.closing(connection):
            return answer.status, answer.read().decode()


def is_answered(client):
    try:
        return client.text("/health")[0] == 200
    except OSError:
        return False


def streams(client):
    """Events come one by one, as they are made."""
    connection, answer = client.ask("POST", CHAT, json.dumps(STORY))
    with contextlib.closing(connection):
        check(answer.status == 200, f"a stream is answered by {answer.status}")
        check(answer.headers["content-encoding"] is None, "a stream is compressed")
        check("no-transform" in answer.headers["cache-control"], "no-transform is lost")
        begun, times, text = time.monotonic(), [], b""
        while piece := answer.read1(1 << 16):
            times.append(time.monotonic() - begun)
            text += piece
    check(text.endswith(b"data: [DONE]\n\n"), f"a stream ends with {text[-300:]}")
    check(len(times) > 20 and times[len(times) // 2] < times[-1] * 0.9,
          f"events come together, at {times[:5]} to {times[-1]}")


def cancels(client):
    """A reply whose client leaves ends in the server."""
    def cancelled():
        _, page = client.text("/metrics")
        return float(re.search(r'reason="cancelled"} (\S+)', page).group(1))

    before = cancelled()
    connection, answer = client.ask("POST", CHAT, json.dumps({**STORY, "max_tokens": 1500}))
    answer.read1(100)
    connection.sock.shutdown(socket.SHUT_RDWR)
    answer.close()
    connection.close()
    wait("the end of a reply whose client has left", lambda: cancelled() > before)


def takes_large_bodies(client):
    """Eight megabytes pass, more is refused by a status that says so."""
    for size, status in ((8_000_000, 400), (9_000_000, 413)):
        try:
            connection, answer = client.ask("POST", CHAT, b" " * size)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            # Refused before all of it is sent.
            check(status == 413, f"{size} bytes do not pass")
            continue
        with contextlib.closing(connection):
            check(answer.status == status, f"{size} bytes are answered by {answer.status}")


def shows_the_page(client, browser):
    status, page = client.text("/")
    check(status == 200 and "<title>Atlas</title>" in page, f"the page is {status} {page[:200]}")
    if browser and not client.prefix:
        talk(browser, f"https://{HOST}:{client.port}")


def talk(browser, address):
    class At:
        """Where the check of the page goes."""
    At.address = address
    page_talk.first_message(browser, At)


def tried(name, folder, upstream, files, browser):
    port = free_port()
    make, command = PROXIES[name]
    file = make(folder, port, upstream, files)
    with running(command(file), os.path.join(folder, "proxy.log"), env={**os.environ, "HOME": folder}):
        wait(name, lambda: is_answered(Client(port)))
        for client in (Client(port), Client(port, "/atlas")):
            shows_the_page(client, browser)
            streams(client)
            cancels(client)
            takes_large_bodies(client)


def tried_plain(folder, address, browser):
    """The shortest configuration of nginx, which gives the server another Host than the browser's."""
    port = free_port()
    inside = PLAIN.format(port=port, upstream=address)
    file = written(folder, NGINX.format(folder=folder, inside=inside))
    with running(nginx_command(file), os.path.join(folder, "plain.log")):
        own = {"origin": f"http://localhost:{port}", "content-type": "application/json"}

        def ask(headers):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("POST", CHAT, json.dumps(STORY | {"max_tokens": 2}), own | headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        def is_there():
            with contextlib.suppress(OSError):
                return ask({})
            return None

        wait("nginx", is_there)
        status, told = ask({})
        check(status == 403 and "proxy_set_header" in told and "--allow-origin" in told, told)
        check(ask({"sec-fetch-site": "same-origin"})[0] == 200, "a page that is its own is refused")
        if browser:
            talk(browser, f"http://localhost:{port}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("proxy", choices=PROXIES)
    parser.add_argument("--binary", required=True, help="of the server, with its weights inside")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        browser = None
        if shutil.which("chromium"):
            flags = ["--ignore-certificate-errors", f"--host-resolver-rules=MAP {HOST} 127.0.0.1"]
            browser = Browser(os.path.join(folder, "profile"), flags)
            stack.callback(browser.close)
        files = certificate(folder)
        path = os.path.join(folder, "socket")
        address = stack.enter_context(server(options.binary, folder, ["--port", "0"]))
        stack.enter_context(server(options.binary, folder, ["--socket", path]))
        try:
            for upstream in (address.split("//")[1], "unix:" + path):
                tried(options.proxy, folder, upstream, files, browser)
                print(f"ok: {options.proxy} in front of {upstream}", flush=True)
            if options.proxy == "nginx":
                tried_plain(folder, address, browser)
                print("ok: nginx with a plain proxy_pass")
        except Failed as problem:
            sys.exit(f"failed: {problem}")
    if browser is None:
        print("not tried: the chat page through the proxy; chromium is missing")


if __name__ == "__main__":
    main()
