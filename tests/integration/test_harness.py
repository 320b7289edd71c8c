"""The harness itself: it must notice programs that crash, hang or end early."""

import os
import signal
import textwrap
import time

import harness
import pytest


@pytest.fixture
def make(tmp_path, monkeypatch):
    """make(script) -> (site, program that runs the script under /bin/sh)."""
    monkeypatch.setenv("WARMPATH_BIN", str(tmp_path))
    site = harness.Site(tmp_path)

    def build(script, name="fake"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
        path.chmod(0o755)
        return site, site.program(name, ["--flag", 7])

    yield build
    for program in site.programs:
        program.kill() if program.process else None


def test_a_program_starts_stops_and_starts_again(make):
    site, program = make("trap 'exit 0' TERM; echo up $1 $2; while :; do sleep 0.02; done")
    program.start(ready=lambda: "up --flag 7" in program.output())
    first = program.pid
    assert program.terminate() == 0
    program.restart()
    harness.wait_until(lambda: "up" in program.output(), 5, "its output")
    assert program.pid != first and program.log().count("up --flag 7") == 2
    program.kill()
    assert not program.running()
    assert site.close() == []


def test_an_early_end_fails_at_once_and_shows_the_log(make):
    site, program = make("echo cause of death; exit 3")
    begin = time.monotonic()
    with pytest.raises(harness.Failure, match="ended with 3(.|\n)*cause of death"):
        program.start(ready=lambda: False, timeout=30)
    assert time.monotonic() - begin < 5
    assert "cause of death" in site.logs()


def test_a_hang_is_killed_and_reported(make):
    site, program = make("trap '' TERM; echo up; while :; do sleep 0.02; done")
    program.start(ready=lambda: "up" in program.output())
    with pytest.raises(harness.Failure, match="did not end within"):
        program.terminate(timeout=0.2)
    assert not program.running()


def test_crashes_and_sanitizer_reports_are_problems(make):
    site, program = make("kill -SEGV $$")
    program.start()
    harness.wait_until(lambda: not program.running(), 5, "its end")
    assert site.close() == [f"fake-0 ended with {-signal.SIGSEGV}"]

    site, program = make("echo '==1==ERROR: AddressSanitizer: heap-use-after-free'", name="other")
    program.start()
    harness.wait_until(lambda: not program.running(), 5, "its end")
    assert "other-0: ERROR: AddressSanitizer" in site.close()


def test_missing_programs_are_named(make, monkeypatch):
    site, _ = make("true")
    with pytest.raises(harness.Failure, match="no-such-program is missing"):
        site.program("no-such-program", [])
    monkeypatch.delenv("WARMPATH_BIN")
    with pytest.raises(harness.Failure, match="WARMPATH_BIN"):
        site.program("fake", [])


def test_wait_until_tells_the_last_error():
    with pytest.raises(harness.Failure, match="for the moon; last: ZeroDivisionError"):
        harness.wait_until(lambda: 1 / 0, 0.05, "the moon")
    assert harness.wait_until(lambda: "yes", 1, "an answer") == "yes"


def test_free_ports_are_free_and_consecutive():
    first = harness.free_port(3)
    for port in range(first, first + 3):
        assert not harness.accepts_connections(port)


def test_metric_sums_the_series_that_match():
    page = textwrap.dedent("""\
        # HELP a_total x
        a_total{pool="m",cause="x"} 2
        a_total{pool="m",cause="y"} 3.5
        a_total{pool="n",cause="x"} 100
        b 1e3
        """)
    assert harness.metric(page, "a_total", pool="m") == 5.5
    assert harness.metric(page, "a_total", pool="m", cause="y") == 3.5
    assert harness.metric(page, "b") == 1000
    assert harness.metric(page, "a_total", pool="z") is None
    assert harness.metric(page, "a") is None


def test_no_process_is_left_behind(make):
    _, program = make("while :; do sleep 0.02; done")
    program.start()
    pid = program.pid
    program.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
