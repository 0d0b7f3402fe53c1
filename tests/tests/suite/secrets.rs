//! Secrets: the program sees placeholders, the server sees values, and nobody else sees anything.

use crate::net::{Net, net};
use airlock_tests::{Airlock, World, has_program, rust, skip};
use serde_json::Value;
use std::process::Command;

const VALUE: &str = "ghp_RealValueOfTheSecret0123456789abcdef";
const OTHER: &str = "ghp_AnotherValueOfTheSecret456789abcdefg";

/// `airlock run --secret … FLAGS -- sh -c SCRIPT`, with the value in the variable `TOKEN`.
fn run(net: &Net, flags: &[&str], script: &str) -> Airlock {
    net.world.sh(flags.iter().copied(), script).env("TOKEN", VALUE)
}

/// What the server saw of the header `authorization` at this path.
fn seen(net: &Net, path: &str) -> Vec<String> {
    let hits = net.internet.hits(path);
    let headers = hits.iter().filter(|hit| hit["what"] == "headers" && hit["path"] == path);
    headers.map(|hit| hit["headers"]["authorization"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Files of the state directory in which a text stands.
fn on_disk(world: &World, text: &str) -> String {
    let found = Command::new("grep").args(["-rlF", text]).arg(world.home()).output().expect("grep");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

#[test]
fn the_server_sees_the_value_and_the_program_a_placeholder_both_ways() {
    let Some(net) = net() else { return };
    let (name, path) = (net.internet.name("web"), format!("/headers/{}", net.internet.mark()));
    net.trusting("");
    let secret = format!("TOKEN@{name}");

    let script =
        format!("echo $TOKEN; curl -sS -m 30 -H \"Authorization: Bearer $TOKEN\" https://{name}{path}");
    let said = run(&net, &["--secret", &secret], &script).run().succeeded();

    assert_eq!(seen(&net, &path), [format!("Bearer {VALUE}")]);
    let (placeholder, answer) = said.split_once('\n').expect("two lines");
    assert!(placeholder.starts_with("ghp_") && placeholder.len() == VALUE.len() && placeholder != VALUE);
    let answer: Value = serde_json::from_str(answer).expect("the server's JSON");
    assert_eq!(answer["authorization"], format!("Bearer {placeholder}"));
    assert!(!said.contains(VALUE));
}

#[test]
fn a_value_is_in_no_file_no_argument_and_no_environment() {
    let Some(net) = net() else { return };
    net.trusting("");
    let flags = ["run", "-d", "--secret", "TOKEN@api.web.test", "--", "sleep", "1000"];
    let sandbox = net.world.airlock(flags).env("TOKEN", VALUE).run().succeeded().trim().to_owned();

    assert_eq!(on_disk(&net.world, VALUE), "");
    let keeper = net.world.state(&sandbox)["keeper_pid"].as_u64().expect("a keeper");
    for file in ["environ", "cmdline"] {
        // One that is not dumpable shows its environment to nobody but root.
        let bytes = std::fs::read(format!("/proc/{keeper}/{file}")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(VALUE), "{file}");
    }
    let inside =
        net.world.exec(&sandbox, "cat /proc/*/environ /proc/*/cmdline 2>/dev/null; env").run().succeeded();
    assert!(!inside.contains(VALUE) && inside.contains("TOKEN=ghp_"));
    for verb in [
        vec!["get", &sandbox],
        vec!["get", "--json", &sandbox],
        vec!["secret", "ls", &sandbox],
        vec!["logs", &sandbox],
    ] {
        assert!(!net.world.airlock(verb).run().succeeded().contains(VALUE));
    }
}

#[test]
fn a_placeholder_on_its_way_elsewhere_is_denied_and_recorded() {
    let Some(net) = net() else { return };
    let (name, other) = (net.internet.name("web"), format!("other.{}", net.internet.name("web")));
    let path = format!("/headers/{}", net.internet.mark());
    net.trusting("");
    let rules = net.policy(&format!("[[rule]]\nallow = \"{other}\"\nports = [443]\ntls = \"opened\"\n"));
    let secret = format!("TOKEN@{name}");
    let flags = ["run", "-d", &rules[0], &rules[1], "--secret", &secret, "--", "sleep", "1000"];
    let sandbox = net.world.airlock(flags).env("TOKEN", VALUE).run().succeeded().trim().to_owned();

    let script = format!(
        "curl -sS -m 30 -o /dev/null -w '%{{http_code}}' -H \"Authorization: Bearer $TOKEN\" https://{other}{path}"
    );
    let said = net.world.exec(&sandbox, &script).run();

    assert_eq!(said.stdout, "403", "{said}");
    assert_eq!(seen(&net, &path), [""; 0]);
    let ledger = net.ledger(&sandbox);
    assert!(ledger.iter().any(|record| record["reason"] == "secret"), "{ledger:?}");
    assert!(!format!("{ledger:?}").contains(VALUE));
}

#[test]
fn a_value_is_changed_while_the_sandbox_runs_and_read_anew_at_the_next_start() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark().to_owned());
    net.trusting("");
    let secret = format!("TOKEN@{name}");
    let flags = ["run", "-d", "--secret", &secret, "--", "sleep", "1000"];
    let sandbox = net.world.airlock(flags).env("TOKEN", VALUE).run().succeeded().trim().to_owned();
    let fetch = |number: u32| {
        let path = format!("/headers/{mark}/{number}");
        let script = format!("curl -sS -m 30 -H \"Authorization: Bearer $TOKEN\" https://{name}{path}");
        net.world.exec(&sandbox, &script).run().succeeded();
        seen(&net, &path)
    };

    assert_eq!(fetch(1), [format!("Bearer {VALUE}")]);
    net.world.airlock(["secret", "set", &sandbox]).env("TOKEN", OTHER).run().succeeded();
    assert_eq!(fetch(2), [format!("Bearer {OTHER}")]);
    net.world
        .airlock(["secret", "set", &sandbox, "TOKEN", "-"])
        .input(format!("{VALUE}\n"))
        .run()
        .succeeded();
    assert_eq!(fetch(3), [format!("Bearer {VALUE}")]);

    net.world.airlock(["stop", "-t", "0", &sandbox]).run().succeeded();
    let unset = net.world.airlock(["start", &sandbox]).run();
    assert!(unset.code == 2 && unset.stderr.contains("TOKEN is not set"), "{unset}");
    net.world.airlock(["start", &sandbox]).env("TOKEN", OTHER).run().succeeded();
    assert_eq!(fetch(4), [format!("Bearer {OTHER}")]);
    assert_eq!(on_disk(&net.world, OTHER), "");
}

#[test]
fn values_come_from_files_and_commands_that_the_persons_own_settings_name() {
    let Some(net) = net() else { return };
    let (name, path) = (net.internet.name("web"), format!("/headers/{}", net.internet.mark()));
    let file = net.world.aside("kept").join("token");
    std::fs::write(&file, format!("{VALUE}\n")).expect("a file");
    net.trusting(&format!(
        "[secrets.A]\nfrom = \"file:{0}\"\nhosts = [\"{name}\"]\n[secrets.B]\nfrom = \"command:tr a-z A-Z < {0}\"\nhosts = [\"{name}\"]\n",
        file.display()
    ));

    let script = format!("curl -sS -m 30 -H \"Authorization: $A $B\" https://{name}{path} >/dev/null");
    net.world.sh(["--secret", "A", "--secret", "B"], &script).run().succeeded();

    assert_eq!(seen(&net, &path), [format!("{VALUE} {}", VALUE.to_uppercase())]);
}

#[test]
fn a_value_comes_from_the_keychain_of_the_desktop() {
    for program in ["secret-tool", "gnome-keyring-daemon", "dbus-run-session"] {
        if !has_program(program) {
            return skip("there is no keychain on this host");
        }
    }
    let Some(net) = net() else { return };
    let (name, path) = (net.internet.name("web"), format!("/headers/{}", net.internet.mark()));
    net.trusting(&format!("[secrets.TOKEN]\nfrom = \"keychain:airlock.test/me\"\nhosts = [\"{name}\"]\n"));
    let own = net.world.aside("desktop");
    let fetch =
        format!("curl -sS -m 30 -H \"Authorization: $TOKEN\" https://{name}{path} >/dev/null; echo $TOKEN");
    // The daemon outlives the session's bus unless it is ended.
    let session = format!(
        "printf pass | gnome-keyring-daemon --unlock --components=secrets >/dev/null && \
         printf {VALUE} | secret-tool store --label token service airlock.test username me && \
         {airlock} run -q --secret TOKEN -- sh -c '{fetch}'; code=$?; \
         kill $(dbus-send --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.GetConnectionUnixProcessID \
           string:org.freedesktop.secrets | sed -n 's/.*uint32 //p'); exit $code",
        airlock = airlock_tests::binary().display(),
    );
    let ran = Command::new("dbus-run-session")
        .args(["--", "sh", "-c", &session])
        .env("AIRLOCK_HOME", net.world.home())
        .env("XDG_RUNTIME_DIR", &own)
        .env("XDG_DATA_HOME", &own)
        .env("HOME", &own)
        .current_dir(net.world.work())
        .output()
        .expect("dbus-run-session");

    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.starts_with("ghp_") && !said.contains(VALUE), "{said}");
    assert_eq!(seen(&net, &path), [VALUE]);
}

#[test]
fn the_name_of_a_known_secret_is_enough() {
    let Some(net) = net() else { return };
    let known = [
        ("ANTHROPIC_API_KEY", "sk-ant-api03-", "POST", "https://api.anthropic.com/v1/messages"),
        ("OPENAI_API_KEY", "sk-proj-", "POST", "https://api.openai.com/v1/responses"),
        ("GEMINI_API_KEY", "AIza", "POST", "https://generativelanguage.googleapis.com/v1beta/models"),
        ("GITHUB_TOKEN", "ghp_", "GET", "https://api.github.com/user"),
        ("GITLAB_TOKEN", "glpat-", "GET", "https://gitlab.com/api/v4/user"),
    ];
    let value = |prefix: &str| format!("{prefix}RealRealRealRealRealRealRealRealReal");
    let secrets = known.iter().flat_map(|(name, ..)| ["--secret", name]);
    let words = ["run", "-d"].into_iter().chain(secrets).chain(["--", "sleep", "1000"]);
    let run =
        known.iter().fold(net.world.airlock(words), |run, (name, prefix, ..)| run.env(name, value(prefix)));
    let sandbox = run.run().succeeded().trim().to_owned();

    let inside = net.world.exec(&sandbox, "env; cat ~/.netrc ~/.config/gh/hosts.yml").run().succeeded();

    assert!(!inside.contains("RealReal"), "{inside}");
    for (name, prefix, method, url) in known {
        let line = inside.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let placeholder = line.expect("a variable");
        assert!(placeholder.starts_with(prefix) && placeholder.len() == value(prefix).len(), "{placeholder}");
        let said = net.world.airlock(["policy", "explain", &sandbox, method, url]).run().succeeded();
        assert!(said.contains("allow") && said.contains(name), "{said}");
    }
    let elsewhere = ["policy", "explain", &sandbox, "GET", "https://elsewhere.example/"];
    net.world.airlock(elsewhere).run().failed(4);
}

#[test]
fn credential_files_hold_placeholders_and_work() {
    let Some(net) = net() else { return };
    let (name, path) = (net.internet.name("web"), format!("/headers/{}", net.internet.mark()));
    net.trusting(&format!("[secrets.TOKEN]\nhosts = [\"{name}\"]\nfiles = [\"netrc\"]\nuser = \"ann\"\n"));

    let script =
        format!("stat -c '%a %U' ~/.netrc; cat ~/.netrc; curl -sS -m 30 -n https://{name}{path} >/dev/null");
    let said = run(&net, &["--secret", "TOKEN"], &script).run().succeeded();

    assert!(said.starts_with("600 root\nmachine ") && !said.contains(VALUE), "{said}");
    let sent: Vec<String> = seen(&net, &path).iter().map(|sent| login(sent)).collect();
    assert_eq!(sent, [format!("ann:{VALUE}")]);
}

/// Who logs in, and with what, in a header.
fn login(header: &str) -> String {
    let words = ["-c".to_owned(), format!("echo {} | base64 -d", header.trim_start_matches("Basic "))];
    let decoded = Command::new("sh").args(words).output().expect("base64");
    String::from_utf8_lossy(&decoded.stdout).into_owned()
}

#[test]
fn pip_reads_a_placeholder_in_its_settings_and_the_index_gets_the_value() {
    let Some(net) = net() else { return };
    if !has_program("pip3") {
        return skip("there is no pip3");
    }
    let (name, place) = (net.internet.name("web"), format!("/closed/{}", net.internet.mark()));
    let table =
        format!("hosts = [\"{name}\"]\npaths = [\"{place}/simple/**\"]\nfiles = [\"pip\"]\nuser = \"ann\"\n");
    net.trusting(&format!("[secrets.TOKEN]\n{table}"));

    let script = "cat ~/.config/pip/pip.conf; cd /tmp; pip3 download --no-deps --no-input -q nothing 2>&1";
    let said = run(&net, &["--secret", "TOKEN"], script).run();

    let settings = "[global]\nindex-url = https://ann:ghp_";
    assert!(said.stdout.starts_with(settings) && !said.stdout.contains(VALUE), "{said}");
    let sent: Vec<String> =
        seen(&net, &format!("{place}/simple/nothing/")).iter().map(|sent| login(sent)).collect();
    assert_eq!(sent, [format!("ann:{VALUE}")], "{said}");
}

#[test]
fn cargo_reads_a_placeholder_in_its_credentials_and_the_registry_gets_the_value() {
    let (Some(net), Some(rust)) = (net(), rust()) else { return };
    let (name, place) = (net.internet.name("web"), format!("/closed/{}", net.internet.mark()));
    let table =
        format!("hosts = [\"{name}\"]\npaths = [\"{place}/**\"]\nfiles = [\"cargo\"]\nuser = \"acme\"\n");
    net.trusting(&format!("[secrets.TOKEN]\n{table}"));

    let script =
        "cat ~/.cargo/credentials.toml ~/.cargo/config.toml; cargo search --registry acme nothing 2>&1";
    let flags: Vec<&str> = ["--secret", "TOKEN"].into_iter().chain(rust.iter().map(String::as_str)).collect();
    let said = run(&net, &flags, script).run();

    let index = format!("[registries.acme]\nindex = \"sparse+https://{name}{place}/\"\n");
    assert!(
        said.stdout.starts_with("[registries.acme]\ntoken = \"ghp_") && said.stdout.contains(&index),
        "{said}"
    );
    assert!(!said.stdout.contains(VALUE), "{said}");
    assert_eq!(seen(&net, &format!("{place}/config.json")), [VALUE], "{said}");
}

#[test]
fn what_cannot_be_kept_is_refused_with_a_fix() {
    let world = World::new();
    let deny = world.aside("rules").join("deny.toml");
    std::fs::write(&deny, "[[rule]]\ndeny = \"api.example.com\"\n").expect("a file");
    let deny = deny.to_str().expect("a plain path");
    let opaque = world.aside("rules").join("opaque.toml");
    std::fs::write(&opaque, "[[rule]]\nallow = \"api.example.com\"\ntls = \"opaque\"\n").expect("a file");
    let opaque = opaque.to_str().expect("a plain path");
    let (bound, shown) = ("TOKEN@api.example.com", format!("x={VALUE}"));
    let cases: [(&[&str], &str); 8] = [
        (&["--secret", "TOKEN"], "bound to no host"),
        (&["--secret", "NOT_SET@api.example.com"], "NOT_SET is not set"),
        (&["--secret", "SHORT@api.example.com"], "at least 8"),
        (&["--secret", bound, "--policy", deny], "which a rule denies"),
        (&["--secret", bound, "--policy", opaque], "unopened"),
        (&["--secret", bound, "--network", "none"], "mean two things"),
        (&["--secret", bound, "--env", "TOKEN"], "TOKEN holds the value"),
        (&["--secret", bound, "--env", &shown], "x holds the value"),
    ];
    for (flags, words) in cases {
        let command = world.airlock(["run"]).args(flags).args(["--", "true"]);
        let refused = command.env("TOKEN", VALUE).env("SHORT", "abc").run();
        assert_eq!(refused.code, 2, "{flags:?}: {refused}");
        assert!(refused.stderr.contains(words) && refused.stderr.contains("fix:"), "{flags:?}: {refused}");
        assert!(!refused.stderr.contains(VALUE), "{refused}");
    }
    let typed = world.airlock(["run", "--secret", bound, "--", "echo", VALUE]).env("TOKEN", VALUE).run();
    assert!(typed.code == 2 && typed.stderr.contains("the command holds the value"), "{typed}");
}

#[test]
fn a_projects_file_runs_nothing_and_only_narrows() {
    let world = World::new();
    world.airlock(["ls"]).run().succeeded();
    std::fs::write(world.home().join("config.toml"), "[secrets.TOKEN]\nhosts = [\"api.example.com\"]\n")
        .expect("a file");
    for (text, words) in [
        (
            "[secrets.TOKEN]\nfrom = \"command:touch /tmp/planted\"\nhosts = [\"api.example.com\"]\n",
            "runs no program",
        ),
        ("[secrets.TOKEN]\nfrom = \"file:/etc/shadow\"\nhosts = [\"api.example.com\"]\n", "reads no file"),
        ("[secrets.TOKEN]\nhosts = [\"evil.test\"]\n", "more hosts than your own"),
        ("secret = \"TOKEN@evil.test\"\n", "more hosts than your own"),
        ("[secrets.TOKEN]\n", "which no rule lets through"),
    ] {
        world.write("airlock.toml", text);
        let refused =
            world.airlock(["run", "--config", "airlock.toml", "--", "true"]).env("TOKEN", VALUE).run();
        assert_eq!(refused.code, 2, "{text}: {refused}");
        assert!(refused.stderr.contains(words), "{text}: {refused}");
    }
}

#[test]
fn a_request_with_a_token_that_was_taken_back_is_sent_again_with_a_new_one() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    net.trusting(&format!(
        "[secrets.TOKEN]\nhosts = [\"{name}\"]\noauth = {{ token_url = \"https://{name}/oauth/token/{mark}\", client_id = \"me\" }}\n"
    ));
    let ask = |what: &str| {
        format!(
            "curl -sS -m 30 -H \"Authorization: Bearer $TOKEN\" -d a=b https://{name}/oauth/{what}/{mark}; echo; "
        )
    };

    let script = format!("echo $TOKEN; {}{}{}", ask("api"), ask("revoke"), ask("api"));
    let said = run(&net, &["--secret", "TOKEN"], &script).run().succeeded();

    let lines: Vec<&str> = said.lines().collect();
    let echo = format!("{{\"sent\": \"Bearer {}\"}}", lines[0]);
    assert_eq!(lines[1..], [echo.as_str(), "{}", echo.as_str()], "{said}");
    let hits = net.internet.hits(&format!("/oauth/api/{mark}"));
    let answers: Vec<_> = hits
        .iter()
        .filter(|hit| hit["what"] == "oauth")
        .map(|hit| hit["status"].as_u64().unwrap_or(0))
        .collect();
    assert_eq!(answers, [200, 401, 200]);
    assert_eq!(on_disk(&net.world, &format!("access-{mark}")), "");
}

#[test]
fn early_hints_come_before_the_answer_and_hold_placeholders() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    net.trusting("");

    let script = format!(
        "echo $TOKEN; curl -sS -m 30 -i --http1.1 -H \"Authorization: Bearer $TOKEN\" https://{name}/hints | tr -d '\\r'"
    );
    let said = run(&net, &["--secret", &format!("TOKEN@{name}")], &script).run().succeeded();

    let (placeholder, rest) = said.split_once('\n').expect("two lines");
    let hinted = format!(
        "HTTP/1.1 103 Early Hints\nlink: </a.css>; rel=preload\nx-told: Bearer {placeholder}\n\nHTTP/1.1 200"
    );
    assert!(rest.starts_with(&hinted), "{said}");
    assert!(!said.contains(VALUE));
}
