"""Answers that do not come at once: WebSockets (`/ws`), events (`/events`), chunks with trailers (`/trailers`), a slow start
(`/slow`), early hints (`/hints`), and what was sent, given back (`/echo`). nghttpd beside them on port 8443, gRPC at a name of its own.
"""

import asyncio
import base64
import hashlib
import ssl
import struct
import sys

import log
import packaged
import places
import web

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def serve(folder):
    await asyncio.start_server(connection, places.STREAMS, 80)
    await asyncio.start_server(connection, places.STREAMS, 443, ssl=web.context(folder))
    (folder / "nghttpd").mkdir()
    (folder / "nghttpd" / "hello").write_text("hello from nghttpd\n")
    with (folder / "nghttpd.log").open("wb") as said:
        await asyncio.create_subprocess_exec(
            "nghttpd", "--address", places.STREAMS, "--htdocs", str(folder / "nghttpd"), "--trailer", "checked: yes", "--echo-upload", "8443",
            str(folder / "leaf.key"), str(folder / "leaf.pem"), stdout=said, stderr=said)
    here = __file__.replace("streams.py", "grpc_server.py")
    with (folder / "grpc.log").open("wb") as said:
        await asyncio.create_subprocess_exec("/usr/bin/python3", "-B", here, str(folder), places.GRPC, stdout=said, stderr=said)
    await asyncio.gather(packaged.listening(places.STREAMS, 8443), packaged.listening(places.GRPC, 443))


async def connection(reader, writer):
    try:
        while request := await web.head(reader):
            method, path, headers = request
            log.hit("stream", writer, host=headers.get("host"), path=path, method=method)
            answer = KINDS.get(path.split("?")[0].split("/")[1], echo)
            if not await answer(headers, reader, writer):
                break
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, ValueError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def websocket(headers, reader, writer):
    """Gives back every message; a message `close` ends it."""
    key = base64.b64encode(hashlib.sha1(headers.get("sec-websocket-key", "").encode() + MAGIC).digest())
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + key + b"\r\n\r\n")
    while True:
        first, second = await reader.readexactly(2)
        size = second & 127
        if size > 125:
            size, = struct.unpack(*((">H", await reader.readexactly(2)) if size == 126 else (">Q", await reader.readexactly(8))))
        mask = await reader.readexactly(4) if second & 128 else b"\0\0\0\0"
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await reader.readexactly(size)))
        log.hit("message", writer, host=headers.get("host"), data=data[:200].decode("latin-1"))
        if first & 15 == 8 or data == b"close":
            writer.write(b"\x88\0")
            return False
        length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 65536 else b"\x7f" + struct.pack(">Q", size)
        writer.write(bytes([first]) + length + data)
        await writer.drain()


async def events(headers, reader, writer):
    """Each event when the one before was sent; nothing is held back on the way."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(5):
        event = b"data: %d\n\n" % number
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(0.2)
    writer.write(b"0\r\n\r\n")
    return True


async def trailers(headers, reader, writer):
    await web.chunks(headers, reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: checked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\nchecked: yes\r\n\r\n")
    return True


async def slow(headers, reader, writer):
    await asyncio.sleep(2)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nslow\n")
    return True


async def hints(headers, reader, writer):
    writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhints")
    return True


async def echo(headers, reader, writer):
    length = int(headers.get("content-length", 0))
    body = await reader.readexactly(length) if length else await web.chunks(headers, reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return True


KINDS = {"ws": websocket, "events": events, "trailers": trailers, "slow": slow, "hints": hints}
