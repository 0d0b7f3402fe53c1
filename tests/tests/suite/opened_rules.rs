//! What rules say of requests inside opened connections, to the clients people use: git over HTTPS, pins, bandwidth, and programs that are not root inside.

use crate::net::{Net, net};
use airlock_tests::{Who, not_applicable, who};
use std::{process::Command, time::Instant};

#[track_caller]
fn sh(net: &Net, flags: &[String], script: &str) -> String {
    net.world.sh(flags.iter().map(String::as_str), script).run().succeeded()
}

#[test]
fn git_over_https_fetches_and_pushes_only_what_a_rule_says() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("git"), net.internet.mark());
    net.trusting("");
    let rule = |git: &str| {
        net.policy(&format!(
            "[[rule]]\nallow = \"{name}\"\nports = [443]\ngit = \"{git}\"\nrepositories = [\"git/hello\"]\n"
        ))
    };
    let script = format!(
        "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=t GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=t@web.test; \
         rm -rf hello; git clone -q https://{name}/git/hello.git && cd hello && cat README && git checkout -q -b {mark} && \
         git commit -q --allow-empty -m empty && git push -q origin {mark} 2>&1 | grep -o 'error: 403' | head -1; \
         git ls-remote https://{name}/git/other.git 2>&1 | grep -o 'error: 403' | head -1"
    );

    assert_eq!(sh(&net, &rule("fetch"), &script), "hello from git\nerror: 403\nerror: 403\n");
    assert_eq!(sh(&net, &rule("push"), &script), "hello from git\nerror: 403\n");
}

/// The pin of a certificate, as openssl makes it.
fn pin(net: &Net) -> String {
    let leaf = net.internet.file("leaf.pem");
    let script = "openssl x509 -in \"$0\" -pubkey -noout | openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | base64";
    let made = Command::new("sh").args(["-c", script]).arg(leaf).output().expect("openssl");
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}

#[test]
fn a_server_with_another_key_than_the_pinned_one_gets_no_request() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("web"), net.internet.mark());
    net.trusting("");
    let fetch = |pin: &str, number: u32| {
        let rule = format!(
            "[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\npins = [\"sha256/{pin}\"]\n"
        );
        let script =
            format!("curl -sS -m 30 -o /dev/null -w '%{{http_code}}' https://{name}/pinned/{mark}/{number}");
        sh(&net, &net.policy(&rule), &script)
    };

    assert_eq!(fetch(&pin(&net), 1), "200");
    assert_eq!(fetch("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", 2), "502");

    let hits = net.internet.hits(&format!("/pinned/{mark}/"));
    let paths: Vec<&str> = hits.iter().filter_map(|hit| hit["path"].as_str()).collect();
    assert_eq!(paths, [format!("/pinned/{mark}/1")]);
}

#[test]
fn a_rule_bounds_how_fast_bytes_come() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    net.trusting("");
    let rule =
        format!("[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\nbandwidth = \"1M/s\"\n");

    let began = Instant::now();
    let said = sh(
        &net,
        &net.policy(&rule),
        &format!("curl -sS -m 50 -o /dev/null -w '%{{size_download}}' https://{name}/bytes/4000000"),
    );

    assert_eq!(said, "4000000");
    // What may come at once is less than half of it.
    assert!(began.elapsed().as_secs_f64() > 1.5, "{:?}", began.elapsed());
}

#[test]
fn programs_that_are_not_root_inside_trust_the_wall_and_find_their_files() {
    if who() == Who::Single {
        return not_applicable("there is one user inside");
    }
    let Some(net) = net() else { return };
    let (name, path) = (net.internet.name("web"), format!("/headers/{}", net.internet.mark()));
    net.trusting(&format!("[secrets.TOKEN]\nhosts = [\"{name}\"]\nfiles = [\"netrc\"]\nuser = \"ann\"\n"));
    let value = "ghp_RealValueOfTheSecret0123456789abcdef";
    let script = format!(
        "id -u; curl -sS -m 30 -n https://{name}{path} >/dev/null && echo curl; \
         python3 -c \"import urllib.request as u; u.urlopen('https://{name}{path}', timeout=30); print('python')\"; \
         node -e \"fetch('https://{name}{path}').then(() => console.log('node'))\""
    );

    let run = net
        .world
        .sh(["--secret", "TOKEN", "--user", "1000", "--workspace", "none"], &script)
        .env("TOKEN", value);
    let said = run.run().succeeded();

    assert_eq!(said, "1000\ncurl\npython\nnode\n");
    let hits = net.internet.hits(&path);
    let sent = hits.iter().filter_map(|hit| hit["headers"]["authorization"].as_str()).collect::<Vec<_>>();
    assert!(matches!(sent[..], [one] if one.starts_with("Basic ")), "{sent:?}");
}
