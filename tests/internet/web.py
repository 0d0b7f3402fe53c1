"""HTTP/1.1, plain and in TLS, with git over it, and a CONNECT proxy of a company."""

import asyncio
import hmac
import json
import os
import ssl
import time
import zlib

import clouds
import log
import places
import registry

SANS = ["DNS:test"] + [
    f"DNS:{name}" for zone in (
        "web", "v4", "v6", "cdn", "git", "pg", "slow", "alias", "late6", "rebind", "hostile",
        "nginx", "haproxy", "apache", "node", "naive", "streams", "grpc", "aws", "proxy",
    )
    for name in (f"{zone}.test", f"*.{zone}.test")
] + [f"DNS:{name}" for name in clouds.HOSTS] + [f"IP:{address}" for address in (places.WEB_V4, places.WEB_V6)]


async def certificates(folder):
    """A CA of our own and one leaf for all names."""
    async def openssl(*words):
        made = await asyncio.create_subprocess_exec("openssl", *words, cwd=folder, stderr=asyncio.subprocess.DEVNULL)
        assert await made.wait() == 0, words

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    await openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=virtual internet",
                  "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    await openssl("req", "-x509", *key, "-keyout", "leaf.key", "-out", "leaf.pem", "-subj", "/CN=leaf", "-CA", "ca.pem",
                  "-CAkey", "ca.key", "-addext", "subjectAltName=" + ",".join(SANS), "-addext", "basicConstraints=CA:FALSE",
                  "-addext", "authorityKeyIdentifier=keyid")


def context(folder):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "leaf.pem", folder / "leaf.key")
    made.set_alpn_protocols(["http/1.1"])
    made.sni_callback = lambda session, name, _: setattr(session, "shown", name)
    return made


# What the keeper and its webhook share in the tests.
WEBHOOK_KEY = b"0123456789abcdef-of-the-webhook"


# Who may use the proxy inside TLS: ann, whose password is "p@ss".
PROXY_USER = "Basic YW5uOnBAc3M="


def signature(question, answer):
    """The header that makes an answer of a webhook count."""
    now = int(time.time())
    code = hmac.new(WEBHOOK_KEY, f"{now}.{question}.".encode() + answer, "sha256").hexdigest()
    return f"airlock-signature: t={now},v1={code}\r\n"


class Web:
    def __init__(self, folder):
        self.folder = folder
        self.given = {}

    async def serve(self):
        secure = context(self.folder)
        everywhere = [places.WEB_V4, places.WEB_V6, places.SHARED, places.GIT, *places.PRIVATE, *places.NEVER]
        for address in everywhere:
            await asyncio.start_server(self.connection, address, 80)
            await asyncio.start_server(self.connection, address, 443, ssl=secure)
        for address in (places.WEB_V4, places.WEB_V6):
            await asyncio.start_server(self.connection, address, 8080)
            await asyncio.start_server(self.connection, address, 8443, ssl=secure)
        await asyncio.start_server(self.proxy, places.PROXY, 3128)
        await asyncio.start_server(self.proxy, places.PROXY, 3129, ssl=secure)

    async def connection(self, reader, writer):
        session = writer.get_extra_info("ssl_object")
        shown = getattr(session, "shown", None) if session else None
        log.hit("connection", writer, sni=shown)
        try:
            while request := await head(reader):
                if not await self.request(request, shown, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ValueError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def request(self, request, shown, reader, writer):
        method, path, headers = request
        log.hit("request", writer, sni=shown, host=headers.get("host"), path=path, method=method)
        length = int(headers.get("content-length", 0))
        if headers.get("host") in clouds.HOSTS or path.startswith("/cloud/"):
            body = await reader.readexactly(length) if length else await chunks(headers, reader)
            return await clouds.answer(method, path, headers, body.decode(), writer)
        if path.startswith("/git/"):
            body = await reader.readexactly(length) if length else await chunks(headers, reader)
            return await self.git(method, path, headers, body, writer)
        if path.startswith("/hook"):
            body = await reader.readexactly(length) if length else await chunks(headers, reader)
            log.hit("hook", writer, path=path, headers=headers, body=body.decode())
            answer = b'{"verdict": "approved", "scope": "sandbox"}' if "/approve/" in path else b""
            signed = signature(json.loads(body)["id"], answer) if answer else ""
            writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (signed.encode(), len(answer)) + answer)
            return True
        received = 0
        while received < length:
            data = await reader.read(min(1 << 16, length - received))
            if not data:
                return False
            received += len(data)
        if path.startswith("/packages/"):
            status, kind, body = registry.answer(path, headers.get("host"))
            fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{registry.dated(path)}"
            writer.write(f"HTTP/1.1 {status} X\r\n{fields}\r\n".encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
            return True
        if path.startswith("/oauth/"):
            return await self.oauth(path, headers, writer)
        if path.startswith("/hints"):
            told = headers.get("authorization", "none").encode()
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nX-Told: %s\r\n\r\n" % told)
            await writer.drain()
            await asyncio.sleep(0.2)  # as servers do while they make up their mind
        if path.startswith("/bytes/"):
            return await self.send(int(path.split("/")[2]), writer)
        if path.startswith("/ticks"):
            return await self.ticks(writer)
        if path.startswith("/bomb/"):
            _, _, size, *kind = path.split("/")
            return await self.bomb(int(size), kind[0] if kind else "gzip", writer)
        if path.startswith("/sink"):
            body = str(received).encode()
        elif path.startswith("/who"):
            peer = writer.get_extra_info("peername")[0]
            body = json.dumps({"peer": peer, "host": headers.get("host"), "sni": shown}).encode()
        elif path.startswith("/closed") and "authorization" not in headers:
            writer.write(b"HTTP/1.1 401 X\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return True
        elif path.startswith(("/headers", "/closed")):
            log.hit("headers", writer, path=path, headers=headers)
            body = json.dumps(headers).encode()
        else:
            own = writer.get_extra_info("sockname")[0]
            body = f"hello from {own}\n".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def send(self, size, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        block = bytes(range(256)) * 1024
        while size:
            part = block[:size]
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)  # others too; a drain that need not wait does not
            size -= len(part)
        return True

    async def oauth(self, path, headers, writer):
        """`/oauth/token/MARK` gives tokens, `/oauth/api/MARK` takes only the last of them, `/oauth/revoke/MARK` takes it back."""
        _, _, what, mark = path.split("/")[:4]
        given = self.given.setdefault(mark, [])
        status, body = 200, {}
        if what == "token":
            given.append(f"access-{mark}-{len(given)}")
            body = {"access_token": given[-1], "expires_in": 3600}
        elif what == "revoke":
            given.append("nobody has this one")
        elif headers.get("authorization") == f"Bearer {given[-1]}":
            body = {"sent": headers.get("authorization")}
        else:
            status, body = 401, {"error": "invalid_token"}
        log.hit("oauth", writer, path=path, status=status, sent=headers.get("authorization"))
        body = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        return True

    async def bomb(self, size, kind, writer):
        """Megabytes of nothing, a thousandth of that on the wire, or much less."""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nConnection: close\r\n\r\n" % kind.encode())
        if kind == "gzip":
            packer = zlib.compressobj(wbits=31)
            for _ in range(size):
                writer.write(packer.compress(bytes(1 << 20)))
                await writer.drain()
            writer.write(packer.flush())
        else:
            writer.write(await packed(size, kind))
        await writer.drain()
        return False

    async def ticks(self, writer):
        """A response that never ends."""
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"tick\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async def git(self, method, path, headers, body, writer):
        path, _, query = path.removeprefix("/git").partition("?")
        env = {
            "GIT_PROJECT_ROOT": str(self.folder / "git"), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
            "REQUEST_METHOD": method, "CONTENT_TYPE": headers.get("content-type", ""), "CONTENT_LENGTH": str(len(body)),
            "REMOTE_USER": "nobody", "REMOTE_ADDR": "127.0.0.1", "PATH": os.environ["PATH"], "HOME": str(self.folder),
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROTOCOL": headers.get("git-protocol", ""), "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
        }
        pipe = asyncio.subprocess.PIPE
        backend = await asyncio.create_subprocess_exec("git", "http-backend", env=env, stdin=pipe, stdout=pipe)
        out, _ = await backend.communicate(body)
        fields, _, content = out.partition(b"\r\n\r\n")
        status = next((f[8:] for f in fields.split(b"\r\n") if f.startswith(b"Status: ")), b"200 OK")
        writer.write(b"HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n" % (status, fields, len(content)) + content)
        await writer.drain()
        return True

    async def proxy(self, reader, writer):
        request = await head(reader)
        if not request or request[0] != "CONNECT":
            return writer.close()
        log.hit("proxy", writer, target=request[1], sni=getattr(writer.get_extra_info("ssl_object"), "shown", None))
        if writer.get_extra_info("sockname")[1] == 3129 and request[2].get("proxy-authorization") != PROXY_USER:
            writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
            return writer.close()
        name, _, port = request[1].rpartition(":")
        address = {"git.test": places.GIT}.get(name.strip("[]"), places.WEB_V4)
        try:
            far_reader, far_writer = await asyncio.open_connection(address, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return writer.close()
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pour(reader, far_writer), pour(far_reader, writer))


async def packed(size, kind):
    """Megabytes of nothing, packed by a program that can."""
    brotli = "process.stdout.write(require('zlib').brotliCompressSync(Buffer.alloc(%d)))" % (size << 20)
    command = ["node", "-e", brotli] if kind == "br" else ["sh", "-c", f"head -c {size << 20} /dev/zero | zstd -c"]
    packer = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    return (await packer.communicate())[0]


async def pour(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (ConnectionError, OSError):
        writer.close()


async def head(reader):
    line = (await reader.readline()).decode("latin-1").split()
    if len(line) < 3:
        return None
    headers = {}
    while field := (await reader.readline()).decode("latin-1").strip():
        name, _, value = field.partition(":")
        headers[name.strip().lower()] = value.strip()
    return line[0], line[1], headers


async def chunks(headers, reader):
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return body
