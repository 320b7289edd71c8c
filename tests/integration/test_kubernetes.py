"""deploy/kubernetes: that the manifests fit each other and the real programs."""

import json
import pathlib
import re
import subprocess

import grpc
import harness
import pytest
import yaml

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FILES = sorted(p for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")


@pytest.fixture(scope="module")
def objects():
    """{(kind, name): object} of all files."""
    found = {}
    for path in FILES:
        for item in yaml.safe_load_all(path.read_text()):
            key = (item["kind"], item["metadata"]["name"])
            assert key not in found, key
            assert item["apiVersion"]
            found[key] = item
    return found


def pod(workload):
    return workload["spec"]["template"]["spec"]


def container(workload, name):
    (found,) = (c for c in pod(workload)["containers"] if c["name"] == name)
    return found


def labels(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def port_of(ports, name):
    """The number of a containerPort, by name or as it is."""
    if isinstance(name, int):
        assert name in [p["containerPort"] for p in ports], name
        return name
    (found,) = (p["containerPort"] for p in ports if p["name"] == name)
    return found


def flags(box):
    """{flag: value} of a container's arguments."""
    pairs = [arg.removeprefix("--").split("=", 1) for arg in box["args"]]
    return {pair[0]: pair[1] if len(pair) == 2 else "" for pair in pairs}


def known_flags(site, program):
    return set(re.findall(r"--([a-z][a-z-]+)", site.run(program, ["--help"])[1]))


def router_config(objects, site, **replacements):
    text = objects["ConfigMap", "warmpath-router"]["data"]["router.yaml"]
    for old, new in replacements.items():
        text = re.sub(rf'{old}: "0.0.0.0:\d+"', f"{old}: {new}", text)
    return site.file("router.yaml", text)


def test_the_router_takes_its_configuration(objects, site):
    router = objects["Deployment", "warmpath-router"]
    box = container(router, "router")
    assert set(flags(box)) <= known_flags(site, "warmpath-router")
    assert box["command"] == ["warmpath-router"]
    # The file of the ConfigMap is the one of the flag.
    (mount,) = box["volumeMounts"]
    (volume,) = pod(router)["volumes"]
    assert volume["name"] == mount["name"] and volume["configMap"]["name"] == "warmpath-router"
    (file,) = objects["ConfigMap", "warmpath-router"]["data"]
    assert flags(box)["config"] == f"{mount['mountPath']}/{file}"
    config = router_config(objects, site)
    site.run("warmpath-router", [f"--config={config}", "--check-config"])
    effective = yaml.safe_load(
        site.run("warmpath-router", [f"--config={config}", "--print-config"])[1]
    )
    server = effective["server"]
    assert server["grpc_address"] == f"0.0.0.0:{port_of(box['ports'], 'grpc')}"
    assert server["http_address"] == f"0.0.0.0:{port_of(box['ports'], 'http')}"
    seconds = sum(int(server[key].removesuffix("s")) for key in ("drain_delay", "drain_deadline"))
    assert pod(router)["terminationGracePeriodSeconds"] > seconds


def test_the_routers_probes_and_ports_are_real(objects, site):
    router = objects["Deployment", "warmpath-router"]
    box = container(router, "router")
    first = harness.free_port(3)
    config = router_config(objects, site, grpc_address=f"127.0.0.1:{first}",
                           http_address=f"127.0.0.1:{first + 1}")  # fmt: skip
    live = box["livenessProbe"]["httpGet"]
    assert port_of(box["ports"], live["port"]) == 9090
    url = f"http://127.0.0.1:{first + 1}"
    program = site.start("warmpath-router", [f"--config={config}", "--log-level=debug"],
                         ready=lambda: harness.http(url + live["path"])[0] == 200)  # fmt: skip
    assert harness.http(url + "/metrics")[0] == 200
    ready = box["readinessProbe"]["httpGet"]
    assert port_of(box["ports"], ready["port"]) == 9090
    assert harness.http(url + ready["path"])[0] in (200, 503)
    # What gateways may ask for. HealthCheckRequest{service = 1}; the answer's status is field 1:
    # 1 SERVING, 2 NOT_SERVING.
    name = b"envoy.service.ext_proc.v3.ExternalProcessor"
    with grpc.insecure_channel(f"127.0.0.1:{first}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"\x0a" + bytes([len(name)]) + name, timeout=5) in (b"\x08\x01", b"\x08\x02")
        with pytest.raises(grpc.RpcError):
            check(b"\x0a\x01?", timeout=5)
    assert program.running()


def test_tls_is_a_matter_of_uncommenting(site):
    text = (FOLDER / "router.yaml").read_text()
    lines = [line for line in text.splitlines() if re.match(r" +# (tls_|- .*tls|  secret)", line)]
    assert len(lines) == 5
    for line in lines:
        text = text.replace(line, line.replace("# ", "", 1))
    objects = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(text)}
    config = objects["ConfigMap", "warmpath-router"]["data"]["router.yaml"]
    site.run("warmpath-router", [f"--config={site.file('tls.yaml', config)}", "--check-config"])
    router = objects["Deployment", "warmpath-router"]
    (mount,) = (m for m in container(router, "router")["volumeMounts"] if m["name"] == "tls")
    (volume,) = (v for v in pod(router)["volumes"] if v["name"] == "tls")
    assert volume["secret"]
    server = yaml.safe_load(config)["server"]
    # The names of keys in a Secret of type kubernetes.io/tls.
    assert server["tls_cert"] == mount["mountPath"] + "/tls.crt"
    assert server["tls_key"] == mount["mountPath"] + "/tls.key"


def test_services_reach_the_router(objects):
    router = objects["Deployment", "warmpath-router"]
    box = container(router, "router")
    for name in ("warmpath-router", "warmpath-workers"):
        service = objects["Service", name]["spec"]
        assert service["selector"].items() <= labels(router).items()
        for port in service["ports"]:
            assert port["port"] == port_of(box["ports"], port["targetPort"])
    # Agents must reach a router that waits for them.
    assert objects["Service", "warmpath-workers"]["spec"]["publishNotReadyAddresses"]
    for name in ("warmpath-router", "vllm"):
        workload = objects["Deployment", name]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels(workload).items()
        budget = objects["PodDisruptionBudget", name]["spec"]
        assert budget["selector"]["matchLabels"].items() <= labels(workload).items()


def test_the_agent_takes_its_arguments(objects, site):
    workers = objects["Deployment", "vllm"]
    engine, agent = container(workers, "vllm"), container(workers, "warmpath-agent")
    arguments = flags(agent)
    names = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in agent["env"]}
    assert names == {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    line = [a.replace("$(POD_NAME)", "vllm-0").replace("$(POD_IP)", "10.0.0.1")
            for a in agent["args"]]  # fmt: skip
    assert not any("$(" in a for a in line)
    site.run("warmpath-agent", [*line, "--check"])
    # What the agent is told is what the engine is told.
    served = int(flags(engine)["port"])
    assert port_of(engine["ports"], "http") == served
    assert arguments["engine-http"] == f"http://127.0.0.1:{served}"
    assert arguments["advertise"] == f"$(POD_IP):{served}"
    events = json.loads(flags(engine)["kv-events-config"])
    assert events["enable_kv_cache_events"] and events["publisher"] == "zmq"
    assert arguments["events"] == events["endpoint"].replace("*", "127.0.0.1")
    assert arguments["replay"] == events["replay_endpoint"].replace("*", "127.0.0.1")
    assert int(arguments["metrics-port"]) == port_of(agent["ports"], "agent")
    # The router: by its service for agents, also in the hook that drains.
    host, port = arguments["router"].split(":")
    assert int(port) in [p["port"] for p in objects["Service", host]["spec"]["ports"]]
    script = agent["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"warmpathctl --router={arguments['router']} drain" in script
    assert f"/127.0.0.1/{served})" in script
    subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "warmpathctl [FLAGS] drain" in site.run("warmpathctl", ["--help"], check=False)[1]
    mounts = {m["name"]: m["mountPath"] for m in agent["volumeMounts"]}
    assert arguments["state-file"].startswith(mounts["agent-state"] + "/")
    compile(engine["lifecycle"]["preStop"]["exec"]["command"][-1], "preStop", "exec")
    # The pool is the model's.
    config = yaml.safe_load(objects["ConfigMap", "warmpath-router"]["data"]["router.yaml"])
    assert [p["name"] for p in config["pools"]] == [flags(engine)["model"]]


def test_the_gateway_finds_pool_and_picker(objects):
    workers = objects["Deployment", "vllm"]
    (route,) = (o for (kind, _), o in objects.items() if kind == "HTTPRoute")
    (pool,) = (o for (kind, _), o in objects.items() if kind == "InferencePool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    (parent,) = route["spec"]["parentRefs"]
    assert ("Gateway", parent["name"]) in objects
    (backend,) = (b for rule in route["spec"]["rules"] for b in rule["backendRefs"])
    assert backend["kind"] == "InferencePool"
    assert backend["group"] == pool["apiVersion"].split("/")[0]
    assert backend["name"] == pool["metadata"]["name"]
    spec = pool["spec"]
    assert spec["selector"]["matchLabels"].items() <= labels(workers).items()
    assert [p["number"] for p in spec["targetPorts"]] == [
        port_of(container(workers, "vllm")["ports"], "http")
    ]
    picker = spec["endpointPickerRef"]
    service = objects["Service", picker["name"]]["spec"]
    assert picker["port"]["number"] in [p["port"] for p in service["ports"]]
    assert picker["failureMode"] in ("FailOpen", "FailClose")


def test_network_policies_open_what_is_used_and_no_more(objects):
    gateway = {"gateway.networking.k8s.io/gateway-name": "inference-gateway"}
    assert ("Gateway", "inference-gateway") in objects
    for name, ports in (("warmpath-router", {9002, 9090}), ("vllm", {8000, 9092})):
        workload = objects["Deployment", name]
        policy = objects["NetworkPolicy", name]["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= labels(workload).items()
        allowed = {p["port"] for rule in policy["ingress"] for p in rule["ports"]}
        declared = {p["containerPort"] for c in pod(workload)["containers"] for p in c["ports"]}
        assert allowed == declared == ports
        assert gateway in [
            peer["podSelector"]["matchLabels"]
            for rule in policy["ingress"] for peer in rule["from"] if "podSelector" in peer
        ]  # fmt: skip
    # Agents reach the router.
    peers = objects["NetworkPolicy", "warmpath-router"]["spec"]["ingress"][0]["from"]
    assert any(peer["podSelector"]["matchLabels"].items()
               <= labels(objects["Deployment", "vllm"]).items() for peer in peers)  # fmt: skip


def test_monitors_name_real_ports(objects):
    (endpoint,) = objects["ServiceMonitor", "warmpath-router"]["spec"]["endpoints"]
    selector = objects["ServiceMonitor", "warmpath-router"]["spec"]["selector"]["matchLabels"]
    (service,) = (o for (kind, _), o in objects.items() if kind == "Service"
                  and selector.items() <= o["metadata"]["labels"].items())  # fmt: skip
    assert endpoint["port"] in [p["name"] for p in service["spec"]["ports"]]
    workers = objects["Deployment", "vllm"]
    monitor = objects["PodMonitor", "warmpath-agent"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels(workers).items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    port_of(container(workers, "warmpath-agent")["ports"], endpoint["port"])


def test_the_kustomization_names_every_file():
    text = (FOLDER / "kustomization.yaml").read_text()
    kustomization = yaml.safe_load(text)
    for name in kustomization["resources"]:
        assert (FOLDER / name).exists()
    for path in FILES:
        assert path.name in text
