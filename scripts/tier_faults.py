"""What a disk under the prefix cache costs others when it is slow or fails.

    python3 scripts/tier_faults.py BINARY FOLDER [--weights FOLDER] [--prompts 24] [--tokens 705]
    python3 scripts/tier_faults.py BINARY FOLDER --preload tier_faults.so

A server is started over and over with `--cache-dir FOLDER`, which is emptied; prompts of `--tokens`
tokens come one after the other while a reply is streamed beside them. Each time a line tells how
many replies differ from those of the first server, how many tokens were found, and the gaps between
the stream's tokens: alone, beside the prompts, and how many of those are above twice the median of
those alone. Prompts that are computed make such gaps themselves; those that are found may not on a
GPU, and no reply may differ: exits with 1 otherwise. A CPU is kept by their last tokens, too.

The disk is slow or fails where `strace` injects that into the server's reads and writes of entries.
Where there is none, it is a library in front of the server's: `cc -O2 -fPIC -shared -o FILE
tier_faults.c`. Standard library only.
"""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

SLOW_US = 100_000
# Until a server is ready, and until the disk has what was written in the background.
READY_S, WRITTEN_S = 180, 8
# Time that the stream has alone, the last second of which counts.
ALONE_S = 1.5
# Part of the gaps that may be above twice the median.
LONG = 0.01


class Server:
    def __init__(self, options, fault=None):
        self.lines, self.ready, self.known = [], threading.Event(), threading.Event()
        command = [options.binary, "serve", "--port", "0"]
        command += [options.weights] if options.weights else []
        command += ["--cache-dir", options.folder, "--cache-disk", "16GB"]
        env = dict(os.environ)
        if fault and options.preload:
            env |= {"LD_PRELOAD": os.path.abspath(options.preload), "TIER_FAULT": fault}
        elif fault:
            command = injected(fault, options.folder) + command
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env,
                                        stdout=subprocess.DEVNULL)
        threading.Thread(target=self.read, daemon=True).start()
        assert self.ready.wait(READY_S), self.lines

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line.strip())
            if "listening on http://" in line:
                self.url = "http://" + line.split("http://")[1].split(",")[0].strip()
            if "READY " in line:
                self.ready.set()
            if "--cache-dir" in line:
                self.known.set()

    def post(self, body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=READY_S)

    def ask(self, number, tokens):
        prompt = [1 + (61 * number + 7 * at) % 3000 for at in range(tokens)]
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 3}
        answer = json.load(self.post(body))
        found = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return answer["choices"], found

    def stream(self, gaps, stop):
        body = {"prompt": [5, 6, 7, 8], "max_tokens": 400, "seed": 1, "stream": True,
                "ignore_eos": True}
        while not stop.is_set():
            before = None
            with self.post(body) as answer:
                for line in answer:
                    now = time.time()
                    if line.startswith(b"data: {"):
                        if before:
                            gaps.append((now, now - before))
                        before = now
                    if stop.is_set():
                        break

    def end(self):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True,
                                  text=True).stdout.split()
        for pid in children or [self.process.pid]:
            os.kill(int(pid), 15)
        self.process.wait()


def injected(fault, folder):
    """strace's command line for a fault of entries that are there, or of those to come."""
    kind, call = fault.split()
    how = f"delay_enter={SLOW_US}" if kind == "slow" else "error=EIO"
    paths = [each for path in glob.glob(folder + "/*.kv") for each in ("-P", path)]
    if not paths:
        paths = ["-P", folder + f"/{1:016x}.part"]
    return ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", *paths, "-e", f"trace={call}",
            "-e", f"inject={call}:{how}"]


def percentile(gaps, part):
    ordered = sorted(gaps) or [0]
    return 1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def round_of(server, options, what, wanted, may_be_computed):
    """One prompt after the other beside a stream; the replies, and whether all is as it should be."""
    gaps, stop = [], threading.Event()
    stream = threading.Thread(target=server.stream, args=(gaps, stop))
    stream.start()
    time.sleep(ALONE_S)
    begun = time.time()
    alone = [gap for at, gap in gaps if at > begun - 1]
    answers = [server.ask(number, options.tokens) for number in range(options.prompts)]
    ended = time.time()
    stop.set()
    stream.join()
    replies = [choices for choices, _ in answers]
    different = sum(reply != other for reply, other in zip(replies, wanted or replies))
    found = sum(found for _, found in answers)
    beside = [gap for at, gap in gaps if begun < at < ended]
    median = percentile(alone, 0.5)
    long = sum(1e3 * gap > 2 * median for gap in beside)
    print(f"{what}: {different} of {options.prompts} replies differ, {found} of "
          f"{options.prompts * options.tokens} tokens found in {ended - begun:.1f} s; gaps, ms: "
          f"alone p50 {median:.2f}, beside p50 {percentile(beside, 0.5):.2f} p99 "
          f"{percentile(beside, 0.99):.2f} max {percentile(beside, 1):.2f}, {long} of {len(beside)} "
          "above twice the median alone", flush=True)
    lines = [line for line in server.lines if "--cache-dir" in line and "are there" not in line]
    for line in lines:
        print("  " + line)
    is_short = may_be_computed or long <= LONG * len(beside)
    return replies, different == 0 and len(lines) <= 1 and is_short


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("folder", help="folder of the cache; what is in it goes")
    parser.add_argument("--weights")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=705)
    parser.add_argument("--preload", help="library in the place of strace")
    options = parser.parse_args()
    sound, wanted = True, None

    def served(rounds, fault=None, fresh=False):
        nonlocal sound, wanted
        if fresh:
            shutil.rmtree(options.folder, ignore_errors=True)
        server = Server(options, fault)
        if not fresh:
            server.known.wait(READY_S)
        for what, may_be_computed in rounds:
            replies, is_sound = round_of(server, options, what, wanted, may_be_computed)
            wanted, sound = wanted or replies, sound and is_sound
        if fresh and not fault:
            time.sleep(WRITTEN_S)
        server.end()

    served([("computed", True), ("from the device's memory", False)], fresh=True)
    served([("from a sound disk", False)])
    served([("from a disk whose reads take 100 ms", False)], "slow pread64")
    served([("beside a disk that cannot be read", True)], "eio pread64")
    served([("computed, writes take 100 ms", True), ("found beside those", False)], "slow pwrite64",
           fresh=True)
    served([("computed, nothing can be written", True)], "eio pwrite64", fresh=True)
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
