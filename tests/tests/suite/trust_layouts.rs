//! Connections that the wall opens, in roots that keep their certificates where Alpine, Red Hat and openSUSE do.

use crate::net::{Net, net};
use airlock_tests::images::{Image, Layer};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What stands for the certificates that such a root brings along.
fn roots() -> Vec<u8> {
    fs::read("/etc/ssl/certs/ca-certificates.crt").expect("this host trusts somebody")
}

/// Adds a program of this host and the libraries it is linked with, each where it is here.
fn with_program(layer: Layer, added: &mut BTreeSet<PathBuf>, program: &str) -> Layer {
    let linked = Command::new("ldd").arg(program).output().expect("ldd").stdout;
    let linked = String::from_utf8(linked).expect("paths");
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    [program].into_iter().chain(libraries).map(Path::new).fold(layer, |mut layer, path| {
        // The loader asks for the links that most systems have at the top.
        let real = path.parent().expect("a directory").canonicalize().expect("it is there");
        let real = real.join(path.file_name().expect("a name"));
        for above in real.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev().skip(1) {
            if added.insert(above.to_owned()) {
                layer = layer.directory(within(above), 0o755);
            }
        }
        match added.insert(real.clone()) {
            true => layer.file(within(&real), 0o755, &fs::read(&real).expect("a program of this host")),
            false => layer,
        }
    })
}

fn within(path: &Path) -> &str {
    path.to_str().expect("a plain path").trim_start_matches('/')
}

/// Runs a script in a busybox that has one more layer and some of this host's programs, as one who opens connections to `name`.
/// The client in Go has no directory built in but looks where all of them have their files.
fn run(net: &Net, layer: Layer, name: &str, script: &str) -> Option<String> {
    let mut added = BTreeSet::from(["/usr", "/usr/bin"].map(PathBuf::from));
    let layer = layer
        .directory("usr/lib", 0o755)
        .directory("usr/lib64", 0o755)
        .link("lib", "usr/lib")
        .link("lib64", "usr/lib64")
        .file("goget", 0o755, &fs::read(net.internet.file("goget")).expect("the client was built"));
    added.extend(["/usr/lib", "/usr/lib64"].map(PathBuf::from));
    let python = fs::canonicalize("/usr/bin/python3").expect("python is here");
    let python = python.to_str().expect("a plain path");
    let layer = ["/usr/bin/curl", "/usr/bin/openssl", python, &extension()]
        .into_iter()
        .fold(layer, |layer, program| with_program(layer, &mut added, program));
    let image = Image::busybox()?.layer(layer.link("usr/bin/python3", python));
    let archive = image.named("layout:1").docker_archive(&net.world.aside("images").join("image.tar"));
    net.world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
    net.trusting("");
    let rules = net.policy(&format!("[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\n"));
    let (library, copy) = (python.replace("/bin/", "/lib/"), net.world.aside("python"));
    let copied = Command::new("cp").args(["-r", &format!("{library}/.")]).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()), "a copy of Python's library");
    let library = format!("{}:{library}:ro", copy.display());
    let flags = ["--image", "layout:1", "--workspace", "none", "--mount", &library, &rules[0], &rules[1]];
    Some(net.world.sh(flags, script).run().succeeded())
}

/// The part of Python that is linked with OpenSSL.
fn extension() -> String {
    let asked = Command::new("/usr/bin/python3").args(["-c", "import _ssl; print(_ssl.__file__)"]).output();
    String::from_utf8(asked.expect("python").stdout).expect("a path").trim().to_owned()
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
    let in_java = match java.is_empty() {
        true => "true",
        false => "grep -q airlock /etc/pki/ca-trust/extracted/java/cacerts || echo not in the store of Java",
    };

    let script = format!(
        "{}cmp {bundle} /etc/ssl/certs/ca-bundle.crt; cmp {bundle} /etc/pki/tls/cert.pem; {in_java}",
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

    let script = format!(
        "/usr/bin/curl -sS -m 30 https://{name}/who | grep -c sni; /goget - https://{name}/who | grep -c sni"
    );
    let Some(said) = run(&net, Layer::new(), &name, &script) else { return };

    assert_eq!(said, "1\n1\n");
}
