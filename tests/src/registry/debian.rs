//! Debian's `docker-registry`, with TLS and with users.

use crate::{eventually, has_program, skip};
use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Who may enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// Everybody.
    Nobody,
    /// `ada` with the password `lovelace`.
    Ada,
}

/// `ada:lovelace` as `htpasswd -B` writes it.
const ADA: &str = "ada:$2y$05$8Go9PjTZJkJfJbwyddxjd.Dk7.EQhcyROJyRUrhRM6o33IZGvslXe";

/// A registry that runs, with a certificate of an authority of its own.
pub struct Debian {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl Debian {
    /// Starts one with its files in `folder`. Nothing where the program is not installed; return then.
    pub fn start(folder: &Path, login: Login) -> Option<Debian> {
        if !has_program("docker-registry") || !has_program("openssl") {
            skip("docker-registry or openssl is not installed");
            return None;
        }
        certificates(folder);
        // Somebody else may take it meanwhile; then the registry ends, and the test fails with its words.
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {0}/blobs}}\n\
             http:\n  addr: 127.0.0.1:{port}\n  tls: {{certificate: {0}/server.pem, key: {0}/server.key}}\n",
            folder.display()
        );
        if login == Login::Ada {
            fs::write(folder.join("users"), ADA).expect("a file of users");
            let users = folder.join("users");
            config += &format!("auth:\n  htpasswd: {{realm: tests, path: {}}}\n", users.display());
        }
        let path = folder.join("config.yml");
        fs::write(&path, config).expect("a configuration");
        let said = fs::File::create(folder.join("log")).expect("a log");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = command.env("OTEL_TRACES_EXPORTER", "none").spawn().expect("docker-registry runs");
        let registry = Debian { port, folder: folder.to_owned(), child };
        eventually("docker-registry listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(registry)
    }

    /// Where it listens, as names of images have it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A name in it.
    pub fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address())
    }

    /// The certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("docker-registry: {}", fs::read_to_string(self.folder.join("log")).unwrap_or_default());
        }
    }
}

/// An authority, and a certificate of 127.0.0.1 and of a name that nobody knows by it.
fn certificates(folder: &Path) {
    let openssl = |line: &str| {
        let done =
            Command::new("openssl").args(line.split(' ')).current_dir(folder).output().expect("openssl");
        assert!(done.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&done.stderr));
    };
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1,DNS:registry.nowhere.test\n")
        .expect("a file");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=tests -days 30"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=registry"));
    openssl("x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 30 -extfile names -out server.pem");
}
