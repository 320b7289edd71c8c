"""Starts the programs on loopback, watches them, and stops them.

    def test_x(site):                      # the fixture of conftest.py
        router = site.start("warmpath-router", ["--config", path], ready=...)
        router.kill()                      # SIGKILL, by pid
        router.restart()

Every program's output goes to a file of its own, which is printed when the test fails. Programs
come from the folder WARMPATH_BIN.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SANITIZER = re.compile(r"(ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:)")


class Failure(AssertionError):
    """A program did not do what the test needs."""


# --- Waiting ----------------------------------------------------------------------------------


def wait_until(condition, timeout, what, pause=0.02):
    """Calls `condition` until it returns something true, and returns that. Errors count as false;
    the last one is part of the failure."""
    deadline = time.monotonic() + timeout
    last = None
    while True:
        try:
            result = condition()
            if result:
                return result
            last = None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown in the end
            last = error
        if time.monotonic() > deadline:
            raise Failure(f"waited {timeout} s for {what}" + (f"; last: {last!r}" if last else ""))
        time.sleep(pause)


# --- Ports ------------------------------------------------------------------------------------


def free_port(count=1, rng=random.Random(os.getpid()), given=set()):
    """The first of `count` consecutive ports of 127.0.0.1 that nobody uses.

    For servers that have to come back at the same address. Taken from below the range from which
    the kernel picks ports for outgoing connections, or a connection might take it meanwhile. No
    port is given twice: the first who asked may not have begun to listen.
    """
    for _ in range(200):
        first = rng.randrange(15_000, 32_000)
        if not given.isdisjoint(range(first - 1, first + count + 1)):
            continue
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
                given.update(range(first, first + count))
                return first
            except OSError:
                continue
    raise Failure(f"no {count} free ports in a row")


def accepts_connections(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


# --- HTTP -------------------------------------------------------------------------------------


def http(url, body=None, timeout=10, headers=None):
    """(status, text). An error status is an answer, not an exception."""
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    request = urllib.request.Request(url, data=data, headers=headers or {})
    if data is not None and not request.has_header("Content-type"):
        request.add_header("Content-Type", "application/json")
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def http_json(url, body=None, timeout=10):
    status, text = http(url, body, timeout)
    if status != 200:
        raise Failure(f"{url} answered {status}: {text[:500]}")
    return json.loads(text)


def metric(text, name, **labels):
    """Sum over the series of a Prometheus page that carry all the given labels; None if there are
    none."""
    total = None
    for line in text.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?", line)
        if not match or match.group(1) != name:
            continue
        found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
        if all(found.get(key) == str(value) for key, value in labels.items()):
            total = (total or 0) + float(match.group(3))
    return total


# --- Programs ---------------------------------------------------------------------------------


class Program:
    """One program of WARMPATH_BIN, started any number of times with the same arguments."""

    def __init__(self, site, name, arguments, label, environment=None):
        self.name = name
        self.label = label
        self.arguments = [str(a) for a in arguments]
        self.log_path = site.folder / f"{label}.log"
        self.process = None
        self.exit_codes = []
        self.expected_codes = {0, -signal.SIGKILL}
        self._binary = site.binary(name)
        self._environment = {**os.environ, **(environment or {})}
        self._ready = None
        self._log_offset = 0

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        """Everything it wrote, in all its runs."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def output(self):
        """What it wrote in its present run."""
        return self.log_path.read_bytes()[self._log_offset :].decode(errors="replace")

    def start(self, ready=None, timeout=20):
        """`ready` is called until it returns true; it is remembered for restart()."""
        if self.running():
            raise Failure(f"{self.label} is running already")
        self._ready = ready or self._ready
        with self.log_path.open("ab") as log:
            log.write(f"--- {self.name} {' '.join(self.arguments)}\n".encode())
            log.flush()
            self._log_offset = log.tell()
            self.process = subprocess.Popen(
                [self._binary, *self.arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                # Its own group: a Ctrl-C meant for pytest does not stop it before the test does.
                start_new_session=True,
            )  # fmt: skip
        if self._ready is not None:
            self.wait(self._ready, timeout, f"{self.label} to be ready")
        return self

    def wait(self, condition, timeout, what):
        """wait_until, but fails at once, with the log, when the program ends."""

        def check():
            if not self.running():
                raise _Ended(f"{self.label} ended with {self.process.returncode} before {what}")
            return condition()

        try:
            return wait_until(check, timeout, what)
        except (Failure, _Ended) as failure:
            raise Failure(f"{failure}\n{tail(self.log())}") from None

    def terminate(self, timeout=15):
        """SIGTERM, and returns the exit code; fails when the program does not end in time."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise Failure(f"{self.label} did not end within {timeout} s of SIGTERM") from None
            self.exit_codes.append(self.process.returncode)
        return self.process.returncode if self.process is not None else None

    def kill(self):
        """SIGKILL."""
        if self.running():
            self.process.kill()
            self.process.wait(10)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def restart(self, timeout=20):
        return self.start(timeout=timeout)

    def memory_bytes(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024


class _Ended(BaseException):
    """Not an Exception: wait_until must not go on waiting."""


class Site:
    """All programs and files of one test."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.programs = []

    def binary(self, name):
        folder = os.environ.get("WARMPATH_BIN")
        if not folder:
            raise Failure("WARMPATH_BIN is not set: run the tests through ctest")
        path = pathlib.Path(folder) / name
        if not path.exists():
            raise Failure(f"{path} is missing: build it first")
        return path

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def program(self, name, arguments, label=None, environment=None):
        label = label or f"{name}-{sum(p.name == name for p in self.programs)}"
        program = Program(self, name, arguments, label, environment)
        self.programs.append(program)
        return program

    def start(self, name, arguments, ready=None, label=None, timeout=20, environment=None):
        return self.program(name, arguments, label, environment).start(ready, timeout)

    def run(self, name, arguments, timeout=20, check=True):
        """Runs a program to its end; returns (exit code, stdout, stderr)."""
        done = subprocess.run(
            [self.binary(name), *(str(a) for a in arguments)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise Failure(f"{name} {arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.returncode, done.stdout, done.stderr

    def close(self):
        """Stops everything. Returns what is wrong: programs that crashed or that a sanitizer
        reported on."""
        problems = []
        # The last one started knows the others: agents end before their router.
        for program in reversed(self.programs):
            ended_before = program.process is not None and not program.running()
            try:
                program.terminate()
            except Failure as failure:
                problems.append(str(failure))
            if program.process is None:
                continue
            code = program.process.returncode
            if code not in program.expected_codes and not (ended_before and code > 0):
                problems.append(f"{program.label} ended with {code}")
            found = _SANITIZER.search(program.log())
            if found:
                problems.append(f"{program.label}: {found.group(0)}")
        return problems

    def logs(self):
        return "\n".join(f"===== {p.label}\n{tail(p.log())}" for p in self.programs)


def tail(text, lines=60):
    return "\n".join(text.splitlines()[-lines:])
