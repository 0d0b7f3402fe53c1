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

/// A busybox with some of this host's programs. The client in Go has no directory built in but looks where all of them have their files.
fn programs(net: &Net) -> Option<Image> {
    let mut added = BTreeSet::from(["/usr", "/usr/bin", "/usr/lib", "/usr/lib64"].map(PathBuf::from));
    let layer = Layer::new()
        .directory("usr/lib", 0o755)
        .directory("usr/lib64", 0o755)
        .link("lib", "usr/lib")
        .link("lib64", "usr/lib64")
        .file("goget", 0o755, &fs::read(net.internet.file("goget")).expect("the client was built"));
    let layer = ["/usr/bin/openssl", &python(), &extension()]
        .into_iter()
        .fold(layer, |layer, program| with_program(layer, &mut added, program));
    Some(Image::busybox()?.layer(layer.link("usr/bin/python3", &python())))
}

fn python() -> String {
    let python = fs::canonicalize("/usr/bin/python3").expect("python is here");
    python.to_str().expect("a plain path").to_owned()
}

/// The part of Python that is linked with OpenSSL.
fn extension() -> String {
    let asked = Command::new("/usr/bin/python3").args(["-c", "import _ssl; print(_ssl.__file__)"]).output();
    String::from_utf8(asked.expect("python").stdout).expect("a path").trim().to_owned()
}

/// Go, OpenSSL and Python, none of them told anything by variables; the last two are told the file.
fn clients(name: &str, file: &str) -> String {
    format!(
        "env -i /goget - https://{name}/who | grep -c sni; \
         env -i /usr/bin/openssl s_client -no-CApath -CAfile {file} -connect {name}:443 -servername {name} \
           -verify_return_error </dev/null 2>/dev/null | grep -c 'issuer=.*airlock sandbox'; \
         env -i /usr/bin/python3 -c \"import ssl, urllib.request as u; \
           print(len(u.urlopen('https://{name}/who', context=ssl.create_default_context(cafile='{file}')).read()) > 0)\"; \
         (echo x >> {file}) 2>/dev/null || echo unwritable; "
    )
}

/// What they say where all is well.
const ALL: &str = "1\n1\nTrue\nunwritable\n";

/// A root: what it is, its own layer, the file that its programs read, what is asked besides, and what that says.
type Root = (&'static str, Layer, &'static str, String, &'static str);

fn alpine() -> [Root; 2] {
    let linked = Layer::new()
        .directory("etc/ssl", 0o755)
        .directory("etc/ssl/certs", 0o755)
        .file("etc/ssl/certs/ca-certificates.crt", 0o644, &roots())
        .link("etc/ssl/cert.pem", "certs/ca-certificates.crt");
    let alone = Layer::new().directory("etc/ssl", 0o755).file("etc/ssl/cert.pem", 0o644, &roots());
    let file = "/etc/ssl/cert.pem";
    [
        (
            "Alpine, by a link",
            linked,
            file,
            "cmp $(realpath /etc/ssl/cert.pem) /etc/ssl/certs/ca-certificates.crt".into(),
            "",
        ),
        ("Alpine, one file", alone, file, "true".into(), ""),
    ]
}

fn red_hat() -> Root {
    let bundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem";
    let mut layer = Layer::new();
    for directory in ["", "/tls", "/tls/certs", "/ca-trust", "/ca-trust/extracted", "/ca-trust/extracted/pem"]
    {
        layer = layer.directory(&format!("etc/pki{directory}"), 0o755);
    }
    let mut layer = layer
        .file(bundle.trim_start_matches('/'), 0o444, &roots())
        .link("etc/pki/tls/certs/ca-bundle.crt", bundle)
        .link("etc/pki/tls/cert.pem", bundle)
        .directory("etc/ssl", 0o755)
        .link("etc/ssl/certs", "../pki/tls/certs");
    let java = fs::read("/etc/ssl/certs/java/cacerts").unwrap_or_default();
    let mut script =
        format!("cmp {bundle} /etc/ssl/certs/ca-bundle.crt; cmp {bundle} /etc/pki/tls/cert.pem; ");
    if !java.is_empty() {
        let store = "/etc/pki/ca-trust/extracted/java/cacerts";
        layer = layer.directory("etc/pki/ca-trust/extracted/java", 0o755);
        layer = layer.file(store.trim_start_matches('/'), 0o444, &java);
        script += &format!("grep -q airlock {store} || echo not in the store of Java");
    }
    ("Red Hat", layer, "/etc/pki/tls/certs/ca-bundle.crt", script, "")
}

fn opensuse(name: &str) -> Root {
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
        "env -i /usr/bin/openssl s_client -no-CAfile -CApath /etc/ssl/certs -connect {name}:443 -servername {name} \
           -verify_return_error </dev/null >/dev/null 2>&1 && echo by hash"
    );
    ("openSUSE", layer, "/etc/ssl/ca-bundle.pem", script, "by hash\n")
}

#[test]
fn programs_of_alpine_red_hat_and_opensuse_trust_what_the_wall_shows() {
    let Some(net) = net() else { return };
    let Some(programs) = programs(&net) else { return };
    let name = net.internet.name("web");
    net.trusting("");
    let rules = net.policy(&format!("[[rule]]\nallow = \"{name}\"\nports = [443]\ntls = \"opened\"\n"));
    let (library, copy) = (python().replace("/bin/", "/lib/"), net.world.aside("python"));
    let copied = Command::new("cp").args(["-r", &format!("{library}/.")]).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()), "a copy of Python's library");
    let library = format!("{}:{library}:ro", copy.display());
    let run = |image: &Image, script: &str| {
        let archive =
            image.clone().named("root:1").docker_archive(&net.world.aside("images").join("image.tar"));
        net.world.airlock(["images", "load", "-q", "-i"]).args([archive]).run().succeeded();
        let flags = ["--image", "root:1", "--workspace", "none", "--mount", &library, &rules[0], &rules[1]];
        net.world.sh(flags, script).run().succeeded()
    };

    let [linked, alone] = alpine();
    for (what, layer, file, script, further) in [linked, alone, red_hat(), opensuse(&name)] {
        let said = run(&programs.clone().layer(layer), &format!("{}{script}; true", clients(&name, file)));
        assert_eq!(said, format!("{ALL}{further}"), "{what}");
    }

    // One that trusts nobody has no store to cover; variables lead its programs.
    let fetch = format!(
        "/goget - https://{name}/who | grep -c sni; /usr/bin/python3 -c \"import urllib.request as u; u.urlopen('https://{name}/who'); print('python')\""
    );
    assert_eq!(run(&programs, &fetch), "1\npython\n");
}
