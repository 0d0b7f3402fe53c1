//! Connections that the wall opens: the programs people use trust it without a flag, and nobody else does.

use crate::net::{Net, net};
use airlock_tests::{Who, World, has_program, not_applicable, skip, who};
use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

/// A world whose keeper trusts the servers, and the flags that have the connections to `name` opened.
fn opened(net: &Net, name: &str) -> [String; 2] {
    net.trusting("");
    net.policy(&format!("[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\n"))
}

#[track_caller]
fn sh(net: &Net, flags: &[String; 2], script: &str) -> String {
    net.world.sh(flags.iter().map(String::as_str), script).run().succeeded()
}

#[test]
fn curl_wget_and_openssl_trust_what_the_wall_shows_also_without_variables() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = opened(&net, &name);

    let script = format!(
        "curl -sS -m 30 https://{name}/who; echo; env -i PATH=$PATH curl -sS -m 30 https://{name}/who; echo; \
         openssl s_client -connect {name}:443 -servername {name} -verify_return_error -verify_hostname {name} \
           </dev/null 2>/dev/null | grep -c 'issuer=.*airlock sandbox'; \
         env -i PATH=$PATH openssl s_client -no-CAfile -CApath /etc/ssl/certs -connect {name}:443 -servername {name} \
           -verify_return_error </dev/null >/dev/null 2>&1 && echo by hash"
    );
    let said = sh(&net, &flags, &script);

    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[..2].iter().all(|line| line.contains(&format!("\"sni\": \"{name}\""))), "{said}");
    assert_eq!(lines[2..], ["1", "by hash"], "{said}");
}

#[test]
fn python_trusts_what_the_wall_shows() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = opened(&net, &name);

    let probe = format!(
        r#"
import urllib.request
sys.path.append("/usr/lib/python3/dist-packages")
import requests
url = "https://{name}/who"
say(json.load(urllib.request.urlopen(url, timeout=30))["sni"])
say(requests.get(url, timeout=30).json()["sni"])
"#
    );

    assert_eq!(net.inside(&[&flags[0], &flags[1]], &probe), format!("{name}\n{name}\n"));
}

#[test]
fn node_go_and_git_trust_what_the_wall_shows() {
    let Some(net) = net() else { return };
    let (name, git) = (net.internet.name("web"), net.internet.name("git"));
    net.trusting("");
    let rules = format!("[[rule]]\nallow = [\"{name}\", \"{git}\"]\nports = [443]\ntls = \"opened\"\n");
    let flags = net.policy(&rules);
    let client = net.world.work().join("goget");
    fs::copy(net.internet.file("goget"), &client).expect("the client was built");
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).expect("a mode");

    let script = format!(
        "node -e \"fetch('https://{name}/who').then(r => r.json()).then(r => console.log(r.sni))\"; \
         ./goget - https://{name}/who | grep -c sni; env -u SSL_CERT_FILE ./goget - https://{name}/who | grep -c sni; \
         git clone -q https://{git}/git/hello.git && cat hello/README"
    );

    assert_eq!(sh(&net, &flags, &script), format!("{name}\n1\n1\nhello from git\n"));
}

#[test]
fn deno_and_undici_trust_what_the_wall_shows() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = opened(&net, &name);
    let copied = Command::new("cp")
        .arg("-r")
        .args([net.internet.file("deno"), net.internet.file("undici")])
        .arg(net.world.work())
        .status();
    assert!(copied.is_ok_and(|status| status.success()), "the clients were downloaded");

    let script = format!(
        "./deno eval \"console.log((await (await fetch('https://{name}/who')).json()).sni)\"; \
         node -e \"require('./undici').request('https://{name}/who').then(r => r.body.json()).then(r => console.log(r.sni))\""
    );

    assert_eq!(sh(&net, &flags, &script), format!("{name}\n{name}\n"));
}

#[test]
fn java_trusts_what_the_wall_shows() {
    if !has_program("java") || !has_program("keytool") {
        return skip("there is no Java on this host");
    }
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = opened(&net, &name);
    net.world.write(
        "Get.java",
        "public class Get { public static void main(String[] a) throws Exception {\n\
         var request = java.net.http.HttpRequest.newBuilder(java.net.URI.create(a[0])).build();\n\
         var body = java.net.http.HttpResponse.BodyHandlers.ofString();\n\
         System.out.println(java.net.http.HttpClient.newHttpClient().send(request, body).body()); } }\n",
    );

    let script = format!(
        "keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c '^airlock'; \
         env -u JAVA_HOME java Get.java https://{name}/who"
    );
    let said = sh(&net, &flags, &script);

    assert!(said.starts_with("1\n") && said.contains(&format!("\"sni\": \"{name}\"")), "{said}");
}

#[test]
fn each_start_has_another_authority_and_none_is_left_on_disk() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let flags = opened(&net, &name);
    let sandbox = net.waiting(&[&flags[0], &flags[1]]);
    let shown = |net: &Net| net.world.exec(&sandbox, "cat /run/airlock/tls/ca.pem").run().succeeded();

    let first = shown(&net);
    net.world.airlock(["stop", "-t", "0", &sandbox]).run().succeeded();
    net.world.airlock(["start", &sandbox]).run().succeeded();
    let second = shown(&net);
    net.world.airlock(["stop", "-t", "0", &sandbox]).run().succeeded();

    assert!(first.contains("BEGIN CERTIFICATE") && first != second);
    for pem in [first, second] {
        let line = pem.lines().nth(3).expect("a line of it");
        let found = Command::new("grep").args(["-rlF", line]).arg(net.world.home()).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "left on disk");
    }
}

#[test]
fn the_stores_cannot_be_written_moved_or_uncovered_from_inside() {
    let Some(net) = net() else { return };
    let flags = opened(&net, &net.internet.name("web"));

    let script = "for at in /etc/ssl/certs /etc/ssl/certs/ca-certificates.crt /run/airlock/tls /run/airlock/tls/ca.pem; do \
                  umount $at 2>/dev/null && echo umounted; mv $at /tmp/moved 2>/dev/null && echo moved; \
                  rm -rf $at 2>/dev/null && echo removed; (echo x >> $at) 2>/dev/null && echo written; \
                  mount -o remount,rw $at 2>/dev/null && echo remounted; done; echo end";

    assert_eq!(sh(&net, &flags, script), "end\n");
}

#[test]
fn what_was_set_by_name_stays_and_a_sandbox_that_opens_nothing_has_none_of_it() {
    let Some(net) = net() else { return };
    let flags = opened(&net, &net.internet.name("web"));
    let named = [
        "run",
        &flags[0],
        &flags[1],
        "--env",
        "PIP_CERT=/mine",
        "--",
        "sh",
        "-c",
        "echo $PIP_CERT $SSL_CERT_FILE",
    ];
    assert_eq!(net.world.airlock(named).run().succeeded(), "/mine /run/airlock/tls/bundle.pem\n");

    let script = "echo \"$SSL_CERT_FILE$NODE_EXTRA_CA_CERTS\"; ls /run/airlock/tls 2>/dev/null; grep -c /etc/ssl /proc/self/mountinfo";
    assert_eq!(net.world.sh(["--allow", "example.com"], script).run().stdout, "\n0\n");
}

#[test]
fn a_store_that_the_host_shows_over_ours_stops_the_start() {
    let Some(net) = net() else { return };
    let flags = opened(&net, &net.internet.name("web"));
    let elsewhere = net.world.aside("run");
    let mount = format!("{}:/run/airlock", elsewhere.display());

    let refused = net.world.airlock(["run", &flags[0], &flags[1], "--mount", &mount, "--", "true"]).run();

    assert_eq!(refused.code, 125, "{refused}");
    assert!(refused.stderr.contains("certificate"), "{refused}");
    assert_eq!(fs::read_dir(&elsewhere).expect("a directory").count(), 0, "written to the host");
}

/// As in a container, where `/etc/hosts` and `/etc/resolv.conf` are mounts: an ordinary user's `/etc` is no overlay there.
#[test]
fn where_something_is_mounted_below_etc_the_sandbox_still_has_files_of_its_own() {
    if who() != Who::Root {
        return not_applicable("only root can mount something below /etc");
    }
    let world = World::new();
    let home = world.aside("ordinary");
    std::os::unix::fs::chown(&home, Some(61_234), Some(61_234)).expect("root may");
    for open in [home.parent(), home.ancestors().nth(2)].into_iter().flatten() {
        let mode = fs::metadata(open).expect("there").permissions().mode() | 0o055;
        fs::set_permissions(open, fs::Permissions::from_mode(mode)).expect("root may");
    }
    let program = home.join("airlock");
    fs::copy(airlock_tests::binary(), &program).expect("a copy");
    let script = format!(
        "mount --bind /etc/hosts /etc/hosts && mount --bind /etc/passwd /etc/passwd && cd {0} && exec setpriv --reuid=61234 --regid=61234 \
         --clear-groups env -i PATH=$PATH HOME={0} AIRLOCK_HOME={0}/.airlock {0}/airlock run -q --workspace none --hostname mine -- \
         sh -c 'cat /etc/hosts /etc/hostname /etc/resolv.conf; grep -c : /etc/passwd'",
        home.display()
    );
    let ran = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().expect("unshare");

    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.starts_with("127.0.0.1\tlocalhost\n127.0.1.1\tmine\n"), "{said}");
    assert!(said.contains("\nmine\nnameserver 198.18."), "{said}");
}
