//! Finding a sandbox's ledger, wherever it is, and telling it to a person.

use crate::{clean::clean_line, failure::Failure};
use airlock_engine::store::{self, Sandbox, Store};
use airlock_gate::ledger::{
    Item, Reader,
    archive::{self, NotFound},
    is_denial,
};
use airlock_protocol::{
    SandboxId,
    approval::{Given, Scope},
    ledger::{Crossing, Entry, Record},
    policy::Verdict,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// A ledger, and whose it is.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    /// The sandbox, if it is still there.
    pub(crate) sandbox: Option<Sandbox>,
}

/// Where ledgers of removed sandboxes are.
pub(crate) fn archives(home: &Path) -> PathBuf {
    home.join("ledger")
}

/// The ledger meant by a name, an id or a beginning of one; `-` means that of the newest sandbox, also if it is gone.
pub(crate) fn find(store: &Store, selector: &str) -> Result<Kept, Failure> {
    let archived = archive::list(&archives(store.home()))
        .map_err(|err| Failure::because("could not read the ledgers of removed sandboxes", &err))?;
    if selector.is_empty() || selector == "-" {
        let live = store.list()?.into_iter().next_back();
        // Of those that are gone the time of their end is known: one that ended after the newest began is newer.
        let gone = archived
            .last()
            .filter(|gone| live.as_ref().is_none_or(|live| gone.about.ended_at > live.state.created_at));
        return match (gone, live) {
            (Some(gone), _) => Ok(of_archived(gone)),
            (None, Some(live)) => of_sandbox(live.sandbox),
            (None, None) => Err(store::Error::NoneYet.into()),
        };
    }
    match store.find(selector) {
        Ok(sandbox) => of_sandbox(sandbox),
        Err(err @ store::Error::NoSuch { .. }) => match archive::find(&archived, selector) {
            Ok(gone) => Ok(of_archived(gone)),
            Err(NotFound::Ambiguous { .. }) => {
                Err(Failure::new(format!("{selector:?} could be several sandboxes that are gone"))
                    .code(3)
                    .fix("type more of it"))
            }
            Err(_) => Err(err.into()),
        },
        Err(err) => Err(err.into()),
    }
}

/// Every record of a sandbox that has just ended, whether it is still there or not.
pub(crate) fn records(store: &Store, id: &SandboxId) -> io::Result<Vec<Record>> {
    let here = store.sandbox(id).folder().to_owned();
    let there = archives(store.home()).join(id.as_str());
    let folder = if here.join("ledger.jsonl").exists() { here } else { there };
    let mut reader = Reader::open(&folder)?;
    let mut records = Vec::new();
    while let Some(item) = reader.next()? {
        if let Item::Record(record) = item {
            records.push(*record);
        }
    }
    Ok(records)
}

/// What a person is told at the end of a run: how often something was denied, and what.
pub(crate) fn denials(records: &[Record]) -> Option<String> {
    let (mut connections, mut requests) = (0u64, 0u64);
    let mut hosts: Vec<&str> = Vec::new();
    let denied = records.iter().filter(|record| is_denial(&record.entry));
    let mut is_audit = false;
    for record in denied {
        let Entry::Decision { crossing, audit_only, times, .. } = &record.entry else { continue };
        if matches!(crossing, Crossing::File { .. } | Crossing::Mount { .. }) {
            continue;
        }
        // A program asks for a name several times (A, AAAA) where it means one connection.
        let is_repeat = matches!(crossing, Crossing::Resolve { .. }) && times.is_some();
        let is_inside = matches!(crossing, Crossing::Request { .. } | Crossing::Reveal { .. });
        let count = if is_inside { &mut requests } else { &mut connections };
        *count = count.saturating_add(if is_repeat { 0 } else { times.unwrap_or(1) });
        is_audit |= *audit_only;
        let host = match crossing {
            Crossing::Resolve { host, .. }
            | Crossing::Connect { host, .. }
            | Crossing::Request { host, .. }
            | Crossing::Reveal { host, .. } => host.as_str(),
            Crossing::Publish { from, .. } => from.as_str(),
            Crossing::File { path, .. } | Crossing::Mount { target: path, .. } => path.as_str(),
        };
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let several = |count: u64, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let counted: Vec<String> =
        [several(connections, "connection"), several(requests, "request")].into_iter().flatten().collect();
    if counted.is_empty() {
        return None;
    }
    let counted = counted.join(" and ");
    let more = match hosts.len() {
        0..=3 => String::new(),
        many => format!(" and {} more", many - 3),
    };
    let listed = hosts.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    let denied = if is_audit { "would have denied" } else { "denied" };
    Some(format!(
        "{denied} {counted} ({listed}{more}); `airlock ledger --denied` tells more, `airlock allow - HOST` permits"
    ))
}

/// What stands above the lines of records.
pub(crate) const HEADER: &str = "TIME (UTC)           WHAT        CROSSING, AND WHY";

/// One record for a person, in one line.
pub(crate) fn line(record: &Record) -> String {
    let time = record.at.get(..19).unwrap_or(&record.at).replace('T', " ");
    clean_line(&format!("{time}  {}", words(&record.entry)))
}

fn words(entry: &Entry) -> String {
    match entry {
        Entry::Decision { crossing, verdict, audit_only, rule, reason, detail, times, .. } => {
            let verdict = match (verdict, audit_only) {
                (_, true) => "would deny",
                (Verdict::Deny, false) => "deny",
                (Verdict::Allow | Verdict::Ask, false) => "allow",
            };
            let times = times.map(|times| format!(" ({times} times)")).unwrap_or_default();
            let why: Vec<&str> = [rule, reason, detail].into_iter().flatten().map(String::as_str).collect();
            let why = if why.is_empty() { String::new() } else { format!("  {}", why.join("; ")) };
            format!("{verdict:<10}  {}{times}{why}", crossing_words(crossing))
        }
        Entry::Flow { host, port, address, sent, received, millis, status, code, times, .. } => {
            let code = code.map(|code| format!(", status {code}")).unwrap_or_default();
            let address = address.as_deref().map(|address| format!(" at {address}")).unwrap_or_default();
            let times = times.map(|times| format!(" ({times} times)")).unwrap_or_default();
            format!(
                "{:<10}  {host}:{port}{address}{times}  {sent} sent, {received} received, {millis} ms, {status}{code}",
                "flow"
            )
        }
        Entry::Policy { generation, rules, by } => {
            format!("{:<10}  {rules} rules by {by} (change {generation})", "policy")
        }
        Entry::Asked { request, crossing, rule } => {
            format!("{:<10}  {} {request}  {rule}", "ask", crossing_words(crossing))
        }
        Entry::Approval { request, verdict, scope, by } => {
            let verdict = match verdict {
                Given::Approved => "approved",
                Given::Refused => "refused",
            };
            let scope = match scope {
                Scope::Once => "once",
                Scope::Sandbox => "for this sandbox",
                Scope::Always => "always",
            };
            format!("{verdict:<10}  {request} {scope} by {by}")
        }
        Entry::Rotated { dropped, .. } => format!("{:<10}  {dropped} older records were dropped", "rotated"),
        Entry::Torn { bytes } => {
            format!("{:<10}  {bytes} bytes of an unfinished record were cut off", "torn")
        }
    }
}

fn crossing_words(crossing: &Crossing) -> String {
    match crossing {
        Crossing::Resolve { host, question } => format!("resolve {host} {question}"),
        Crossing::Connect { host, port, protocol } if protocol == "tcp" => format!("connect {host}:{port}"),
        Crossing::Connect { host, port, protocol } => format!("connect {host}:{port} ({protocol})"),
        Crossing::Request { host, port, method, path } => format!("{method} {host}:{port}{path}"),
        Crossing::Reveal { secret, host, port } => format!("reveal {secret} to {host}:{port}"),
        Crossing::Publish { from, port } => format!("publish {port} from {from}"),
        Crossing::Mount { target, access, .. } if access == "none" => format!("unmount {target}"),
        Crossing::Mount { source, target, access } => format!("mount {source} at {target} ({access})"),
        Crossing::File { path, touch } => format!("{touch} {path}"),
    }
}

fn of_sandbox(sandbox: Sandbox) -> Result<Kept, Failure> {
    let name = sandbox.state().map(|state| state.name.to_string()).unwrap_or_default();
    Ok(Kept {
        id: sandbox.id().to_string(),
        name,
        folder: sandbox.folder().to_owned(),
        sandbox: Some(sandbox),
    })
}

fn of_archived(gone: &archive::Archived) -> Kept {
    let (id, name) = (gone.about.id.to_string(), gone.about.name.to_string());
    Kept { id, name, folder: gone.folder.clone(), sandbox: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entry: serde_json::Value) -> Record {
        let mut value = serde_json::json!({
            "seq": 1, "at": "2026-01-31T12:00:00.123456Z", "sandbox": "3f9a0c2e7b14", "prev": "",
        });
        value.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn denied(host: &str, times: u64) -> Record {
        record(serde_json::json!({
            "kind": "decision", "verdict": "deny", "reason": "no_rule", "times": times,
            "crossing": {"crossing": "connect", "host": host, "port": 443, "protocol": "tcp"},
        }))
    }

    #[test]
    fn records_are_told_in_lines() {
        let flow = record(serde_json::json!({
            "kind": "flow", "flow": 1, "host": "api.example.com", "port": 443, "address": "192.0.2.7:443", "sent": 10,
            "received": 20, "millis": 30, "status": "closed",
        }));
        let resolve = record(serde_json::json!({
            "kind": "decision", "verdict": "allow", "rule": "allow api.example.com (airlock.toml:3)",
            "crossing": {"crossing": "resolve", "host": "api.example.com", "question": "A"},
        }));
        let lines = [denied("x\u{1b}[2J.example", 2), flow, resolve].map(|record| line(&record));
        let expected = [
            "2026-01-31 12:00:00  deny        connect x.example:443 (2 times)  no_rule",
            "2026-01-31 12:00:00  flow        api.example.com:443 at 192.0.2.7:443  10 sent, 20 received, 30 ms, closed",
            "2026-01-31 12:00:00  allow       resolve api.example.com A  allow api.example.com (airlock.toml:3)",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn denials_are_told_in_one_line_each_host_once() {
        assert_eq!(denials(&[]), None);
        let records = [denied("telemetry.example.com", 1), denied("telemetry.example.com", 1)];
        assert_eq!(
            denials(&records).unwrap(),
            "denied 2 connections (telemetry.example.com); `airlock ledger --denied` tells more, `airlock allow - HOST` permits"
        );
        let request = record(serde_json::json!({
            "kind": "decision", "verdict": "deny", "reason": "no_rule",
            "crossing": {"crossing": "request", "host": "a.example", "port": 443, "method": "PUT", "path": "/x\u{1b}[2Jy"},
        }));
        assert_eq!(line(&request), "2026-01-31 12:00:00  deny        PUT a.example:443/xy  no_rule");
        let both = [denied("a.example", 1), request.clone(), request];
        assert!(denials(&both).unwrap().starts_with("denied 1 connection and 2 requests (a.example); "));
        let many: Vec<Record> = ["a", "b", "c", "d", "e"].map(|host| denied(host, 1)).into();
        assert!(denials(&many).unwrap().starts_with("denied 5 connections (a, b, c and 2 more); "));
    }
}
