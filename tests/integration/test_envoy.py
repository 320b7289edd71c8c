"""deploy/envoy in a real Envoy."""

import time

import balancers
import harness

ENVOY = next(balancers.ROOT.glob(".venv/lib/python3*/site-packages/envoy/_bin/envoy"))


def start(fleet, file, on_failure, full_duplex=False, tls=False):
    site = fleet.site
    port = harness.free_port(2)
    admin = port + 1
    name = f"envoy-{on_failure}"
    replacements = {
        "address: 0.0.0.0, port_value: 8080": f"address: 127.0.0.1, port_value: {port}",
        "port_value: 9901": f"port_value: {admin}",
        "port_value: 9002": f"port_value: {fleet.router.grpc.split(':')[1]}",
        "failure_mode_allow: true": f"failure_mode_allow: {str(on_failure == 'open').lower()}",
    }
    if full_duplex:
        replacements["request_body_mode: BUFFERED"] = "request_body_mode: FULL_DUPLEX_STREAMED"
        replacements["request_trailer_mode: SKIP"] = "request_trailer_mode: SEND"
    if tls:
        replacements["      # transport_socket:"] = "      transport_socket:"
        replacements["      #   name: envoy.transport_sockets"] = "        name: envoy.transport_sockets"
        replacements["      #   typed_config:"] = "        typed_config:"
        replacements['      #     "@type"'] = '          "@type"'
    for i, engine in enumerate(fleet.engines):
        replacements[f"address: 10.0.0.1{i + 1}, port_value: 8000"] = (
            f"address: 127.0.0.1, port_value: {engine.address.split(':')[1]}"
        )
    config = site.file(f"{name}.yaml", balancers.configuration(f"envoy/{file}", replacements))
    program = site.program(
        ENVOY,
        ["-c", config, "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"],
        label=name,
    )
    program.start(ready=lambda: harness.http(f"http://127.0.0.1:{admin}/ready")[0] == 200)
    program.admin = f"http://127.0.0.1:{admin}"
    return port


class EnvoyCases(balancers.BasicCases):
    def test_a_client_can_not_choose_the_worker(self, site):
        fleet = self.fleet(site)
        port = self.start(fleet, "open")
        # Not even where nobody listens.
        client = balancers.Client(
            port, headers={"x-gateway-destination-endpoint": f"127.0.0.1:{harness.free_port()}"}
        )
        client.chat("hello")
        fleet.router.program.kill()
        client.chat("hello")


class TestEnvoy(balancers.CoreCases, balancers.ManyStreams, EnvoyCases):
    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy.yaml", on_failure)

    def test_answers_do_not_pass_through_the_router(self, site):
        fleet = self.fleet(site, speed=50)
        client = balancers.Client(self.start(fleet))
        stream = client.open_stream("count", max_tokens=50_000)
        # A chunk is what the engine had ready at the time, one token or more.
        for _ in range(10_000):
            assert next(stream).choices[0].delta.content
        stream.close()
        fleet.wait_released()

        def messages(kind):
            return fleet.metric("warmpath_ext_proc_messages_total", message=kind)

        assert messages("request_headers") == messages("response_headers") == 1
        assert messages("response_body") == 0

    def test_a_router_that_hangs_counts_as_down(self, site):
        fleet = self.fleet(site)
        client = balancers.Client(self.start(fleet, "open"))
        client.chat("hello")
        fleet.router.program.pause()
        begin = time.monotonic()
        client.chat("hello")
        assert 1 < time.monotonic() - begin < 10
        fleet.router.program.resume()


class TestEnvoyFullDuplex(balancers.CoreCases):
    """As gateways with the Inference Extension set it."""

    # Envoy keeps no copy of a body: when it learns that the router is gone, part of it is as well.
    FAILS_OPEN = False

    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy.yaml", on_failure, full_duplex=True)


class TestEnvoyOriginalDst(EnvoyCases):
    ROUTER_CONFIG = "ext_proc:\n  fallbacks: false\n"

    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy-original-dst.yaml", on_failure)
