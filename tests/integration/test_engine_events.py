"""The stand-in engine tells the truth: a model fed by nothing but its event messages holds, after
each of them, what /debug/cache says it held. Tests of agent and router lean on this."""

import collections
import struct

import cluster
import harness
import msgspec
import pytest
import truth
import zmq


class Listener:
    """Reads one rank's events over a subscriber, from sequence 0."""

    def __init__(self, engine, rank=0):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.subscribe(b"")
        host, port = engine.events.rsplit(":", 1)
        self._socket.connect(f"{host}:{int(port) + rank}")
        # The handshake of the subscription has no acknowledgement; nothing is sent before a request
        # is made, and this is ample on loopback. A lost first message would fail the test loudly.
        self._socket.poll(500)

    def messages(self, last_seq):
        """(sequence, batch) up to last_seq."""
        found = []
        while not found or found[-1][0] < last_seq:
            if not self._socket.poll(5000):
                raise harness.Failure(f"no message after {[s for s, _ in found[-3:]]}")
            _, seq, payload = self._socket.recv_multipart()
            found.append((struct.unpack(">Q", seq)[0], msgspec.msgpack.decode(payload)))
        return found

    def close(self):
        self._socket.close(0)
        self._context.term()


class Model:
    """Blocks with copy counts, from events alone; positional events are named first."""

    STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
              "lora_name", "extra_keys")  # fmt: skip

    def __init__(self):
        self.copies = collections.Counter()
        self.blocks = {}

    def apply(self, event):
        if isinstance(event, list):
            names = self.STORED if event[0] == "BlockStored" else ("block_hashes", "medium")
            event = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
        if event["type"] == "AllBlocksCleared":
            self.copies.clear()
        elif event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                assert self.copies[name] > 0, f"removes {name:#x}, which it never stored"
                self.copies[name] -= 1
        else:
            self._store(event)

    def _store(self, event):
        parent, size = event["parent_block_hash"], event["block_size"]
        hashes, tokens = event["block_hashes"], event["token_ids"]
        assert len(tokens) == size * len(hashes)
        for i, name in enumerate(hashes):
            lora = event.get("lora_name")
            if parent is None:
                keys = [k for k in (event.get("extra_keys") or [None])[0] or [] if k != lora]
                salt = keys[0] if keys else None
            else:
                assert parent in self.blocks, f"parent {parent:#x} was never stored"
                salt = self.blocks[parent].salt
            part = tuple(tokens[i * size : (i + 1) * size])
            self.blocks[name] = truth.EngineBlock(name, parent, part, lora=lora, salt=salt)
            self.copies[name] += 1
            parent = name

    def held(self, block_size):
        blocks = tuple(
            truth.dataclasses.replace(b, resident=self.copies[n] > 0)
            for n, b in self.blocks.items()
        )
        return truth.held_routing_blocks(truth.CacheState(blocks, {0: 0}), 0, "gpu", block_size)


@pytest.mark.parametrize("event_format", ["map", "positional"])
def test_events_add_up_to_the_cache(site, event_format):
    engine = cluster.Engine(
        site, "engine", ranks=2, blocks=150, speed=5,
        flags=[f"--event-format={event_format}", "--lora=la,lb"],
    ).start()  # fmt: skip
    listeners = [Listener(engine, rank) for rank in range(2)]
    try:
        prompts = cluster.Prompts(seed=7)
        requests = []
        for i in range(120):
            fields = {}
            if i % 5 == 1:
                fields["model"] = ("la", "lb")[i % 2]
            if i % 7 == 2:
                fields["cache_salt"] = f"tenant-{i % 3}"
            # Some come four times at once: equal blocks are then computed side by side.
            requests += [(prompts.next(), i % 2, fields)] * (4 if i % 3 == 0 else 1)
        cluster.run_parallel(lambda r: engine.complete(r[0], rank=r[1], **r[2]), requests[:180])
        harness.wait_until(
            lambda: all(engine.state(r)["running"] == 0 for r in range(2)), 5, "rest"
        )
        engine.reset_cache()
        cluster.run_parallel(lambda r: engine.complete(r[0], rank=r[1], **r[2]), requests[180:])
        harness.wait_until(
            lambda: not any(
                engine.state(r)["running"] or engine.state(r)["unpublished"] for r in range(2)
            ),
            5, "all events to be published",
        )  # fmt: skip
        for rank, listener in enumerate(listeners):
            check_every_batch(engine, rank, listener)
    finally:
        for listener in listeners:
            listener.close()


def check_every_batch(engine, rank, listener):
    last = engine.state(rank)["last_seq"]
    messages = listener.messages(last)
    assert [seq for seq, _ in messages] == list(range(last + 1))
    model = Model()
    kinds = collections.Counter()
    most_copies = 0
    sizes = []
    for seq, (_, events, stamped_rank) in messages:
        assert stamped_rank == rank
        for event in events:
            kinds[event["type"] if isinstance(event, dict) else event[0]] += 1
            model.apply(event)
            most_copies = max(most_copies, *model.copies.values(), 0, 0)
        # Each batch costs a request and a walk: a sample, and the last ones.
        if seq % 10 == 0 or seq > last - 5:
            for size in (16, 64):
                told = engine.held(size, rank, at_seq=seq)
                assert truth.differences(told, model.held(size)) == "", f"after batch {seq}"
                sizes.append(len(told))
    assert kinds["BlockStored"] > 50 and kinds["BlockRemoved"] > 50, kinds
    assert kinds["AllBlocksCleared"] >= 1
    assert max(sizes) > 50
    assert most_copies > 1, "no block had two copies: the test does not see that they are counted"
