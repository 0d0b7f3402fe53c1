//! The clients people use, inside connections that the wall opens to judge their requests: everything works unchanged, and
//! what a rule does not allow is answered in the client's own terms.

use crate::net::{Net, net};

/// `--policy` with a rule for everything at `name` that looks at requests, and more rules before it.
fn opened(net: &Net, name: &str, before: &str) -> Vec<String> {
    net.trusting("");
    net.policy(&format!("{before}\n[[rule]]\nallow = \"{name}\"\nports = [443, 8443]\ntls = \"opened\"\n"))
        .into()
}

/// What a probe with Debian's Python packages says inside.
#[track_caller]
fn python(net: &Net, flags: &[String], probe: &str) -> String {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    net.inside(&flags, &format!("import asyncio\nsys.path.append('/usr/lib/python3/dist-packages')\n{probe}"))
}

#[test]
fn curl_speaks_http_1_and_2_as_the_server_does() {
    let Some(net) = net() else { return };
    let (nginx, node) = (net.internet.name("nginx"), net.internet.name("node"));
    let mut flags = opened(&net, &nginx, &format!("[[rule]]\nallow = \"{node}\"\nmethods = [\"GET\"]"));
    flags.push("--keep".into());

    let get = |how: &str, name: &str| {
        format!(
            "curl -sS -m 30 {how} -o /dev/null -w '%{{http_code}} %{{http_version}}\\n' https://{name}/x; "
        )
    };
    let script = [get("--http2", &nginx), get("--http1.1", &nginx), get("--http2", &node)].concat();
    let said = net.world.sh(flags.iter().map(String::as_str), &script).run().succeeded();

    assert_eq!(said, "200 2\n200 1.1\n200 1.1\n");
}

#[test]
fn python_clients_fetch_and_post() {
    let Some(net) = net() else { return };
    let (nginx, streams) = (net.internet.name("nginx"), net.internet.name("streams"));
    let flags = opened(&net, &nginx, &format!("[[rule]]\nallow = \"{streams}\"\nmethods = [\"POST\"]"));

    let probe = format!(
        r#"
import httpx, urllib3, aiohttp
with httpx.Client(http2=True, timeout=30) as client:
    answers = [client.get("https://{nginx}/x") for _ in range(3)]
    say([(a.status_code, a.http_version) for a in answers])
pool = urllib3.PoolManager(ca_certs=os.environ["SSL_CERT_FILE"])
say(pool.request("POST", "https://{streams}/echo", body=b"y" * 100000).data == b"y" * 100000)
async def fetch():
    async with aiohttp.ClientSession() as session:
        async def pieces():
            for _ in range(50):
                yield b"z" * 1000
        async with session.post("https://{streams}/echo", data=pieces()) as answer:
            return len(await answer.read())
say(asyncio.run(fetch()))
denied = httpx.get("https://{streams}/echo", timeout=30)
say(denied.status_code, denied.json()["reason"])
"#
    );

    let expected = "[(200, 'HTTP/2'), (200, 'HTTP/2'), (200, 'HTTP/2')]\nTrue\n50000\n403 no_rule\n";
    assert_eq!(python(&net, &flags, &probe), expected);
}

#[test]
fn a_websocket_carries_messages_both_ways_and_a_rule_can_forbid_it() {
    let Some(net) = net() else { return };
    let name = net.internet.name("streams");
    let flags =
        opened(&net, &name, &format!("[[rule]]\ndeny = \"{name}\"\nwebsocket = true\npaths = [\"/ws/no\"]"));

    let probe = format!(
        r#"
import websockets
async def chat():
    async with websockets.connect("wss://{name}/ws/yes") as socket:
        for message in ("hello", "x" * 70000, b"bytes"):
            await socket.send(message)
            say(await socket.recv() == message)
    try:
        await websockets.connect("wss://{name}/ws/no")
    except websockets.InvalidStatusCode as err:
        say(err.status_code)
asyncio.run(chat())
"#
    );

    assert_eq!(python(&net, &flags, &probe), "True\nTrue\nTrue\n403\n");
}

#[test]
fn messages_of_a_websocket_carry_a_secret_out_and_its_placeholder_back() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("streams"), net.internet.mark());
    net.trusting(&format!("[secrets.TOKEN]\nhosts = [\"{name}\"]\nin = [\"header\", \"body\"]\n"));
    let value = "ghp_RealValueOfTheSecret0123456789abcdef";
    let mount = format!("{}:/clients:ro", net.internet.file("clouds").display());
    let node = format!(
        "const socket = new (require('/clients/node_modules/ws'))('wss://{name}/ws');\n\
         const text = '{mark} node ' + process.env.TOKEN;\n\
         socket.on('open', () => socket.send(text));\n\
         socket.on('message', told => {{ console.log(String(told) === text); socket.close(); }});"
    );
    let probe = format!(
        r#"
sys.path.append("/usr/lib/python3/dist-packages")
import asyncio, subprocess, websockets
async def chat():
    async with websockets.connect("wss://{name}/ws") as socket:
        text = "{mark} python " + os.environ["TOKEN"]
        await socket.send(text)
        say(await socket.recv() == text)
asyncio.run(chat())
say(subprocess.run(["node", "-e", """{node}"""], capture_output=True, text=True).stdout.strip())
"#
    );
    let run = net.world.python(["--secret", "TOKEN", "--mount", &mount], &crate::net::whole(&probe));
    let said = run.env("TOKEN", value).run().succeeded();

    assert_eq!(said, "True\ntrue\n");
    let hits = net.internet.hits(mark);
    let heard: Vec<&str> =
        hits.iter().filter(|hit| hit["what"] == "message").filter_map(|hit| hit["data"].as_str()).collect();
    let heard: Vec<&str> = heard.into_iter().filter(|data| data.starts_with(mark)).collect();
    assert_eq!(heard, [format!("{mark} python {value}"), format!("{mark} node {value}")]);
}

#[test]
fn a_placeholder_in_a_message_of_a_websocket_that_may_not_have_it_ends_the_connection() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("streams"), net.internet.mark());
    net.trusting(&format!("[secrets.TOKEN]\nhosts = [\"{name}\"]\n"));
    let probe = format!(
        r#"
sys.path.append("/usr/lib/python3/dist-packages")
import asyncio, websockets
async def chat():
    async with websockets.connect("wss://{name}/ws") as socket:
        await socket.send("{mark} first")
        say(await socket.recv() == "{mark} first")
        await socket.send("{mark} " + os.environ["TOKEN"])
        try:
            say(await socket.recv())
        except websockets.ConnectionClosed:
            say("closed")
asyncio.run(chat())
"#
    );
    let run =
        net.world.python(["--secret", "TOKEN", "--keep", "--name", "socket"], &crate::net::whole(&probe));
    let said = run.env("TOKEN", "ghp_RealValueOfTheSecret0123456789abcdef").run().succeeded();

    assert_eq!(said, "True\nclosed\n");
    assert!(net.internet.hits(mark).iter().all(|hit| hit["data"] != format!("{mark} ghp_")));
    assert!(!format!("{:?}", net.internet.hits(mark)).contains("ghp_"));
    assert!(net.ledger("socket").iter().any(|record| record["reason"] == "secret"));
}

#[test]
fn events_come_one_by_one_and_trailers_at_the_end() {
    let Some(net) = net() else { return };
    let name = net.internet.name("streams");
    let flags = opened(&net, &name, "");

    let probe = format!(
        r#"
import http.client
c = http.client.HTTPSConnection("{name}", timeout=30)
c.request("GET", "/events")
r = c.getresponse()
began, seen = time.monotonic(), []
for _ in range(5):
    seen.append((r.readline(), r.readline() and time.monotonic() - began)[0])
    if len(seen) == 1:
        first = time.monotonic() - began
say(seen[0], seen[4], first < 0.5)
s = ssl.create_default_context().wrap_socket(socket.create_connection(("{name}", 443)), server_hostname="{name}")
s.sendall(b"GET /trailers HTTP/1.1\r\nHost: {name}\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n")
answer = b""
while piece := s.recv(4096):
    answer += piece
say(answer.lower().rstrip().endswith(b"checked: yes"))
"#
    );

    let said = python(&net, &flags, &probe);
    assert_eq!(said, "b'data: 0\\n' b'data: 4\\n' True\nTrue\n");
}

#[test]
fn grpc_streams_and_a_denied_call_has_a_status_of_grpc() {
    let Some(net) = net() else { return };
    let name = net.internet.name("grpc");
    let flags = opened(&net, &name, &format!("[[rule]]\ndeny = \"{name}\"\npaths = [\"/test.Echo/Fail\"]"));

    let probe = format!(
        r#"
import grpc
channel = grpc.secure_channel("{name}:443", grpc.ssl_channel_credentials(open(os.environ["SSL_CERT_FILE"], "rb").read()))
answer, call = channel.unary_unary("/test.Echo/Once").with_call(b"hello", timeout=30)
say(answer, dict(call.trailing_metadata()).get("checked"))
say(list(channel.unary_stream("/test.Echo/Thrice")(b"x", timeout=30)))
say(list(channel.stream_stream("/test.Echo/Chat")(iter([b"a", b"b"]), timeout=30)))
try:
    channel.unary_unary("/test.Echo/Fail")(b"", timeout=30)
except grpc.RpcError as err:
    say(err.code().name, "denied" in err.details() or "not allowed" in err.details())
"#
    );

    let expected = "b'hello' yes\n[b'x', b'x', b'x']\n[b'heard a', b'heard b']\nPERMISSION_DENIED True\n";
    assert_eq!(python(&net, &flags, &probe), expected);
}

#[test]
fn requests_that_boto3_signs_with_placeholders_reach_the_store_signed_with_the_key() {
    let Some(net) = net() else { return };
    let name = net.internet.name("aws");
    let table = |secret: &str, more: &str| {
        format!(
            "[secrets.{secret}]\nfrom = \"env:{secret}\"\nhosts = [\"{name}\"]\nin = [\"header\", \"query\"]\n{more}\n"
        )
    };
    let key = table("AWS_ACCESS_KEY_ID", "")
        + &table("AWS_SECRET_ACCESS_KEY", "aws_access_key = \"AWS_ACCESS_KEY_ID\"");
    net.trusting(&key);
    let probe = format!(
        r#"
sys.path.append("/usr/lib/python3/dist-packages")
import boto3, botocore.config, urllib.request
config = botocore.config.Config(signature_version="s3v4", s3={{"addressing_style": "path"}}, retries={{"max_attempts": 1}})
s3 = boto3.client("s3", endpoint_url="https://{name}", region_name="eu-central-1", config=config)
s3.put_object(Bucket="bucket", Key="a key/with ünicode", Body=b"hello" * 10000)
say(len(s3.get_object(Bucket="bucket", Key="a key/with ünicode")["Body"].read()))
url = s3.generate_presigned_url("get_object", Params={{"Bucket": "bucket", "Key": "a key/with ünicode"}})
try:
    say(len(urllib.request.urlopen(url, timeout=30).read()))
except urllib.error.HTTPError as err:
    say(err.read())
say("REAL" in os.environ["AWS_ACCESS_KEY_ID"], "real" in os.environ["AWS_SECRET_ACCESS_KEY"])
"#
    );
    let flags = ["--secret", "AWS_ACCESS_KEY_ID", "--secret", "AWS_SECRET_ACCESS_KEY"];
    let said = net
        .world
        .python(flags, &crate::net::whole(&probe))
        .env("AWS_ACCESS_KEY_ID", "AKIAREALREALREALREAL")
        .env("AWS_SECRET_ACCESS_KEY", "real/secret/key/real/secret/key/real0001")
        .run()
        .succeeded();

    assert_eq!(said, "50000\n50000\nFalse False\n");
}

#[test]
fn an_answer_that_was_scrubbed_has_ended_as_it_should() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    net.trusting("");
    let secret = format!("TOKEN@{name}");
    let flags = ["--secret", &secret, "--keep", "--name", "scrubbed"];

    let script = format!("curl -sS -m 30 -o /dev/null -H \"X-Key: $TOKEN\" https://{name}/bytes/100000");
    net.world.sh(flags, &script).env("TOKEN", "ghp_RealValueOfTheSecret0123456789abcdef").run().succeeded();

    let flows = net.ledger("scrubbed");
    let flow = flows.iter().find(|record| record["code"] == 200).expect("the end of the request");
    assert_eq!((&flow["status"], &flow["received"]), (&"closed".into(), &100_000.into()));
}
