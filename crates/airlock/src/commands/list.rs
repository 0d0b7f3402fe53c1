//! `airlock ls`: what there is.

use super::{print_json, run::exit_words};
use crate::{args::ListArgs, failure::Outcome, home, say::terminal_width, table::Table};
use airlock_engine::store::Entry;
use airlock_protocol::state::{State, Status};
use jiff::{Timestamp, Unit};
use serde::Serialize;
use std::io::Write;

/// The state, and of the spec what a list shows.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    state: &'a State,
    command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
}

pub(crate) fn list(args: &ListArgs) -> Outcome {
    let mut entries = home::store()?.list()?;
    entries.retain(|entry| is_shown(args, entry.state.status));
    let mut stdout = std::io::stdout().lock();
    if args.quiet {
        for entry in &entries {
            writeln!(stdout, "{}", entry.state.id)?;
        }
        return Ok(0);
    }
    if args.json {
        drop(stdout);
        for entry in &entries {
            let spec = entry.sandbox.spec().ok();
            let image = spec.as_ref().and_then(|spec| Some(spec.image.as_ref()?.name.clone()));
            let command = spec.map(|spec| spec.command).unwrap_or_default();
            print_json(&Listed { state: &entry.state, command, image })?;
        }
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut table = Table::new(["NAME", "ID", "STATUS", "CREATED", "COMMAND"]);
    for entry in &entries {
        table.row([
            entry.state.name.to_string(),
            entry.state.id.to_string(),
            status_words(&entry.state, now),
            age(&entry.state.created_at, now).map_or_else(String::new, |age| format!("{age} ago")),
            command(entry),
        ]);
    }
    stdout.write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

fn is_shown(args: &ListArgs, status: Status) -> bool {
    match status {
        Status::Stopped => args.all,
        Status::Crashed => !args.running,
        _ => true,
    }
}

fn command(entry: &Entry) -> String {
    entry.sandbox.spec().map(|spec| spec.command.join(" ")).unwrap_or_default()
}

/// `running 5m`, `running 5m (healthy)`, `exited 1 3h ago`, `crashed 2s ago`.
pub(super) fn status_words(state: &State, now: Timestamp) -> String {
    let since = |time: Option<&String>| time.and_then(|time| age(time, now));
    let ended = state.exit.as_ref();
    match state.status {
        Status::Running => {
            let age = since(state.started_at.as_ref()).map_or_else(String::new, |age| format!(" {age}"));
            let health = state.health.as_ref().map(|health| format!(" ({})", health.status.word()));
            format!("running{age}{}", health.unwrap_or_default())
        }
        Status::Stopped => {
            let words = ended.map_or_else(|| "stopped".to_owned(), exit_words);
            since(ended.map(|exit| &exit.at)).map_or(words.clone(), |age| format!("{words}, {age} ago"))
        }
        Status::Crashed => match since(ended.map(|exit| &exit.at)) {
            Some(age) => format!("crashed {age} ago"),
            None => "crashed".to_owned(),
        },
        other => other.word().to_owned(),
    }
}

/// How long ago, in one unit.
pub(super) fn age(time: &str, now: Timestamp) -> Option<String> {
    let then: Timestamp = time.parse().ok()?;
    let seconds = now.since((Unit::Second, then)).ok()?.get_seconds().max(0);
    Some(match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(status: &str, exit: serde_json::Value) -> State {
        serde_json::from_value(serde_json::json!({
            "id": "3f9a0c2e7b14", "name": "web", "created_at": "2026-01-31T11:00:00.000000Z",
            "started_at": "2026-01-31T11:55:00.000000Z", "status": status, "exit": exit,
        }))
        .unwrap()
    }

    #[test]
    fn a_status_is_told_in_words() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let at = "2026-01-31T11:59:30.000000Z";
        let words = |status, exit| status_words(&state(status, exit), now);
        assert_eq!(words("running", serde_json::Value::Null), "running 5m");
        assert_eq!(words("paused", serde_json::Value::Null), "paused");
        let exited = serde_json::json!({"code": 1, "cause": {"cause": "exited"}, "at": at});
        assert_eq!(words("stopped", exited), "exited 1, 30s ago");
        let killed = serde_json::json!({"code": 137, "cause": {"cause": "signalled", "signal": 9}, "at": at});
        assert_eq!(words("stopped", killed), "killed by SIGKILL, 30s ago");
        let died = serde_json::json!({"code": 137, "cause": {"cause": "keeper_died"}, "at": at});
        assert_eq!(words("crashed", died), "crashed 30s ago");
    }

    #[test]
    fn an_age_has_one_unit() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let ages =
            ["2026-01-31T11:59:59Z", "2026-01-31T11:00:00Z", "2026-01-29T12:00:00Z", "2027-01-01T00:00:00Z"];
        assert_eq!(ages.map(|time| age(time, now).unwrap()), ["1s", "1h", "2d", "0s"]);
    }
}
