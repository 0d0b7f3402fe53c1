"""Servers of HTTP from packages, each behind a name of its own: nginx (also HTTP/2), haproxy before node, apache, node.

Each answers every request with its own name and writes the host and first line of every request it saw, also of bad ones
(`log.files`). They end with this process's PID namespace.
"""

import asyncio
import pathlib

import log
import packaged
import places

BEHIND_HAPROXY = ("127.0.0.1", 8102)


async def serve(folder, user):
    for server in ("nginx", "haproxy", "behind", "apache", "node"):
        log.files[server] = folder / f"{server}.requests"
    (folder / "both.pem").write_bytes((folder / "leaf.pem").read_bytes() + (folder / "leaf.key").read_bytes())
    await asyncio.gather(nginx(folder), apache(folder), node(folder))
    await haproxy(folder)
    await asyncio.gather(*(
        packaged.listening(address, port) for address in (places.NGINX, places.APACHE, places.NODE, places.HAPROXY) for port in (80, 443)))


async def start(folder, name, *words, stdout=None):
    with (folder / f"{name}.log").open("wb") as said:
        await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=stdout or said, stderr=said)


async def nginx(folder):
    config = folder / "nginx.conf"
    config.write_text(f"""
daemon off;
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.errors;
events {{}}
http {{
    log_format first '$http_host\\t$request';
    access_log {log.files["nginx"]} first;
    default_type text/plain;
    {"".join(f"{kind}_temp_path {folder}/nginx-{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
    server {{
        listen {places.NGINX}:80;
        listen {places.NGINX}:443 ssl http2;
        ssl_certificate {folder}/leaf.pem;
        ssl_certificate_key {folder}/leaf.key;
        location / {{ return 200 "nginx\\n"; }}
    }}
}}
""")
    await start(folder, "nginx", "/usr/sbin/nginx", "-c", str(config))


async def apache(folder):
    modules = pathlib.Path("/usr/lib/apache2/modules")
    (folder / "apache").mkdir()
    (folder / "apache" / "answer").write_text("apache\n")
    load = "\n".join(f"LoadModule {name}_module {modules}/mod_{name}.so" for name in ("mpm_event", "authz_core", "ssl", "rewrite", "mime"))
    config = folder / "apache.conf"
    config.write_text(f"""
ServerRoot {folder}/apache
ServerName apache.test
PidFile {folder}/apache.pid
DefaultRuntimeDir {folder}/apache
ErrorLog {folder}/apache.errors
{load}
User www-data
Group www-data
ServerLimit 1
StartServers 1
TypesConfig /dev/null
Listen {places.APACHE}:80
Listen {places.APACHE}:443
DocumentRoot {folder}/apache
LogFormat "%{{Host}}i\\t%r" first
CustomLog {log.files["apache"]} first
<Directory {folder}/apache>
    Require all granted
</Directory>
RewriteEngine on
RewriteRule ^ {folder}/apache/answer [END]
<VirtualHost {places.APACHE}:443>
    SSLEngine on
    SSLCertificateFile {folder}/leaf.pem
    SSLCertificateKeyFile {folder}/leaf.key
    RewriteEngine on
    RewriteRule ^ {folder}/apache/answer [END]
</VirtualHost>
""")
    await start(folder, "apache", "/usr/sbin/apache2", "-D", "FOREGROUND", "-f", str(config))


async def node(folder):
    """Once as it is, once behind haproxy."""
    program = folder / "node.js"
    program.write_text(f"""
const fs = require("fs"), http = require("http"), https = require("https")
const seen = (file, name) => (request, response) => {{
    fs.appendFileSync(file, `${{request.headers.host}}\\t${{request.method}} ${{request.url}} HTTP/${{request.httpVersion}}\\n`)
    request.resume()
    request.on("end", () => response.end(name + "\\n"))
}}
const own = seen("{log.files["node"]}", "node"), tls = {{cert: fs.readFileSync("{folder}/leaf.pem"), key: fs.readFileSync("{folder}/leaf.key")}}
http.createServer(own).listen(80, "{places.NODE}")
https.createServer(tls, own).listen(443, "{places.NODE}")
http.createServer(seen("{log.files["behind"]}", "behind")).listen({BEHIND_HAPROXY[1]}, "{BEHIND_HAPROXY[0]}")
""")
    await start(folder, "node", "node", str(program))
    await packaged.listening(*BEHIND_HAPROXY)


async def haproxy(folder):
    config = folder / "haproxy.cfg"
    config.write_text(f"""
global
    log stdout format raw daemon
defaults
    mode http
    log global
    log-format "%[capture.req.hdr(0)]\\t%r"
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend all
    bind {places.HAPROXY}:80
    bind {places.HAPROXY}:443 ssl crt {folder}/both.pem
    capture request header host len 200
    default_backend behind
backend behind
    http-reuse always
    server behind {BEHIND_HAPROXY[0]}:{BEHIND_HAPROXY[1]}
""")
    with log.files["haproxy"].open("wb") as requests:
        await start(folder, "haproxy", "/usr/sbin/haproxy", "-db", "-f", str(config), stdout=requests)
