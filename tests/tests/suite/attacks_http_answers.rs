//! Requests that may not go on, inside opened connections: what the program is told, in the form that it can read.

use crate::net::{Net, net};
use serde_json::Value;
use std::fs;

/// `ask(host, path, …)`: status, the header `airlock-denied` and the JSON of one request inside TLS.
const ASK: &str = r#"
import http.client, urllib.parse
def ask(host, path, method="GET", headers={}, port=443, shown=None, sni=None):
    def attempt():
        plain = socket.create_connection((host, port), 20)
        s = ssl.create_default_context().wrap_socket(plain, server_hostname=sni or host) if port == 443 else plain
        connection = http.client.HTTPConnection(shown or host, port)
        connection.sock = s
        connection.request(method, path, headers={"Host": shown or host, **headers})
        answer = connection.getresponse()
        body = answer.read()
        try:
            body = json.loads(body)
        except ValueError:
            body = {"body": body.decode("latin-1").strip()}
        return json.dumps({"status": answer.status, "denied": answer.headers.get("airlock-denied"), **body})
    return outcome(attempt)
"#;

/// A keeper that trusts the servers.
fn trusting(net: &Net) {
    net.world.airlock(["ls"]).run().succeeded();
    let config = format!("[network]\nextra_ca = \"{}\"\n", net.internet.ca().display());
    fs::write(net.world.home().join("config.toml"), config).expect("a file");
}

/// What a probe says, a JSON object a line, where `rules` hold.
#[track_caller]
fn asked(net: &Net, rules: &str, probe: &str) -> Vec<Value> {
    trusting(net);
    let policy = net.policy(rules);
    let said = net.inside(&[&policy[0], &policy[1]], &format!("{ASK}\n{probe}"));
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned())))
        .collect()
}

#[test]
fn a_denied_request_is_told_which_rule_and_what_helps() {
    let Some(net) = net() else { return };
    let name = net.internet.name("node");
    let rules = format!(
        "[[rule]]\ndeny = \"{name}\"\npaths = [\"/secret/**\"]\n\
         [[rule]]\nallow = \"{name}\"\nmethods = [\"GET\"]\npaths = [\"/public/**\", \"/secret/**\"]\n"
    );
    let probe = format!(
        r#"
for port in (443, 80):
    say(ask("{name}", "/public/x", port=port))
    say(ask("{name}", "/secret/x", port=port))
    say(ask("{name}", "/public/x", method="POST", port=port))
    say(ask("{name}", "/public/../secret/x", port=port))
"#
    );

    let said = asked(&net, &rules, &probe);

    for (port, told) in [443, 80].into_iter().zip(said.chunks(4)) {
        assert_eq!((&told[0]["status"], &told[0]["body"]), (&200.into(), &"node".into()), "{port}: {told:?}");
        assert_eq!((&told[1]["status"], &told[1]["denied"]), (&403.into(), &"rule".into()), "{told:?}");
        assert!(told[1]["rule"].as_str().is_some_and(|rule| rule.contains("policy.toml:1")), "{told:?}");
        assert_eq!((&told[2]["status"], &told[2]["reason"]), (&403.into(), &"no_rule".into()), "{told:?}");
        assert!(told[2]["hint"].as_str().is_some_and(|hint| hint.contains("airlock allow")), "{told:?}");
        assert_eq!((&told[3]["status"], &told[3]["reason"]), (&400.into(), &"ambiguous".into()), "{told:?}");
    }
    let seen: Vec<String> = net.internet.hits(&name).iter().map(|hit| hit["line"].to_string()).collect();
    assert_eq!(seen, vec!["\"GET /public/x HTTP/1.1\""; 2]);
}

#[test]
fn a_host_behind_an_allowed_one_is_not_reached_through_it() {
    let Some(net) = net() else { return };
    let (good, evil) =
        (format!("good{}", net.internet.name("cdn")), format!("evil{}", net.internet.name("cdn")));
    let rules = format!("[[rule]]\nallow = \"{good}\"\nmethods = [\"GET\"]\n");
    let probe = format!(
        r#"
say(ask("{good}", "/x"))
say(ask("{good}", "/x", shown="{evil}"))
say(ask("{good}", "/x", shown="{good}:80"))
say(ask("{good}", "/x", sni="{evil}"))
say(ask("{good}", "/x", shown="{evil}", port=80))
"#
    );

    let said = asked(&net, &rules, &probe);

    assert_eq!(said[0]["status"], 200, "{said:?}");
    for misdirected in [&said[1], &said[2], &said[4]] {
        assert_eq!(
            (&misdirected["status"], &misdirected["reason"]),
            (&421.into(), &"host".into()),
            "{said:?}"
        );
    }
    assert_eq!(said[3], "ECONNRESET");
    assert_eq!(net.internet.hits(&evil), Vec::<Value>::new());
}

#[test]
fn a_websocket_that_is_not_allowed_fails_in_its_handshake() {
    let Some(net) = net() else { return };
    let name = net.internet.name("streams");
    let rules = format!("[[rule]]\nallow = \"{name}\"\nwebsocket = false\n");
    let probe = format!(
        r#"
upgrade = {{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}}
say(ask("{name}", "/ws", headers=upgrade))
say(ask("{name}", "/hello"))
"#
    );

    let said = asked(&net, &rules, &probe);

    assert_eq!((&said[0]["status"], &said[0]["error"]), (&403.into(), &"denied".into()), "{said:?}");
    assert_eq!(said[1]["status"], 200, "{said:?}");
    assert!(net.internet.hits(&name).iter().all(|hit| hit["path"] != "/ws"));
}

#[test]
fn grpc_is_told_in_its_own_words() {
    let Some(net) = net() else { return };
    let name = net.internet.name("grpc");
    let rules = format!("[[rule]]\nallow = \"{name}\"\npaths = [\"/test.Echo/Once\", \"/test.Echo/Fail\"]\n");
    let probe = format!(
        r#"
sys.path.append("/usr/lib/python3/dist-packages")
import grpc
roots = open(os.environ["SSL_CERT_FILE"], "rb").read()
channel = grpc.secure_channel("{name}:443", grpc.ssl_channel_credentials(roots))
def call(method):
    try:
        answer, call = channel.unary_unary("/test.Echo/" + method).with_call(b"hello", timeout=20)
        say(json.dumps([answer.decode(), dict(call.trailing_metadata()).get("checked")]))
    except grpc.RpcError as err:
        say(json.dumps([err.code().name, err.details()]))
call("Once")
call("Fail")
call("Thrice")
"#
    );

    let said = asked(&net, &rules, &probe);

    assert_eq!(said[0], serde_json::json!(["hello", "yes"]));
    assert_eq!(said[1], serde_json::json!(["FAILED_PRECONDITION", "as asked"]));
    assert_eq!(said[2][0], "PERMISSION_DENIED");
    let details = said[2][1].as_str().unwrap_or_default();
    assert!(
        details.contains("POST /test.Echo/Thrice") && details.contains("hint: airlock allow"),
        "{details}"
    );
}

#[test]
fn a_server_whose_certificate_is_not_to_be_trusted_gets_no_request() {
    let Some(net) = net() else { return };
    let zone = net.internet.name("badcert");
    let names: Vec<String> =
        ["nul", "name", "self", "good"].iter().map(|kind| format!("{kind}-{zone}")).collect();
    let rules: String =
        names.iter().map(|name| format!("[[rule]]\nallow = \"{name}\"\npaths = [\"/**\"]\n")).collect();
    let probe: String = names.iter().map(|name| format!("say(ask(\"{name}\", \"/{name}\"))\n")).collect();

    let said = asked(&net, &rules, &probe);

    for bad in said.iter().take(3) {
        assert_eq!((&bad["status"], &bad["reason"]), (&502.into(), &"certificate".into()), "{said:?}");
    }
    assert_eq!(said[3]["body"], "trusted", "{said:?}");
    let seen = net.internet.hits(&zone);
    assert_eq!(seen.iter().filter(|hit| hit["what"] == "trusted").count(), 1, "{seen:?}");
}
