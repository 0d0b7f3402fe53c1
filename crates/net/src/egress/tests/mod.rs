mod addresses;
mod permits;
mod proxies;
mod resolving;
mod server;

use super::*;
use server::{NameServer, Says};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

fn ranges(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// An egress that asks `servers` and reads no file of this host; `exempt` plays the internet.
fn egress(servers: &[SocketAddr], exempt: &[&str]) -> Egress {
    let mut egress = Egress::new(&spec::Egress::default()).unwrap();
    egress.lookup = Lookup::new(Source {
        servers: servers.to_vec(),
        resolv_conf: "/nonexistent".into(),
        hosts: "/nonexistent".into(),
    });
    egress.exempt = ranges(exempt);
    egress
}

async fn reach(egress: &Egress, host: &str, port: u16) -> Result<Dialled, DialError> {
    egress.reach(&Wish { target: &target(host), port, opened: &[] }).await
}

/// The error and its causes in one line.
fn told(error: &DialError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
