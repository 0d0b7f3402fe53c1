"""A store that takes requests signed with one key only (`/bucket/…`), as AWS does: the signature is made anew with botocore's own
code and compared. `PUT` keeps, `GET` gives back. Bodies in chunks (`aws-chunked`) are taken apart; what is signed of those is their head.
"""

import asyncio
import hashlib
import ssl
import sys
import urllib.parse

sys.path.append("/usr/lib/python3/dist-packages")
import botocore.auth  # noqa: E402
import botocore.awsrequest  # noqa: E402
import botocore.credentials  # noqa: E402

import log  # noqa: E402
import places  # noqa: E402
import web  # noqa: E402

KEY = botocore.credentials.Credentials("AKIAREALREALREALREAL", "real/secret/key/real/secret/key/real0001")
kept = {}


async def serve(folder):
    await asyncio.start_server(connection, places.AWS, 443, ssl=web.context(folder))


async def connection(reader, writer):
    try:
        while request := await web.head(reader):
            method, path, headers = request
            length = int(headers.get("content-length", 0))
            if headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(length) if length else await web.chunks(headers, reader)
            why = refusal(method, path, headers, body)
            log.hit("aws", writer, host=headers.get("host"), path=path, method=method, why=why)
            status, answer = b"200 OK", b""
            if why:
                status, answer = b"403 Forbidden", b"<Error><Code>SignatureDoesNotMatch</Code><Message>%s</Message></Error>" % why.encode()
            elif method == "PUT":
                kept[path.split("?")[0]] = unchunked(body) if is_chunked(headers) else body
            else:
                answer = kept.get(path.split("?")[0], b"nothing")
            writer.write(b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % (status, len(answer)) + answer)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, ValueError, ssl.SSLError):
        pass
    finally:
        writer.close()


def is_chunked(headers):
    return "aws-chunked" in headers.get("content-encoding", "")


def unchunked(body):
    """What is in the chunks; the trailers behind them are dropped."""
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        size = int(size.split(b";")[0], 16)
        if not size:
            return whole
        whole, body = whole + body[:size], body[size + 2:]


def refusal(method, path, headers, body):
    """Why the signature is not right, or nothing."""
    url = urllib.parse.urlsplit(path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    if "X-Amz-Signature" in query:
        given, scope = query.pop("X-Amz-Signature"), query["X-Amz-Credential"].split("/")
        names, when = query["X-Amz-SignedHeaders"].split(";"), query["X-Amz-Date"]
        payload = "UNSIGNED-PAYLOAD"
    else:
        form, _, rest = headers.get("authorization", "").partition(" ")
        if form != "AWS4-HMAC-SHA256":
            return "no signature"
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        given, scope = parts["Signature"], parts["Credential"].split("/")
        names, when = parts["SignedHeaders"].split(";"), headers["x-amz-date"]
        payload = headers.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
    if scope[0] != KEY.access_key:
        return "unknown key " + scope[0]
    if payload == "STREAMING-UNSIGNED-PAYLOAD-TRAILER" and is_chunked(headers):
        unchunked(body)
    elif payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
        return "the body is another"
    signer = botocore.auth.S3SigV4Auth(KEY, scope[3], scope[2])
    request = botocore.awsrequest.AWSRequest(
        method=method, url=f"https://{headers['host']}{url.path}", params=sorted(query.items()), headers={name: headers[name] for name in names})
    request.context["timestamp"] = when
    request.context["payload_signing_enabled"] = payload != "UNSIGNED-PAYLOAD"
    canonical = "\n".join([
        method, urllib.parse.quote(urllib.parse.unquote(url.path), safe="/~"), signer._canonical_query_string_params(query) if query else "",
        "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names), ";".join(names), payload])
    text = signer.string_to_sign(request, canonical)
    return None if signer.signature(text, request) == given else "another signature"
