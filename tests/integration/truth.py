"""What engines really hold, computed without any code of the product.

The chain hashes are implemented here a second time, from docs/semantics.md ("Hash domain") and
with PyPI's xxhash, and are applied to what an engine says of itself in GET /debug/cache. The
result is compared, as sets, with what the router believes (warmpathctl index dump).
"""

import dataclasses
import re
import struct

import xxhash

SEED = 1337
_ABSENT = struct.pack("<I", 0xFFFFFFFF)


# --- Hashes -----------------------------------------------------------------------------------


def _xxh3(data, seed):
    return xxhash.xxh3_64_intdigest(data, seed=seed)


def _sized(text):
    if text is None:
        return _ABSENT
    data = text.encode("utf-8")
    return struct.pack("<I", len(data)) + data


def domain_seed(lora=None, salt=None):
    if lora is None and salt is None:
        return SEED
    return _xxh3(b"warmpath-domain-v1\0" + _sized(lora) + _sized(salt), SEED)


def local_hash(seed, tokens, items=(), block_start=0):
    """items: (identifier, start, length) of multimodal items, ordered by start."""
    data = struct.pack(f"<{len(tokens)}I", *tokens)
    for identifier, start, length in items:
        if start < block_start + len(tokens) and start + length > block_start:
            data += _sized(identifier) + struct.pack("<q", start - block_start)
    return _xxh3(data, seed)


def chain_hashes(tokens, block_size, lora=None, salt=None, items=()):
    """Chain hashes of all full blocks of a prompt."""
    seed = domain_seed(lora, salt)
    chain = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        local = local_hash(seed, tokens[start : start + block_size], items, start)
        chain.append(local if not chain else _xxh3(struct.pack("<QQ", chain[-1], local), SEED))
    return chain


# --- The engine's side ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EngineBlock:
    """One physical block of an engine's cache; `parent` and `hash` are the engine's own names."""

    hash: int
    parent: int | None
    tokens: tuple[int, ...]
    rank: int = 0
    tier: str = "gpu"
    lora: str | None = None
    salt: str | None = None
    # False for an ancestor that has been evicted: it gives its descendants their names, no more.
    resident: bool = True


@dataclasses.dataclass(frozen=True)
class CacheState:
    """The answer of GET /debug/cache, for all ranks and tiers."""

    blocks: tuple[EngineBlock, ...]
    # Per rank, the sequence of the last event batch this state includes; None before the first.
    seq: dict[int, int | None]

    @staticmethod
    def from_json(document):
        """The body of warmpath-engine's GET /debug/cache. Unknown keys are ignored."""
        blocks = []
        for rank in document["ranks"]:
            for entry in rank["blocks"]:
                parent = entry["parent"]
                blocks.append(
                    EngineBlock(
                        hash=parse_hash(entry["hash"]),
                        parent=None if parent is None else parse_hash(parent),
                        tokens=tuple(entry["token_ids"]),
                        rank=rank["rank"],
                        tier=entry["tier"].lower(),
                        lora=entry["lora"],
                        salt=entry["salt"],
                        resident=entry.get("resident", True),
                    )
                )
        return CacheState(tuple(blocks), {r["rank"]: r["seq"] for r in document["ranks"]})


def parse_hash(value):
    """A 64-bit hash in JSON: a number, or a string of 16 hexadecimal digits as our tools print."""
    number = value
    if isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{16}", value):
        number = int(value, 16)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 64:
        raise ValueError(f"not an unsigned 64-bit hash: {value!r}")
    return number


def held_routing_blocks(state, rank, tier, block_size):
    """The chain hashes of all routing blocks that one (rank, tier) really holds.

    A routing block counts if and only if all engine blocks that cover its tokens are resident.
    Several copies of a block count as one.
    """
    known = {}
    resident = set()
    for block in state.blocks:
        if block.rank != rank:
            continue
        earlier = known.setdefault(block.hash, block)
        if (earlier.parent, earlier.tokens) != (block.parent, block.tokens):
            raise ValueError(f"engine hash {block.hash:#x} names two different blocks")
        if block.tier == tier and block.resident:
            resident.add(block.hash)

    # Position of each block's first token, and its ancestors, from the root down. Walked without
    # recursion: chains are thousands of blocks long.
    held = set()
    paths = _Paths(known)
    for name in resident:
        block = known[name]
        end = paths.start(name) + len(block.tokens)
        # Each routing block is looked at once, from the engine block that holds its last token
        # (engine blocks never straddle two routing blocks, since their size divides B).
        if end % block_size != 0:
            continue
        covering, tokens = [], 0
        step = name
        while tokens < block_size:
            covering.append(step)
            tokens += len(known[step].tokens)
            step = known[step].parent
        if tokens != block_size:
            raise ValueError(f"blocks of {len(block.tokens)} tokens do not divide {block_size}")
        if all(part in resident for part in covering):
            held.add(paths.chain(name, block_size))
    return held


class _Paths:
    """Names of prefixes, remembered, so that a tree costs its size and not its depth squared."""

    def __init__(self, known):
        self._known = known
        self._starts = {}
        self._chains = {}

    def _to_root(self, name, done):
        """Block hashes from `name` upwards until one that is done, or the root is passed."""
        path = []
        seen = set()
        while name is not None and name not in done:
            if name in seen:
                raise ValueError(f"engine hash {name:#x} is its own ancestor")
            if name not in self._known:
                raise ValueError(
                    f"the engine does not tell block {name:#x}, an ancestor of one it holds"
                )
            seen.add(name)
            path.append(name)
            name = self._known[name].parent
        return path

    def start(self, name):
        for step in reversed(self._to_root(name, self._starts)):
            parent = self._known[step].parent
            self._starts[step] = (
                0 if parent is None else self._starts[parent] + len(self._known[parent].tokens)
            )
        return self._starts[name]

    def chain(self, name, block_size):
        """Chain hash of the routing block whose last engine block is `name`."""
        for step in reversed(self._to_root(name, self._chains)):
            block = self._known[step]
            before = (None, ()) if block.parent is None else self._chains[block.parent]
            chain, pending = before[0], before[1] + block.tokens
            if len(pending) == block_size:
                local = local_hash(domain_seed(block.lora, block.salt), pending)
                chain = local if chain is None else _xxh3(struct.pack("<QQ", chain, local), SEED)
                pending = ()
            elif len(pending) > block_size:
                raise ValueError(f"an engine block straddles two routing blocks of {block_size}")
            self._chains[step] = (chain, pending)
        return self._chains[name][0]


# --- The router's side ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Dump:
    """The answer of `warmpathctl index dump --json`."""

    hashes: frozenset[int]
    engine_seq: int | None
    freshness: str
    cause: str | None
    block_size: int
    epoch: int

    @staticmethod
    def from_json(document):
        hashes = [parse_hash(h) for h in document["hashes"]]
        unique = frozenset(hashes)
        if len(unique) != len(hashes):
            raise ValueError(f"the dump repeats {len(hashes) - len(unique)} hashes")
        return Dump(
            hashes=unique,
            engine_seq=document["engine_seq"],
            freshness=document["freshness"],
            cause=document["cause"],
            block_size=document["routing_block_size"],
            epoch=document["epoch"],
        )


def differences(truth, believed, limit=10):
    """'' when the two sets are equal, else both differences in words."""
    missing, wrong = truth - believed, believed - truth
    if not missing and not wrong:
        return ""

    def show(hashes):
        shown = " ".join(f"{h:#018x}" for h in sorted(hashes)[:limit])
        return shown + (" ..." if len(hashes) > limit else "")

    lines = [f"the engine holds {len(truth)} routing blocks, the index says {len(believed)}"]
    if missing:
        lines.append(f"  held, but not in the index: {len(missing)}: {show(missing)}")
    if wrong:
        lines.append(f"  in the index, but not held: {len(wrong)}: {show(wrong)}")
    return "\n".join(lines)
