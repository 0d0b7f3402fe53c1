//! The clients people use, inside sandboxes, against servers of the virtual internet: what is allowed works unchanged.

use crate::net::{Net, net};
use airlock_tests::has_program;
use std::{fs, os::unix::fs::PermissionsExt as _};

/// `airlock run --allow HOST… -- sh -c SCRIPT`, which must succeed.
#[track_caller]
fn sh(net: &Net, hosts: &[&str], script: &str) -> String {
    let flags: Vec<&str> = hosts.iter().flat_map(|host| ["--allow", host]).collect();
    net.world.sh(flags, script).run().succeeded()
}

#[test]
fn curl_fetches_an_allowed_name_over_http_and_tls() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let script = format!(
        "curl -sS -m 30 http://{name}/who; echo; curl -sS -m 30 --cacert ca.pem https://{name}/who; echo; \
         curl -sS -m 30 -o /dev/null -w '%{{http_code}} %{{size_download}}' http://{name}/bytes/300000"
    );
    let said = sh(&net, &[&name], &script);

    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains(&format!("\"host\": \"{name}\"")), "{said}");
    assert!(lines[1].contains(&format!("\"sni\": \"{name}\"")), "{said}");
    assert_eq!(lines[2], "200 300000");
}

#[test]
fn curl_keeps_a_connection_and_uploads() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let script = format!(
        "head -c 5000000 /dev/zero > data; \
         curl -sS -m 30 --cacert ca.pem -T data https://{name}/sink -w ' %{{num_connects}}\\n' \
         --next -sS -m 30 --cacert ca.pem https://{name}/sink -d xyz -w ' %{{num_connects}}\\n'"
    );

    assert_eq!(sh(&net, &[&name], &script), "5000000 1\n3 0\n");
}

#[test]
fn git_clones_and_pushes_over_https() {
    let Some(net) = net() else { return };
    let (name, mark) = (net.internet.name("git"), net.internet.mark().to_owned());

    let script = format!(
        "export GIT_SSL_CAINFO=$PWD/ca.pem GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=t \
         GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=t@web.test\n\
         git clone -q https://{name}/git/hello.git && cd hello && cat README && git checkout -q -b {mark} && \
         head -c 3000000 /dev/urandom > data && git add data && git commit -q -m data && \
         git push -q origin {mark} && git ls-remote -q origin refs/heads/{mark} | wc -l"
    );

    assert_eq!(sh(&net, &[&name], &script), "hello from git\n1\n");
}

#[test]
fn python_fetches_with_urllib_and_requests() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let probe = format!(
        r#"
import urllib.request
sys.path.append("/usr/lib/python3/dist-packages")
import requests
url = "https://{name}/who"
say(json.load(urllib.request.urlopen(url, context=ssl.create_default_context(cafile="ca.pem"), timeout=30))["sni"])
say(requests.get(url, verify="ca.pem", timeout=30).json()["sni"])
session = requests.Session()
say([session.post("http://{name}/sink", data=b"x" * n, timeout=30).text for n in (1, 100000)])
"#
    );

    assert_eq!(net.inside(&["--allow", &name], &probe), format!("{name}\n{name}\n['1', '100000']\n"));
}

#[test]
fn node_fetches() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let program = format!(
        "Promise.all([1, 2, 3].map(() => fetch('https://{name}/who').then(r => r.json())))\
         .then(all => console.log(all.map(one => one.sni).join(' ')))"
    );

    let node = ["run", "--allow", &name, "--env", "NODE_EXTRA_CA_CERTS=ca.pem", "--", "node", "-e", &program];
    let said = net.world.airlock(node).run().succeeded();

    assert_eq!(said, format!("{name} {name} {name}\n"));
}

#[test]
fn go_resolves_and_fetches_without_libc() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let client = net.world.work().join("goget");
    fs::copy(net.internet.file("goget"), &client).expect("the client was built");
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).expect("a mode");

    let said = sh(&net, &[&name], &format!("./goget ca.pem https://{name}/who http://{name}/bytes/1000"));

    assert!(said.contains(&format!("\"sni\": \"{name}\"")) && said.contains("200 1000 bytes"), "{said}");
}

#[test]
fn psql_speaks_to_a_database_by_name_with_and_without_tls() {
    let Some(net) = net() else { return };
    let name = net.internet.name("pg");

    let query = "select 6 * 7, count(*) from generate_series(1, 100000)";
    let script = format!(
        "for mode in disable 'verify-full sslrootcert=ca.pem'; do \
         psql \"host={name} user=postgres dbname=postgres connect_timeout=20 sslmode=$mode\" -Atc '{query}'; done"
    );

    assert_eq!(sh(&net, &[&format!("{name}:5432")], &script), "42|100000\n42|100000\n");
}

#[test]
fn ssh_logs_in_and_carries_data_both_ways() {
    let Some(net) = net() else { return };
    let name = net.internet.name("ssh");
    for file in ["ssh_client", "known_hosts"] {
        let copy = net.world.write(file, fs::read(net.internet.file(file)).expect("a file"));
        fs::set_permissions(copy, fs::Permissions::from_mode(0o600)).expect("a mode");
    }

    let script = format!(
        "echo typed inside | ssh -T -i ssh_client -o UserKnownHostsFile=known_hosts -o HostKeyAlias=ssh.test \
         -o BatchMode=yes -o ConnectTimeout=20 airlock-test@{name}"
    );

    assert_eq!(sh(&net, &[&format!("{name}:22")], &script), "typed inside\nhello from ssh\n");
}

#[test]
fn openssl_sees_the_servers_own_certificate() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let script = format!(
        "openssl s_client -connect {name}:443 -servername {name} -CAfile ca.pem -verify_return_error \
         -verify_hostname {name} < /dev/null 2>/dev/null | grep -E 'Verify return code|issuer'"
    );
    let said = sh(&net, &[&name], &script);

    assert!(said.contains("Verify return code: 0 (ok)") && said.contains("CN = virtual internet"), "{said}");
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let Some(net) = net() else { return };
    assert!(has_program("busybox"));
    let name = net.internet.name("hostile");

    let said = sh(&net, &[&format!("{name}:7006")], &format!("echo hello | busybox nc {name} 7006"));

    assert_eq!(said, "welcome\nhello\nbye\n");
}

#[test]
fn the_server_sees_the_host_and_not_the_sandbox() {
    let Some(net) = net() else { return };
    let name = net.internet.name("v4");

    sh(&net, &[&name], &format!("curl -sS -m 30 http://{name}/who"));

    let hits = net.internet.hits(&name);
    assert_eq!(
        hits.last().map(|hit| hit["peer"].clone()),
        Some(airlock_tests::internet::HOST.into()),
        "{hits:?}"
    );
}
