//! Peers that end TLS and look inside: haproxy with one fixed certificate, squid and mitmproxy with certificates made for
//! each name. Each serves the connections of one user id, which the kernel redirects to it.

use super::super::{
    contender::{output, try_out},
    way::{Place, RSA_NAME, RSA_SERVER},
};
use crate::system::{Scratch, program};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// The peers: as they stand in tables, the user whose connections they get, their port.
pub(crate) const PEERS: [(&str, u32, u16); 3] =
    [(HAPROXY, 9001, 8441), (SQUID, 9002, 8442), (MITMPROXY, 9003, 8443)];
/// Haproxy, as it stands in tables.
pub(crate) const HAPROXY: &str = "haproxy, fixed certificate";
/// Squid, as it stands in tables.
pub(crate) const SQUID: &str = "squid, ssl-bump";
/// Mitmproxy, as it stands in tables.
pub(crate) const MITMPROXY: &str = "mitmproxy";

/// How a peer is started, listening at a port.
type Start = fn(&Place, &Path, u16) -> Result<Command>;

/// Peers that run until dropped.
pub(crate) struct Peers {
    running: Vec<(&'static str, Result<Child>)>,
}

impl Peers {
    /// Starts those that are there.
    pub(crate) fn start(place: &Place, scratch: &Scratch) -> Result<Peers> {
        let folder = scratch.folder("opened")?;
        redirect(place, &folder)?;
        let starts: [Start; 3] = [haproxy, squid, mitmproxy];
        let mut running = Vec::new();
        for ((name, user, port), start) in PEERS.into_iter().zip(starts) {
            let begun = start(place, &folder, port).and_then(|command| begin(place, &command, user));
            running.push((name, begun));
        }
        Ok(Peers { running })
    }

    /// Whether a peer runs, or why it does not.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        match self.running.iter().find(|(peer, _)| *peer == name) {
            Some((_, Err(why))) => bail!("{why:#}"),
            Some((_, Ok(_))) => Ok(()),
            None => bail!("there is no {name}"),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let Ok(child) = child else { continue };
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

/// A command on the near side, run by the user whose connections a peer gets.
pub(crate) fn as_user(words: &[String], user: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        format!("--reuid={user}"),
        format!("--regid={user}"),
        "--clear-groups".into(),
        "--".into(),
    ]);
    command.args(words);
    command
}

/// Connections of the peers' users go to the peers.
fn redirect(place: &Place, folder: &Path) -> Result<()> {
    let mut rules = String::from("table ip opened {\n chain out {\n  type nat hook output priority -100;\n");
    for (_, user, port) in PEERS {
        rules.push_str(&format!("  meta skuid {user} tcp dport 443 redirect to :{port}\n"));
    }
    rules.push_str(" }\n}\n");
    let file = folder.join("redirect.nft");
    fs::write(&file, rules)?;
    let nft = program("nft").context("there is no nft (apt-get install nftables)")?;
    try_out(&mut place.near(Command::new(nft).arg("-f").arg(&file)))
}

/// Starts a peer and waits until it answers its user.
fn begin(place: &Place, command: &Command, user: u32) -> Result<Child> {
    let mut near = place.near_for_long(command);
    let mut child = near.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let script = format!(
        "for i in $(seq 100); do curl -sk -m 5 -o /dev/null https://{}/ && exit 0; sleep 0.1; done; exit 1",
        place.name()
    );
    let words = ["sh".to_owned(), "-c".to_owned(), script];
    if let Err(why) = output(&mut place.near(&as_user(&words, user))) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(why.context("it does not answer"));
    }
    Ok(child)
}

fn haproxy(place: &Place, folder: &Path, port: u16) -> Result<Command> {
    let haproxy = program("haproxy").context("there is no haproxy (apt-get install haproxy)")?;
    let settings = format!(
        "global\n maxconn 4096\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         frontend near\n bind 127.0.0.1:{port} ssl crt {pair} crt {rsa_pair}\n\
         use_backend rsa if {{ ssl_fc_sni {RSA_NAME} }}\n default_backend far\n\
         backend far\n server way {server}:443 ssl verify required ca-file {authority} sni str({name})\n\
         backend rsa\n server way {RSA_SERVER}:443 ssl verify required ca-file {authority} sni str({RSA_NAME})\n",
        rsa_pair = place.rsa_pair().display(),
        pair = place.pair().display(),
        authority = place.authority().display(),
        server = place.address(),
        name = place.name(),
    );
    let file = write(folder, "haproxy.cfg", &settings)?;
    let mut command = Command::new(haproxy);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

fn squid(place: &Place, folder: &Path, port: u16) -> Result<Command> {
    let maker = Path::new("/usr/lib/squid/security_file_certgen");
    let squid = program("squid").filter(|_| maker.exists());
    let squid = squid.context("there is no squid that opens TLS (apt-get install squid-openssl)")?;
    let made = folder.join("certificates");
    try_out(Command::new(maker).args(["-c", "-s"]).arg(&made).args(["-M", "4MB"]))?;
    let settings = format!(
        "http_port 127.0.0.1:{plain}\n\
         https_port 127.0.0.1:{port} intercept ssl-bump tls-cert={both} generate-host-certificates=on \
         dynamic_cert_mem_cache_size=4MB\n\
         sslcrtd_program {maker} -s {made} -M 4MB\nhttp_access allow all\nssl_bump stare all\nssl_bump bump all\n\
         tls_outgoing_options cafile={authority}\ncache deny all\naccess_log none\ncache_log /dev/null\n\
         pid_filename none\nhosts_file {hosts}\ncache_effective_user proxy\nshutdown_lifetime 0 seconds\n\
         pinger_enable off\n",
        plain = port + 100,
        both = place.authority_with_key().display(),
        maker = maker.display(),
        made = made.display(),
        authority = place.authority().display(),
        hosts = place.hosts().display(),
    );
    try_out(Command::new("chown").arg("-R").arg("proxy").arg(&made).arg(place.authority_with_key()))?;
    let file = write(folder, "squid.conf", &settings)?;
    let mut command = Command::new(squid);
    command.args(["-N", "-n", &format!("way{}", std::process::id()), "-f"]).arg(file);
    Ok(command)
}

/// Mitmproxy is no package of Debian's: it is taken from the Python index into the scratch directory.
fn mitmproxy(place: &Place, folder: &Path, port: u16) -> Result<Command> {
    let here = folder.join("mitmproxy");
    try_out(Command::new("python3").args(["-m", "venv"]).arg(&here))?;
    try_out(Command::new(here.join("bin/pip")).args(["install", "--quiet", "mitmproxy"]))?;
    let mut command = Command::new(here.join("bin/mitmdump"));
    command.args([
        "-q",
        "--mode",
        "transparent",
        "--set",
        "block_global=false",
        "--listen-host",
        "127.0.0.1",
    ]);
    command.args(["--listen-port", &port.to_string()]);
    command.arg("--set").arg(format!("confdir={}", folder.display()));
    command.arg("--set").arg(format!("ssl_verify_upstream_trusted_ca={}", place.authority().display()));
    Ok(command)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
    Ok(file)
}
