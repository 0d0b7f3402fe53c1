//! `airlock secret`: which secrets a sandbox has, and other values for them.

use super::{find, lifecycle::ask, print_json};
use crate::{
    args::{ListSecretsArgs, SecretArgs, SecretVerb, SetSecretArgs},
    clean::clean_line,
    failure::{Failure, Outcome},
    home,
    say::{Voice, say, terminal_width},
    secrets,
    spec::Host,
    table::Table,
};
use airlock_protocol::{
    control::Request,
    secret::{Secret, Values},
};
use serde_json::{Value, json};
use std::io::{self, Read as _, Write as _};

/// The most bytes that are read as a value.
const MOST: u64 = 64 * 1024;

pub(crate) fn perform(args: &SecretArgs) -> Outcome {
    match &args.verb {
        SecretVerb::Ls(args) => list(args),
        SecretVerb::Set(args) => set(args),
    }
}

fn list(args: &ListSecretsArgs) -> Outcome {
    let all = find(&home::store()?, &args.sandbox)?.spec()?.secrets;
    if args.json {
        all.iter().map(facts).try_for_each(|facts| print_json(&facts))?;
        return Ok(0);
    }
    let mut table = Table::new(["NAME", "HOSTS", "ONLY", "IN", "FROM"]);
    for secret in &all {
        table.row([
            secret.name.clone(),
            secret.hosts.join(", "),
            only(secret),
            places(secret),
            clean_line(&secret.from.to_string()),
        ]);
    }
    io::stdout().write_all(table.text(terminal_width()).as_bytes())?;
    Ok(0)
}

/// Names and bindings; no value, and nothing that stands for one.
fn facts(secret: &Secret) -> Value {
    let Secret { name, from, hosts, methods, paths, places, .. } = secret;
    let places: Vec<&str> = places.iter().map(|place| place.word()).collect();
    json!({ "name": name, "from": from.to_string(), "hosts": hosts, "methods": methods, "paths": paths, "in": places })
}

fn only(secret: &Secret) -> String {
    [secret.methods.join(", "), secret.paths.join(", ")].join(" ").trim().to_owned()
}

fn places(secret: &Secret) -> String {
    secret.places.iter().map(|place| place.word()).collect::<Vec<_>>().join(", ")
}

fn set(args: &SetSecretArgs) -> Outcome {
    let sandbox = find(&home::store()?, &args.sandbox)?;
    let mut all = sandbox.spec()?.secrets;
    if let Some(name) = &args.name {
        all.retain(|secret| secret.name == *name);
    }
    if all.is_empty() {
        let what = match &args.name {
            Some(name) => format!("sandbox {} has no secret {name}", sandbox.id()),
            None => format!("sandbox {} has no secrets", sandbox.id()),
        };
        return Err(Failure::new(what).code(1).fix(format!("airlock secret ls {}", args.sandbox)));
    }
    let values = match (&args.name, &args.stdin) {
        (Some(name), Some(_)) => Values([(name.clone(), typed()?)].into()),
        _ => secrets::values_anew(&all, &Host::current()?)?,
    };
    ask(&sandbox, &Request::SetSecrets(values))?;
    let words = if all.len() == 1 { "1 secret" } else { &format!("{} secrets", all.len()) };
    say(Voice::Normal, &format!("{words} of {} from the next request on", sandbox.id()));
    Ok(0)
}

fn typed() -> Result<String, Failure> {
    let mut text = String::new();
    let read = io::stdin().take(MOST).read_to_string(&mut text);
    read.map_err(|err| Failure::because("could not read the value from stdin", &err).code(2))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::secret::{From, Place, Use};

    #[test]
    fn facts_hold_no_placeholder() {
        let secret = Secret {
            name: "T".into(),
            from: From::Env("T".into()),
            placeholder: "ghp_placeholder".into(),
            hosts: vec!["a.example.com".into()],
            methods: vec!["GET".into()],
            paths: vec!["/v1/**".into()],
            places: vec![Place::Header, Place::Basic],
            use_as: Use::Plain,
        };
        let expected = json!({
            "name": "T", "from": "env:T", "hosts": ["a.example.com"], "methods": ["GET"], "paths": ["/v1/**"],
            "in": ["header", "basic"],
        });
        assert_eq!(facts(&secret), expected);
        assert_eq!((only(&secret), places(&secret)), ("GET /v1/**".to_owned(), "header, basic".to_owned()));
    }
}
