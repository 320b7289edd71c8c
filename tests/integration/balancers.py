"""A fleet of four engines behind the router, and the load balancers in front of it.

The configurations are those of deploy/, read from there; only addresses, ports and folders are
replaced. nginx and haproxy are Debian's, unpacked into .venv/balancers by scripts/setup; envoy is
a package of .venv.
"""

import asyncio
import contextlib
import json
import pathlib
import random
import socket
import threading

import cluster
import harness
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TREE = ROOT / ".venv" / "balancers"
WORDS = ("red green blue stone river cloud light north field table paper glass winter copper "
         "garden music number letter engine bridge").split()  # fmt: skip


def configuration(path, replacements):
    """A file of deploy/ with each key replaced by its value; all keys must be there, so that a test
    does not go on with an address of the example."""
    text = (DEPLOY / path).read_text()
    for old, new in replacements.items():
        if old not in text:
            raise harness.Failure(f"deploy/{path} has no {old!r} to replace")
        text = text.replace(old, str(new))
    return text


class Fleet:
    """Router, four engines with their agents, all EXACT."""

    def __init__(self, site, engines=4, ranks=1, speed=50, blocks=4000, extra="",
                 engine_flags=(), router=None, agent_flags=()):
        self.site = site
        self.router = router or cluster.Router(site, policy="marginal_cost", extra=extra).start()
        self.engines = [
            cluster.Engine(site, f"engine-{i}", ranks=ranks, blocks=blocks, speed=speed,
                           flags=["--history-batches=1", *engine_flags])
            for i in range(engines)
        ]  # fmt: skip
        for engine in self.engines:
            engine.start()
        self.agents = [cluster.Agent(site, engine, [self.router], flags=agent_flags).start()
                       for engine in self.engines]  # fmt: skip
        self.wait_exact()

    def wait_exact(self):
        def exact():
            targets = [t for w in self.router.ctl("workers")["workers"] for t in w["targets"]]
            return len(targets) == sum(e.ranks for e in self.engines) and all(
                t["freshness"] == "FRESHNESS_EXACT" for t in targets
            )

        harness.wait_until(exact, 15, "all workers to be EXACT")

    def targets(self):
        """What the router says of each worker's rank 0, by name."""
        return {
            w["worker_id"]: w["targets"][0] for w in self.router.ctl("workers")["workers"]
        }  # fmt: skip

    def engine(self, name):
        return next(e for e in self.engines if e.name == name)

    def agent(self, name):
        return next(a for a in self.agents if a.worker == name)

    def finished(self):
        """How many requests each engine has ended, by name, for further ranks by name and rank;
        engines that are down are left out."""
        return {
            e.name if rank == 0 else f"{e.name} rank {rank}": e.state(rank)["finished"]
            for e in self.engines if e.program.running() for rank in range(e.ranks)
        }  # fmt: skip

    def served_since(self, before):
        """Names of the engines that have ended requests since `before` was finished()."""
        return sorted(n for n, count in self.finished().items() if count > before.get(n, 0))

    def first_choice(self, messages):
        """The worker that a pick for this chat would name now."""
        body = self.site.file("explain.json", json.dumps({
            "model": cluster.MODEL, "messages": messages, "max_tokens": 600, "stream": True}))  # fmt: skip
        answer = self.router.ctl("explain", f"--body-file={body}")
        return answer["explanation"]["candidates"][0]["target"]["worker_id"]

    def metric(self, name, **labels):
        return harness.metric(self.router.metrics(), name, **labels) or 0

    def open_reservations(self):
        return self.metric("warmpath_reservations_open")

    def closed(self, cause):
        return self.metric("warmpath_reservations_closed_total", cause=cause)

    def wait_released(self, timeout=5):
        harness.wait_until(lambda: self.open_reservations() == 0, timeout,
                           "all reservations to be closed")  # fmt: skip


class Client:
    """The OpenAI client at one load balancer."""

    def __init__(self, port, headers=None):
        self.openai = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60,
            default_headers=headers,
        )  # fmt: skip

    def chat(self, messages, max_tokens=8, stream=False, **fields):
        """(text, usage)."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not stream:
            answer = self.openai.chat.completions.create(
                model=cluster.MODEL, messages=messages, max_tokens=max_tokens, **fields
            )
            return answer.choices[0].message.content, answer.usage
        text, usage = "", None
        for chunk in self.openai.chat.completions.create(
            model=cluster.MODEL, messages=messages, max_tokens=max_tokens, stream=True,
            stream_options={"include_usage": True}, **fields,
        ):  # fmt: skip
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
        return text, usage

    def complete(self, prompt, max_tokens=8, stream=False, **fields):
        """(text, usage)."""
        if not stream:
            answer = self.openai.completions.create(
                model=cluster.MODEL, prompt=prompt, max_tokens=max_tokens, **fields
            )
            return answer.choices[0].text, answer.usage
        text, usage = "", None
        for chunk in self.openai.completions.create(
            model=cluster.MODEL, prompt=prompt, max_tokens=max_tokens, stream=True,
            stream_options={"include_usage": True}, **fields,
        ):  # fmt: skip
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.text or ""
        return text, usage

    def open_stream(self, messages, max_tokens):
        """A chat stream whose first token has come."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        stream = self.openai.chat.completions.create(
            model=cluster.MODEL, messages=messages, max_tokens=max_tokens, stream=True
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                return stream
        raise harness.Failure("the stream ended before its first token")


class Recorder:
    """Passes connections on to a port and keeps what clients sent."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self._listener.getsockname()[1])
        self.sent = b""

    def run(self, target):
        threading.Thread(target=self._accept, args=(target,), daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self, target):
        host, port = target.split(":")
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((host, int(port)))
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink, keep):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if keep:
                    self.sent += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def streams_at_once(port, count, enough, started):
    """Opens `count` chat streams, calls started() when each of them has its first token, and leaves
    each after `enough` tokens. Returns how many tokens each gave."""

    async def run():
        client = openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120
        )
        waiting = count
        all_started = asyncio.Event()

        async def one(i):
            nonlocal waiting
            tokens = 0
            # Long enough not to end before the last one has begun, however slow the machine.
            async with await client.chat.completions.create(
                model=cluster.MODEL, max_tokens=3000, stream=True,
                messages=[{"role": "user", "content": words(i, 20)}],
            ) as stream:  # fmt: skip
                async for chunk in stream:
                    if not (chunk.choices and chunk.choices[0].delta.content):
                        continue
                    if tokens == 0:
                        waiting -= 1
                        if waiting == 0:
                            await asyncio.to_thread(started)
                            all_started.set()
                        await all_started.wait()
                    tokens += chunk.choices[0].delta.content.count("t")
                    if tokens >= enough:
                        break
            return tokens

        async with client:
            return await asyncio.gather(*(one(i) for i in range(count)))

    return asyncio.run(run())


def words(seed, count):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) + str(rng.randrange(1000)) for _ in range(count))


class BasicCases:
    """What must hold behind every load balancer. A subclass has start(fleet, on_failure), which
    returns the port of a running load balancer."""

    ROUTER_CONFIG = ""
    FAILS_OPEN = True

    def start(self, fleet, on_failure="closed"):
        raise NotImplementedError

    def fleet(self, site, **options):
        return Fleet(site, extra=self.ROUTER_CONFIG, **options)

    def test_chat_and_completions_streaming_and_not(self, site):
        fleet = self.fleet(site)
        client = Client(self.start(fleet))
        for stream in (False, True):
            text, usage = client.chat(words(1, 50), max_tokens=12, stream=stream)
            assert text.startswith("t") and usage.completion_tokens == 12
            text, usage = client.complete(words(2, 50), max_tokens=9, stream=stream)
            assert text and usage.completion_tokens == 9
        fleet.wait_released()
        assert fleet.metric("warmpath_picks_total") == 4
        assert fleet.closed("finished") + fleet.closed("stream_ended") == 4
        assert [m.id for m in client.openai.models.list()] == [cluster.MODEL]
        # The request's own faults are told by the router, not by a worker.
        for model, body, status in ((cluster.MODEL, None, 400), ("no-such-model", {}, 404)):
            text = b"{" if body is None else json.dumps({"model": model, "prompt": "x"}).encode()
            url = str(client.openai.base_url) + "completions"
            assert harness.http(url, text)[0] == status
        fleet.wait_released()

    # One port for two ranks: a header of the answer to the pick names the rank.
    @pytest.mark.parametrize("shape", [{"engines": 4}, {"engines": 2, "ranks": 2}], ids=str)
    def test_conversations_stay_on_their_workers(self, site, shape):
        fleet = self.fleet(site, **shape)
        client = Client(self.start(fleet))
        chats = [[{"role": "user", "content": words(seed, 300)}] for seed in range(12)]
        homes = [None] * len(chats)
        for turn in range(3):
            for i, chat in enumerate(chats):
                before = fleet.finished()
                text, usage = client.chat(chat, max_tokens=10, stream=turn % 2 == 1)
                (home,) = harness.wait_until(lambda b=before: fleet.served_since(b), 5, "its end")
                if turn == 0:
                    homes[i] = home
                else:
                    assert home == homes[i], f"turn {turn} of chat {i}"
                    cached = usage.prompt_tokens_details.cached_tokens
                    assert cached > usage.prompt_tokens / 2, f"turn {turn} of chat {i}: {usage}"
                chat.append({"role": "assistant", "content": text})
                chat.append({"role": "user", "content": words(1000 + 10 * turn + i, 20)})
                fleet.wait_released()
        # Of requests that name no rank, an idle engine serves all on rank 0.
        ranks = shape.get("ranks", 1)
        assert any("rank" in home for home in homes) == (ranks > 1), homes
        assert len(set(homes)) > 1, "one worker got everything"

    def test_hints_to_the_router_do_not_reach_the_worker(self, site):
        recorder = Recorder()
        fleet = self.fleet(site, engines=1, agent_flags=[f"--advertise={recorder.address}"])
        (engine,) = fleet.engines
        recorder.run(engine.address)
        engine.address = recorder.address
        hints = [
            "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id",
            "x-llm-d-inference-objective", "x-gateway-inference-objective",
            "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms",
            "x-amzn-sagemaker-prefix-aware-id", "x-warmpath-max-wait-ms",
        ]  # fmt: skip
        headers = {**dict.fromkeys(hints, "1000"), "x-for-the-worker": "1000"}
        client = Client(self.start(fleet), headers=headers)
        client.chat("hello")
        recorder.close()
        assert fleet.metric("warmpath_picks_total") == 1
        names = {line.split(b":")[0].decode().lower() for line in recorder.sent.splitlines()}
        assert "x-for-the-worker" in names
        left = names.intersection(hints)
        assert not left

    def test_the_router_stops_and_returns(self, site):
        fleet = self.fleet(site)
        open_, closed = (Client(self.start(fleet, mode)) for mode in ("open", "closed"))
        for client in (open_, closed):
            client.chat("hello")
        fleet.router.program.kill()
        for stream in (False, True):
            if self.FAILS_OPEN:
                assert open_.chat(words(3, 30), stream=stream)[1].completion_tokens == 8
            status = refusal(lambda s=stream: closed.chat(words(3, 30), stream=s))
            assert status in (500, 503), status
        fleet.router.program.restart()
        fleet.wait_exact()
        for client in (open_, closed):
            picks = fleet.metric("warmpath_picks_total")

            def picked(client=client, picks=picks):
                client.chat("hello")
                return fleet.metric("warmpath_picks_total") > picks

            harness.wait_until(picked, 5, "the load balancer to ask the router again")
        fleet.wait_released()

    def test_a_client_that_hangs_up_releases_its_reservation(self, site):
        fleet = self.fleet(site, speed=5)
        client = Client(self.start(fleet))
        stream = client.open_stream(words(4, 50), max_tokens=5000)
        assert fleet.open_reservations() == 1
        stream.close()
        fleet.wait_released()
        harness.wait_until(lambda: not any(e.state()["running"] for e in fleet.engines), 5,
                           "the engine to notice")  # fmt: skip

    def test_a_body_of_four_megabytes(self, site):
        # The engine cuts a word into one token, the router guesses one for four bytes.
        fleet = self.fleet(site, blocks=100_000)
        client = Client(self.start(fleet))
        word = "x" * 99 + " "
        for stream in (False, True):
            text, usage = client.complete(word * 42_000, max_tokens=3, stream=stream)
            assert usage.prompt_tokens > 42_000 and usage.completion_tokens == 3
        fleet.wait_released()
        assert fleet.metric("warmpath_picks_total") == 2

    def test_no_request_fails_while_a_worker_is_drained(self, site):
        fleet = self.fleet(site)
        port = self.start(fleet)
        drained = fleet.engines[0].name
        failures, done, stop = [], [], threading.Event()

        def ask(seed):
            client = Client(port)
            while not stop.is_set():
                seed += 1000
                try:
                    client.chat(words(seed, 40), max_tokens=20, stream=seed % 2 == 0)
                    done.append(seed)
                except Exception as error:  # noqa: BLE001 - judged below
                    failures.append(error)

        def progress(count):
            goal = len(done) + len(failures) + count
            harness.wait_until(lambda: len(done) + len(failures) >= goal, 20, "requests")

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        try:
            progress(20)
            fleet.router.ctl("drain", drained)
            harness.wait_until(lambda: fleet.targets()[drained]["inflight"] == 0, 10, "its end")
            before = fleet.finished()
            progress(40)
            # The worker can go now.
            fleet.agent(drained).program.terminate()
            fleet.engine(drained).program.terminate()
            progress(40)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures, failures[:3]
        assert before[drained] > 0, "it had no part in the load"
        fleet.wait_released()


class CoreCases(BasicCases):
    """And behind every one that can try the next worker."""

    def test_a_fallback_serves_when_the_first_choice_refuses(self, site):
        fleet = self.fleet(site, speed=5)
        client = Client(self.start(fleet))
        chat = [{"role": "user", "content": words(7, 300)}]
        before = fleet.finished()
        text, _ = client.chat(chat)
        (home,) = fleet.served_since(before)
        fleet.wait_released()
        chat += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
        assert fleet.first_choice(chat) == home
        # The agent must not tell the router that its engine is gone.
        fleet.agent(home).program.pause()
        fleet.engine(home).program.kill()
        try:
            stream = client.open_stream(chat, max_tokens=600)
            (server,) = (e.name for e in fleet.engines
                         if e.program.running() and e.state()["running"])  # fmt: skip
            assert server != home
            assert fleet.metric("warmpath_picks_total") == 2

            def moved():
                targets = fleet.targets()
                return (targets[home]["inflight"] == 0 and targets[server]["inflight"] == 1
                        and targets[server]["external_inflight"] == 0)  # fmt: skip

            harness.wait_until(moved, 2, "the ledger to follow the request")
            stream.close()
            fleet.wait_released()
        finally:
            fleet.agent(home).program.resume()


class ManyStreams(BasicCases):
    """A thousand streams at the same time, and no reservation left behind."""

    def test_a_thousand_streams_at_once(self, site):
        fleet = self.fleet(site, speed=2, blocks=60_000, engine_flags=["--stream-interval=50"])
        port = self.start(fleet)
        seen = []
        tokens = streams_at_once(port, 1000, 100, lambda: seen.append(fleet.open_reservations()))
        assert min(tokens) >= 100
        assert seen == [1000]
        fleet.wait_released(20)
        assert fleet.metric("warmpath_picks_total") == 1000


def refusal(call):
    """The status of the error that `call` ends with."""
    try:
        call()
    except openai.APIStatusError as error:
        return error.status_code
    raise harness.Failure("the request was served")
