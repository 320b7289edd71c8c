"""The agent, driven by a publisher that is none of ours (independent_publisher.py): what arrives in
the router's index is what was published, in every era of the wire."""

import contextlib
import http.server
import threading
import types

import cluster
import harness
import independent_publisher as wire
import msgspec
import pytest
import truth

BLOCK = 16
NUM_BLOCKS = 500

# Seconds: nothing takes so long but on a machine that is busy with other things.
TIMEOUT = 20

# Freshness and its first cause.
EXACT = ("EXACT", None)
GAP = ("DEGRADED", "gap")


class EngineHttp(http.server.ThreadingHTTPServer):
    """What the agent asks an engine over HTTP: health, models and the metrics it scrapes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _EngineHttpHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _EngineHttpHandler(http.server.BaseHTTPRequestHandler):
    PAGES = {
        "/health": "",
        "/version": '{"version": "0.0.0"}',
        "/v1/models": '{"object": "list", "data": [{"id": "%s", "root": "%s", "parent": null}]}'
        % (cluster.MODEL, cluster.MODEL),
        "/metrics": "\n".join([
            'vllm:num_requests_running{engine="0",model_name="m"} 0.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0',
            'vllm:cache_config_info{block_size="%d",num_gpu_blocks="%d",engine="0"} 1.0'
            % (BLOCK, NUM_BLOCKS),
            "",
        ]),
    }  # fmt: skip

    def do_GET(self):
        body = self.PAGES.get(self.path)
        self.send_response(404 if body is None else 200)
        data = (body or "").encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Chain:
    """A prompt's blocks under engine hashes of any kind."""

    _next_hash = 1 << 40

    def __init__(self, tokens, lora=None, salt=None, name=None):
        self.tokens = list(tokens)
        self.lora = lora
        self.salt = salt
        count = len(self.tokens) // BLOCK
        if name is None:
            name = lambda i: Chain._next_hash + i  # noqa: E731
        self.hashes = [name(i) for i in range(count)]
        Chain._next_hash += count

    def stored(self, era, first=0, last=None):
        """The event that stores blocks first .. last - 1."""
        last = len(self.hashes) if last is None else last
        extra = None
        if self.lora or self.salt:
            extra = [
                [k for k in (self.lora, self.salt if i == 0 else None) if k]
                for i in range(first, last)
            ]
        return era.stored(
            self.hashes[first:last],
            self.hashes[first - 1] if first else None,
            self.tokens[first * BLOCK : last * BLOCK],
            BLOCK,
            lora=self.lora,
            extra_keys=extra,
        )

    def names(self, block_size=BLOCK):
        return truth.chain_hashes(self.tokens, block_size, self.lora, self.salt)


@pytest.fixture
def start(site):
    """start(block_size, **publisher options) -> router, publisher, agent, expect."""
    with contextlib.ExitStack() as stack:

        def begin(block_size=BLOCK, agent_flags=(), **options):
            publisher = stack.enter_context(wire.Publisher(**options))
            web = EngineHttp()
            stack.callback(web.shutdown)
            engine = types.SimpleNamespace(
                name="worker-0", http=web.url, ranks=1, events=publisher.endpoint,
                replay=publisher.replay_endpoint,
            )  # fmt: skip
            router = cluster.Router(site, block_size=block_size).start()
            agent = cluster.Agent(site, engine, [router], flags=agent_flags).start()
            harness.wait_until(lambda: router.dump("worker-0"), TIMEOUT, "the registration")

            def expect(names, states=(EXACT,)):
                """The index comes to hold exactly these hashes, as of the last message, in one of
                these states. A replay may bring the hashes: until it ends the agent says "resync",
                so the state is waited for with them."""
                dump = None

                def equal():
                    nonlocal dump
                    dump = router.dump("worker-0")
                    return (
                        dump.hashes == set(names)
                        and dump.engine_seq == publisher.last_seq
                        and (dump.freshness, dump.cause) in states
                    )

                try:
                    harness.wait_until(equal, TIMEOUT, "the index to be right")
                except harness.Failure:
                    raise harness.Failure(
                        f"{dump.freshness}({dump.cause}) at {dump.engine_seq}, published"
                        f" {publisher.last_seq}; {truth.differences(set(names), dump.hashes)}"
                    ) from None

            return types.SimpleNamespace(
                router=router, publisher=publisher, agent=agent, expect=expect
            )

        yield begin


def agent_metric(fleet, name, **labels):
    page = harness.http(f"http://127.0.0.1:{fleet.agent.metrics_port}/metrics")[1]
    return harness.metric(page, name, **labels)


ERAS = [wire.MapEra, wire.PositionalEra]


@pytest.mark.parametrize("shape", ["old", "new"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("block_size", [16, 64])
def test_stores_removals_and_clears(start, era, shape, block_size):
    fleet = start(block_size, replay=shape)
    publish = fleet.publisher.publish
    prompt = cluster.Prompts(seed=1)
    first = Chain(prompt.tokens(10 * BLOCK))
    # Another branch: the first six blocks are the same ones.
    second = Chain(first.tokens[: 6 * BLOCK] + prompt.tokens(6 * BLOCK))
    second.hashes[:6] = first.hashes[:6]

    publish([first.stored(era, 0, 4)])
    publish([first.stored(era, 4)])
    publish([second.stored(era, 6)])
    fleet.expect(first.names(block_size) + second.names(block_size))

    # Block 5 goes: the routing blocks that cover it are gone for both branches, later ones stay.
    publish([era.removed([first.hashes[5]])])
    gone = {chain.names(block_size)[5 * BLOCK // block_size] for chain in (first, second)}
    fleet.expect(set(first.names(block_size) + second.names(block_size)) - gone)

    publish([first.stored(era, 5, 6)])
    fleet.expect(first.names(block_size) + second.names(block_size))

    publish([era.cleared(), second.stored(era, 0)])
    fleet.expect(second.names(block_size))


@pytest.mark.parametrize("era", ERAS)
def test_domains_hash_kinds_and_copies(start, era):
    fleet = start()
    publish = fleet.publisher.publish
    tokens = cluster.Prompts(seed=2).tokens(5 * BLOCK)
    chains = [
        Chain(tokens),
        Chain(tokens, lora="sql"),
        Chain(tokens, salt="tenant"),
        Chain(tokens, lora="sql", salt="tenant"),
        # Other kinds of hash: digests, and integers that use all 64 bits.
        Chain(tokens[::-1], name=lambda i: bytes([7] * 31 + [i])),
        Chain(tokens[1:] + [5], name=lambda i: (1 << 64) - 1 - i),
    ]
    publish([chain.stored(era) for chain in chains])
    everything = {name for chain in chains for name in chain.names()}
    assert len(everything) == sum(len(chain.names()) for chain in chains)
    fleet.expect(everything)

    # A second physical copy of the last block; the removal of one leaves the other.
    copied = chains[0]
    publish([copied.stored(era, 4, 5)])
    publish([era.removed([copied.hashes[4]])])
    fleet.expect(everything)
    publish([era.removed([copied.hashes[4]])])
    fleet.expect(everything - {copied.names()[4]})


def bad_events(era):
    """Events that no decoder can make sense of, each of them valid msgpack."""
    yield "unknown type", {"type": "BlockTeleported", "block_hashes": [1]}
    yield "no type", {"block_hashes": [1]}
    yield "not an event", 17
    yield "nil", None
    yield "empty array", []
    yield "empty map", {}
    yield "hashes are text", {"type": "BlockStored", "block_hashes": "x", "block_size": 16,
                              "token_ids": [1] * 16, "parent_block_hash": None}  # fmt: skip
    yield "tokens missing", {"type": "BlockStored", "block_hashes": [1], "block_size": 16,
                             "parent_block_hash": None}  # fmt: skip
    yield "negative token", ["BlockStored", [1], None, [-1] * 16, 16, None, "GPU"]
    yield "too few tokens", ["BlockStored", [991, 992], None, [1] * 16, 16, None, "GPU"]
    yield "block size 0", ["BlockStored", [1], None, [1] * 16, 0, None, "GPU"]
    yield "unknown medium", era.stored([9001], None, [3] * BLOCK, BLOCK, medium="MOON")
    yield "own parent", era.stored([9002], 9002, [3] * BLOCK, BLOCK)
    yield "nested", {"type": {"type": []}}


@pytest.mark.parametrize("era", ERAS)
def test_one_bad_event_among_good_ones_costs_only_itself(start, era):
    fleet = start()
    prompt = cluster.Prompts(seed=3)
    expected = []
    skipped = 0.0
    for what, bad in bad_events(era):
        before, after = (Chain(prompt.tokens(3 * BLOCK)) for _ in range(2))
        fleet.publisher.publish([before.stored(era), bad, after.stored(era)])
        expected += before.names() + after.names()
        try:
            # What an unreadable event did to the cache nobody knows: DEGRADED(drift) is honest.
            fleet.expect(expected, [EXACT, ("DEGRADED", "drift")])
        except harness.Failure as failure:
            raise harness.Failure(f"{what}: {failure}") from None

        def counted():
            now = agent_metric(fleet, "warmpath_agent_events_skipped_total") or 0.0
            return now if now > skipped else None

        skipped = harness.wait_until(counted, TIMEOUT, f"{what} to be counted")
    assert fleet.agent.program.running()


def test_payloads_that_are_no_batch_are_survived(start):
    """The message is lost for good, and says so; what comes after it counts again."""
    fleet = start()
    prompt = cluster.Prompts(seed=4)
    first = Chain(prompt.tokens(3 * BLOCK))
    fleet.publisher.publish([first.stored(wire.MapEra)])
    fleet.expect(first.names())
    good = wire.encode([first.stored(wire.MapEra)])
    for payload in (b"", b"\xc1", b"\x93", good[:-7], b"\xff" * 1000, b"\x91" * 100_000,
                    msgspec.msgpack.encode("text"), b"\xdd\xff\xff\xff\xff"):  # fmt: skip
        fleet.publisher.publish_payload(payload)
    last = Chain(prompt.tokens(4 * BLOCK))
    fleet.publisher.publish([last.stored(wire.MapEra)])

    def applied():
        dump = fleet.router.dump("worker-0")
        return dump.engine_seq == fleet.publisher.last_seq and set(last.names()) <= dump.hashes

    harness.wait_until(applied, TIMEOUT, "the batch after the broken ones")

    def all_counted():
        whole = agent_metric(fleet, "warmpath_agent_bad_batches_total")
        # A batch that breaks off inside its last event is one with a malformed event.
        part = agent_metric(fleet, "warmpath_agent_events_skipped_total", cause="malformed")
        return (whole, part) == (7, 1)

    harness.wait_until(all_counted, TIMEOUT, "all of them to be counted")
    assert fleet.router.dump("worker-0").freshness == "DEGRADED"
    assert fleet.agent.program.running()


@pytest.mark.parametrize("shape", ["old", "new"])
def test_lost_messages_come_back_by_replay(start, shape):
    fleet = start(replay=shape)
    prompt = cluster.Prompts(seed=5)
    chains = [Chain(prompt.tokens(2 * BLOCK)) for _ in range(8)]
    for i, chain in enumerate(chains):
        # Numbers 2, 3 and the last one never arrive.
        fleet.publisher.publish([chain.stored(wire.MapEra)], drop=i in (2, 3, 7))
    fleet.expect([name for chain in chains for name in chain.names()])
    assert fleet.publisher.replays_served


def test_a_gap_without_replay_is_told(start):
    fleet = start(replay=None)
    prompt = cluster.Prompts(seed=6)
    chains = [Chain(prompt.tokens(2 * BLOCK)) for _ in range(4)]
    fleet.publisher.publish([chains[0].stored(wire.MapEra)])
    fleet.expect(chains[0].names())
    fleet.publisher.publish([chains[1].stored(wire.MapEra)], drop=True)
    fleet.publisher.publish([chains[2].stored(wire.MapEra)])
    fleet.expect(chains[0].names() + chains[2].names(), [GAP])


def test_a_replay_that_no_longer_reaches_back_is_a_loss(start):
    fleet = start(buffer_steps=2)
    prompt = cluster.Prompts(seed=7)
    chains = [Chain(prompt.tokens(2 * BLOCK)) for _ in range(6)]
    fleet.publisher.publish([chains[0].stored(wire.MapEra)])
    fleet.expect(chains[0].names())
    for chain in chains[1:5]:
        fleet.publisher.publish([chain.stored(wire.MapEra)], drop=True)
    fleet.publisher.publish([chains[5].stored(wire.MapEra)])
    # The buffer holds 4 and 5 only; 1 to 3 are gone.
    known = [name for i in (0, 4, 5) for name in chains[i].names()]
    fleet.expect(known, [GAP])


def test_duplicates_and_old_messages_change_nothing(start):
    fleet = start()
    prompt = cluster.Prompts(seed=8)
    chain = Chain(prompt.tokens(4 * BLOCK))
    stored = fleet.publisher.publish([chain.stored(wire.MapEra)])
    removed = fleet.publisher.publish([wire.MapEra.removed([chain.hashes[3]])])
    fleet.expect(chain.names()[:3])
    # Were they applied again, block 3 would come back, or its count would go wrong.
    fleet.publisher.resend(stored)
    fleet.publisher.resend(removed)
    fleet.publisher.publish([chain.stored(wire.MapEra, 3, 4)])
    fleet.expect(chain.names())
    fleet.publisher.publish([wire.MapEra.removed([chain.hashes[3]])])
    fleet.expect(chain.names()[:3])


def test_children_that_come_before_their_parent(start):
    fleet = start()
    chain = Chain(cluster.Prompts(seed=9).tokens(6 * BLOCK))
    fleet.publisher.publish([chain.stored(wire.MapEra, 3)])
    # Nothing may be credited at a wrong depth while the parent is unknown.
    fleet.expect([])
    fleet.publisher.publish([chain.stored(wire.MapEra, 0, 3)])
    fleet.expect(chain.names())
