"""The publisher emits, byte for byte, what engines emit, and serves replays as they do."""

import json
import pathlib
import struct

import independent_publisher as wire
import msgspec
import pytest
import zmq

VECTORS = pathlib.Path(__file__).parent.parent / "data" / "kv_events.json"
TS = 1700000000.5
H = 0xDAB6C1D2E3F40516
TOKENS = [151644, 872, 198, 9064]


def vector(name):
    vectors = json.loads(VECTORS.read_text())["vectors"]
    return next(bytes.fromhex(v["hex"]) for v in vectors if v["name"] == name)


def test_bytes_of_the_map_era():
    era = wire.MapEra
    events = [era.stored([H], None, TOKENS, 4, extra_keys=[None]), era.removed([H]), era.cleared()]
    assert wire.encode(events, rank=0, ts=TS) == vector("VE")


def test_bytes_of_the_last_positional_form():
    era = wire.PositionalEra
    events = [era.stored([H], None, TOKENS, 4, extra_keys=[None]), era.removed([H]), era.cleared()]
    assert wire.encode(events, rank=0, ts=TS) == vector("VD")


def test_bytes_of_the_first_form():
    events = [
        wire.BlockStoredA([1, 2], None, [10, 11, 12, 13], 2, None),
        wire.BlockRemovedA([1]),
        wire.AllBlocksClearedPositional(),
    ]
    assert msgspec.msgpack.encode(wire.EventBatchA(TS, events)) == vector("VA")


@pytest.mark.parametrize("shape", ["old", "new"])
def test_live_and_replay_frames(shape):
    with wire.Publisher(topic="t", replay=shape, buffer_steps=2) as publisher:
        context = zmq.Context()
        sub = context.socket(zmq.SUB)
        sub.setsockopt(zmq.RCVTIMEO, 5000)
        sub.connect(publisher.endpoint)
        sub.subscribe(b"t")
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(publisher.replay_endpoint)
        try:
            # PUB drops what it sends before the subscription arrives: send until one comes.
            while True:
                publisher.publish([wire.MapEra.cleared()])
                if sub.poll(20):
                    break
            topic, seq, payload = sub.recv_multipart()
            assert topic == b"t" and struct.unpack(">Q", seq)[0] <= publisher.last_seq
            assert msgspec.msgpack.decode(payload)[1] == [{"type": "AllBlocksCleared"}]

            lost = publisher.publish([wire.MapEra.cleared()], drop=True)
            last = publisher.publish([wire.MapEra.cleared()])
            dealer.send_multipart([b"", struct.pack(">Q", 0)])
            replies = []
            while True:
                frames = dealer.recv_multipart()
                assert frames[0] == b""
                assert len(frames) == (3 if shape == "old" else 4)
                if frames[-2] == b"\xff" * 8:
                    assert frames[-1] == b""
                    break
                replies.append(struct.unpack(">Q", frames[-2])[0])
            # Asked from 0, but only the last two are still there.
            assert replies == [lost, last]
        finally:
            sub.close(0)
            dealer.close(0)
            context.term()
