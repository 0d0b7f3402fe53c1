//! `airlock config show`: which settings count here, and where each comes from. `airlock config schema`: what an editor
//! knows of `airlock.toml`.

use super::print_json;
use crate::{
    args::{ConfigArgs, ConfigVerb, ShowConfigArgs},
    config::{
        self, Project, Wanted,
        own::{self, Own},
        project::is_list,
        reader::{self, Source},
        schema,
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
    /// Where in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// Another file's setting counts in its place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replaced: bool,
}

pub(crate) fn config(args: &ConfigArgs) -> Outcome {
    match &args.verb {
        ConfigVerb::Show(args) => show(args),
        ConfigVerb::Schema => {
            writeln!(std::io::stdout(), "{:#}", schema::schema())?;
            Ok(0)
        }
    }
}

fn show(args: &ShowConfigArgs) -> Outcome {
    let store = home::store()?;
    let path = config::own_path(store.home());
    let person = config::own(store.home())?;
    let mut settings = own(&person, &path.display().to_string());
    let mut files = Vec::new();
    if let Some(run) = &person.run {
        files.extend(flags(run)?);
    }
    let here = project(&Host::current()?, store.home(), &person)?;
    for earlier in &mut files {
        earlier.replaced = !is_list(&earlier.key) && here.iter().any(|nearer| nearer.key == earlier.key);
    }
    settings.extend(files.into_iter().chain(here).filter(|setting| args.origin || !setting.replaced));
    if args.json {
        settings.iter().try_for_each(print_json)?;
        return Ok(0);
    }
    let mut table = Table::new(["SETTING", "VALUE", "FROM"]);
    for Setting { key, value, from, line, replaced } in settings {
        let place = match line.filter(|_| args.origin) {
            Some(line) => format!("{from}:{line}"),
            None => from,
        };
        table.row([key, plain(&value), if replaced { format!("{place} (replaced)") } else { place }]);
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
        Setting { key: key.to_owned(), value, from, line: None, replaced: false }
    };
    let secrets = own.secrets.iter().map(|secret| Setting {
        key: format!("secrets.{}", secret.name),
        value: json!(
            secret.from.as_ref().map_or_else(|| format!("env:{}", secret.name), ToString::to_string)
        ),
        from: path.to_owned(),
        line: None,
        replaced: false,
    });
    pairs.map(setting).chain(secrets).collect()
}

/// The keys of the project's file as they stand there; that it may not count is a row too.
fn project(host: &Host, home: &std::path::Path, own: &Own) -> Result<Vec<Setting>, Failure> {
    let project = match config::project(Wanted::Here(&host.directory), home, &own.flags()) {
        Ok(Some(project)) => project,
        Ok(None) => return Ok(Vec::new()),
        Err(failure) if failure.code == 125 => {
            let from = failure.what.clone();
            let key = "airlock.toml".to_owned();
            return Ok(vec![Setting { key, value: Value::Null, from, line: None, replaced: false }]);
        }
        Err(failure) => return Err(failure),
    };
    flags(&project)
}

/// The flags and rules of a file, in its own order.
fn flags(file: &Project) -> Result<Vec<Setting>, Failure> {
    let from = file.path.display().to_string();
    let source = Source { name: &from, text: &file.text };
    let table = source.parse()?;
    let setting = |value: reader::Value<'_, '_>| {
        let shown = match (value.key(), value.json()) {
            ("rule", Value::Array(rules)) if rules.len() == 1 => json!("1 rule"),
            ("rule", Value::Array(rules)) => json!(format!("{} rules", rules.len())),
            (_, shown) => shown,
        };
        let line = value.places().first().map(|at| source.place(*at).line);
        Setting { key: value.key().to_owned(), value: shown, from: from.clone(), line, replaced: false }
    };
    let is_shown = |value: &reader::Value<'_, '_>| !own::is_own(value);
    let mut settings: Vec<Setting> = source.entries(&table).filter(is_shown).map(setting).collect();
    settings.sort_by_key(|setting| setting.line);
    Ok(settings)
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
