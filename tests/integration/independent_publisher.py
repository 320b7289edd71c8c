"""A KV-event publisher that is none of ours: structs declared for msgspec as engines declare them,
sent over pyzmq. It stands in for vLLM in tests of the agent.

Two eras of the wire: positional events (arrays, until June 2026) and map events. The batch is an
array in both.
"""

import collections
import struct
import threading
import time

import msgspec
import zmq

END = struct.pack(">q", -1)


# --- Positional era: every slot of the version is sent, nil when unset -------------------------


class EventBatchA(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """First form: no rank. Positional batches of later versions have `data_parallel_rank`."""

    ts: float
    events: list


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class BlockStoredA(msgspec.Struct, array_like=True, gc=False, tag="BlockStored"):
    """April 2025."""

    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class BlockRemovedA(msgspec.Struct, array_like=True, gc=False, tag="BlockRemoved"):
    block_hashes: list


class BlockStoredPositional(msgspec.Struct, array_like=True, gc=False, tag="BlockStored"):
    """May 2026: the last positional form, 12 slots with the tag."""

    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = "GPU"
    lora_name: str | None = None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemovedPositional(msgspec.Struct, array_like=True, gc=False, tag="BlockRemoved"):
    block_hashes: list
    medium: str | None = "GPU"
    group_idx: int | None = None


class AllBlocksClearedPositional(msgspec.Struct, array_like=True, gc=False, tag="AllBlocksCleared"):
    pass


# --- Map era: defaults are left out ------------------------------------------------------------


class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved"):
    block_hashes: list
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, gc=False, tag="AllBlocksCleared"):
    pass


class MapEra:
    """Makes events of the map era; the positional one below has the same methods."""

    @staticmethod
    def stored(hashes, parent, tokens, block_size, lora=None, extra_keys=None, medium="GPU"):
        return BlockStored(
            block_hashes=hashes, parent_block_hash=parent, token_ids=tokens,
            block_size=block_size, lora_id=None if lora is None else 1, medium=medium,
            lora_name=lora, extra_keys=extra_keys, group_idx=0,
            kv_cache_spec_kind="full_attention",
        )  # fmt: skip

    @staticmethod
    def removed(hashes, medium="GPU"):
        return BlockRemoved(block_hashes=hashes, medium=medium, group_idx=0)

    @staticmethod
    def cleared():
        return AllBlocksCleared()


class PositionalEra:
    @staticmethod
    def stored(hashes, parent, tokens, block_size, lora=None, extra_keys=None, medium="GPU"):
        return BlockStoredPositional(
            hashes, parent, tokens, block_size, None if lora is None else 1, medium, lora,
            extra_keys, 0, "full_attention", None,
        )  # fmt: skip

    @staticmethod
    def removed(hashes, medium="GPU"):
        return BlockRemovedPositional(hashes, medium, 0)

    @staticmethod
    def cleared():
        return AllBlocksClearedPositional()


def encode(events, rank=0, ts=None):
    """The payload of one message."""
    batch = EventBatch(time.time() if ts is None else ts, list(events), rank)
    return msgspec.msgpack.encode(batch)


# --- Transport ---------------------------------------------------------------------------------


class Publisher:
    """PUB with optional ROUTER replay, like an engine process: sequences from 0, bounded buffer.

    replay: None, "old" ([b"", seq, payload], until mid 2026) or "new" (a topic frame before seq).
    Ports are 0 for any free one; read `endpoint` and `replay_endpoint`.
    """

    def __init__(self, topic="kv-events", replay="new", buffer_steps=10_000, port=0, replay_port=0):
        self._topic = topic.encode()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self.endpoint = _bind(self._pub, port)
        self.replay_endpoint = None
        self._replay_shape = replay
        self._lock = threading.Lock()
        self._buffer = collections.deque(maxlen=buffer_steps)
        self._next = 0
        self._stop = threading.Event()
        self._thread = None
        self.replays_served = []
        if replay is not None:
            assert replay in ("old", "new"), replay
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            self.replay_endpoint = _bind(router, replay_port)
            self._thread = threading.Thread(target=self._serve_replay, args=(router,), daemon=True)
            self._thread.start()

    @property
    def last_seq(self):
        return self._next - 1

    def publish(self, events, rank=0, drop=False):
        """Sends one batch; returns its sequence. drop: it goes to the buffer only, as if lost."""
        return self.publish_payload(encode(events, rank), drop)

    def publish_payload(self, payload, drop=False):
        """Sends raw bytes as a batch, e.g. ones that no decoder accepts."""
        with self._lock:
            seq = self._next
            self._next += 1
            self._buffer.append((seq, payload))
        if not drop:
            self._pub.send_multipart([self._topic, struct.pack(">Q", seq), payload])
        return seq

    def resend(self, seq):
        """Sends an old batch once more, as a duplicate."""
        with self._lock:
            payload = dict(self._buffer)[seq]
        self._pub.send_multipart([self._topic, struct.pack(">Q", seq), payload])

    def close(self):
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._pub.close()
        self._context.term()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _serve_replay(self, router):
        topic = [self._topic] if self._replay_shape == "new" else []
        while not self._stop.is_set():
            if not router.poll(50):
                continue
            frames = router.recv_multipart()
            # As engines do: anything but [identity, empty, 8 bytes] is ignored.
            if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
                continue
            start = struct.unpack(">Q", frames[2])[0]
            with self._lock:
                batches = [(s, p) for s, p in self._buffer if s >= start]
            for seq, payload in batches:
                router.send_multipart([frames[0], b"", *topic, struct.pack(">Q", seq), payload])
            end_topic = [b""] if topic else []
            router.send_multipart([frames[0], b"", *end_topic, END, b""])
            self.replays_served.append(start)
        router.close()


def _bind(socket, port):
    if port == 0:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    else:
        socket.bind(f"tcp://127.0.0.1:{port}")
    return f"tcp://127.0.0.1:{port}"
