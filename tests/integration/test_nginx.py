"""deploy/nginx in a real NGINX."""

import balancers
import harness


class TestNginx(balancers.CoreCases):
    def start(self, fleet, on_failure="closed"):
        site = fleet.site
        port = harness.free_port()
        name = f"nginx-{on_failure}"
        folder = site.folder / name
        folder.mkdir()
        (folder / "warmpath.conf").write_text(
            balancers.configuration(
                "nginx/warmpath.conf",
                {
                    'lua_package_path "/etc/nginx/warmpath/?.lua;;"':
                        f'lua_package_path "{balancers.DEPLOY}/nginx/?.lua;'
                        f'{balancers.TREE}/usr/share/lua/5.1/?.lua;;"',
                    "127.0.0.1:9091": fleet.router.pick.removeprefix("http://"),
                    'on_failure = "open"': f'on_failure = "{on_failure}"',
                    **{f"10.0.0.1{i + 1}:8000": e.address for i, e in enumerate(fleet.engines)},
                    "listen 8080": f"listen 127.0.0.1:{port}",
                    "/var/log/nginx/warmpath.log": folder / "access.log",
                },
            )
        )  # fmt: skip
        modules = balancers.TREE / "usr/lib/nginx/modules"
        temporary = "\n".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = folder / "nginx.conf"
        main.write_text(f"""
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
worker_processes 2;
worker_shutdown_timeout 1s;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
{temporary}
include {folder}/warmpath.conf;
}}
""")
        program = site.program(
            balancers.TREE / "usr/sbin/nginx",
            ["-p", folder, "-c", main, "-e", "stderr"],
            label=name,
        )
        program.start(ready=lambda: harness.accepts_connections(port))
        return port
