#!/usr/bin/env python3
"""Prints the golden chain hashes of proto/README.md and tests/core/hashing/golden_hashes.inc.

Written from the prose of proto/README.md with PyPI's xxhash package; it shares no code with
core/hashing, so that the two check each other.

    python3 -m venv venv && venv/bin/pip install xxhash
    venv/bin/python tests/data/make_golden_hashes.py markdown   # the table of proto/README.md
    venv/bin/python tests/data/make_golden_hashes.py cpp        # the table of the C++ test
"""

import struct
import sys

import xxhash

SEED = 1337


def xxh3(data, seed):
    return xxhash.xxh3_64_intdigest(data, seed)


def name_field(name):
    if name is None:
        return struct.pack("<I", 0xFFFFFFFF)
    raw = name.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def domain_seed(lora, salt):
    if lora is None and salt is None:
        return SEED
    return xxh3(b"warmpath-domain-v1\0" + name_field(lora) + name_field(salt), SEED)


def chain(block, tokens, lora, salt, items):
    """items: (id, start, length) in tokens of the prompt."""
    seed = domain_seed(lora, salt)
    hashes = []
    for start in range(0, len(tokens) - block + 1, block):
        data = b"".join(struct.pack("<I", t) for t in tokens[start:start + block])
        for item_id, item_start, item_length in sorted(items, key=lambda i: i[1]):
            if item_start < start + block and item_start + item_length > start:
                raw = item_id.encode("utf-8")
                data += struct.pack("<I", len(raw)) + raw + struct.pack("<q", item_start - start)
        local = xxh3(data, seed)
        if hashes:
            hashes.append(xxh3(struct.pack("<QQ", hashes[-1], local), SEED))
        else:
            hashes.append(local)
    return hashes


def ramp(count, first=0, step=1):
    """Token i is first + i * step modulo 2^32."""
    return [(first + i * step) & 0xFFFFFFFF for i in range(count)]


# name, block, (tokens as count, first, step), lora, salt, items
CASES = [
    ("plain, B=16", 16, (48, 0, 1), None, None, []),
    ("plain, B=64", 64, (192, 0, 1), None, None, []),
    ("plain, B=1", 1, (3, 7, 1), None, None, []),
    ("plain, B=128, tokens that use all 32 bits", 128, (256, 1, 2654435761), None, None, []),
    ("partial tail dropped (50 tokens, as the first case)", 16, (50, 0, 1), None, None, []),
    ("shorter than a block", 16, (15, 0, 1), None, None, []),
    ("LoRA", 16, (32, 0, 1), "sql-adapter", None, []),
    ("salt", 16, (32, 0, 1), None, "tenant-7", []),
    ("LoRA and salt", 16, (32, 0, 1), "sql-adapter", "tenant-7", []),
    ("LoRA and salt exchanged", 16, (32, 0, 1), "tenant-7", "sql-adapter", []),
    ("empty LoRA is not an absent one", 16, (32, 0, 1), "", None, []),
    ("empty salt", 16, (32, 0, 1), None, "", []),
    ("UTF-8 LoRA", 16, (32, 0, 1), "\u00e9t\u00e9", None, []),
    ("item inside a block", 16, (48, 0, 1), None, None, [("img-a", 18, 8)]),
    ("item straddles blocks 0 and 1 (negative offset in block 1)", 16, (48, 0, 1), None, None,
     [("img-a", 10, 12)]),
    ("item starts before the last block and outlasts it", 16, (48, 0, 1), None, None,
     [("img-a", 3, 100)]),
    ("two items in one block", 16, (32, 0, 1), None, None, [("img-a", 2, 4), ("img-b", 8, 4)]),
    ("two items exchanged", 16, (32, 0, 1), None, None, [("img-b", 2, 4), ("img-a", 8, 4)]),
    ("item ends where block 1 starts (only block 0)", 16, (32, 0, 1), None, None,
     [("img-a", 8, 8)]),
    ("items, LoRA and salt, B=64", 64, (130, 5, 3), "sql-adapter", "tenant-7",
     [("c0ffee", 60, 8)]),
]


def quoted(name):
    return "absent" if name is None else '`"%s"`' % name


def markdown():
    print("| case | B | tokens: count, first, step | LoRA | salt | items: id, start, length | chain hashes |")
    print("|---|---|---|---|---|---|---|")
    for name, block, tokens, lora, salt, items in CASES:
        hashes = chain(block, ramp(*tokens), lora, salt, items)
        print("| %s | %d | %d, %d, %d | %s | %s | %s | %s |" % (
            name, block, *tokens, quoted(lora), quoted(salt),
            "; ".join("%s, %d, %d" % item for item in items) or "none",
            " ".join("`%016x`" % h for h in hashes) or "none"))


def cpp_string(name):
    if name is None:
        return "std::nullopt"
    escaped = "".join(chr(b) if 32 <= b < 127 else "\\x%02x\" \"" % b for b in name.encode("utf-8"))
    return '"%s"' % escaped


def cpp():
    print("// Made by tests/data/make_golden_hashes.py cpp; do not edit.")
    for name, block, tokens, lora, salt, items in CASES:
        hashes = chain(block, ramp(*tokens), lora, salt, items)
        print('{"%s", %d, %du, %du, %du, %s, %s,' % (
            name, block, *tokens, cpp_string(lora), cpp_string(salt)))
        print(" {%s}," % ", ".join('{"%s", %d, %d}' % item for item in items))
        print(" {%s}}," % ", ".join("0x%016x" % h for h in hashes))


if __name__ == "__main__":
    if sys.argv[1:] == ["markdown"]:
        markdown()
    elif sys.argv[1:] == ["cpp"]:
        cpp()
    else:
        sys.exit(__doc__)
