//! `airlock get`: everything known about one sandbox.

use super::{find, list::status_words, print_json};
use crate::{args::GetArgs, clean::clean_line, failure::Outcome, home};
use airlock_protocol::{
    policy::{Policy, Verdict},
    size,
    spec::{Publish, Restart, Spec, Workspace},
    state::{By, Enforced, Limit, State},
};
use serde::Serialize;
use std::{fmt::Write, io::Write as _, net::SocketAddr};

/// The state, and the spec beside it.
#[derive(Serialize)]
struct Known<'a> {
    #[serde(flatten)]
    state: &'a State,
    spec: &'a Spec,
}

pub(crate) fn get(args: &GetArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let state = sandbox.repaired_state()?;
    let spec = sandbox.spec()?;
    if args.json {
        print_json(&Known { state: &state, spec: &spec })?;
        return Ok(0);
    }
    std::io::stdout().write_all(page(&state, &spec, jiff::Timestamp::now()).as_bytes())?;
    Ok(0)
}

fn page(state: &State, spec: &Spec, now: jiff::Timestamp) -> String {
    let mut page = String::new();
    let mut line = |label: &str, text: &str| {
        if !text.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(page, "{label:<11} {}", clean_line(text));
        }
    };
    line("name", state.name.as_str());
    line("id", state.id.as_str());
    line("status", &status_words(state, now));
    line("note", state.note.as_deref().unwrap_or_default());
    line("health", &health(state));
    line("command", &spec.command.join(" "));
    line("backend", &machine(state, spec));
    line("image", &image(spec));
    line("created", &state.created_at);
    line("started", state.started_at.as_deref().unwrap_or_default());
    line("restarts", &restarts(state, spec));
    line("workspace", &workspace(&spec.workspace));
    line("directory", &spec.workdir.display().to_string());
    line("user", &spec.user);
    line("hostname", &spec.hostname);
    for provided in &spec.provided {
        line("mount", &format!("served at {}", provided.target.display()));
    }
    for mount in &spec.mounts {
        let mode = if mount.read_only { "read-only" } else { "writable" };
        line("mount", &format!("{} at {} ({mode})", mount.source.display(), mount.target.display()));
    }
    line("network", &network(&spec.policy));
    for secret in &spec.secrets {
        line("secret", &format!("{} for {} (from {})", secret.name, secret.hosts.join(", "), secret.from));
    }
    // While it runs, the ports that it really has: a free one may have been asked for.
    let published = if state.status.is_live() { &state.published } else { &spec.publish };
    for Publish { address, port, inside } in published {
        let outside = match port {
            0 => format!("a free port of {address}"),
            port => SocketAddr::new(*address, *port).to_string(),
        };
        line("published", &format!("{outside} leads to port {inside} inside"));
    }
    for limit in &state.limits {
        line("limit", &limit_words(limit));
    }
    for map in &state.id_map {
        line("ids", &format!("{} from {} inside are {} on the host", map.count, map.inside, map.outside));
    }
    line("keeper", &state.keeper_pid.map(|pid| format!("pid {pid}")).unwrap_or_default());
    page
}

/// `microvm, QEMU 7.2.22, Linux 6.1.0-55-cloud-amd64; emulated, slow: there is no /dev/kvm`.
fn machine(state: &State, spec: &Spec) -> String {
    match &state.machine {
        None if spec.backend.is_usual() => String::new(),
        None => spec.backend.word().to_owned(),
        Some(machine) => {
            let speed = match &machine.emulated {
                Some(why) => format!("emulated, slow: {why}"),
                None => "by this host's processor (KVM)".to_owned(),
            };
            let start = match &machine.cold {
                Some(why) => format!("; booted, which is slow: none is kept that was booted before ({why})"),
                None => String::new(),
            };
            format!("{}, {}, {}; {speed}{start}", spec.backend.word(), machine.monitor, machine.kernel)
        }
    }
}

fn image(spec: &Spec) -> String {
    match (&spec.image, &spec.rootfs) {
        (Some(image), _) => format!("{} ({})", image.name, image.id.get(..19).unwrap_or(&image.id)),
        (None, Some(path)) => format!("the directory {}", path.display()),
        (None, None) => String::new(),
    }
}

/// `unhealthy, 3 failures in a row; the last said: connection refused`.
fn health(state: &State) -> String {
    let Some(health) = &state.health else { return String::new() };
    let failures = match health.failures {
        0 => String::new(),
        1 => ", 1 failure".to_owned(),
        many => format!(", {many} failures in a row"),
    };
    let said = health.last.as_ref().map_or("", |last| last.output.trim());
    let said: String = said.chars().take(200).collect();
    let said = if said.is_empty() { said } else { format!("; the last check said: {said}") };
    format!("{}{failures}{said}", health.status.word())
}

fn restarts(state: &State, spec: &Spec) -> String {
    let policy = match spec.restart {
        Restart::No if state.restarts == 0 => return String::new(),
        Restart::No => "no".to_owned(),
        Restart::Always => "always".to_owned(),
        Restart::OnFailure { max: None } => "on failure".to_owned(),
        Restart::OnFailure { max: Some(max) } => format!("on failure, at most {max} in a row"),
    };
    format!("{} ({policy})", state.restarts)
}

fn workspace(workspace: &Workspace) -> String {
    match workspace {
        Workspace::None => "none".to_owned(),
        Workspace::Rw { path } => format!("{} (writable)", path.display()),
        Workspace::Cow { path } => format!("{} (a copy)", path.display()),
        Workspace::Ro { path } => format!("{} (read-only)", path.display()),
    }
}

/// `3 rules (2 allow, 1 ask)`.
fn network(policy: &Policy) -> String {
    let count = |verdict| policy.rules.iter().filter(|rule| rule.verdict == verdict).count();
    let counted = [(Verdict::Allow, "allow"), (Verdict::Ask, "ask"), (Verdict::Deny, "deny")];
    let counted = counted.map(|(verdict, word)| (count(verdict), word));
    let words: Vec<String> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let records = if policy.audit_only { ", only recorded" } else { "" };
    match policy.rules.len() {
        0 if policy.audit_only => "no rules, only recorded".to_owned(),
        0 => "none".to_owned(),
        1 => format!("1 rule ({}){records}", words.join(", ")),
        many => format!("{many} rules ({}){records}", words.join(", ")),
    }
}

/// `memory 2G, asked for, by control groups (v1)`.
fn limit_words(enforced: &Enforced) -> String {
    let value = enforced.value;
    let what = match enforced.limit {
        Limit::Memory => format!("memory {}", size::show(value)),
        Limit::Cpu => format!("CPUs {}.{:03}", value / 1000, value % 1000)
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        Limit::Pids => format!("processes {value}"),
        Limit::Nofile => format!("open files {value}"),
        Limit::Disk => format!("disk {}", size::show(value)),
        Limit::DiskReserve => format!("disk left to the host {}", size::show(value)),
        Limit::Log => format!("log {}", size::show(value)),
        Limit::Timeout => format!("time {}.{:03}s", value / 1000, value % 1000),
    };
    let whose = if enforced.requested { "asked for" } else { "default" };
    let how = match enforced.by {
        By::CgroupV1 => "by control groups (v1)",
        By::CgroupV2 => "by control groups (v2)",
        By::Rlimit => "by a resource limit",
        By::Keeper => "watched by the keeper",
        By::Quota => "by a project quota",
        By::BlockDevice => "by a disk of its own",
        By::LoopImage => "by a file system of that size",
        By::Tmpfs => "in memory",
        By::Nothing => "not enforced: this host cannot",
    };
    format!("{what}, {whose}, {how}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::state::Status;

    #[test]
    fn a_page_tells_everything_in_lines() {
        let state: State = serde_json::from_value(serde_json::json!({
            "id": "3f9a0c2e7b14", "name": "web", "created_at": "2026-01-31T11:00:00.000000Z", "status": "paused",
            "note": "disk is full\u{1b}[2J", "keeper_pid": 42,
            "limits": [{"limit": "memory", "value": 2_147_483_648u64, "requested": true, "by": "cgroup_v1"},
                       {"limit": "cpu", "value": 1500, "requested": true, "by": "cgroup_v2"},
                       {"limit": "pids", "value": 100, "requested": false, "by": "nothing"}],
            "id_map": [{"inside": 0, "outside": 100_000, "count": 65536}],
            "published": [{"address": "127.0.0.1", "port": 8080, "inside": 80}],
        }))
        .unwrap();
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "command": ["./serve", "--port", "80"], "name": "web", "workdir": "/srv", "user": "0", "hostname": "web",
            "workspace": {"mode": "ro", "path": "/srv"},
            "policy": {"rules": [
                {"verdict": "allow", "hosts": ["api.example.com"], "ports": [{"first": 443, "last": 443}]},
                {"verdict": "ask", "hosts": ["*"], "ports": [{"first": 443, "last": 443}]},
            ]},
            "publish": [{"address": "127.0.0.1", "port": 0, "inside": 80}],
            "secrets": [{"name": "T", "from": {"env": "T"}, "placeholder": "ghp_x", "hosts": ["api.example.com"], "places": ["header"]}],
            "stdio": {"stdin": "null", "stdout": "captured", "stderr": "captured"},
        }))
        .unwrap();
        let expected = "\
name        web
id          3f9a0c2e7b14
status      paused
note        disk is full
command     ./serve --port 80
created     2026-01-31T11:00:00.000000Z
workspace   /srv (read-only)
directory   /srv
user        0
hostname    web
network     2 rules (1 allow, 1 ask)
secret      T for api.example.com (from env:T)
published   127.0.0.1:8080 leads to port 80 inside
limit       memory 2G, asked for, by control groups (v1)
limit       CPUs 1.5, asked for, by control groups (v2)
limit       processes 100, default, not enforced: this host cannot
ids         65536 from 0 inside are 100000 on the host
keeper      pid 42
";
        assert_eq!(page(&state, &spec, jiff::Timestamp::UNIX_EPOCH), expected);

        let stopped = State { status: Status::Stopped, ..state };
        let shown = page(&stopped, &spec, jiff::Timestamp::UNIX_EPOCH);
        assert!(shown.contains("published   a free port of 127.0.0.1 leads to port 80 inside\n"), "{shown}");
    }
}
