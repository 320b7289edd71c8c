"""Tests of the comparator itself: a comparator that can not find a difference proves nothing."""

import random

import pytest
import truth

def engine_blocks(tokens, size, name="a", **facts):
    """A prompt as a chain of engine blocks, named by arbitrary numbers."""
    blocks = []
    parent = None
    for start in range(0, len(tokens) - size + 1, size):
        key = (name, tuple(tokens[: start + size]), facts.get("lora"), facts.get("salt"))
        own = hash(key) & (2**64 - 1)
        blocks.append(truth.EngineBlock(own, parent, tuple(tokens[start : start + size]), **facts))
        parent = own
    return blocks


def state(*chains):
    return truth.CacheState(tuple(block for chain in chains for block in chain), {0: 1})


def held(cache, block_size, rank=0, tier="gpu"):
    return truth.held_routing_blocks(cache, rank, tier, block_size)


def test_hashes_follow_the_definition_byte_by_byte():
    def xxh(data, seed=1337):
        return truth.xxhash.xxh3_64_intdigest(data, seed=seed)

    a = bytes([1, 0, 0, 0, 2, 0, 0, 0])
    b = bytes([3, 0, 0, 0, 255, 255, 255, 255])
    first = xxh(a)
    second = xxh(first.to_bytes(8, "little") + xxh(b).to_bytes(8, "little"))
    assert truth.chain_hashes([1, 2, 3, 0xFFFFFFFF, 5], 2) == [first, second]

    seed = xxh(b"warmpath-domain-v1\0\x02\0\0\0la\xff\xff\xff\xff")
    assert truth.domain_seed(lora="la") == seed
    assert truth.chain_hashes([1, 2], 2, lora="la") == [xxh(a, seed)]
    assert truth.domain_seed(salt="") == xxh(b"warmpath-domain-v1\0\xff\xff\xff\xff\0\0\0\0")
    assert truth.domain_seed(lora="x") != truth.domain_seed(salt="x")

    # An item that begins in block 0 and reaches into block 1, where its offset is negative.
    items = [("im", 1, 2)]
    one = xxh(a + b"\x02\0\0\0im" + (1).to_bytes(8, "little", signed=True))
    two = xxh(b + b"\x02\0\0\0im" + (-1).to_bytes(8, "little", signed=True))
    chained = xxh(one.to_bytes(8, "little") + two.to_bytes(8, "little"))
    assert truth.chain_hashes([1, 2, 3, 0xFFFFFFFF], 2, items=items) == [one, chained]


def test_golden_values_of_the_product():
    """Of tests/core/hashing: the two implementations agree, and so do the documents."""
    assert truth.chain_hashes(range(50), 16) == [
        0xD47A8F41C833328A, 0xBF15DFFB16447F38, 0xA4DDA066F3C1E1A0]  # fmt: skip
    both = truth.chain_hashes(range(32), 16, lora="sql-adapter", salt="tenant-7")
    assert both == [0xB4754CFD3F1F9F6F, 0xD17951C58EDE101B]


def test_equal_block_sizes():
    tokens = list(range(100, 170))
    chain = truth.chain_hashes(tokens, 16)
    assert len(chain) == 4
    assert held(state(engine_blocks(tokens, 16)), 16) == set(chain)


def test_a_routing_block_needs_all_of_its_engine_blocks():
    tokens = list(range(1000, 1000 + 128))
    blocks = engine_blocks(tokens, 16)
    chain = truth.chain_hashes(tokens, 64)
    assert held(state(blocks), 64) == set(chain)
    # Without the last block only the first routing block is whole.
    assert held(state(blocks[:-1]), 64) == {chain[0]}
    # A hole in the first one leaves the second; the evicted block still gives it its name.
    gone = [truth.dataclasses.replace(blocks[2], resident=False)]
    assert held(state(blocks[:2], gone, blocks[3:]), 64) == {chain[1]}
    # Every single hole, in every place, at both sizes.
    for hole in range(8):
        cache = state(
            blocks[:hole],
            [truth.dataclasses.replace(blocks[hole], resident=False)],
            blocks[hole + 1 :],
        )
        assert held(cache, 64) == set(chain) - {chain[hole // 4]}
        fine = truth.chain_hashes(tokens, 16)
        assert held(cache, 16) == set(fine) - {fine[hole]}


def test_siblings_branch_inside_a_routing_block():
    stem = list(range(32))
    left, right = stem + [7] * 32, stem + [8] * 32
    cache = state(engine_blocks(left, 16), engine_blocks(right, 16))
    assert held(cache, 64) == {truth.chain_hashes(left, 64)[0], truth.chain_hashes(right, 64)[0]}
    assert held(cache, 16) == set(truth.chain_hashes(left, 16) + truth.chain_hashes(right, 16))


def test_ranks_tiers_and_domains_are_apart():
    tokens = list(range(32))
    cache = state(
        engine_blocks(tokens, 16, rank=1),
        engine_blocks(tokens, 16, name="b", rank=0, tier="host"),
        engine_blocks(tokens, 16, name="c", rank=2, lora="la"),
        engine_blocks(tokens, 16, name="d", rank=3, salt="s"),
    )
    plain = set(truth.chain_hashes(tokens, 16))
    assert held(cache, 16, rank=0) == set()
    assert held(cache, 16, rank=0, tier="host") == plain
    assert held(cache, 16, rank=1) == plain
    lora = held(cache, 16, rank=2)
    salt = held(cache, 16, rank=3)
    assert lora == set(truth.chain_hashes(tokens, 16, lora="la")) and not lora & plain
    assert salt == set(truth.chain_hashes(tokens, 16, salt="s")) and not salt & (plain | lora)


def test_copies_count_once():
    blocks = engine_blocks(list(range(32)), 16)
    assert held(state(blocks, blocks), 16) == held(state(blocks), 16)


def test_random_trees_against_a_model_that_knows_the_prompts():
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for _ in range(50):
        prompts = [[rng.randrange(3) for _ in range(rng.randrange(16, 200))] for _ in range(6)]
        for other in prompts[1:]:
            cut = rng.randrange(len(other))
            other[:cut] = prompts[0][:cut]
        blocks = {b.hash: b for p in prompts for b in engine_blocks(p, 4)}
        gone = {h for h in blocks if rng.random() < 0.2}
        cache = state(
            [truth.dataclasses.replace(b, resident=h not in gone) for h, b in blocks.items()]
        )
        for size in (4, 8, 16):
            expected = set()
            for prompt in prompts:
                names = [b.hash for b in engine_blocks(prompt, 4)]
                for i, value in enumerate(truth.chain_hashes(prompt, size)):
                    if not gone & set(names[i * size // 4 : (i + 1) * size // 4]):
                        expected.add(value)
            assert held(cache, size) == expected, f"seed {seed}, size {size}"


def test_contradictions_are_refused():
    blocks = engine_blocks(list(range(64)), 16)
    with pytest.raises(ValueError, match="does not tell block"):
        held(state(blocks[1:]), 16)
    loop = truth.EngineBlock(5, 5, tuple(range(16)))
    with pytest.raises(ValueError, match="its own ancestor"):
        held(state([loop]), 16)
    other = truth.dataclasses.replace(blocks[0], tokens=tuple(range(1, 17)))
    with pytest.raises(ValueError, match="two different blocks"):
        held(state(blocks, [other]), 16)
    with pytest.raises(ValueError, match="straddles|divide"):
        held(state(blocks), 24)


def test_long_chains_are_cheap():
    tokens = list(range(40_000))
    assert held(state(engine_blocks_fast(tokens, 16)), 16) == set(truth.chain_hashes(tokens, 16))


def engine_blocks_fast(tokens, size):
    starts = range(0, len(tokens) - size + 1, size)
    return [
        truth.EngineBlock(s + 1, None if s == 0 else s - size + 1, tuple(tokens[s : s + size]))
        for s in starts
    ]


def test_differences_name_both_sides():
    assert truth.differences({1, 2}, {1, 2}) == ""
    text = truth.differences({1, 2, 3}, {3, 4})
    assert "held, but not in the index: 2: 0x0000000000000001 0x0000000000000002" in text
    assert "in the index, but not held: 1: 0x0000000000000004" in text
    assert truth.differences(set(range(20)), set()).endswith(" ...")


def test_json_of_both_sides():
    first = {"tier": "GPU", "hash": 2**63, "parent": None, "token_ids": [1, 2]}
    second = {"tier": "GPU", "hash": "0000000000000010", "parent": 2**63, "token_ids": [3, 4]}
    document = {
        "ranks": [
            {"rank": 0, "seq": 7, "last_seq": 9, "blocks": [
                {**first, "lora": None, "salt": "s"},
                {**second, "lora": None, "salt": "s", "resident": False}]},
            {"rank": 1, "seq": None, "last_seq": None, "blocks": []},
        ],
    }  # fmt: skip
    cache = truth.CacheState.from_json(document)
    assert cache.seq == {0: 7, 1: None}
    assert held(cache, 2) == set(truth.chain_hashes([1, 2], 2, salt="s"))

    dump = truth.Dump.from_json(
        {"hashes": ["ffffffffffffffff", "0000000000000001", 2], "engine_seq": 7, "freshness": "EXACT",
         "cause": None, "routing_block_size": 16, "epoch": 5}
    )
    assert dump.hashes == {2**64 - 1, 1, 2} and dump.engine_seq == 7
    with pytest.raises(ValueError, match="repeats 1"):
        truth.Dump.from_json({"hashes": [1, 1], "engine_seq": None, "freshness": "NONE",
                              "cause": None, "routing_block_size": 16, "epoch": 5})
    for bad in (-1, 2**64, "x", "12", "0x10", 1.5, True):
        with pytest.raises(ValueError):
            truth.parse_hash(bad)
