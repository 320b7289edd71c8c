"""Routers, engines and agents of a test, with the arguments that tests use everywhere."""

import collections
import json
import random
import threading

import harness
import truth

MODEL = "warmpath-test-model"


class Engine:
    """One warmpath-engine on fixed ports, so that it comes back where it was."""

    def __init__(self, site, name, ranks=1, blocks=200, replay=True, speed=50,
                 flags=()):
        self.name = name
        self.ranks = ranks
        self._ports = harness.free_port(1 + 2 * ranks)
        self.http = f"http://127.0.0.1:{self._ports}"
        self.address = f"127.0.0.1:{self._ports}"
        self.events = f"tcp://127.0.0.1:{self._ports + 1}"
        self.replay = f"tcp://127.0.0.1:{self._ports + 1 + ranks}" if replay else None
        self.program = site.program(
            "warmpath-engine",
            [
                f"--port={self._ports}", f"--ranks={ranks}", f"--blocks={blocks}",
                f"--model={MODEL}", f"--events-endpoint={self.events}",
                f"--replay-endpoint={self.replay or 'off'}", f"--speed-factor={speed}",
                "--replay-hwm=0", *flags,
            ],
            label=name,
        )  # fmt: skip

    def start(self):
        self.program.start(ready=lambda: '"http"' in self.program.output())
        return self

    def complete(self, tokens, max_tokens=4, rank=0, **fields):
        """POST /v1/completions; returns the usage object."""
        body = {"model": MODEL, "prompt": list(tokens), "max_tokens": max_tokens, **fields}
        headers = {"X-data-parallel-rank": str(rank)}
        status, text = harness.http(self.http + "/v1/completions", body, 60, headers)
        if status != 200:
            raise harness.Failure(f"{self.name} answered {status}: {text[:300]}")
        return json.loads(text)["usage"]

    def reset_cache(self):
        status, text = harness.http(self.http + "/reset_prefix_cache", b"")
        if status != 200:
            raise harness.Failure(f"{self.name}: reset answered {status}: {text[:300]}")

    def drop(self, **parameters):
        """Loses event messages on purpose: next=N, or rate=0..1."""
        query = "&".join(f"{key}={value}" for key, value in parameters.items())
        status, text = harness.http(f"{self.http}/debug/drop?{query}", b"")
        if status != 200:
            raise harness.Failure(f"{self.name}: drop answered {status}: {text[:300]}")

    def state(self, rank=0):
        return harness.http_json(self.http + "/debug/state")["ranks"][rank]

    def cache(self, rank=0, at_seq=None):
        """What the rank really holds, after batch at_seq or now."""
        url = f"{self.http}/debug/cache?rank={rank}"
        if at_seq is not None:
            url += f"&at_seq={at_seq}"
        return truth.CacheState.from_json(harness.http_json(url))

    def held(self, block_size, rank=0, at_seq=None):
        return truth.held_routing_blocks(self.cache(rank, at_seq), rank, "gpu", block_size)


class Router:
    """One warmpath-router on fixed ports."""

    def __init__(self, site, name="router", block_size=16, policy="round_robin", extra="",
                 drain_delay="0s", server="", ctl_flags=()):
        self.name = name
        self.site = site
        self._ctl_flags = ctl_flags
        first = harness.free_port(3)
        self.grpc = f"127.0.0.1:{first}"
        self.http = f"http://127.0.0.1:{first + 1}"
        self.pick = f"http://127.0.0.1:{first + 2}"
        config = site.file(
            f"{name}.yaml",
            "server:\n"
            f"  grpc_address: {self.grpc}\n"
            f"  http_address: 127.0.0.1:{first + 1}\n"
            f"  pick_address: 127.0.0.1:{first + 2}\n"
            f"  drain_delay: {drain_delay}\n" + server + "pool_defaults:\n"
            f"  routing_block_size: {block_size}\n"
            f"  policy: {policy}\n"
            # An unknown model is judged at once, unless a test is about just that.
            + ("" if "fleet:" in extra else "fleet:\n  warm_up: 0s\n") + extra,
        )
        self.program = site.program("warmpath-router", [f"--config={config}"], label=name)

    def start(self):
        self.program.start(ready=lambda: harness.http(self.http + "/healthz")[0] == 200)
        return self

    def ctl(self, *arguments, check=True):
        """warmpathctl with --json; returns what it printed, parsed."""
        code, out, err = self.site.run(
            "warmpathctl", [f"--router={self.grpc}", "--json", *self._ctl_flags, *arguments],
            check=check,
        )
        return json.loads(out) if code == 0 else (code, err)

    def dump(self, worker, rank=0):
        """What the router believes that one target holds, from events."""
        return truth.Dump.from_json(
            self.ctl("index", "dump", f"--worker={worker}", f"--rank={rank}", "--tier=gpu",
                     "--source=events")
        )  # fmt: skip

    def metrics(self):
        return harness.http(self.http + "/metrics")[1]

    def may_have_holes(self, worker):
        """Of each rank: whether the router must reckon with holes in its chains."""
        listed = {w["worker_id"]: w for w in self.ctl("workers")["workers"]}
        return [target["may_have_holes"] for target in listed[worker]["targets"]]


class Agent:
    """One warmpath-agent beside one engine, at one or more routers."""

    def __init__(self, site, engine, routers, state_file=True, flags=()):
        self.name = f"{engine.name}-agent"
        self.worker = engine.name
        self.metrics_port = harness.free_port()
        arguments = [
            "--router=" + ",".join(r.grpc for r in routers), f"--worker-id={engine.name}",
            f"--engine-http={engine.http}", f"--ranks={engine.ranks}",
            f"--events={engine.events}", f"--metrics-port={self.metrics_port}",
            "--scrape-interval-ms=200", *flags,
        ]  # fmt: skip
        if engine.replay:
            arguments.append(f"--replay={engine.replay}")
        if state_file:
            arguments.append(f"--state-file={site.folder / self.name}.state")
        self.program = site.program("warmpath-agent", arguments, label=self.name)

    def start(self):
        url = f"http://127.0.0.1:{self.metrics_port}/healthz"
        self.program.start(ready=lambda: harness.http(url)[0] == 200)
        return self


def at_rest(engine):
    """True when every rank has published all that happened to its cache."""
    states = [engine.state(rank) for rank in range(engine.ranks)]
    return not any(s["running"] or s["waiting"] or s["unpublished"] for s in states)


def check_equal(router, engine, block_size, timeout=5, freshness="EXACT"):
    """At rest, each rank of the engine reaches `freshness` within the timeout, with its last
    sequence, and the router's index equals what the engine holds. Returns {rank: dump}."""
    harness.wait_until(lambda: at_rest(engine), 20, f"{engine.name} to be at rest")
    found = {}

    def settled():
        for rank in range(engine.ranks):
            dump = router.dump(engine.name, rank)
            found[rank] = dump
            last = engine.state(rank)["last_seq"]
            if dump.freshness != freshness or dump.engine_seq != last:
                raise harness.Failure(
                    f"rank {rank} is {dump.freshness}({dump.cause}) at {dump.engine_seq}, the engine"
                    f" at {last}; " + truth.differences(engine.held(block_size, rank), dump.hashes)
                )
        return True

    harness.wait_until(settled, timeout, f"{engine.name} to be {freshness}")
    for rank, dump in found.items():
        assert dump.block_size == block_size
        difference = truth.differences(engine.held(block_size, rank), dump.hashes)
        assert difference == "", f"{engine.name} rank {rank}: {difference}"
    return found


class Sampler:
    """Asks the router 20 times a second what it believes of one target. Each answer that says EXACT
    must equal what the engine held at that answer's sequence; all are judged at the end, while the
    engine still lives. Its process takes its history along: call before_kill() first."""

    def __init__(self, site, router, engine, block_size, rank=0):
        self._engine = engine
        self._block_size = block_size
        self._rank = rank
        # One process for all samples: starting one for each would take longer than the period.
        self._program = site.program(
            "warmpathctl",
            [
                f"--router={router.grpc}", "--json", "--timeout=1s", "--every=50ms", "index", "dump",
                f"--worker={engine.name}", f"--rank={rank}", "--tier=gpu", "--source=events",
            ],
        )  # fmt: skip
        self.freshness = collections.Counter()
        self.exact_sequences = set()
        self._truths = {}  # of the living process
        self._dead_truths = {}  # of the process before
        self._dead_epoch = -1

    def __enter__(self):
        self._program.start(ready=lambda: '"hashes"' in self._program.output())
        return self

    def __exit__(self, kind, *_):
        self._program.kill()
        if kind is None:
            self._judge()

    def before_kill(self, dump):
        """Remembers what the engine's process, at rest with this dump, held at each sequence that
        was sampled; later answers of its epoch are judged by that."""
        held = self._engine.held(self._block_size, self._rank, dump.engine_seq)
        self._truths[dump.engine_seq] = held
        self._judge()
        self._dead_truths, self._truths, self._dead_epoch = self._truths, {}, dump.epoch

    def _held(self, dump):
        """None: nobody can tell, as the process is dead and this was not sampled while it lived."""
        if dump.engine_seq is None:
            return set()
        if dump.epoch <= self._dead_epoch:
            return self._dead_truths.get(dump.engine_seq)
        if dump.engine_seq not in self._truths:
            self._truths[dump.engine_seq] = self._engine.held(
                self._block_size, self._rank, dump.engine_seq
            )
        return self._truths[dump.engine_seq]

    def _judge(self):
        problems = []
        self.freshness.clear()
        for line in self._program.output().splitlines():
            if not line.startswith("{"):
                # The router is down, or does not know the worker yet.
                self.freshness["no answer"] += 1
                continue
            if not line.endswith("}"):
                continue  # the last one, cut off
            dump = truth.Dump.from_json(json.loads(line))
            self.freshness[dump.freshness] += 1
            if dump.freshness != "EXACT":
                continue
            if dump.engine_seq is not None:
                self.exact_sequences.add(dump.engine_seq)
            held = self._held(dump)
            if held is None:
                problems.append(f"EXACT at {dump.engine_seq} of the dead process")
                continue
            difference = truth.differences(held, dump.hashes)
            if difference:
                problems.append(f"EXACT at {dump.engine_seq}, but {difference}")
        assert not problems, f"{len(problems)} samples are wrong:\n" + "\n".join(problems[:5])


class Prompts:
    """Prompts that share prefixes the way chats do: some systems, then turns of one's own."""

    def __init__(self, seed, systems=4, system_tokens=160, vocabulary=32_000):
        self.rng = random.Random(seed)
        self._vocabulary = vocabulary
        self._systems = [self.tokens(system_tokens) for _ in range(systems)]
        self._chats = []

    def tokens(self, count):
        return [self.rng.randrange(1, self._vocabulary) for _ in range(count)]

    def next(self):
        """A new chat, or the next turn of an old one."""
        if self._chats and self.rng.random() < 0.5:
            chat = self.rng.choice(self._chats)
        else:
            chat = list(self.rng.choice(self._systems))
            self._chats = self._chats[-16:] + [chat]
        chat += self.tokens(self.rng.randrange(5, 120))
        return list(chat[:1500])


def run_parallel(function, items, threads=8):
    """function(item) for all items on some threads; raises the first error."""
    pending = list(reversed(list(items)))
    lock = threading.Lock()
    errors = []

    def work():
        while True:
            with lock:
                if not pending or errors:
                    return
                item = pending.pop()
            try:
                function(item)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
