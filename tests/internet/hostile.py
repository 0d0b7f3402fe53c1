"""Servers that misbehave, or speak no protocol at all: one port each. A line `NAME\\n` sent first is noted with the hit."""

import asyncio
import socket
import struct

import log
import places

ECHO, RESET_AT_ONCE, HALF_CLOSED, SILENT, ENDLESS, DRIP, SPEAKS_FIRST, DEAF, RESET_LATER, COUNTS = range(7000, 7010)


async def serve():
    kinds = {
        ECHO: echo, RESET_AT_ONCE: reset, HALF_CLOSED: half_closed, SILENT: silent, ENDLESS: endless, DRIP: drip,
        SPEAKS_FIRST: speaks_first, DEAF: silent, RESET_LATER: reset_later, COUNTS: counts, 443: not_tls, 22: speaks_first,
    }
    for port, kind in kinds.items():
        await asyncio.start_server(noted(kind), places.HOSTILE, port, limit=1 << 16)


def noted(kind):
    async def connection(reader, writer):
        log.hit(kind.__name__, writer)
        try:
            await kind(reader, writer)
        except (ConnectionError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
    return connection


async def echo(reader, writer):
    """Gives back what comes; after the other side's end of data it says goodbye."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye\n")


async def reset(reader, writer):
    linger_not(writer)


async def half_closed(reader, writer):
    """Ends its own data at once and then counts what comes until the other side ends too."""
    writer.write(b"first\n")
    writer.write_eof()
    total = 0
    while data := await reader.read(1 << 16):
        total += len(data)
    log.hit("half_closed_total", writer, total=total)


async def silent(reader, writer):
    """Never answers, never reads."""
    writer.transport.pause_reading()
    await asyncio.sleep(600)


async def endless(reader, writer):
    block = b"x" * 65536
    while True:
        writer.write(block)
        await writer.drain()
        await asyncio.sleep(0)  # others too; a drain that need not wait does not


async def drip(reader, writer):
    for byte in b"slow but sure\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def speaks_first(reader, writer):
    writer.write(b"welcome\n")
    await echo(reader, writer)


async def reset_later(reader, writer):
    """Sends a thousand bytes, waits for one line, then resets."""
    writer.write(b"y" * 1000)
    await writer.drain()
    await reader.readline()
    linger_not(writer)


async def counts(reader, writer):
    """Answers with the number of bytes once the other side has ended its data."""
    total = 0
    while data := await reader.read(1 << 16):
        total += len(data)
    writer.write(b"%d\n" % total)
    await writer.drain()


async def not_tls(reader, writer):
    """Takes anything on the port of TLS and notes how it began."""
    first = await reader.read(4096)
    log.hit("not_tls_first", writer, first=first.hex())
    writer.write(b"taken\n")


def linger_not(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
