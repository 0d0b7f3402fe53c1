//! A person's own settings: `$AIRLOCK_HOME/config.toml`. Besides what is here it may hold all that a project's file may:
//! flags of `run` and rules, for every sandbox.
//!
//! ```toml
//! memory = "8G"
//! deny = ["telemetry.example.com"]
//!
//! [network]
//! proxy = "http://proxy.example:3128"
//! wildcard_names = 512
//!
//! [approvals]
//! timeout = "2m"
//! webhook = "https://hooks.example/airlock"
//! webhook_key = "webhook.key"
//!
//! [ledger]
//! durable = true
//!
//! [secrets.GITHUB_TOKEN]
//! from = "command:gh auth token"
//!
//! [images]
//! registry = "registry.example"
//!
//! [[images.verify]]
//! repository = "registry.example/team/*"
//! key = "team.pub"
//! ```

use super::{
    Project,
    images::{self, Images},
    project::{self, Settings},
    reader::{Source, Value},
};
use crate::{
    args::values,
    failure::Failure,
    secrets::table::{self, Table, Whose},
};
use airlock_protocol::spec::{Approvals, Egress, Ledger};
use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

/// What is in `config.toml`, or what counts without it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Own {
    pub(crate) egress: Egress,
    pub(crate) approvals: Approvals,
    pub(crate) ledger: Ledger,
    /// How images come here.
    pub(crate) images: Images,
    /// What secrets are on this host; a sandbox gets those that it names.
    pub(crate) secrets: Vec<Table>,
    /// The flags and rules in it.
    pub(crate) run: Option<Project>,
}

impl Own {
    /// The flags in it.
    pub(crate) fn flags(&self) -> Settings {
        self.run.as_ref().map(|run| run.settings.clone()).unwrap_or_default()
    }
}

/// The tables there are, and their keys.
pub(crate) const KEYS: [(&str, &[&str]); 4] = [
    ("network", &["proxy", "no_proxy", "resolvers", "extra_ca", "wildcard_names"]),
    ("approvals", &["timeout", "webhook", "webhook_key"]),
    ("ledger", &["durable"]),
    ("images", &images::KEYS),
];

/// Reads the text of the file; relative paths in it are meant from `folder`.
pub(crate) fn parse(source: Source<'_>, folder: &Path) -> Result<Own, Failure> {
    let mut own = Own::default();
    let top = source.parse()?;
    for section in source.entries(&top).filter(is_own) {
        if section.key() == "secrets" {
            own.secrets = table::tables(&section, Whose::Own)?;
            continue;
        }
        let Some((_, known)) = KEYS.iter().find(|(name, _)| *name == section.key()) else {
            continue;
        };
        for value in section.entries(section.table()?) {
            if !known.contains(&value.key()) {
                return Err(value.unknown(known));
            }
            match section.key() {
                "images" => own.images.set(&value, folder)?,
                _ => set(&mut own, &value, folder)?,
            }
        }
    }
    Ok(own)
}

/// The flags of `run` in the text of the file.
pub(crate) fn flags(source: Source<'_>, folder: &Path) -> Result<Settings, Failure> {
    project::parse_but(source, folder, is_own)
}

/// Whether a key of the file is no flag of `run`. There is a flag `network` too, which is no table.
pub(crate) fn is_own(value: &Value<'_, '_>) -> bool {
    let is_table = KEYS.iter().any(|(name, _)| *name == value.key());
    value.key() == "secrets" || (is_table && (value.key() != "network" || value.as_table().is_some()))
}

/// One key; no two tables share a key.
fn set(own: &mut Own, value: &Value<'_, '_>, folder: &Path) -> Result<(), Failure> {
    let path = |text: &str| Ok(folder.join(text));
    match value.key() {
        "proxy" => own.egress.proxy = Some(value.parsed(proxy)?),
        "no_proxy" => own.egress.no_proxy = value.each(|text| Ok(text.to_owned()))?,
        "resolvers" => own.egress.resolvers = value.each(resolver)?,
        "extra_ca" => own.egress.extra_ca = Some(value.parsed(path)?),
        "wildcard_names" => own.egress.wildcard_names = Some(value.parsed(wildcard_names)?),
        "timeout" => own.approvals.timeout_ms = value.parsed(timeout)?,
        "webhook" => own.approvals.webhook = Some(value.parsed(webhook)?),
        "webhook_key" => own.approvals.webhook_key = Some(value.parsed(path)?),
        "durable" => own.ledger.durable = value.flag()?,
        _ => {}
    }
    Ok(())
}

fn proxy(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host.is_some_and(|host| !host.is_empty()) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a proxy: write http://HOST:PORT")),
    }
}

fn webhook(text: &str) -> Result<String, String> {
    let url = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match url.is_some_and(|host| !host.is_empty() && !host.starts_with('/')) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a webhook: write https://HOST/PATH")),
    }
}

/// An address, with a port where it is not 53.
fn resolver(text: &str) -> Result<SocketAddr, String> {
    let bare = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    text.parse().or_else(|_| bare()).map_err(|_| format!("{text:?} is not ADDRESS or ADDRESS:PORT"))
}

/// A sandbox has at most as many names in all.
const MOST_NAMES: u16 = 4096;

fn wildcard_names(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(names) if (1..=MOST_NAMES).contains(&names) => Ok(names),
        _ => Err(format!("{text:?} is no budget of names: write a number from 1 to {MOST_NAMES}")),
    }
}

fn timeout(text: &str) -> Result<u64, String> {
    match values::duration(text)?.as_millis() {
        0 => Err("nobody answers in no time: write 60s, 5m …".to_owned()),
        millis => u64::try_from(millis).map_err(|_| format!("{text:?} is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Own, Failure> {
        parse(Source { name: "config.toml", text }, Path::new("/home/ada/.airlock"))
    }

    #[test]
    fn every_setting_arrives() {
        let text = "\
[network]
proxy = \"http://proxy.example:3128\"
no_proxy = [\"intern.example\"]
resolvers = [\"192.0.2.53\", \"[2001:db8::53]:5353\"]
extra_ca = \"ca.pem\"
wildcard_names = 512
[approvals]
timeout = \"2m\"
webhook = \"https://hooks.example/airlock\"
webhook_key = \"/run/key\"
[ledger]
durable = true
[secrets.T]
";
        let expected = Own {
            egress: Egress {
                proxy: Some("http://proxy.example:3128".into()),
                no_proxy: vec!["intern.example".into()],
                resolvers: vec!["192.0.2.53:53".parse().unwrap(), "[2001:db8::53]:5353".parse().unwrap()],
                extra_ca: Some("/home/ada/.airlock/ca.pem".into()),
                wildcard_names: Some(512),
            },
            approvals: Approvals {
                timeout_ms: 120_000,
                webhook: Some("https://hooks.example/airlock".into()),
                webhook_key: Some("/run/key".into()),
            },
            ledger: Ledger { durable: true },
            images: Images::default(),
            secrets: vec![Table { name: "T".into(), ..Table::default() }],
            run: None,
        };
        assert_eq!(parsed(text).unwrap(), expected);
    }

    #[test]
    fn flags_of_run_stand_beside_it() {
        let text = "memory = \"1G\"\nnetwork = \"none\"\n[ledger]\ndurable = true\n[secrets.T]\n";
        let source = Source { name: "config.toml", text };
        let flags = flags(source, Path::new("/")).unwrap();
        assert_eq!((flags.memory, flags.secrets.len()), (Some(1 << 30), 0));
        assert_eq!(flags.network, Some(crate::args::Network::None));
        let wrong = super::flags(Source { name: "config.toml", text: "[netwerk]\n" }, Path::new("/"));
        assert!(wrong.unwrap_err().what.starts_with("config.toml:1:2: there is no setting \"netwerk\" here"));
    }

    #[test]
    fn nothing_written_is_what_counts_anyway() {
        assert_eq!(parsed("").unwrap(), Own::default());
        assert_eq!(Own::default().approvals.timeout_ms, 60_000);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        for (text, words) in [
            ("[network]\nproxi = \"x\"\n", "config.toml:2:1: there is no setting \"proxi\" here"),
            ("approvals = 1\n", "config.toml:1:13: approvals is a table: [approvals]"),
            ("[network]\nwildcard_names = 0\n", "config.toml:2:18: \"0\" is no budget of names"),
            ("[network]\nwildcard_names = 4097\n", "config.toml:2:18: \"4097\" is no budget of names"),
            ("[approvals]\ntimeout = \"0s\"\n", "config.toml:2:11: nobody answers in no time"),
            ("[ledger]\ndurable = \"yes\"\n", "config.toml:2:11: durable is true or false"),
            ("[network]\nproxy = \"socks5://x\"\n", "config.toml:2:9: \"socks5://x\" is not a proxy"),
        ] {
            let failure = parsed(text).unwrap_err();
            assert!(failure.what.starts_with(words), "{failure}");
            assert_eq!(failure.code, 2);
        }
    }
}
