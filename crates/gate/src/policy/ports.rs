//! Ports as people write them.

use crate::{host::parse_port, pattern::Pattern};
use airlock_protocol::policy::Ports;

/// What a rule without ports is about.
pub(super) fn usual() -> Vec<Ports> {
    vec![Ports::one(80), Ports::one(443)]
}

/// One entry: `443`, `8000-8100` or `*`.
pub(super) fn parse(text: &str) -> Result<Ports, &'static str> {
    if text == "*" {
        return Ok(Ports::ALL);
    }
    let said = "ports are numbers from 1 to 65535, runs such as \"8000-8100\", or \"*\" for every port";
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let run =
        Ports { first: parse_port(first).map_err(|_| said)?, last: parse_port(last).map_err(|_| said)? };
    if run.first > run.last { Err("the run ends before it begins") } else { Ok(run) }
}

/// Ports as an entry of `ports = […]`.
pub(super) fn shown(ports: Ports) -> String {
    match ports {
        Ports::ALL => "\"*\"".to_string(),
        Ports { first, last } if first == last => first.to_string(),
        Ports { first, last } => format!("\"{first}-{last}\""),
    }
}

/// A host with ports behind it, as [`super::hosts::Hosts::entry`] reads it.
pub(super) fn behind(host: &Pattern, ports: Ports) -> String {
    let host = match host {
        Pattern::Addresses(range) if range.network().is_ipv6() && range.is_single() => format!("[{range}]"),
        Pattern::Addresses(range) if range.network().is_ipv6() => {
            format!("[{}]/{}", range.network(), range.prefix())
        }
        host => host.to_string(),
    };
    format!("{host}:{}", shown(ports).trim_matches('"'))
}
