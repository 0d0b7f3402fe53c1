//! Connections that the wall opens, in roots that keep their certificates where Alpine, Red Hat and openSUSE do.

use crate::net::{Net, net};
use airlock_tests::images::{Image, Layer};
use std::fs;

/// What stands for the certificates that such a root brings along.
fn roots() -> Vec<u8> {
    fs::read("/etc/ssl/certs/ca-certificates.crt").expect("this host trusts somebody")
}

/// Runs a script in a busybox that has one more layer, with this host's programs in `/usr`, as one who opens connections to `name`.
/// The client in Go has no directory built in but looks where all of them have their files.
fn run(net: &Net, layer: Layer, name: &str, script: &str) -> Option<String> {
    let layer = layer
        .directory("usr", 0o755)
        .link("lib", "usr/lib")
        .link("lib64", "usr/lib64")
        .file("goget", 0o755, &fs::read(net.internet.file("goget")).expect("the client was built"));
    let image = Image::busybox()?.layer(layer);
    let archive = image.named("layout:1").docker_archive(&net.world.aside("images").join("image.tar"));
    net.world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
    net.trusting("");
    let rules = net.policy(&format!("[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\n"));
    let flags =
        ["--image", "layout:1", "--workspace", "none", "--mount", "/usr:/usr:ro", &rules[0], &rules[1]];
    Some(net.world.sh(flags, script).run().succeeded())
}

/// Go, curl, OpenSSL and Python, none of them told anything by variables; the last three are told the file.
fn clients(name: &str, file: &str) -> String {
    format!(
        "env -i /goget - https://{name}/who | grep -c sni; \
         env -i /usr/bin/curl -sS -m 30 --capath /none --cacert {file} https://{name}/who | grep -c sni; \
         env -i /usr/bin/openssl s_client -no-CApath -CAfile {file} -connect {name}:443 -servername {name} \
           -verify_return_error </dev/null 2>/dev/null | grep -c 'issuer=.*airlock sandbox'; \
         env -i /usr/bin/python3 -c \"import ssl, urllib.request as u; \
           print(len(u.urlopen('https://{name}/who', context=ssl.create_default_context(cafile='{file}')).read()) > 0)\"; \
         /usr/bin/curl -sS -m 30 https://{name}/who | grep -c sni; \
         (echo x >> {file}) 2>/dev/null || echo unwritable; "
    )
}

const ALL: &str = "1\n1\n1\nTrue\n1\nunwritable\n";

#[test]
fn alpine_whose_file_is_reached_by_a_link() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let layer = Layer::new()
        .directory("etc/ssl", 0o755)
        .directory("etc/ssl/certs", 0o755)
        .file("etc/ssl/certs/ca-certificates.crt", 0o644, &roots())
        .link("etc/ssl/cert.pem", "certs/ca-certificates.crt");

    let Some(said) = run(&net, layer, &name, &clients(&name, "/etc/ssl/cert.pem")) else { return };

    assert_eq!(said, ALL);
}

#[test]
fn alpine_whose_file_stands_alone() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let layer = Layer::new().directory("etc/ssl", 0o755).file("etc/ssl/cert.pem", 0o644, &roots());

    let Some(said) = run(&net, layer, &name, &clients(&name, "/etc/ssl/cert.pem")) else { return };

    assert_eq!(said, ALL);
}

#[test]
fn red_hat_whose_files_are_extracted_elsewhere() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let bundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem";
    let mut layer = Layer::new();
    for directory in ["pki", "pki/tls", "pki/tls/certs", "pki/ca-trust", "pki/ca-trust/extracted"] {
        layer = layer.directory(&format!("etc/{directory}"), 0o755);
    }
    let java = fs::read("/etc/ssl/certs/java/cacerts").unwrap_or_default();
    let mut layer = layer
        .directory("etc/pki/ca-trust/extracted/pem", 0o755)
        .file(bundle.trim_start_matches('/'), 0o444, &roots())
        .link("etc/pki/tls/certs/ca-bundle.crt", bundle)
        .link("etc/pki/tls/cert.pem", bundle)
        .directory("etc/ssl", 0o755)
        .link("etc/ssl/certs", "../pki/tls/certs");
    if !java.is_empty() {
        layer = layer.directory("etc/pki/ca-trust/extracted/java", 0o755);
        layer = layer.file("etc/pki/ca-trust/extracted/java/cacerts", 0o444, &java);
    }
    let keytool = "test ! -e /etc/pki/ca-trust/extracted/java/cacerts || ! command -v /usr/bin/keytool >/dev/null || \
                   /usr/bin/keytool -list -storepass changeit -keystore /etc/pki/ca-trust/extracted/java/cacerts 2>/dev/null \
                     | grep -q '^airlock' || echo not in the store of Java";

    let script = format!(
        "{}cmp {bundle} /etc/ssl/certs/ca-bundle.crt; cmp {bundle} /etc/pki/tls/cert.pem; {keytool}",
        clients(&name, "/etc/pki/tls/certs/ca-bundle.crt")
    );
    let Some(said) = run(&net, layer, &name, &script) else { return };

    assert_eq!(said, ALL);
}

#[test]
fn opensuse_whose_directory_is_found_by_hashes() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");
    let layer = Layer::new()
        .directory("etc/ssl", 0o755)
        .directory("var", 0o755)
        .directory("var/lib", 0o755)
        .directory("var/lib/ca-certificates", 0o755)
        .directory("var/lib/ca-certificates/openssl", 0o755)
        .file("var/lib/ca-certificates/openssl/0a1b2c3d.0", 0o444, b"nobody\n")
        .file("var/lib/ca-certificates/ca-bundle.pem", 0o444, &roots())
        .link("etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem")
        .link("etc/ssl/certs", "/var/lib/ca-certificates/openssl");

    let script = format!(
        "{}env -i /usr/bin/openssl s_client -no-CAfile -CApath /etc/ssl/certs -connect {name}:443 -servername {name} \
           -verify_return_error </dev/null >/dev/null 2>&1 && echo by hash",
        clients(&name, "/etc/ssl/ca-bundle.pem")
    );
    let Some(said) = run(&net, layer, &name, &script) else { return };

    assert_eq!(said, format!("{ALL}by hash\n"));
}

#[test]
fn a_root_that_trusts_nobody_is_led_by_variables() {
    let Some(net) = net() else { return };
    let name = net.internet.name("web");

    let script = format!("/usr/bin/curl -sS -m 30 https://{name}/who | grep -c sni; /goget - https://{name}/who | grep -c sni");
    let Some(said) = run(&net, Layer::new(), &name, &script) else { return };

    assert_eq!(said, "1\n1\n");
}
