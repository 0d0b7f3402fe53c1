//! What an editor knows of `airlock.toml`: a JSON schema, made of the flags of `run` and their help. Pure.

use super::{
    paths,
    project::{KEYS, RULES, is_list},
};
use crate::{
    args::Cli,
    secrets::table::{self},
};
use airlock_gate::policy::RULE_KEYS;
use clap::{Arg, ArgAction, CommandFactory};
use serde_json::{Map, Value, json};

/// The schema of a project's file.
pub(crate) fn schema() -> Value {
    let command = Cli::command();
    let run = command.find_subcommand("run");
    let mut properties = Map::new();
    for key in KEYS {
        let flag = key.replace('_', "-");
        let argument = run.and_then(|run| run.get_arguments().find(|arg| arg.get_long() == Some(&flag)));
        properties.insert(key.to_owned(), argument.map_or_else(|| text_of(key), of_flag));
    }
    for key in RULES {
        properties.insert(key.to_owned(), of_table(key));
    }
    properties.insert("secrets".to_owned(), of_secrets());
    properties.insert("paths".to_owned(), of_paths());
    properties.insert("provided".to_owned(), of_provided());
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "airlock.toml",
        "description": "How sandboxes of this project run, and what may cross their wall",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn text_of(key: &str) -> Value {
    match key {
        "setup" => json!({
            "description": "Commands that run once on top of the image; later starts go on from what they left",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
        }),
        _ => json!({ "type": "string" }),
    }
}

/// A flag's value as a file writes it.
fn of_flag(flag: &Arg) -> Value {
    let description = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let key = flag.get_long().unwrap_or_default().replace('-', "_");
    let word = json!({ "type": ["string", "number"] });
    let list = json!({ "type": "array", "items": word });
    let mut value = match flag.get_action() {
        ArgAction::SetTrue => json!({ "type": "boolean" }),
        _ if key == "env" => json!({ "anyOf": [word, list, { "type": "object" }] }),
        _ if is_list(&key) => json!({ "anyOf": [word, list] }),
        _ => json!({ "type": ["string", "number"] }),
    };
    let choices: Vec<String> =
        flag.get_possible_values().iter().map(|choice| choice.get_name().to_owned()).collect();
    if let Some(object) = value.as_object_mut() {
        object.insert("description".to_owned(), description.into());
        if !choices.is_empty() && !matches!(flag.get_action(), ArgAction::SetTrue) {
            object.remove("type");
            object.insert("enum".to_owned(), choices.into());
        }
    }
    value
}

fn of_table(key: &str) -> Value {
    match key {
        "rule" => {
            let properties: Map<String, Value> =
                RULE_KEYS.iter().map(|key| ((*key).to_owned(), of_rule_key(key))).collect();
            let one_of = ["allow", "deny", "ask"].map(|verdict| json!({ "required": [verdict] }));
            json!({
                "description": "What may cross the wall; the first rule that matches decides",
                "type": "array",
                "items": {
                    "type": "object", "additionalProperties": false, "properties": properties, "oneOf": one_of,
                },
            })
        }
        "groups" => json!({
            "description": "Names for several hosts",
            "type": "object",
            "additionalProperties": { "type": "array", "items": { "type": "string" } },
        }),
        "bandwidth" => {
            json!({ "description": "Of all connections together, such as 5M/s", "type": "string" })
        }
        _ => json!({ "type": "object" }),
    }
}

fn of_rule_key(key: &str) -> Value {
    let words =
        json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    match key {
        "ports" => json!({
            "anyOf": [{ "type": ["integer", "string"] }, { "type": "array", "items": { "type": ["integer", "string"] } }],
        }),
        "websocket" | "encoded_slashes" => json!({ "type": "boolean" }),
        "git" => json!({ "enum": ["fetch", "push"] }),
        "query" | "headers" => json!({ "type": "object" }),
        "tls" => json!({ "enum": ["checked", "opaque", "opened"] }),
        "rate" | "bytes" | "bandwidth" | "body" | "body_over" => json!({ "type": ["string", "integer"] }),
        _ => words,
    }
}

fn of_secrets() -> Value {
    let words =
        json!({ "anyOf": [{ "type": ["string", "boolean"] }, { "type": "array" }, { "type": "object" }] });
    let properties: Map<String, Value> =
        table::KEYS.iter().map(|key| ((*key).to_owned(), words.clone())).collect();
    json!({
        "description": "What requests may carry and the program never sees",
        "type": "object",
        "additionalProperties": { "type": "object", "additionalProperties": false, "properties": properties },
    })
}

fn of_paths() -> Value {
    let globs =
        json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    let of_key = |key: &str| match key {
        "protect_ci" => json!({ "type": "boolean" }),
        "hide_as" => json!({ "enum": ["denied", "empty"] }),
        _ => globs.clone(),
    };
    let properties: Map<String, Value> =
        paths::KEYS.iter().map(|key| ((*key).to_owned(), of_key(key))).collect();
    json!({
        "description": "Which paths of the workspace are protected or hidden, besides those that always are",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn of_provided() -> Value {
    json!({
        "description": "Programmable mounts: files that airlock serves",
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["target", "provider"],
            "properties": {
                "target": { "description": "Absolute path inside", "type": "string" },
                "provider": { "description": "What serves it", "type": "object" },
                "hooks": { "description": "What is refused or told there", "type": "array" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_known_to_editors() {
        let schema = schema();
        let properties = schema["properties"].as_object().unwrap();
        for key in KEYS.iter().chain(&RULES).chain(&["secrets", "paths", "provided"]) {
            assert!(properties.contains_key(*key), "{key}");
        }
        assert_eq!(schema["properties"]["read_only"]["type"], "boolean");
        assert_eq!(schema["properties"]["workspace"]["enum"][0], "cow");
        assert!(schema["properties"]["memory"]["description"].as_str().unwrap().contains("memory"));
        assert_eq!(schema["properties"]["rule"]["items"]["properties"]["websocket"]["type"], "boolean");
    }

    #[test]
    fn the_schema_in_the_docs_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/airlock.schema.json");
        let ours = format!("{:#}\n", schema());
        if std::env::var_os("AIRLOCK_ACCEPT").is_some() {
            std::fs::write(path, &ours).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == ours, "docs/airlock.schema.json differs: AIRLOCK_ACCEPT=1 writes it anew");
    }
}
