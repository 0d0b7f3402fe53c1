//! `airlock learn`: a run that denies nothing, and the policy that would have sufficed for it.

use super::run;
use crate::{
    args::LearnArgs,
    failure::{Failure, Outcome},
    home, ledger,
    say::{Voice, say},
};
use airlock_gate::{
    host::Target,
    policy::{Seen, narrow_requests},
};
use airlock_protocol::{
    ledger::{Crossing, Entry, Record},
    policy::Verdict,
};
use std::{collections::BTreeSet, fs::OpenOptions, io::Write, path::Path};

pub(crate) fn learn(mut args: LearnArgs) -> Outcome {
    if let Some(path) = args.output.as_deref().filter(|path| path.exists()) {
        return Err(Failure::new(format!("{} is there already", path.display()))
            .code(2)
            .fix("name another file, or remove it"));
    }
    if args.run.streams.detach {
        return Err(Failure::new("learn waits for the end of the command").code(2).fix("leave out --detach"));
    }
    args.run.network.audit_only = true;
    args.run.network.open_all = args.requests;
    let (sandbox, code) = run::to_its_end(&mut args.run)?;
    let records = ledger::records(&home::store()?, &sandbox)
        .map_err(|err| Failure::because("could not read what was recorded", &err))?;
    let policy = learned(&records);
    match &args.output {
        Some(path) => write(path, &policy)?,
        None => std::io::stdout().write_all(policy.as_bytes())?,
    }
    Ok(code)
}

fn write(path: &Path, policy: &str) -> Result<(), Failure> {
    let failed = |err: std::io::Error| Failure::because(format!("could not write {}", path.display()), &err);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(policy.as_bytes()).map_err(failed)?;
    say(Voice::Normal, &format!("the policy is in {}", path.display()));
    Ok(())
}

/// The narrow policy: what was connected to and, where that was seen, requested; and nothing else. What no rule can open is a comment.
fn learned(records: &[Record]) -> String {
    let mut seen: Vec<(Target, u16)> = Vec::new();
    let mut requests: Vec<Seen> = Vec::new();
    let mut other = BTreeSet::new();
    for record in records {
        let Entry::Decision { crossing, verdict, audit_only, .. } = &record.entry else { continue };
        let (host, port, protocol) = match crossing {
            Crossing::Connect { host, port, protocol } => (host, port, protocol),
            Crossing::Request { host, port, method, path } => {
                let is_let = *verdict == Verdict::Allow || *audit_only;
                if let Some(target) = host.parse::<Target>().ok().filter(|_| is_let) {
                    let (port, method, path) = (*port, method.clone(), path.clone());
                    requests.push(Seen { target, port, method, path });
                }
                continue;
            }
            _ => continue,
        };
        match (protocol.as_str(), host.parse::<Target>()) {
            ("tcp", Ok(target)) if *verdict == Verdict::Allow || *audit_only => seen.push((target, *port)),
            ("tcp", _) => drop(other.insert(format!("# {host}:{port} was denied all the same\n"))),
            (protocol, _) => drop(
                other.insert(format!("# {host}:{port} was tried by {protocol}; only TCP crosses the wall\n")),
            ),
        }
    }
    let policy = narrow_requests(&seen, &requests);
    let comments: String = other.iter().map(|line| crate::clean::clean_text(line)).collect();
    let gap = if comments.is_empty() || policy.is_empty() { "" } else { "\n" };
    match comments.is_empty() && policy.is_empty() {
        true => "# nothing was connected to: no rule is needed\n".to_owned(),
        false => format!("{comments}{gap}{policy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(host: &str, port: u16, protocol: &str, verdict: &str) -> Record {
        serde_json::from_value(serde_json::json!({
            "seq": 1, "at": "", "sandbox": "3f9a0c2e7b14", "prev": "", "kind": "decision", "verdict": verdict,
            "crossing": {"crossing": "connect", "host": host, "port": port, "protocol": protocol},
        }))
        .unwrap()
    }

    #[test]
    fn a_learned_policy_allows_what_was_seen_and_nothing_else() {
        let records = [
            connected("api.example.com", 443, "tcp", "allow"),
            connected("api.example.com", 443, "tcp", "allow"),
            connected("db.example.com", 5432, "tcp", "allow"),
            connected("192.0.2.1", 443, "udp", "deny"),
        ];
        let text = learned(&records);

        let file = airlock_gate::policy::parse_toml("learned", &text).unwrap();
        let judge = airlock_gate::judge::Judge::compile(&file.policy).unwrap();
        let verdict = |host: &str, port| judge.connect(&host.parse().unwrap(), port).verdict;
        assert_eq!(verdict("api.example.com", 443), Some(Verdict::Allow));
        assert_eq!(verdict("db.example.com", 5432), Some(Verdict::Allow));
        assert_eq!((verdict("api.example.com", 80), verdict("db.example.com", 443)), (None, None));
        assert!(
            text.starts_with("# 192.0.2.1:443 was tried by udp; only TCP crosses the wall\n\n[[rule]]\n"),
            "{text}"
        );
    }

    #[test]
    fn a_command_that_connects_to_nothing_needs_no_rule() {
        assert_eq!(learned(&[]), "# nothing was connected to: no rule is needed\n");
    }
}
