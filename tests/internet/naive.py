"""A server that reads requests as badly as any ever did, so that every attack on framing works on it.

How badly is said by the second segment of the first path on a connection, `/public/READING/…`:

    te     Transfer-Encoding wins, in any spelling; a chunk's size is what digits there are
    te32   the same, with sizes of 32 bits
    te0    the same, and nothing follows the last chunk
    cl     the first Content-Length wins, digits or not
    cl2    the last
    none   no request has a body

Lines end at any line feed, or carriage return; headers are continued, have spaces around their names, and NUL is nothing. A path is decoded,
and its dots followed. HTTP/2 is turned into HTTP/1 by writing one after the other what came. It closes a connection when it is
told to, and that is all it does well.
"""

import asyncio
import posixpath
import re
import ssl
import sys
import urllib.parse

import log
import places
import web

sys.path.append("/usr/lib/python3/dist-packages")


async def serve(folder):
    secure = web.context(folder)
    secure.set_alpn_protocols(["h2", "http/1.1"])
    await asyncio.start_server(connection, places.NAIVE, 80)
    await asyncio.start_server(connection, places.NAIVE, 443, ssl=secure)


async def connection(reader, writer):
    session = writer.get_extra_info("ssl_object")
    try:
        if session and session.selected_alpn_protocol() == "h2":
            return await second(reader, writer)
        await first(Bytes(reader), writer, lambda: writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nnaive\n"))
    except (ConnectionError, asyncio.IncompleteReadError, ValueError, ssl.SSLError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


class Bytes:
    """Bytes of a stream, or of what was put together."""

    def __init__(self, reader=None, text=b""):
        self.reader, self.text = reader, text

    async def more(self):
        data = await self.reader.read(1 << 16) if self.reader else b""
        self.text += data
        return bool(data)

    async def line(self):
        while not (end := re.search(rb"\r?\n|\r(?!\n|$)", self.text)):
            if not await self.more():
                rest, self.text = self.text, b""
                return rest or None
        line, self.text = self.text[:end.start()], self.text[end.end():]
        return line

    async def take(self, size):
        while len(self.text) < size and await self.more():
            pass
        taken, self.text = self.text[:size], self.text[size:]
        return taken


async def first(text, writer, answer):
    reading = None
    while (line := await text.line()) is not None:
        if not line.strip():
            continue
        words = line.replace(b"\0", b"").split()
        path = words[-2] if len(words) > 2 else words[-1]
        headers = await fields(text) if len(words) > 2 else []
        reading = reading or (path.split(b"/") + [b""] * 3)[2].decode("latin-1")
        note(words[0], path, headers, writer)
        await body(text, headers, reading)
        answer()
        if any(name == "connection" and "close" in value.lower() for name, value in headers):
            return


async def fields(text):
    kept = []
    while line := await text.line():
        name, _, value = line.replace(b"\0", b"").decode("latin-1").partition(":")
        if line[:1] in b" \t" and kept and ":" not in line.decode("latin-1"):
            kept[-1] = (kept[-1][0], kept[-1][1] + name.strip())
        else:
            kept.append((name.strip().lower().replace("_", "-"), value.strip(" \t\v\f\"'")))
    return kept


def note(method, path, headers, writer):
    read = posixpath.normpath(urllib.parse.unquote(urllib.parse.unquote(path.decode("latin-1"))).replace("\\", "/").replace(";", "/"))
    hosts = [value for name, value in headers if name == "host"]
    log.hit("naive", writer, method=method.decode("latin-1"), path=path.decode("latin-1"), read=read, host=" ".join(hosts))


async def body(text, headers, reading):
    lengths = [int(re.sub(r"[^0-9].*", "", value.lstrip("+")) or 0) for name, value in headers if name == "content-length"]
    chunked = any(name == "transfer-encoding" and "chunked" in value.lower() for name, value in headers)
    if reading in ("te", "te32", "te0") and chunked:
        while size := await chunk_size(text, reading):
            await text.take(size + 2)
        while reading != "te0" and (await text.line() or b"").strip():
            pass
    elif reading in ("cl", "cl2", "te", "te32", "te0") and lengths:
        await text.take(lengths[-1 if reading == "cl2" else 0])


async def chunk_size(text, reading):
    digits = re.match(rb"\s*[+-]?(?:0x)?([0-9a-fA-F]*)", await text.line() or b"0")[1]
    size = int(digits or b"0", 16)
    return size & 0xFFFFFFFF if reading == "te32" else size


async def second(reader, writer):
    """HTTP/2, with nothing checked."""
    import h2.config
    import h2.connection
    import h2.events
    import h2.stream
    h2.stream.H2Stream._initialize_content_length = h2.stream.H2Stream._track_content_length = lambda *_: None
    config = h2.config.H2Configuration(
        client_side=False, header_encoding=None, validate_inbound_headers=False, normalize_inbound_headers=False)
    made = h2.connection.H2Connection(config)
    made.initiate_connection()
    writer.write(made.data_to_send())
    streams = {}
    while data := await reader.read(1 << 16):
        for event in made.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                streams[event.stream_id] = [event.headers, b""]
            elif isinstance(event, h2.events.DataReceived):
                streams[event.stream_id][1] += event.data
                made.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                headers, data = streams.pop(event.stream_id)
                await first(Bytes(text=written(headers, data)), writer, lambda: None)
                made.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
        writer.write(made.data_to_send())
        await writer.drain()


def written(headers, data):
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    head = pseudo.get(b":method", b"GET") + b" " + pseudo.get(b":path", b"/") + b" HTTP/1.1\r\n"
    head += b"Host: " + pseudo.get(b":authority", b"") + b"\r\n"
    head += b"".join(name + b": " + value + b"\r\n" for name, value in headers if not name.startswith(b":"))
    return head + b"\r\n" + data
