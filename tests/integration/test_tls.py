"""TLS on the router's gRPC address: agents, warmpathctl and Envoy over it."""

import socket
import ssl
import subprocess

import balancers
import cluster
import harness
import pytest
import test_envoy


class Authority:
    """A certificate authority, and what it signs."""

    def __init__(self, folder, name):
        self.folder = folder
        self.cert = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl("req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}", *self._new_key(self._key),
                      "-out", self.cert)  # fmt: skip

    def sign(self, name):
        """(certificate, key) for 127.0.0.1."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request = self.folder / f"{name}.csr"
        names = self.folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl("req", "-nodes", "-subj", f"/CN={name}", *self._new_key(key), "-out", request)
        self._openssl("x509", "-req", "-days", "2", "-in", request, "-CA", self.cert, "-CAkey", self._key,
                      "-CAcreateserial", "-extfile", names, "-out", cert)  # fmt: skip
        return cert, key

    def _new_key(self, path):
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", path

    def _openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture
def authority(site):
    return Authority(site.folder, "ca")


def settings(cert, key, client_ca=None):
    text = f"  tls_cert: {cert}\n  tls_key: {key}\n"
    return text + (f"  tls_client_ca: {client_ca}\n" if client_ca else "")


def served_certificate(router):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = router.grpc.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            assert secure.selected_alpn_protocol() == "h2"
            return secure.getpeercert(binary_form=True)


def test_agents_envoy_and_ctl_over_tls(site, authority):
    ca = f"--router-ca={authority.cert}"
    router = cluster.Router(site, policy="marginal_cost", server=settings(*authority.sign("router")),
                            ctl_flags=[ca])  # fmt: skip
    fleet = balancers.Fleet(site, engines=2, router=router.start(), agent_flags=[ca])
    client = balancers.Client(test_envoy.start(fleet, "envoy.yaml", "closed", tls=True))
    assert client.chat("hello")[1].completion_tokens == 8
    assert fleet.metric("warmpath_ext_proc_messages_total", message="request_headers") == 1
    # Neither without TLS nor with another authority.
    for flags in ([], [f"--router-ca={Authority(site.folder, 'other').cert}"]):
        code, _, _ = site.run("warmpathctl", [f"--router={router.grpc}", "--timeout=2s", *flags,
                                              "workers"], check=False)  # fmt: skip
        assert code == 1


def test_clients_need_a_certificate_when_asked_for(site, authority):
    cert, key = authority.sign("agent")
    router = cluster.Router(
        site, server=settings(*authority.sign("router"), client_ca=authority.cert)
    ).start()
    engine = cluster.Engine(site, "engine-0").start()
    flags = [f"--router-ca={authority.cert}"]
    stranger = cluster.Agent(site, engine, [router], state_file=False, flags=flags).start()
    stranger.program.wait(lambda: "can not register" in stranger.program.log(), 10, "a refusal")
    stranger.program.terminate()
    assert harness.metric(router.metrics(), "warmpath_streams_open", kind="worker") == 0
    cluster.Agent(site, engine, [router],
                  flags=[*flags, f"--router-cert={cert}", f"--router-key={key}"]).start()  # fmt: skip
    harness.wait_until(
        lambda: harness.metric(router.metrics(), "warmpath_streams_open", kind="worker") == 1,
        10, "the agent with the certificate",
    )  # fmt: skip


def test_a_renewed_certificate_is_taken_over(site, authority):
    cert, key = authority.sign("router")
    router = cluster.Router(site, server=settings(cert, key)).start()
    first = served_certificate(router)
    for new, old in zip(authority.sign("renewed"), (cert, key), strict=True):
        new.replace(old)
    harness.wait_until(lambda: served_certificate(router) != first, 20, "the new certificate", 0.2)


def test_files_that_do_not_fit_are_named_at_start(site, authority):
    cert, key = authority.sign("router")
    missing = site.folder / "missing"
    for text, message in (
        (settings(missing, key), f"server.tls_cert: can not read {missing}"),
        (settings(cert, cert), "server.tls_key"),
        (settings(key, key), "server.tls_cert"),
        (settings(cert, key, key), "server.tls_client_ca"),
        (f"  tls_key: {key}\n", "server.tls_cert: is needed"),
    ):
        config = site.file("wrong.yaml", "server:\n  grpc_address: 127.0.0.1:0\n"
                           "  http_address: 127.0.0.1:0\n  pick_address: 127.0.0.1:0\n" + text)  # fmt: skip
        code, _, error = site.run("warmpath-router", [f"--config={config}"], check=False)
        assert code != 0 and message in error, (text, error)
