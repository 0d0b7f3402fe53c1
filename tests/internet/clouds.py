"""Where clients of Google and Azure fetch tokens, under the names that are written into them, and a service that takes such tokens.

What fetches a token tells the test's mark: Google's refresh token is `1//refresh-MARK`, the tenant of Azure is MARK and its client's
secret `secret-MARK`. A token is `access-MARK-NUMBER`; `/cloud/MARK` takes the last one that was given.
"""

import json
import urllib.parse

import log

GOOGLE, AZURE = "oauth2.googleapis.com", "login.microsoftonline.com"
HOSTS = (GOOGLE, AZURE)
given = {}


async def answer(method, path, headers, body, writer):
    status, document = found(method, path.split("?")[0], headers, dict(urllib.parse.parse_qsl(body)))
    log.hit("cloud", writer, host=headers.get("host"), path=path, method=method, status=status, body=body, sent=headers.get("authorization"))
    body = json.dumps(document).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
    await writer.drain()
    return True


def found(method, path, headers, form):
    if path.startswith("/cloud/"):
        is_known = headers.get("authorization") == "Bearer " + given.get(path.split("/")[2], "nobody has this one")
        return (200, {"sent": headers.get("authorization")}) if is_known else (401, {"error": "invalid_token"})
    if headers.get("host") == GOOGLE and (method, path) == ("POST", "/token"):
        return token(form.get("refresh_token", "").removeprefix("1//refresh-"), form.get("grant_type") == "refresh_token")
    _, tenant, *rest = path.split("/")
    if rest == ["oauth2", "v2.0", "token"] and method == "POST":
        return token(tenant, form.get("grant_type") == "client_credentials" and form.get("client_secret") == "secret-" + tenant)
    base = f"https://{AZURE}/{tenant}"
    if rest == ["v2.0", ".well-known", "openid-configuration"]:
        return 200, {"token_endpoint": f"{base}/oauth2/v2.0/token", "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                     "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode", "issuer": f"{base}/v2.0"}
    if path == "/common/discovery/instance":
        return 200, {"tenant_discovery_endpoint": f"{base}/v2.0/.well-known/openid-configuration",
                     "metadata": [{"preferred_network": AZURE, "preferred_cache": AZURE, "aliases": [AZURE]}]}
    return 404, {"error": "nothing is here"}


def token(mark, is_right):
    if not is_right:
        return 400, {"error": "invalid_grant"}
    given[mark] = f"access-{mark}-{int(given.get(mark, '-0').rpartition('-')[2]) + 1}"
    return 200, {"access_token": given[mark], "token_type": "Bearer", "expires_in": 3600}
