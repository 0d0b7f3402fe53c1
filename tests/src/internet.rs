//! The virtual internet that `cargo xtask test` puts around the suites: its addresses, and what reached it.
//!
//! The servers are those of `tests/internet`. A name's second label from the right chooses what it leads to: `x.web.test`
//! is the web server, `x.a-10-20-0-5.ip.test` is 10.20.0.5, `x.servfail.test` has no answer. Tests run side by side, so
//! each marks what it sends with a [`Internet::mark`] of its own and asks for that.

use crate::{DEADLINE, skip};
use serde_json::Value;
use std::{
    env,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// The host's own address: a public one, and so not refused for what it is but for whose it is.
pub const HOST: &str = "185.199.7.10";
/// The same in IPv6.
pub const HOST_V6: &str = "2600:1f00:7::10";
/// The web server, on ports 80, 443, 8080 and 8443; also a name server that nobody asked for.
pub const WEB: &str = "93.184.216.34";
/// The same in IPv6.
pub const WEB_V6: &str = "2600:9000:5::34";
/// The name server of the host.
pub const NAMESERVER: &str = "93.184.216.53";
/// Servers that misbehave, one port each (`tests/internet/hostile.py`).
pub const HOSTILE: &str = "93.184.216.66";
/// The far ends of tunnels.
pub const TUNNEL: &str = "93.184.216.77";
/// The same of iodine.
pub const IODINE: &str = "93.184.216.78";
/// What every cloud has there.
pub const METADATA: &str = "169.254.169.254";
/// A company's own network.
pub const PRIVATE: &str = "10.20.0.5";

/// Where the servers say what reached them.
const CONTROL: &str = "185.199.7.1:8001";

/// The virtual internet around this test.
pub struct Internet {
    folder: PathBuf,
    mark: String,
    number: u32,
}

/// The virtual internet, or nothing where there is none: the test is skipped then, return.
pub fn internet() -> Option<Internet> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = env::var_os("AIRLOCK_TEST_INTERNET") else {
        skip("not inside the virtual internet (cargo xtask test)");
        return None;
    };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Some(Internet { folder: folder.into(), mark: format!("m{}x{number}x", process::id()), number })
}

impl Internet {
    /// A label that no other test sends.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// A name of this test's own in a zone: `m7x3x.web.test`.
    pub fn name(&self, zone: &str) -> String {
        format!("{}.{zone}.test", self.mark)
    }

    /// A name of this test's own that leads to these IPv4 addresses.
    pub fn name_of(&self, addresses: &[&str]) -> String {
        let labels: Vec<String> =
            addresses.iter().map(|address| format!("a-{}", address.replace('.', "-"))).collect();
        format!("{}.{}.ip.test", self.mark, labels.join("."))
    }

    /// A public address that is this test's own: nobody is there, but what is sent there is seen (`packets`).
    pub fn nowhere(&self) -> String {
        self.own_address(52)
    }

    /// The same in a private network.
    pub fn nowhere_private(&self) -> String {
        self.own_address(10)
    }

    fn own_address(&self, first: u8) -> String {
        let pid = process::id();
        format!("{first}.{}.{}.{}", 100 + (pid >> 8) % 100, pid & 255, 1 + self.number % 250)
    }

    /// What clients need: `ca.pem`, `ssh_client`, `known_hosts`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The certificate that every server's is signed with.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The folder of those files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Questions that reached a name server and have this text in them.
    pub fn queries(&self, with: &str) -> Vec<Value> {
        ask(&format!("/dns?with={with}"))
    }

    /// Connections and requests that reached a server and have this text in them.
    pub fn hits(&self, with: &str) -> Vec<Value> {
        ask(&format!("/hits?with={with}"))
    }

    /// Datagrams and attempts to connect that arrived for this address.
    pub fn packets_to(&self, address: &str) -> Vec<Value> {
        ask(&format!("/packets?with={address}"))
            .into_iter()
            .filter(|packet| packet["to"] == address)
            .collect()
    }
}

fn ask(path: &str) -> Vec<Value> {
    let mut stream = TcpStream::connect(CONTROL).expect("the virtual internet answers");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline can be set");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("the virtual internet listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the virtual internet answers");
    let body = text.split_once("\r\n\r\n").expect("an answer has a body").1;
    serde_json::from_str(body).unwrap_or_else(|err| panic!("not JSON: {err}: {text}"))
}
