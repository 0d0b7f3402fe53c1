"""What reached the virtual internet. Tests ask for it over a small HTTP server of its own (`/dns`, `/hits`, `/packets`)."""

import asyncio
import collections
import ctypes
import ipaddress
import itertools
import json
import socket
import struct
import urllib.parse

import places

# Each entry is the text of a JSON object.
queries, hits, packets = (collections.deque(maxlen=200_000) for _ in range(3))
# Logs of servers from packages, by their names. Each line is one request: its host, a tab, its first line.
files = {}


def query(name, kind, transport, peer):
    queries.append(json.dumps({"name": name, "type": kind, "transport": transport, "peer": peer}))


def hit(what, writer, **more):
    peer = writer.get_extra_info("peername") or ("gone", 0)
    own = writer.get_extra_info("sockname") or ("gone", 0)
    hits.append(json.dumps({"what": what, "peer": peer[0], "address": own[0], "port": own[1], **more}))


def written():
    """What the servers from packages wrote until now, as hits."""
    for server, path in files.items():
        for line in path.read_bytes().decode("latin-1").splitlines() if path.exists() else []:
            host, tab, first = line.partition("\t")
            if tab:
                yield json.dumps({"what": "origin", "server": server, "host": host, "line": first})


def sniff(link):
    """Notes every datagram and every attempt to connect that arrives on the link."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.setsockopt(socket.SOL_SOCKET, 26, datagrams_and_first_packets())  # SO_ATTACH_FILTER
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    raw.bind((link, 0))
    raw.setblocking(False)
    asyncio.get_running_loop().add_reader(raw, lambda: take(raw))


def datagrams_and_first_packets():
    """A filter for the kernel: what is not TCP passes, and of TCP the first packet of a connection."""
    # 0 ldh type; 1 v4? else 6; 2 ldb proto; 3 tcp? else 11; 4 ldb flags; 5 goto 10; 6 v6? else 12;
    # 7 ldb next; 8 tcp? else 11; 9 ldb flags; 10 syn? else 12; 11 take; 12 leave
    code = [
        (0x28, 0, 0, 12), (0x15, 0, 4, 0x0800), (0x30, 0, 0, 23), (0x15, 0, 7, 6), (0x30, 0, 0, 47), (0x05, 0, 0, 4),
        (0x15, 0, 5, 0x86DD), (0x30, 0, 0, 20), (0x15, 0, 2, 6), (0x30, 0, 0, 67), (0x45, 0, 1, 2),
        (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0),
    ]
    body = b"".join(struct.pack("HBBI", *step) for step in code)
    datagrams_and_first_packets.kept = ctypes.create_string_buffer(body)  # the kernel reads it during setsockopt
    return struct.pack("HxxxxxxQ", len(code), ctypes.addressof(datagrams_and_first_packets.kept))


def take(raw):
    while True:
        try:
            frame, (_, kind, direction, *_) = raw.recvfrom(2048)
        except BlockingIOError:
            return
        if direction == 4:  # our own
            continue
        if kind == 0x0800:
            protocol, to, body = frame[23], ipaddress.ip_address(frame[30:34]), frame[14 + (frame[14] & 15) * 4:]
        elif kind == 0x86DD:
            protocol, to, body = frame[20], ipaddress.ip_address(frame[38:54]), frame[54:]
            if protocol == 58 and body[:1] in (b"\x85", b"\x86", b"\x87", b"\x88") or protocol == 0:
                continue  # neighbours finding each other
        else:
            continue
        port = struct.unpack(">H", body[2:4])[0] if protocol in (6, 17) and len(body) >= 4 else 0
        packets.append(json.dumps({"protocol": protocol, "to": str(to), "port": port, "bytes": len(body)}))


async def serve():
    await asyncio.start_server(answer, places.PEER_V4, places.CONTROL_PORT)


async def answer(reader, writer):
    line = (await reader.readline()).decode().split()
    while (await reader.readline()).strip():
        pass
    url = urllib.parse.urlsplit(line[1])
    wanted = urllib.parse.parse_qs(url.query).get("with", [""])[0]
    kept = {"/dns": queries, "/hits": hits, "/packets": packets}[url.path]
    kept = itertools.chain(kept, written()) if kept is hits else kept
    body = f"[{','.join(entry for entry in kept if wanted in entry)}]".encode()
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()
