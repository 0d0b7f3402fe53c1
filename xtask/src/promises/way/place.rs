//! Where the way out is measured: a network namespace for whoever is compared, a second one behind it for the server,
//! and nothing that leads out of the two.

use super::super::contender::{output, try_out};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// The server's address: of the public internet, as the gate refuses private ones.
pub(crate) const SERVER: &str = "93.184.216.34";
/// The server's name.
pub(crate) const NAME: &str = "way.example.com";
/// Another name and address of the web server, which has a key of RSA there and resumes no session.
pub(crate) const RSA_NAME: &str = "rsa.example.com";
/// Its address.
pub(crate) const RSA_SERVER: &str = "93.184.216.35";
/// The server's port.
pub(crate) const PORT: u16 = 8080;
/// The web server's port.
pub(crate) const WEB_PORT: u16 = 443;

/// Bytes of the large file.
const BIG: u64 = 256 << 20;

/// Two namespaces and a server.
pub(crate) struct Place {
    near: String,
    far: String,
    hosts: PathBuf,
    /// The web server's certificate, its authority's, and what it serves.
    web_folder: PathBuf,
    /// This program, where every user and sandbox can run it.
    pub(crate) tool: PathBuf,
    server: Option<Child>,
    web: Option<Child>,
}

impl Place {
    /// Makes the namespaces and starts the server.
    pub(crate) fn new(scratch: &Scratch) -> Result<Place> {
        let own = std::process::id();
        let hosts = scratch.path().join("hosts");
        fs::write(&hosts, format!("127.0.0.1 localhost\n{SERVER} {NAME}\n{RSA_SERVER} {RSA_NAME}\n"))?;
        let tool = scratch.program(&std::env::current_exe()?, "way")?;
        let (near, far) = (format!("airlock-near-{own}"), format!("airlock-far-{own}"));
        let web_folder = scratch.folder("web")?;
        let mut place = Place { near, far, hosts, web_folder, tool, server: None, web: None };
        place.wire()?;
        place.server = Some(place.serve()?);
        place.web = Some(place.serve_web()?);
        Ok(place)
    }

    fn wire(&self) -> Result<()> {
        let (near, far) = (self.near.as_str(), self.far.as_str());
        let steps: [&[&str]; 16] = [
            &["netns", "add", near],
            &["netns", "add", far],
            &["-n", near, "link", "add", "out0", "type", "veth", "peer", "name", "in0", "netns", far],
            &["-n", near, "link", "set", "lo", "up"],
            &["-n", far, "link", "set", "lo", "up"],
            &["-n", near, "addr", "add", "93.184.217.2/24", "dev", "out0"],
            &["-n", far, "addr", "add", "93.184.217.1/24", "dev", "in0"],
            &["-n", far, "addr", "add", SERVER, "dev", "in0"],
            &["-n", far, "addr", "add", RSA_SERVER, "dev", "in0"],
            &["-n", near, "link", "set", "out0", "up"],
            &["-n", far, "link", "set", "in0", "up"],
            &["-n", near, "route", "add", "default", "via", "93.184.217.1"],
            &["netns", "exec", near, "sysctl", "-q", "net.ipv4.tcp_congestion_control=reno"],
            &["netns", "exec", far, "sysctl", "-q", "net.ipv4.tcp_congestion_control=reno"],
            &["netns", "exec", near, "sysctl", "-q", "net.ipv4.ip_local_port_range=10000 60000"],
            // A closed connection keeps its port for a minute. Contenders close tens of thousands in that time: without
            // this each connect soon looks through every port for a free one, which takes four milliseconds.
            &["netns", "exec", near, "sysctl", "-q", "net.ipv4.tcp_tw_reuse=1"],
        ];
        let ip = program("ip").context("there is no ip (apt-get install iproute2)")?;
        steps.iter().try_for_each(|step| try_out(Command::new(&ip).args(*step)))
    }

    fn serve(&self) -> Result<Child> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.far]).arg(&self.tool).args(["way-server", &self.server()]);
        let mut server = command.stdout(Stdio::piped()).spawn().context("could not start the server")?;
        let stdout = server.stdout.take().context("the server has no output")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        Ok(server)
    }

    /// A web server with TLS, as most connections are.
    fn serve_web(&self) -> Result<Child> {
        let folder = &self.web_folder;
        let path = |name: &str| folder.join(name).display().to_string();
        let (key, certificate) = (path("key.pem"), path("cert.pem"));
        self.certify()?;
        // A large file that takes no room.
        fs::File::create(folder.join("big"))?.set_len(BIG)?;
        let settings = format!(
            "daemon off; worker_processes 1; pid {pid}; error_log stderr crit; events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; server {{ listen {SERVER}:{WEB_PORT} ssl; \
             ssl_certificate {certificate}; ssl_certificate_key {key}; location / {{ return 200 ok; }} \
             location /big {{ root {root}; }} }} server {{ listen {RSA_SERVER}:{WEB_PORT} ssl; ssl_certificate {rsa}; \
             ssl_certificate_key {rsa}; ssl_session_tickets off; ssl_session_cache off; \
             location / {{ return 200 ok; }} }} }}\n",
            rsa = path("rsa.pem"),
            pid = path("nginx.pid"),
            root = folder.display()
        );
        fs::write(folder.join("nginx.conf"), settings)?;
        let mut nginx = Command::new("ip");
        nginx
            .args(["netns", "exec", &self.far, "nginx", "-p"])
            .arg(folder)
            .arg("-c")
            .arg(folder.join("nginx.conf"));
        let nginx = nginx.stderr(Stdio::null()).spawn().context("could not start nginx")?;
        let address = format!("{SERVER}:{WEB_PORT}");
        let mut wait = Command::new("ip");
        // It listens a moment after it was started.
        let script = "for i in $(seq 100); do openssl s_client -connect \"$1\" </dev/null >/dev/null 2>&1 && exit 0; done; exit 1";
        try_out(wait.args(["netns", "exec", &self.far, "sh", "-c", script, "sh", &address]))?;
        Ok(nginx)
    }

    /// An authority and the web server's certificate from it, as files.
    fn certify(&self) -> Result<()> {
        let script = "cd \"$1\" && new() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \"$@\"; } && \
            new -x509 -days 2 -subj /CN=way-authority -keyout authority.key -out authority.pem && \
            new -subj \"/CN=$2\" -keyout key.pem -out request.pem && \
            printf 'subjectAltName=DNS:%s\\nbasicConstraints=CA:FALSE\\n' \"$2\" > extensions && \
            openssl x509 -req -in request.pem -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
            -extfile extensions -out cert.pem && \
            openssl req -newkey rsa:2048 -nodes -subj \"/CN=$3\" -keyout rsa.key -out rsa.request && \
            printf 'subjectAltName=DNS:%s\\nbasicConstraints=CA:FALSE\\n' \"$3\" > rsa.extensions && \
            openssl x509 -req -in rsa.request -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
            -extfile rsa.extensions -out rsa.cert && cat rsa.cert rsa.key > rsa.pem && \
            cat cert.pem key.pem > pair.pem && cat authority.pem authority.key > both.pem && chmod 644 ./*.pem";
        try_out(Command::new("sh").args(["-c", script, "sh"]).arg(&self.web_folder).args([NAME, RSA_NAME]))
    }

    /// The certificate of the authority that the web server's is from.
    pub(crate) fn authority(&self) -> PathBuf {
        self.web_folder.join("authority.pem")
    }

    /// The same with its key: for peers that make certificates.
    pub(crate) fn authority_with_key(&self) -> PathBuf {
        self.web_folder.join("both.pem")
    }

    /// The web server's certificate with its key: for a peer that has one certificate.
    pub(crate) fn pair(&self) -> PathBuf {
        self.web_folder.join("pair.pem")
    }

    /// The same for the name with a key of RSA.
    pub(crate) fn rsa_pair(&self) -> PathBuf {
        self.web_folder.join("rsa.pem")
    }

    /// What is known of names on the near side.
    pub(crate) fn hosts(&self) -> &Path {
        &self.hosts
    }

    /// The server's name.
    pub(crate) fn name(&self) -> &'static str {
        NAME
    }

    /// The server's address.
    pub(crate) fn address(&self) -> &'static str {
        SERVER
    }

    /// Address and port of the server.
    pub(crate) fn server(&self) -> String {
        format!("{SERVER}:{PORT}")
    }

    /// A command on the near side, where the server's name is known. It has two minutes: a peer that hangs is skipped.
    pub(crate) fn near(&self, inner: &Command) -> Command {
        self.beside(inner, "exec timeout --kill-after=5 120")
    }

    /// The same without an end.
    pub(crate) fn near_for_long(&self, inner: &Command) -> Command {
        self.beside(inner, "exec")
    }

    fn beside(&self, inner: &Command, exec: &str) -> Command {
        let script = format!("mount --bind \"$1\" /etc/hosts && shift && {exec} \"$@\"");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.near, "sh", "-c", &script, "sh"]).arg(&self.hosts);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if let Some(directory) = inner.get_current_dir() {
            command.current_dir(directory);
        }
        command
    }

    /// What the client said, run on the near side by `inner`.
    pub(crate) fn ask(&self, inner: &Command) -> Result<String> {
        output(&mut self.near(inner))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for server in [&mut self.server, &mut self.web].into_iter().flatten() {
            // Nginx ends its workers when it is asked to end.
            let _ = Command::new("kill").arg(server.id().to_string()).status();
            let _ = server.wait();
        }
        for name in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// A copy of the client next to whatever is shown inside.
pub(crate) fn copy_into(tool: &Path, folder: &Path) -> Result<PathBuf> {
    let there = folder.join("way");
    fs::copy(tool, &there).with_context(|| format!("could not copy the client to {}", there.display()))?;
    Ok(there)
}
