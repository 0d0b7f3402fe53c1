"""Writes vectors.json: requests that botocore signed with a placeholder, and the same ones signed with the key.

Run: python3 make.py > vectors.json   (needs botocore)
"""

import datetime
import json
import random
from unittest import mock

from botocore import auth
from botocore.awsrequest import AWSRequest, prepare_request_dict, create_request_object
from botocore.credentials import Credentials

INSIDE = ("AKIAPLACEHOLDER00001", "PlaceholderPlaceholderPlaceholder0123456", "IQoJplaceholdertokenplaceholdertoken0123")
OUTSIDE = ("AKIAREALREALREAL0001", "Real/Secret+Key/Real/Secret+Key/Real0123", "IQoJrealtoken/realtoken+realtoken==01234")
NOW = datetime.datetime(2026, 1, 31, 12, 0, 0, tzinfo=datetime.timezone.utc)


def signed(signer, method, url, headers, body, who, token):
    credentials = Credentials(who[0], who[1], who[2] if token else None)
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
    request.context["payload_signing_enabled"] = True
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        signer(credentials).add_auth(request)
    prepared = request.prepare()
    kept = [[name, value.decode() if isinstance(value, bytes) else value] for name, value in prepared.headers.items()]
    return {"method": method, "url": prepared.url, "headers": kept, "body": (body or b"").decode()}


def paths(chance):
    parts = ["a", "b c", "key=1", "x+y", "ä", "~tilde", "file.txt", "a:b", "(1)"]
    from urllib.parse import quote
    return "/" + "/".join(quote(part, safe="-._~") for part in chance.sample(parts, chance.randint(0, 3)))


def queries(chance):
    from urllib.parse import quote
    pairs = [("list-type", "2"), ("prefix", "a/b c"), ("empty", ""), ("Z", "z"), ("a", "1"), ("a", "0"), ("uni", "äö"), ("plus", "a+b")]
    chosen = chance.sample(pairs, chance.randint(0, 4))
    return "&".join(f"{quote(n, safe='-._~')}={quote(v, safe='-._~')}" for n, v in chosen)


def main():
    chance = random.Random(7)
    vectors = []
    services = [
        ("s3", "bucket.s3.example.com", lambda c: auth.S3SigV4Auth(c, "s3", "eu-west-1")),
        ("dynamodb", "dynamodb.example.com", lambda c: auth.SigV4Auth(c, "dynamodb", "us-east-1")),
        ("s3 presigned", "bucket.s3.example.com", lambda c: auth.S3SigV4QueryAuth(c, "s3", "eu-west-1", expires=60)),
        ("sts presigned", "sts.example.com", lambda c: auth.SigV4QueryAuth(c, "sts", "us-east-1", expires=60)),
    ]
    for number in range(48):
        name, host, signer = services[number % 4]
        presigned = "presigned" in name
        method = "GET" if presigned else chance.choice(["GET", "PUT", "POST", "DELETE", "HEAD"])
        body = None if presigned or method in ("GET", "HEAD", "DELETE") else b"body %d" % number
        query = queries(chance)
        url = f"https://{host}{paths(chance)}" + (f"?{query}" if query else "")
        headers = {"User-Agent": "boto"}
        if not presigned and chance.random() < 0.5:
            headers["X-Amz-Meta-Note"] = "  two   spaces "
        if not presigned and chance.random() < 0.5:
            headers["Content-Type"] = "application/x-amz-json-1.0"
        token = chance.random() < 0.5
        pair = [signed(signer, method, url, headers, body, who, token) for who in (INSIDE, OUTSIDE)]
        vectors.append({"name": f"{name} {number}", "inside": pair[0], "outside": pair[1]})
    print(json.dumps({"inside": INSIDE, "outside": OUTSIDE, "vectors": vectors}, indent=0, ensure_ascii=False))


main()
