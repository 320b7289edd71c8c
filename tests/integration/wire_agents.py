"""Agents without engines: they register, send a snapshot, and then only what an agent sends when its
engine idles. For tests that need many workers and no processes."""

import asyncio
import contextlib
import pathlib
import random
import subprocess
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


def _messages(folder):
    """The classes of worker_events.proto, made from the file itself."""
    out = pathlib.Path(folder) / "worker_events.binpb"
    subprocess.run(
        ["protoc", f"-I{PROTO}", "--include_imports", f"--descriptor_set_out={out}",
         "warmpath/v1/worker_events.proto"],
        check=True,
    )  # fmt: skip
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    get = pool.FindMessageTypeByName
    return {
        name: message_factory.GetMessageClass(get(f"warmpath.v1.{name}"))
        for name in ("WorkerUpdate", "RouterUpdate")
    }


class Fleet:
    """`count` agents on threads of their own, each with a connection of its own.

        with wire_agents.Fleet(site.folder, "127.0.0.1:9002", 100) as fleet:
            ...
    """

    def __init__(self, folder, router, count, model="m", blocks=1000):
        types = _messages(folder)
        self._update = types["WorkerUpdate"]
        self._answer = types["RouterUpdate"]
        self._router = router
        self._count = count
        self._model = model
        self._blocks = blocks
        self._registered = threading.Semaphore(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.errors = []
        self.heartbeats = 0

    def __enter__(self):
        self._thread.start()
        for _ in range(self._count):
            if not self._registered.acquire(timeout=30):
                raise AssertionError(f"not all agents could register: {self.errors[:3]}")
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._all())

    async def _all(self):
        self._stop = asyncio.Event()
        tasks = [asyncio.create_task(self._agent(i)) for i in range(self._count)]
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _agent(self, number):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        try:
            async with grpc.aio.insecure_channel(self._router, options=options) as channel:
                publish = channel.stream_stream(
                    "/warmpath.v1.WorkerEvents/Publish",
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=self._answer.FromString,
                )
                await self._publish(publish(), number)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - shown when the test fails
            self.errors.append(error)

    async def _publish(self, stream, number):
        rng = random.Random(number)
        update = self._update()
        update.register.protocol_min = update.register.protocol_max = 1
        update.register.agent_instance = rng.randbytes(16)
        update.register.worker_id = f"worker-{number}"
        update.register.model = self._model
        update.register.engine = "vllm"
        update.register.ranks.add(
            address=f"10.0.{number // 250}.{number % 250 + 1}:8000", epoch=1, engine_block_size=16,
            kv_capacity_tokens=1_000_000, has_events=True, prefill_tokens_per_s=20_000,
        )  # fmt: skip
        await stream.write(update)
        registered = (await stream.read()).registered
        slot = self._loop.time() + registered.heartbeat_in_ms / 1000
        session = registered.session
        if 0 not in registered.snapshot_ranks:
            # Only some may send theirs at a time; the router says when it is this one's turn.
            while not (answer := await stream.read()).HasField("resync"):
                pass
            await asyncio.sleep(answer.resync.backoff_ms / 1000)
        hashes = [rng.getrandbits(64) for _ in range(self._blocks)]
        xor = 0
        for value in hashes:
            xor ^= value
        await stream.write(self._update(
            session=session, snapshot_begin={"delta_seq": 1, "epoch": 1, "reason": "connect"}))
        await stream.write(self._update(
            session=session, snapshot_chunk={"delta_seq": 2, "tier": 1, "hashes": hashes}))
        await stream.write(self._update(session=session, snapshot_end={
            "delta_seq": 3, "engine_seq": 1, "engine_seq_valid": True, "count": len(hashes),
            "xor": xor}))  # fmt: skip
        self._registered.release()

        async def read():
            while (answer := await stream.read()) is not grpc.aio.EOF:
                if answer.HasField("resync"):
                    self.errors.append(answer)

        reader = asyncio.create_task(read())
        digests = [
            {"tier": tier, "count": len(hashes) if tier == 1 else 0, "xor": xor if tier == 1 else 0,
             "engine_seq": 1, "engine_seq_valid": True}
            for tier in range(1, 5)
        ]  # fmt: skip
        beat = registered.heartbeat_ms / 1000
        try:
            while True:
                # The slot that the router said, of those at least half an interval from now.
                soonest = self._loop.time() + beat / 2
                await asyncio.sleep(beat / 2 + (slot - soonest) % beat)
                await stream.write(self._update(
                    session=session,
                    heartbeat={"digests": digests, "delta_seq": 3, "loads": [{"age_ms": 1}]}))
                self.heartbeats += 1
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
