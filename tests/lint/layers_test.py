"""The dependency direction: which folder may include what.

All of Debian's headers lie in one folder, so the compiler takes any include anywhere; this check
is what keeps gRPC out of core and one room from knowing the next.
"""

import re

import tree

# Our own folders -> the folders they may include from. The longest matching key rules. "proto"
# stands for generated headers, "public" for the client library's public headers.
_CORE = ["core/base", "core/hashing", "core/index", "core/fleet", "core/routing", "core/replay"]
ALLOWED = {
    "core/base": _CORE[:1],
    "core/hashing": _CORE[:2],
    "core/index": _CORE[:3],
    "core/fleet": _CORE[:4],
    "core/routing": _CORE[:5],
    "core/replay": _CORE,
    "core/prompt": ["core/base", "core/hashing", "core/prompt"],
    "proto": ["proto"],
    "server": ["core", "proto", "server"],
    "client/lib": ["proto", "public", "client/lib"],
    "client/lib/include": ["public"],
    "client/agent/events": ["core/base", "client/agent/events"],
    "client/agent/canonical": [
        "core/base", "core/hashing", "client/agent/events", "client/agent/canonical",
    ],
    "client/agent/feed": [
        "core/base", "client/agent/events", "client/agent/canonical", "client/agent/feed",
    ],
    "client/agent/engine": ["core/base", "client/agent/engine"],
    "client/agent/publish": [
        "core/base", "core/hashing", "proto", "client/agent/canonical", "client/agent/publish",
    ],
    "client/agent": ["core/base", "core/hashing", "proto", "client/agent"],
    "client/ctl": ["core/base", "proto", "public", "client/lib", "client/ctl"],
    "client/replay": ["core", "public", "client/lib", "client/replay"],
    "tests": ["core", "proto", "public", "server", "client", "tests"],
}

# Headers of other projects that a folder must not include.
_WIRE = r"grpc|google/protobuf|.*\.pb\.h$|zmq|curl/|httplib|prometheus/|yaml-cpp/|sys/socket|netinet/"
FORBIDDEN = {
    "core": _WIRE,
    "client/lib/include": _WIRE + r"|xxh|simdjson",
    "client/agent/events": _WIRE,
    "client/agent/canonical": _WIRE,
    "client/agent/feed": _WIRE,
    "client/agent/engine": r"grpc|.*\.pb\.h$",
    "client/agent/publish": r"zmq|curl/|httplib",
    "client/lib": r"zmq|httplib|prometheus/|yaml-cpp/",
    "server": r"zmq",
    "proto": r"zmq|curl/|httplib",
}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def _longest(table, path):
    keys = [key for key in table if path == key or path.startswith(key + "/")]
    return max(keys, key=len) if keys else None


def _kind(header):
    """The folder of ours that a header belongs to, or None for a header of another project."""
    if header.startswith("warmpath/v1/") or re.match(r"(envoy|grpc/health|google/rpc)/.*\.pb\.h$", header):
        return "proto"
    if header.startswith("warmpath/"):
        return "public"
    if re.match(r"(core|server|client|tests|proto)/", header):
        return header
    return None


def check(files):
    problems = []
    for path in sorted(files):
        if not re.search(r"\.(h|cc|cpp)$", path):
            continue
        room = _longest(ALLOWED, path)
        if room is None:
            problems.append(f"{path}: no rule says what this folder may include")
            continue
        forbidden = FORBIDDEN.get(_longest(FORBIDDEN, path))
        for match in _INCLUDE.finditer(files[path]):
            header = match.group(2)
            line = files[path].count("\n", 0, match.start()) + 1
            kind = _kind(header)
            if kind is not None:
                if not any(kind == a or kind.startswith(a + "/") for a in ALLOWED[room]):
                    problems.append(
                        f"{path}:{line}: {room} must not include {header}"
                        f" (allowed: {', '.join(ALLOWED[room])})"
                    )
            elif f"{path.rpartition('/')[0]}/{header}" in files:
                problems.append(f"{path}:{line}: write {header} with its path from the root")
            if forbidden and re.match(forbidden, header):
                problems.append(f"{path}:{line}: {room} must not include {header}")
    return problems


def self_test():
    tree.expect(check({"core/index/a.cc": '#include "core/fleet/x.h"\n'}), "core/fleet/x.h")
    tree.expect(check({"core/prompt/a.h": '#include "core/index/x.h"\n'}), "core/index/x.h")
    tree.expect(check({"core/base/a.h": "#include <grpcpp/grpcpp.h>\n"}), "grpcpp/grpcpp.h")
    tree.expect(check({"core/fleet/a.cc": "// x\n#  include <zmq.hpp>\n"}), "a.cc:2: ")
    # Both a layer and a library rule are broken by a generated header in core.
    pb = '#include "warmpath/v1/types.pb.h"\n'
    tree.expect(check({"core/fleet/a.cc": pb}), "allowed:", "types.pb.h")
    tree.expect(check({"client/lib/include/warmpath/a.h": "#include <grpcpp/channel.h>\n"}), "grpcpp")
    tree.expect(check({"client/agent/a.cc": '#include "core/index/index.h"\n'}), "core/index")
    tree.expect(check({"client/agent/events/a.cc": '#include "client/agent/feed/x.h"\n'}), "feed/x.h")
    tree.expect(check({"client/agent/engine/a.h": '#include "client/agent/events/x.h"\n'}), "events/x.h")
    tree.expect(check({"client/agent/feed/a.cc": "#include <zmq.h>\n"}), "zmq.h")
    tree.expect(check({"server/a.cc": '#include "tests/testing/fake_clock.h"\n'}), "tests/testing")
    beside = {"server/a.cc": '#include "app.h"\n#include "simdjson.h"\n', "server/app.h": ""}
    tree.expect(check(beside), "write app.h with its path from the root")
    tree.expect(check({"elsewhere/a.cc": ""}), "no rule")
    good = '#include <vector>\n#include "absl/status/status.h"\n#include "core/base/ids.h"\n'
    tree.expect(check({"core/index/a.h": good, "tests/core/a.cc": pb + good, "server/a.cc": pb}))
    tree.expect(check({"client/ctl/a.cc": '#include "warmpath/client.h"\n'}))


if __name__ == "__main__":
    tree.main(check, self_test)
