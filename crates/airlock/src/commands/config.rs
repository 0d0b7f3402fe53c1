//! `airlock config show`: which settings count here, and where each comes from.

use super::print_json;
use crate::{
    args::{ConfigArgs, ConfigVerb, ShowConfigArgs},
    config::{
        self, Wanted,
        own::Own,
        reader::{self, Source},
    },
    failure::{Failure, Outcome},
    home,
    say::terminal_width,
    spec::Host,
    table::Table,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;

/// One setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Setting {
    key: String,
    value: Value,
    from: String,
}

pub(crate) fn config(args: &ConfigArgs) -> Outcome {
    match &args.verb {
        ConfigVerb::Show(args) => show(args),
    }
}

fn show(args: &ShowConfigArgs) -> Outcome {
    let store = home::store()?;
    let path = config::own_path(store.home());
    let mut settings = own(&config::own(store.home())?, &path.display().to_string());
    settings.extend(project(&Host::current()?, store.home())?);
    if args.json {
        settings.iter().try_for_each(print_json)?;
        return Ok(0);
    }
    let mut table = Table::new(["SETTING", "VALUE", "FROM"]);
    for Setting { key, value, from } in settings {
        table.row([key, plain(&value), from]);
    }
    std::io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

fn own(own: &Own, path: &str) -> Vec<Setting> {
    let usual = Own::default();
    let rows = |own: &Own| {
        [
            ("network.proxy", json!(own.egress.proxy)),
            ("network.no_proxy", json!(own.egress.no_proxy)),
            ("network.resolvers", json!(own.egress.resolvers)),
            ("network.extra_ca", json!(own.egress.extra_ca)),
            ("network.wildcard_names", json!(own.egress.wildcard_names.unwrap_or(256))),
            ("approvals.timeout", json!(format!("{}s", own.approvals.timeout_ms / 1000))),
            ("approvals.webhook", json!(own.approvals.webhook)),
            ("approvals.webhook_key", json!(own.approvals.webhook_key)),
            ("ledger.durable", json!(own.ledger.durable)),
        ]
    };
    let pairs = rows(own).into_iter().zip(rows(&usual));
    let setting = |((key, value), (_, usual)): ((&str, Value), (&str, Value))| {
        let from = if value == usual { "default".to_owned() } else { path.to_owned() };
        Setting { key: key.to_owned(), value, from }
    };
    let secrets = own.secrets.iter().map(|secret| Setting {
        key: format!("secrets.{}", secret.name),
        value: json!(
            secret.from.as_ref().map_or_else(|| format!("env:{}", secret.name), ToString::to_string)
        ),
        from: path.to_owned(),
    });
    pairs.map(setting).chain(secrets).collect()
}

/// The keys of the project's file as they stand there; that it may not count is a row too.
fn project(host: &Host, home: &std::path::Path) -> Result<Vec<Setting>, Failure> {
    let project = match config::project(Wanted::Here(&host.directory), home) {
        Ok(Some(project)) => project,
        Ok(None) => return Ok(Vec::new()),
        Err(failure) if failure.code == 125 => {
            let from = failure.what.clone();
            return Ok(vec![Setting { key: "airlock.toml".to_owned(), value: Value::Null, from }]);
        }
        Err(failure) => return Err(failure),
    };
    let from = project.path.display().to_string();
    let source = Source { name: &from, text: &project.text };
    let table = source.parse()?;
    let setting = |value: reader::Value<'_, '_>| {
        let shown = match (value.key(), value.json()) {
            ("rule", Value::Array(rules)) if rules.len() == 1 => json!("1 rule"),
            ("rule", Value::Array(rules)) => json!(format!("{} rules", rules.len())),
            (_, shown) => shown,
        };
        Setting { key: value.key().to_owned(), value: shown, from: from.clone() }
    };
    Ok(source.entries(&table).map(setting).collect())
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_tells_where_it_comes_from() {
        let mut changed = Own::default();
        changed.ledger.durable = true;
        changed.egress.wildcard_names = Some(512);
        let settings = own(&changed, "/home/ada/.airlock/config.toml");
        let row = |key: &str| {
            let found = settings.iter().find(|setting| setting.key == key).unwrap();
            (plain(&found.value), found.from.as_str())
        };
        assert_eq!(row("ledger.durable"), ("true".into(), "/home/ada/.airlock/config.toml"));
        assert_eq!(row("network.wildcard_names"), ("512".into(), "/home/ada/.airlock/config.toml"));
        assert_eq!(row("approvals.timeout"), ("60s".into(), "default"));
        assert_eq!(row("network.proxy"), ("-".into(), "default"));
    }
}
