"""Routers, engines and agents of a test, with the arguments that tests use everywhere."""

import json
import random
import threading

import harness
import truth

MODEL = "warmpath-test-model"


class Engine:
    """One warmpath-engine on fixed ports, so that it comes back where it was."""

    def __init__(self, site, name, ranks=1, blocks=200, replay=True, flags=()):
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
                f"--model={MODEL}", f"--events_endpoint={self.events}",
                f"--replay_endpoint={self.replay or 'off'}", "--speed_factor=50",
                "--replay_hwm=0", *flags,
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
