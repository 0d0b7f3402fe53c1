"""A server whose certificate is not to be trusted. The first word of the name it is asked for says why: `nul-…` (the name ends in a
NUL, and another follows), `name-…` (another name), `self-…` (signed by nobody); any other name gets a good one.
"""

import asyncio
import ssl

import log
import places

ZONE = "badcert.test"


async def serve(folder):
    made = {kind: await context(folder, kind) for kind in ("nul", "name", "self", "good")}

    def chosen(session, name, _):
        kind = (name or "").split("-")[0]
        session.context = made.get(kind, made["good"])

    made["good"].sni_callback = chosen
    await asyncio.start_server(connection, places.BAD_CERTIFICATES, 443, ssl=made["good"])


async def context(folder, kind):
    name = f"*.{ZONE}" if kind != "name" else "other.test"
    names = f"DNS:{name}"
    if kind == "nul":
        # No configuration can spell it: a sequence of one name, in DER. It ends with the zone to a reader of whole names.
        text = b"nul-x." + ZONE.encode() + b"\0.evil.test"
        names = "DER:" + (bytes([0x30, len(text) + 2, 0x82, len(text)]) + text).hex(":")
    signed = [] if kind == "self" else ["-CA", "ca.pem", "-CAkey", "ca.key"]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{kind}.key",
             "-out", f"{kind}.pem", "-subj", "/CN=bad", *signed, "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE", "-days", "30"]
    done = await asyncio.create_subprocess_exec(*words, cwd=folder, stderr=asyncio.subprocess.DEVNULL)
    if await done.wait() != 0:
        raise RuntimeError(f"no certificate of kind {kind}")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / f"{kind}.pem", folder / f"{kind}.key")
    return made


async def connection(reader, writer):
    try:
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass
        log.hit("trusted", writer, line=line.decode("latin-1"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntrusted\n")
        await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()
