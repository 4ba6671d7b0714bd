"""Requests whose head, framing and end are hostile, for `hostile.py`."""

METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "POSTS",
           "P\u00d6ST", "", "POST POST", "X" * 9000]
PATHS = ["/", "*", "//", "/v1", "/v1/", "/v1/models/../../etc/passwd", "/%2e%2e/", "/%00", "/\0",
         "/?", "/v1/models?a=%ff", "/health#x", "http://127.0.0.1/health", "ftp://127.0.0.1/",
         "v1/models", "/metrics", "/tokenizer_info", "/openapi.json", "/v1/responses/resp_x",
         "/v1/responses/%F0%9F/cancel", "/v1/v1/chat/completions", "/" + "a/" * 5000, "/\u65e5",
         "/v1/chat/completions " * 3]
HEADERS = ["host: b", "host:", "content-length: 1", "transfer-encoding: chunked", "x", ": x",
           "x y: z", "x: \0", "x: a\rb", " x: y", "x: \u00ff", "x: " + "y" * 70_000,
           "connection: upgrade, close", "upgrade: h2c\r\nconnection: upgrade",
           "upgrade: websocket\r\nconnection: upgrade", "expect: 100-continue", "expect: x",
           "content-encoding: gzip", "content-type: text/xml", "content-type: ;charset=utf-16",
           "accept-encoding: br", "range: bytes=0-", "if-match: *", "authorization: Basic \u00ff",
           "authorization: Bearer", "x-api-key:", "cookie: " + "a=b; " * 500, "origin: null",
           "x-forwarded-for: 127.0.0.1", "te: trailers", "anthropic-version: x",
           "accept: text/event-stream;q=x", "\r\n".join(["x: y"] * 300)]
LENGTHS = ["0", "-1", "+2", "0x10", "1e3", "2,2", "99999999", "18446744073709551616", "", "\u0662"]
VERSIONS = ["1.1"] * 8 + ["1.0", "1.2", "9.9", "1"]
LINE_ENDS = ["\n", "\r", "\r\r\n", "\r\n ", " \r\n", "\0\r\n"]
# Bytes of a chunk, and the most chunks of a body.
CHUNKS, CHUNKS_MAX = [1, 7, 4096, 1 << 20], 2000
# How the size of a chunk is written; `%x` is the right one.
SIZES = ["%x;a=b", "0%x", "%x ", "%x\r", "-%x", "0x%x", "1%x", "ffffffffffffffff%x", "", "g"]
CHUNKS_END = ["0\r\n\r\n", "0\r\nx: y\r\n\r\n", "00;x\r\n\r\n", "0\r\nhost: b\r\n\r\n", "0\r\n", ""]
OTHER_PROTOCOLS = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
                   b"\0" * 64, b"SSH-2.0-x\r\n", b"EHLO x\r\n", b"\r\n" * 1000, b"GET /\r\n\r\n"]
# Where bytes are changed: in the head, and a little beyond it.
CHANGED_BYTES = 400


def chunked(dice, body):
    """A body in pieces, where a size may be a lie; and maybe without its end."""
    lies, pieces = dice.random() < 0.5, []
    length = max(dice.choice(CHUNKS), len(body) // CHUNKS_MAX)
    for at in range(0, len(body), length):
        piece = body[at:at + length]
        size = dice.choice(SIZES) if lies and dice.random() < 0.2 else "%x"
        size = size % len(piece) if "%" in size else size
        pieces += [size.encode(), piece]
    return b"".join(piece + b"\r\n" for piece in pieces) + dice.choice(CHUNKS_END).encode()


def request(dice, path, body):
    """The bytes of a request with one to three things wrong about its head, framing and end."""
    if dice.random() < 0.05:
        return dice.choice(OTHER_PROTOCOLS)
    method, headers, length, end = "POST", ["host: localhost"], str(len(body)), "\r\n"
    kinds = dice.sample(range(6), dice.randint(1, 3))
    if 0 in kinds:
        method = dice.choice(METHODS)
    if 1 in kinds:
        path = dice.choice(PATHS)
    if 2 in kinds:
        headers += dice.choices(HEADERS, k=dice.choice([1, 2, 5]))
    if 3 in kinds:
        length = dice.choice([*LENGTHS, str(len(body) + 1), str(len(body) // 2)])
    if 4 in kinds:
        length, body = None, chunked(dice, body)
    if 5 in kinds:
        end = dice.choice(LINE_ENDS)
    headers.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    dice.shuffle(headers)
    head = end.join([f"{method} {path} HTTP/{dice.choice(VERSIONS)}", *headers, "", ""])
    return damaged(dice, head.encode("utf-8", "surrogatepass") + body)


def damaged(dice, text):
    """The same with other bytes in a few places, cut somewhere, or twice."""
    for _ in range(dice.choice([0, 0, 0, 1, 4])):
        at = dice.randrange(min(len(text), CHANGED_BYTES))
        text = text[:at] + bytes([dice.randrange(256)]) + text[at + dice.randrange(2):]
    if dice.random() < 0.2:
        return text[:dice.randrange(len(text))]
    return text * dice.choice([1, 1, 1, 2])
