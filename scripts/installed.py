"""A Debian package and a bundle on a system of their own, without a network: installed, served, killed, upgraded, removed.

    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm ROOT
    python scripts/installed.py .atlas/dist/atlas-cpu-tiny-nvfp4/atlas-cpu-tiny-nvfp4_0.1.0_amd64.deb ROOT [--kills 100] [--steps 20]

Boots ROOT by systemd-nspawn with all changes in memory, so that ROOT stays as it is. Prints a line per check and exits 1 at
the first that fails. Needs root, systemd-container, iproute2, dpkg-deb and strace; of Python the standard library only.
"""

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PORT = 8000
BOOT_SECONDS = 60
READY_SECONDS = 60
RESTART_SECONDS = 1.0  # what a restart may take besides loading
PAUSE_SECONDS = 10  # before the restart of a server that ended by itself
STREAMS = 200
DRAIN_SECONDS = 60
NEWNET = 0x40000000  # CLONE_NEWNET of setns(2)
LISTEN, UNCONNECTED = "0A", "07"  # states in /proc/net/tcp and, of a bound socket, /proc/net/udp
OTHER = "10.9.8.7"  # an address that is of no loopback
KEY = "installed-0123456789"
# Edits of the settings by sed.
LINES = {"lan": "s/^#host/host/", "keys": "s/^#api-keys-file/api-keys-file/", "without-keys": "$a without-keys = true"}
# System calls that are steps of a command: a file moves, is on the disk or goes, another program starts.
STEPS = "/^(rename|link|unlink|mkdir|fsync|execve)"
STEP_MICROSECONDS = 2000  # a step is held so long, for its line to be read before the next
QUESTION = "What is the capital of France?"
# What a running system, dpkg and its triggers write, whatever is installed.
NOT_OURS = ["/proc", "/sys", "/dev", "/run", "/tmp", "/mnt", "/root", "/var/log", "/var/tmp", "/var/cache", "/var/lib/dpkg"]
NOT_OURS += ["/var/lib/systemd"]


def say(what):
    print(f"ok   {what}", flush=True)


def require(condition, what):
    if not condition:
        sys.exit(f"FAIL {what}")


def is_gone(group):
    """Whether no process of a group is left, be it one that holds a lock while it dies."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


class Machine:
    """A booted system. Commands run in all its namespaces, connections of this process in its network."""

    def __init__(self, root):
        self.log = tempfile.TemporaryFile()
        self.shared = tempfile.TemporaryDirectory()
        name = f"--machine=atlas-{int(time.time())}"
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", name, "--private-network", "--volatile=overlay"]
        command += [f"--bind-ro={self.shared.name}:/mnt", "--boot", "--directory", root]
        self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.leader = self.wait(self.first_process, BOOT_SECONDS, "systemd starts")
        self.wait(self.is_up, BOOT_SECONDS, "the system is up")
        with open(f"/proc/{self.leader}/ns/net") as namespace:
            require(ctypes.CDLL(None).setns(namespace.fileno(), NEWNET) == 0, "setns")

    def first_process(self):
        require(self.nspawn.poll() is None, "systemd-nspawn ended")
        children = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
        ready = [child for child in children if pathlib.Path(f"/proc/{child}/comm").read_text() == "systemd\n"]
        return ready[0] if ready else None

    def is_up(self):
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def wait(self, ready, seconds, what):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := ready():
                return found
            time.sleep(0.01)
        sys.exit(f"FAIL within {seconds} s: {what}")

    def run(self, *command, check=True):
        inside = ["nsenter", "--target", self.leader, "--all", "--wd=/", *command]
        done = subprocess.run(inside, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        require(not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done

    def steps(self, last, *command):
        """Runs a command, and kills it and all that it started after step `last`, if there is one; returns its steps."""
        read, write = os.pipe()
        line = ["strace", "-f", "-qq", "-e", f"trace={STEPS}", "-e", "signal=none", "-o", f"/dev/fd/{write}"]
        line += ["-e", f"inject={STEPS}:delay_exit={STEP_MICROSECONDS}"]
        line += ["nsenter", "--target", self.leader, "--all", "--wd=/", *command]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        traced = subprocess.Popen(line, pass_fds=[write], start_new_session=True, **quiet)
        os.close(write)
        with open(read) as told:
            for count, _ in enumerate(told, 1):
                if count == last:
                    os.killpg(traced.pid, signal.SIGKILL)
                    break
        require(traced.wait() == (-signal.SIGKILL if count == last else 0), f"{command} ended with {traced.returncode}")
        self.wait(lambda: is_gone(traced.pid), BOOT_SECONDS, f"what {command} started is gone")
        return count

    def bring(self, path):
        shutil.copy(path, self.shared.name)
        return f"/mnt/{pathlib.Path(path).name}"

    def files(self):
        skipped = [word for path in NOT_OURS for word in ("-path", path, "-o")][:-1]
        found = self.run("find", "/", "(", *skipped, ")", "-prune", "-o", "-print").stdout
        return set(found.splitlines())

    def stop(self):
        self.nspawn.terminate()
        try:
            self.nspawn.wait(10)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()


def get(path):
    """Status and body, or None where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    return None


def status(host, key):
    """Status of the list of models there, or None where nobody answers."""
    connection = http.client.HTTPConnection(host, PORT, timeout=3)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/v1/models", headers={"x-api-key": key} if key else {})
        return connection.getresponse().status
    return None


def is_ready():
    answer = get("/health")
    return answer is not None and answer[0] == 200


class Stream(threading.Thread):
    """One streamed reply, read to its end."""

    def __init__(self, tokens):
        super().__init__(daemon=True)
        self.tokens, self.outcome, self.first = tokens, "no answer", threading.Event()

    def run(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.outcome = self.read()
        self.first.set()

    def read(self):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        body = {"messages": [{"role": "user", "content": QUESTION}], "stream": True}
        body |= {"max_tokens": self.tokens, "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            return f"refused with {answer.status}"
        self.outcome, text = "truncated silently", ""
        while piece := answer.readline().decode():
            text += piece
            self.first.set()
        if '"error"' in text:
            return "ended with an error"
        return "whole" if '"finish_reason":"' in text and "[DONE]" in text else "truncated silently"


def value(machine, unit, name):
    return machine.run("systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()


def pid(machine, unit):
    return value(machine, unit, "MainPID")


def load_seconds(machine, unit):
    """From the start of the process to its word that it is ready, as systemd noted both."""
    names = ["ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic"]
    begun, ready = (int(value(machine, unit, name)) for name in names)
    return (ready - begun) / 1e6


def drop_in(machine, unit, text):
    folder = f"/run/systemd/system/{unit}.service.d"
    machine.run("sh", "-c", f"mkdir -p {folder} && printf '{text}' > {folder}/tried.conf && systemctl daemon-reload")


def kills(machine, unit, count):
    """Kills the server; systemd must have it ready again within the time that it loads and a second."""
    drop_in(machine, unit, "[Unit]\\nStartLimitIntervalSec=0\\n")
    besides, loads = [], []
    for _ in range(count):
        before = pid(machine, unit)
        since = time.monotonic()
        machine.run("sh", "-c", f"kill -9 {before}")
        machine.wait(is_ready, READY_SECONDS, "ready again after kill -9")
        took = time.monotonic() - since
        require(pid(machine, unit) not in ("0", before), "another process answers after kill -9")
        loads.append(load_seconds(machine, unit))
        besides.append(took - loads[-1])
        require(besides[-1] <= RESTART_SECONDS, f"ready {took:.2f} s after kill -9, of which {loads[-1]:.2f} s to load")
    least, most = min(loads), max(loads)
    say(f"{count} times killed: ready again after {least:.2f} to {most:.2f} s to load and {max(besides):.2f} s at most besides")


def failures(machine, unit):
    """A server without a device or with wrong settings is not tried again; one that failed is, after a pause."""
    machine.run("systemctl", "stop", unit)
    for code in 71, 78, 70:
        service = f"[Service]\\nType=simple\\nExecStart=\\nExecStart=/bin/sh -c \"exit {code}\"\\n"
        drop_in(machine, unit, "[Unit]\\nStartLimitIntervalSec=0\\n" + service)
        since = time.monotonic()
        machine.run("systemctl", "start", unit)
        if code == 70:
            machine.wait(lambda: value(machine, unit, "NRestarts") == "2", 4 * PAUSE_SECONDS, "it is tried again")
            took = time.monotonic() - since
            require(took >= 2 * PAUSE_SECONDS, f"two restarts within {took:.1f} s")
        else:
            machine.wait(lambda: value(machine, unit, "ActiveState") == "failed", PAUSE_SECONDS, f"it stays down after {code}")
            require(value(machine, unit, "NRestarts") == "0", f"it is not tried again after {code}")
    machine.run("systemctl", "stop", unit)
    drop_in(machine, unit, "")
    machine.run("systemctl", "reset-failed", unit, check=False)
    machine.run("systemctl", "start", unit)
    say(f"stays down after 71 and 78; restarted twice in {took:.1f} s after 70")


def networks(machine, unit):
    """What the drop-ins and the lines of the settings allow and ask for, alone and together, from another network."""
    own = ["nsenter", "--target", machine.leader, "--net", "ip", "address", "add", OTHER, "dev", "lo"]
    subprocess.run(own, check=True)
    settings, folder = f"/etc/atlas/{unit}.toml", f"/etc/systemd/system/{unit}.service.d"
    files = f"cp /usr/share/doc/{unit}/examples/*.conf {folder} && cp {settings} /etc/atlas/kept"
    machine.run("sh", "-c", f"echo {KEY} > /etc/atlas/api-keys && mkdir {folder} && {files} && systemctl daemon-reload")
    cases = {("lan",): None, ("keys",): (401, 200, None), ("keys", "lan"): (401, 200, 401), ("lan", "without-keys"): (200, 200, 200)}
    for asked, expected in cases.items():
        machine.run("systemctl", "stop", unit)
        said = "; ".join(LINES[name] for name in asked)
        machine.run("sed", "-i", said, settings)
        started = machine.run("systemctl", "start", unit, check=False).returncode == 0
        found = started and tuple(status(*where) for where in [("127.0.0.1", ""), ("127.0.0.1", KEY), (OTHER, "")])
        log = machine.run("journalctl", "--lines=5", "--unit", unit).stdout
        require(found == (expected or False), f"{asked}: {found}\n{log}")
        machine.run("cp", "/etc/atlas/kept", settings)
    machine.run("sh", "-c", f"rm -r {folder} /etc/atlas/kept /etc/atlas/api-keys && systemctl daemon-reload")
    machine.run("systemctl", "restart", unit)
    say("keys, other networks and both: keys are asked for wherever others reach, or nothing starts")


def streams(count, tokens):
    threads = [Stream(tokens) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def ends(threads, what):
    """Fails where a reply was cut without a word."""
    for thread in threads:
        thread.join(DRAIN_SECONDS)
    outcomes = [thread.outcome for thread in threads]
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    require("truncated silently" not in counts and "whole" in counts, f"{what}: {told}")
    say(f"{what}: {told}")


def newer(deb, folder):
    """The same package under a later version."""
    tree = pathlib.Path(folder) / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: ", "Version: 1:", 1))
    to = pathlib.Path(folder) / f"newer_{pathlib.Path(deb).name}"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", tree, to], check=True, capture_output=True)
    return to


def killed_at_steps(machine, most, command, before, behind):
    """Runs a command to its end, then again, killing it after each of up to `most` of its steps; returns how often."""
    before()
    steps = machine.steps(0, *command)
    behind()
    killed = range(1, steps + 1, -(-steps // most))
    for step in killed:
        before()
        machine.steps(step, *command)
        behind()
    say(f"killed behind {len(killed)} of {steps} steps, told again: {' '.join(command)}")


def package_killed(machine, unit, deb, upgrade, most):
    """dpkg ends what it is told again, and what was served goes on meanwhile."""
    clean = machine.files()

    def is_removed():
        machine.run("dpkg", "--purge", unit)
        changed = sorted(machine.files() ^ clean)
        require(not changed, f"a removal leaves or takes {changed}")

    def is_installed():
        machine.run("dpkg", "--install", deb)
        machine.run(unit, "about")
        require(machine.run("systemctl", "is-active", unit, check=False).returncode != 0, "nothing starts by itself")

    def is_served():
        machine.run("dpkg", "--install", deb)
        machine.run("systemctl", "enable", "--now", unit)

    def is_upgraded():
        machine.wait(is_ready, READY_SECONDS, "the old server or the new one answers")
        machine.run(unit, "about")
        machine.run("dpkg", "--install", upgrade)
        machine.wait(is_ready, READY_SECONDS, "the new server answers")
        version = machine.run("dpkg-query", "--show", "--showformat=${Version}", unit).stdout
        require(version.startswith("1:"), f"upgraded to {version}")

    killed_at_steps(machine, most, ["dpkg", "--install", deb], lambda: machine.run("dpkg", "--purge", unit), is_installed)
    killed_at_steps(machine, most, ["dpkg", "--install", upgrade], is_served, is_upgraded)
    killed_at_steps(machine, most, ["dpkg", "--purge", unit], is_served, is_removed)


def bundle_killed(machine, unit, deb, most):
    """Installed by hand: the same of `install` and `uninstall`, whose service is then started by its unit."""
    clean = machine.files()
    bundle, there = f"/root/bundle/{unit}", f"/usr/local/bin/{unit}"
    machine.run("sh", "-c", f"dpkg-deb -x {deb} /root/deb && /root/deb/usr/bin/{unit} bundle /root/bundle && rm -r /root/deb")
    install, uninstall = [bundle, "install", "/root/bundle"], [there, "uninstall"]
    service = f"systemctl daemon-reload && systemctl enable {unit} && systemctl reset-failed {unit} && systemctl restart {unit}"

    def is_removed():
        machine.run("systemctl", "stop", unit, check=False)
        again = machine.run("test", "-e", there, check=False).returncode == 0
        machine.run(*(uninstall if again else [bundle, "uninstall"]))
        machine.run("systemctl", "daemon-reload")
        changed = sorted(machine.files() ^ clean)
        require(not changed, f"a removal leaves or takes {changed}")

    def is_installed():
        machine.run(*install)
        machine.run("sh", "-c", service)

    def is_upgraded():
        machine.run("sh", "-c", service)
        is_installed()

    killed_at_steps(machine, most, install, is_removed, is_installed)
    killed_at_steps(machine, most, install, is_installed, is_upgraded)
    killed_at_steps(machine, most, uninstall, is_installed, is_removed)


def life(machine, deb, options):
    unit = pathlib.Path(deb).name.split("_")[0]
    before = machine.files()
    machine.run("dpkg", "--install", machine.bring(deb))
    require(machine.run("systemctl", "is-active", unit, check=False).returncode != 0, "nothing starts at an installation")
    say("installed, and nothing started")
    machine.run(unit, "doctor")
    say("doctor has nothing to fix")
    since = time.monotonic()
    machine.run("systemctl", "enable", "--now", unit)
    load = time.monotonic() - since
    require(is_ready(), "systemctl start returns when requests are answered")
    answer = machine.run(unit, "try", QUESTION).stdout
    require("Paris" in answer, f"the answer was {answer}")
    say(f"started in {load:.2f} s, and chats: {' '.join(answer.split())}")
    tables = [machine.run("cat", f"/proc/net/{table}").stdout.splitlines()[1:] for table in ("tcp", "tcp6", "udp", "udp6")]
    listening = [line for table in tables for line in table if line.split()[3] in (LISTEN, UNCONNECTED)]
    require(len(listening) == 1, f"more than one socket listens: {listening}")
    say("one socket listens")
    if options.kills:
        kills(machine, unit, options.kills)
    failures(machine, unit)
    networks(machine, unit)
    open_replies = streams(4, 400)
    for thread in open_replies:
        thread.first.wait(READY_SECONDS)
    old = pid(machine, unit)
    with tempfile.TemporaryDirectory() as folder:
        upgrade = machine.bring(newer(deb, folder))
    machine.run("dpkg", "--install", upgrade)
    machine.wait(lambda: is_ready() and pid(machine, unit) != old, READY_SECONDS, "the upgraded server is ready")
    ends(open_replies, "upgraded behind open replies")
    many = streams(STREAMS, 60)
    many[0].first.wait(READY_SECONDS)
    machine.run("systemctl", "stop", unit)
    ends(many, f"SIGTERM under {STREAMS} streams")
    machine.run("systemctl", "start", unit)
    machine.run("dpkg", "--purge", unit)
    require(get("/health") is None, "a removed server answers nothing")
    left = sorted(path for path in machine.files() - before if unit in path or "atlas" in path)
    require(not left, f"a removal leaves {left}")
    others = sorted(machine.files() ^ before)
    require(not others, f"a removal leaves or takes {others}")
    say("removed; nothing is left")
    if options.steps:
        package_killed(machine, unit, machine.bring(deb), upgrade, options.steps)
        bundle_killed(machine, unit, machine.bring(deb), options.steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deb")
    parser.add_argument("root")
    parser.add_argument("--kills", type=int, default=5, help="how often the server is killed")
    parser.add_argument("--steps", type=int, default=20, help="behind how many steps each command is killed, at most")
    options = parser.parse_args()
    machine = Machine(options.root)
    try:
        life(machine, options.deb, options)
    finally:
        machine.stop()


if __name__ == "__main__":
    main()
