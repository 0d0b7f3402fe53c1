"""The only name server there is: knows every name, and lies where its name says so.

An address in a name is the answer: `x.a-10-20-0-5.ip.test` is 10.20.0.5, `x.a-1-2-3-4.a-5-6-7-8.ip.test` both,
`h-` and 32 hex digits an IPv6 address; `x.a-10-20-0-5.rebind.test` is so from the second question on. The label before `.test` chooses a behaviour (`answers`).
"""

import asyncio
import ipaddress
import itertools
import re
import struct

import clouds
import log
import places

A, NS, CNAME, SOA, TXT, AAAA, OPT = 1, 2, 5, 6, 16, 28, 41
KINDS = {A: "A", NS: "NS", CNAME: "CNAME", SOA: "SOA", 12: "PTR", TXT: "TXT", AAAA: "AAAA", 65: "HTTPS", 255: "ANY", 10: "NULL"}
SERVFAIL, NXDOMAIN, REFUSED = 2, 3, 5
# Handed on to the tunnels' own servers, as a recursive server would.
TUNNEL_ZONES = {"tunnel.test": places.TUNNEL, "iodine.test": places.IODINE}

PLACES = {
    "web": [places.WEB_V4, places.WEB_V6],
    "v4": [places.WEB_V4],
    "v6": [places.WEB_V6],
    "cdn": [places.SHARED],
    "git": [places.GIT],
    "ssh": [places.SSH],
    "pg": [places.DATABASE],
    "hostile": [places.HOSTILE],
    "proxy": [places.PROXY],
    "nginx": [places.NGINX],
    "haproxy": [places.HAPROXY],
    "apache": [places.APACHE],
    "node": [places.NODE],
    "naive": [places.NAIVE],
    "streams": [places.STREAMS],
    "grpc": [places.GRPC],
    "badcert": [places.BAD_CERTIFICATES],
    "aws": [places.AWS],
    "slow": [places.WEB_V4],
    "late6": ["2600:9000:5::dead", places.WEB_V4],  # nobody is at the first
    "own": [places.HOST_V4],
    "own6": [places.HOST_V6],
    "metadata": ["169.254.169.254"],
    "loopback": ["127.0.0.1"],
    "loopback6": ["::1"],
}
turns = {}


class Silence(Exception):
    pass


def answers(name, kind):
    """Code and records (type, data) for a question; text is a name, bytes are as they are."""
    labels = name.split(".")
    zone = labels[-2] if len(labels) > 1 and labels[-1] == "test" else ""
    if zone == "silent":
        raise Silence
    if zone in ("servfail", "refused", "nx"):
        return {"servfail": SERVFAIL, "refused": REFUSED, "nx": NXDOMAIN}[zone], []
    if zone == "loop":
        other = "b" if labels[0] == "a" else "a"
        return 0, [(CNAME, ".".join([other, *labels[1:]]))]
    if zone == "endless":
        return 0, [(CNAME, f"x{int(labels[0].lstrip('x') or 0) + 1}." + ".".join(labels[1:]))]
    if zone == "alias":
        return 0, [(CNAME, "web.test"), *addresses(PLACES["web"], kind)]
    if zone == "aliasprivate":
        return 0, [(CNAME, "x.a-10-20-0-5.ip.test"), *addresses(["10.20.0.5"], kind)]
    if zone == "rebind":  # the first answer is harmless, later ones are as spelled
        turn = turns.setdefault((name, kind), itertools.count())
        return 0, addresses([places.WEB_V4] if next(turn) == 0 else spelled(labels), kind)
    if zone == "huge":
        return 0, addresses([f"93.184.{n >> 8}.{n & 255}" for n in range(2000)] + ["10.20.0.5"], kind)
    if zone == "garbage":
        return 0, [(A, b"\x01\x02\x03"), (A, b"\xff" * 40)]
    if zone == "text" and kind == TXT:
        return 0, [(TXT, b"\x0bpayload-one")]
    if name in clouds.HOSTS:
        return 0, addresses(PLACES["web"], kind)
    if name == "metadata.google.internal":
        return 0, addresses(PLACES["metadata"], kind)
    if zone == "ip":
        return 0, addresses(spelled(labels), kind)
    if zone in PLACES:
        return 0, addresses(PLACES[zone], kind)
    return NXDOMAIN, []


def spelled(labels):
    for label in labels:
        if match := re.fullmatch(r"a-(\d+)-(\d+)-(\d+)-(\d+)", label):
            yield ".".join(match.groups())
        elif match := re.fullmatch(r"h-([0-9a-f]{32})", label):
            yield str(ipaddress.ip_address(bytes.fromhex(match[1])))


def addresses(of, kind):
    parsed = [ipaddress.ip_address(address) for address in of]
    return [(kind, a.packed) for a in parsed if (a.version, kind) in ((4, A), (6, AAAA))]


def encoded(name):
    labels = [label.encode() for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def read_name(packet, at):
    labels = []
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode("latin-1"))
        at += 1 + packet[at]
    return ".".join(labels), at + 1


def question(packet):
    name, end = read_name(packet, 12)
    kind, _ = struct.unpack(">HH", packet[end:end + 4])
    return name.lower(), kind, packet[12:end + 4]


def reply(packet, limit):
    name, kind, asked = question(packet)
    code, records = answers(name, kind)
    body, owner = b"", encoded(name)
    for rtype, value in records:
        value = encoded(value) if isinstance(value, str) else value
        body += owner + struct.pack(">HHIH", rtype, 1, 0, len(value)) + value
        if rtype == CNAME:
            owner = value
    flags, count = 0x8580 | code, len(records)
    if len(asked) + 12 + len(body) > limit:
        flags, count, body = flags | 0x0200, 0, b""  # truncated: ask again over TCP
    return packet[:2] + struct.pack(">HHHHH", flags, 1, count, 0, 0) + asked + body


async def reply_in_time(packet, limit):
    name, _, _ = question(packet)
    if name.endswith(".slow.test"):
        await asyncio.sleep(1.2)  # well within the patience of the tests' resolv.conf
    return reply(packet, limit)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self):
        self.tasks = set()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, packet, peer):
        task = asyncio.ensure_future(self.serve(packet, peer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, packet, peer):
        try:
            name, kind, _ = question(packet)
        except (IndexError, struct.error):
            return
        log.query(name, KINDS.get(kind, str(kind)), "udp", peer[0])
        for zone, server in TUNNEL_ZONES.items():
            if name.endswith(zone):
                return await self.hand_on(packet, peer, server)
        try:
            self.transport.sendto(await reply_in_time(packet, 1232), peer)
        except Silence:
            pass

    async def hand_on(self, packet, peer, server):
        loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        class Once(asyncio.DatagramProtocol):
            def datagram_received(self, data, _):
                answer.done() or answer.set_result(data)

            def error_received(self, why):
                answer.done() or answer.set_result(None)

        upstream, _ = await loop.create_datagram_endpoint(Once, remote_addr=(server, 53))
        upstream.sendto(packet)
        try:
            data = await asyncio.wait_for(answer, 5)
            data and self.transport.sendto(data, peer)
        except asyncio.TimeoutError:
            pass
        finally:
            upstream.close()


async def stream(reader, writer):
    try:
        while True:
            size, = struct.unpack(">H", await reader.readexactly(2))
            packet = await reader.readexactly(size)
            name, kind, _ = question(packet)
            log.query(name, KINDS.get(kind, str(kind)), "tcp", writer.get_extra_info("peername")[0])
            answer = await reply_in_time(packet, 65535)
            writer.write(struct.pack(">H", len(answer)) + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, Silence):
        pass
    finally:
        writer.close()


async def serve():
    for address in (places.NAMESERVER, places.WEB_V4):  # the second is a name server that the sandbox chose itself
        await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, local_addr=(address, 53))
        await asyncio.start_server(stream, address, 53)
