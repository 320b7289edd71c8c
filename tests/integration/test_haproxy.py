"""deploy/haproxy in a real HAProxy."""

import signal

import balancers
import harness


class TestHaproxy(balancers.CoreCases):
    def start(self, fleet, on_failure="closed"):
        site = fleet.site
        port = harness.free_port()
        name = f"haproxy-{on_failure}"
        router = fleet.router.http.removeprefix("http://")
        text = balancers.configuration(
            "haproxy/haproxy.cfg",
            {
                "/etc/haproxy/warmpath.lua": balancers.DEPLOY / "haproxy/warmpath.lua",
                "127.0.0.1:9090": router,
                "bind :8080": f"bind 127.0.0.1:{port}",
                # One namespace for all processes of the machine.
                "abns@warmpath-": f"unix@{site.folder}/{name}-",
                **{f"10.0.0.1{i + 1}:8000": e.address for i, e in enumerate(fleet.engines)},
            },
        )
        if on_failure == "closed":
            text = text.replace("use_backend any_worker if METH_POST",
                                "use_backend unavailable if METH_POST")  # fmt: skip
        program = site.program(
            balancers.TREE / "usr/sbin/haproxy",
            ["-db", "-f", site.file(f"{name}.cfg", text)],
            label=name,
        )
        program.expected_codes.add(-signal.SIGTERM)
        program.start(ready=lambda: harness.accepts_connections(port))
        return port
