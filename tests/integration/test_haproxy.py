"""deploy/haproxy in a real HAProxy."""

import signal

import balancers
import cluster
import harness


class TestHaproxy(balancers.CoreCases):
    def start(self, fleet, on_failure="closed", buffer=262144):
        site = fleet.site
        port = harness.free_port()
        name = f"haproxy-{on_failure}"
        text = balancers.configuration(
            "haproxy/haproxy.cfg",
            {
                "/etc/haproxy/warmpath.lua": balancers.DEPLOY / "haproxy/warmpath.lua",
                "127.0.0.1:9091": fleet.router.pick.removeprefix("http://"),
                "my-model": cluster.MODEL,
                "tune.bufsize 262144": f"tune.bufsize {buffer}",
                "bind :8080": f"bind 127.0.0.1:{port}",
                # Names of abns are the machine's, not the test's.
                "abns@warmpath-": f"unix@{site.folder}/{name}-",
                **{f"10.0.0.1{i + 1}:8000": e.address for i, e in enumerate(fleet.engines)},
            },
        )
        open_ = "use_backend any_worker if METH_POST"
        assert open_ in text
        if on_failure == "closed":
            text = text.replace(open_, "use_backend unavailable if METH_POST")
        self.program = site.program(
            balancers.TREE / "usr/sbin/haproxy",
            ["-db", "-f", site.file(f"{name}.cfg", text)],
            label=name,
        )
        self.program.expected_codes.add(-signal.SIGTERM)
        self.program.start(ready=lambda: harness.accepts_connections(port))
        return port

    def test_a_body_beyond_the_buffer_is_picked_by_its_first_bytes(self, site):
        fleet = self.fleet(site, blocks=100_000)
        client = balancers.Client(self.start(fleet))
        chats = [[{"role": "user", "content": f"{i} " + balancers.words(i, 40_000)}]
                 for i in range(3)]  # fmt: skip
        homes = []
        for chat in chats * 2:
            before = fleet.finished()
            client.chat(chat, max_tokens=3)
            homes += harness.wait_until(lambda b=before: fleet.served_since(b), 5, "its end")
            fleet.wait_released()
            chat.append({"role": "user", "content": "more"})
        assert homes[:3] == homes[3:]
        assert self.program.log().count("pick=first_bytes:") == 6

    def test_a_body_of_four_megabytes_in_a_large_buffer(self, site):
        fleet = self.fleet(site, blocks=100_000)
        client = balancers.Client(self.start(fleet, buffer=8 << 20))
        _, usage = client.complete(("x" * 99 + " ") * 42_000, max_tokens=3)
        assert usage.prompt_tokens > 42_000
        assert fleet.metric("warmpath_picks_total") == 1
        assert "pick=first_bytes:" not in self.program.log()
