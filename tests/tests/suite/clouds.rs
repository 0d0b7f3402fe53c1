//! The libraries of Amazon, Google and Azure, from their own packages. Those of the last two find somebody inside who has logged in, fetch
//! tokens as they always do, and never have one.

use crate::net::{Net, net, whole};
use airlock_tests::World;

/// Flags that show the clients at `/clients` inside, and a secret.
fn flags(net: &Net, secret: &str) -> [String; 4] {
    let mount = format!("{}:/clients:ro", net.internet.file("clouds").display());
    ["--mount".to_owned(), mount, "--secret".to_owned(), secret.to_owned()]
}

/// What a probe says inside, with a secret of this value.
#[track_caller]
fn inside(net: &Net, (secret, value): (&str, &str), probe: &str) -> String {
    let flags = flags(net, secret);
    let probe = whole(&format!("sys.path.insert(0, '/clients/python')\n{probe}"));
    net.world.python(flags.iter().map(String::as_str), &probe).env(secret, value).run().succeeded()
}

/// Forms that reached the servers of tokens.
fn asked(net: &Net) -> Vec<String> {
    let hits = net.internet.hits(net.internet.mark());
    let asked = hits.iter().filter(|hit| hit["what"] == "cloud" && hit["method"] == "POST");
    asked.map(|hit| hit["body"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A login of Google's that goes to `name`.
fn google(net: &Net, name: &str) -> String {
    net.trusting(&format!(
        "[secrets.LOGIN]\nhosts = [\"{name}\"]\nfiles = [\"google\"]\nuser = \"acme\"\n\
         oauth = {{ token_url = \"https://oauth2.googleapis.com/token\", client_id = \"me\" }}\n"
    ));
    format!("1//refresh-{}", net.internet.mark())
}

#[test]
fn googles_library_for_python_works_and_has_no_token() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    let value = google(&net, &name);

    let probe = format!(
        r#"
import google.auth, google.auth.transport.requests
credentials, project = google.auth.default()
session = google.auth.transport.requests.AuthorizedSession(credentials)
answer = session.get("https://{name}/cloud/{mark}", timeout=30)
say(answer.status_code, answer.json()["sent"] == "Bearer " + os.environ["LOGIN"], project)
say("access-" in credentials.token, "refresh-" in credentials.refresh_token, "{mark}" in open(os.path.expanduser("~/.config/gcloud/application_default_credentials.json")).read())
"#
    );
    let said = inside(&net, ("LOGIN", &value), &probe);

    assert_eq!(said, "200 True acme\nFalse False False\n");
    let encoded = value.replace('/', "%2F");
    assert_eq!(asked(&net), [format!("grant_type=refresh_token&refresh_token={encoded}&client_id=me")]);
}

#[test]
fn googles_library_for_node_works_and_has_no_token() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    let value = google(&net, &name);
    let flags = flags(&net, "LOGIN");

    let program = format!(
        "const {{GoogleAuth}} = require('/clients/node_modules/google-auth-library');\n\
         new GoogleAuth().getClient().then(async client => {{\n\
         const answer = await client.request({{url: 'https://{name}/cloud/{mark}'}});\n\
         console.log(answer.status, client.credentials.access_token === process.env.LOGIN); }})"
    );
    let node = net
        .world
        .airlock(["run"])
        .args(flags.iter().map(String::as_str))
        .args(["--", "node", "-e", &program]);
    let said = node.env("LOGIN", &value).run().succeeded();

    assert_eq!(said, "200 true\n");
    assert_eq!(asked(&net).len(), 1);
}

#[test]
fn azures_library_and_its_command_line_work_and_have_no_token() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    let scope = "https://management.core.windows.net//.default";
    net.trusting(&format!(
        "[secrets.PRINCIPAL]\nhosts = [\"{name}\"]\nfiles = [\"azure\"]\noauth = {{ token_url = \"https://login.microsoftonline.com/{mark}/oauth2/v2.0/token\", \
         client_id = \"me\", grant = \"client_credentials\", scope = \"{scope}\" }}\n"
    ));

    let probe = format!(
        r#"
import requests
from azure.identity import EnvironmentCredential
from azure.cli.core import get_default_cli
from azure.cli.core._profile import Profile
token = EnvironmentCredential().get_token("{scope}").token
(kind, typed, _), _, tenant = Profile(cli_ctx=get_default_cli()).get_raw_token()
for one in (token, typed):
    answer = requests.get("https://{name}/cloud/{mark}", headers={{"Authorization": "Bearer " + one}}, timeout=30)
    say(answer.status_code, one == os.environ["PRINCIPAL"], "secret-" in one, "access-" in one)
say(kind, tenant == "{mark}")
"#
    );
    let said = inside(&net, ("PRINCIPAL", &format!("secret-{mark}")), &probe);

    assert_eq!(said, "200 True False False\n200 True False False\nBearer True\n");
    let form = format!(
        "grant_type=client_credentials&client_id=me&client_secret=secret-{mark}&scope={}",
        scope.replace(':', "%3A").replace('/', "%2F")
    );
    assert_eq!(asked(&net), [form]);
}

#[test]
fn what_else_is_sent_to_where_tokens_are_fetched_is_denied_and_does_not_leave() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    let value = google(&net, &name);
    let flags = ["run", "-d", "--secret", "LOGIN", "--", "sleep", "1000"];
    let sandbox = net.world.airlock(flags).env("LOGIN", value).run().succeeded().trim().to_owned();

    let script = format!(
        "curl -sS -m 30 -w ' %{{http_code}}' -d grant_type=authorization_code -d code={mark} https://oauth2.googleapis.com/token; \
         curl -sS -m 30 -o /dev/null -w ' %{{http_code}}' -d refresh_token=$LOGIN https://oauth2.googleapis.com/other?{mark}"
    );
    let said = net.world.exec(&sandbox, &script).run().succeeded();

    assert!(said.contains("tokens are fetched outside") && said.ends_with(" 403 403"), "{said}");
    assert_eq!(asked(&net), [""; 0]);
    assert!(net.ledger(&sandbox).iter().any(|record| record["reason"] == "secret"));
}

#[test]
fn files_for_clients_that_would_get_a_token_are_refused() {
    let world = World::new();
    world.airlock(["ls"]).run().succeeded();
    for kind in ["google", "azure"] {
        let text = format!("[secrets.LOGIN]\nhosts = [\"api.example.com\"]\nfiles = [\"{kind}\"]\n");
        std::fs::write(world.home().join("config.toml"), text).expect("a file");

        let refused =
            world.airlock(["run", "--secret", "LOGIN", "--", "true"]).env("LOGIN", "0123456789").run();

        assert_eq!(refused.code, 2, "{refused}");
        assert!(
            refused.stderr.contains("only the keeper may have") && refused.stderr.contains("token_url"),
            "{refused}"
        );
    }
}

#[test]
fn amazons_library_of_today_uploads_in_chunks_that_are_signed_anew() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("aws"), net.internet.mark());
    let table = |secret: &str, more: &str| {
        format!(
            "[secrets.{secret}]\nhosts = [\"{name}\"]\nin = [\"header\", \"query\"]\nfiles = [\"aws\"]\n{more}\n"
        )
    };
    let keys = table("KEY_ID", "") + &table("KEY", "aws_access_key = \"KEY_ID\"");
    net.trusting(&keys);
    let flags = flags(&net, "KEY_ID");
    let probe = format!(
        r#"
sys.path.insert(0, "/clients/python")
import boto3, botocore.config, io, hashlib
config = botocore.config.Config(s3={{"addressing_style": "path"}}, retries={{"max_attempts": 1}})
s3 = boto3.client("s3", endpoint_url="https://{name}", region_name="eu-central-1", config=config)
heads = []
s3.meta.events.register("before-send.s3.PutObject", lambda request, **_: heads.append(dict(request.headers)))
body = os.urandom(3000000)
s3.put_object(Bucket="bucket", Key="{mark}", Body=io.BytesIO(body))
say(heads[0]["X-Amz-Content-SHA256"].decode() if isinstance(heads[0]["X-Amz-Content-SHA256"], bytes) else heads[0]["X-Amz-Content-SHA256"])
say(s3.get_object(Bucket="bucket", Key="{mark}")["Body"].read() == body)
"#
    );
    let run = net.world.python(flags.iter().map(String::as_str).chain(["--secret", "KEY"]), &whole(&probe));
    let run =
        run.env("KEY_ID", "AKIAREALREALREALREAL").env("KEY", "real/secret/key/real/secret/key/real0001");

    assert_eq!(run.run().succeeded(), "STREAMING-UNSIGNED-PAYLOAD-TRAILER\nTrue\n");
}
