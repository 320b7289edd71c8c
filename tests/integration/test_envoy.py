"""deploy/envoy in a real Envoy."""

import re

import balancers
import harness

ENVOY = next(balancers.ROOT.glob(".venv/lib/python3*/site-packages/envoy/_bin/envoy"))


def start(fleet, file, on_failure, body_mode="FULL_DUPLEX_STREAMED"):
    site = fleet.site
    port, admin = harness.free_port(2), None
    admin = port + 1
    name = f"envoy-{on_failure}"
    replacements = {
        "address: 0.0.0.0, port_value: 8080": f"address: 127.0.0.1, port_value: {port}",
        "port_value: 9901": f"port_value: {admin}",
        "port_value: 9002": f"port_value: {fleet.router.grpc.split(':')[1]}",
        "failure_mode_allow: true": f"failure_mode_allow: {str(on_failure == 'open').lower()}",
        "FULL_DUPLEX_STREAMED": body_mode,
    }
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


class TestEnvoy(balancers.CoreCases, balancers.ManyStreams):
    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy.yaml", on_failure)


class TestEnvoyBuffered(balancers.CoreCases):
    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy.yaml", on_failure, "BUFFERED")


class TestEnvoyOriginalDst(balancers.CoreCases):
    router_extra = "ext_proc:\n  fallbacks: false\n"

    def start(self, fleet, on_failure="closed"):
        return start(fleet, "envoy-original-dst.yaml", on_failure)
