"""Tests of `sweep.py` against a server of its own that plays a part: figures by a known clock,
failures that are told. Standard library only.

    python3 scripts/sweep_test.py
"""

import http.server
import json
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock
from xml.dom import minidom

import sweep
import sweep_report

# Between two events, and how many tokens are in each.
PAUSE_S, TOKENS = 0.01, 2


class Player(http.server.BaseHTTPRequestHandler):
    """Streams replies of `max_tokens` tokens; its server's `part` says what it does wrong."""

    def log_message(self, *_):
        pass

    def answer(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        models = [{"id": "played", "max_model_len": 4096}]
        self.answer(200, json.dumps({"data": models}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        part = self.server.part
        if part == "no ignore_eos" and "ignore_eos" in body:
            return self.answer(400, '{"error": {"message": "ignore_eos is unknown"}}')
        words = sum(len(message["content"].split()) for message in body["messages"])
        if part == "full" and words > 60:
            return self.answer(429, '{"error": {"message": "the queue is full"}}')
        self.answer(200, "", "text/event-stream")
        self.stream(body["max_tokens"], 10 + 2 * words, part)

    def event(self, data):
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def stream(self, tokens, prompt, part):
        for at in range(0, tokens, TOKENS):
            time.sleep(PAUSE_S)
            self.event(json.dumps({"choices": [{"delta": {"content": f"{at} "}}]}))
            if part == "torn" and at > 4:
                return
        if part != "no usage":
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
            self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")


class Sweeps(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Player)
        self.server.part = ""
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def client(self, part=""):
        client = sweep.Client(self.url, None, None)
        client.find_model()
        self.server.part = part
        client.calibrate()
        return client

    def test_tokens_are_those_of_the_usage_and_times_those_of_the_events(self):
        client = self.client()
        replies, wall = sweep.at_once(client, 2, 4, 300, 40)
        found = sweep.figures(replies, wall, 40)
        self.assertEqual((found["failed"], found["reply_tokens"]), (0, 160))
        self.assertEqual(found["tokens_per_event"], TOKENS)
        self.assertAlmostEqual(found["prompt_tokens"], 300, delta=3)
        self.assertGreaterEqual(found["ttft_ms"]["p50"], PAUSE_S * 1e3)
        self.assertGreaterEqual(found["gap_ms"]["p50"], PAUSE_S * 0.8e3)
        self.assertLess(found["stream_tok_s"], TOKENS / PAUSE_S * 1.2)

    def test_failures_are_told_and_in_no_figure(self):
        client = self.client()
        for part, told in (("torn", "before its end"), ("no usage", "usage"), ("full", "429")):
            self.server.part = part
            replies, wall = sweep.at_once(client, 1, 2, 300, 16)
            found = sweep.figures(replies, wall, 16)
            self.assertEqual((found["failed"], found["total_tok_s"]), (2, None), part)
            self.assertIn(told, found["errors"][0])

    def test_a_server_that_cannot_be_measured_is_refused(self):
        with self.assertRaisesRegex(sweep.Refused, "usage"):
            self.client("no usage")
        self.server.part = ""
        self.assertFalse(self.client("no ignore_eos").exact)
        with self.assertRaisesRegex(sweep.Refused, "is the server started"):
            sweep.Client("http://127.0.0.1:9", None, None).find_model()

    def test_a_sweep_of_failures_is_drawn_and_ends_with_1(self):
        self.server.part = "full"
        with tempfile.TemporaryDirectory() as folder:
            told = ["sweep.py", self.url, "--out", folder, "--short", "--shapes", "long,warm"]
            quiet = {"tell": mock.DEFAULT, "print": mock.DEFAULT}
            with mock.patch("sys.argv", told), mock.patch.multiple(sweep, create=True, **quiet), \
                    mock.patch.object(sweep.Client, "calibrate"):
                self.assertEqual(sweep.main(), 1)
            picture = minidom.parse(str(Path(folder, "sweep.svg")))
            drawn = picture.documentElement.toxml()
            self.assertIn("429", drawn)
            title = picture.getElementsByTagName("title")[0]
            self.assertIs(title.parentNode, picture.documentElement)
            self.assertIn("a server that tells no version", title.firstChild.data)
            self.assertFalse("class=" in drawn or "style" in drawn or "var(" in drawn)
            self.assertIn("skipped: the context", Path(folder, "sweep.md").read_text("utf-8"))
            self.assertEqual(json.loads(Path(folder, "sweep.json").read_text("utf-8"))["format"], 1)

    def test_percentiles_and_round_values(self):
        self.assertEqual(sweep.percentile([3, 1, 2], 0.5), 2)
        self.assertEqual(sweep.percentile(range(100), 0.99), 99)
        self.assertIsNone(sweep.percentile([], 0.5))
        self.assertEqual(sweep_report.steps(7.9), [0, 2, 4, 6, 8])
        self.assertEqual(sweep_report.number(26336), "26k")

    def test_a_client_that_was_too_busy_says_so(self):
        rows = [{"client_busy": 0.9, "streams": 64}, {"client_busy": 0.95}, {"client_busy": 0.1}]
        told = list(sweep_report.remarks(rows, sweep.BUSY))
        self.assertEqual(len(told), 2)
        self.assertIn("64 streams this client used 90%", told[0])


if __name__ == "__main__":
    unittest.main()
