//! Requests and answers as values of the script, and back.

use airlock_protocol::script::{Ask, Request, Response, Said};
use serde_json::Value as Json;
use starlark::values::{Heap, Value, dict::AllocDict, list::AllocList};
use std::collections::BTreeMap;

/// A dictionary of texts.
pub(crate) fn dictionary<'v>(heap: &'v Heap, texts: &BTreeMap<String, String>) -> Value<'v> {
    heap.alloc(AllocDict(texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))))
}

/// `{"method", "host", "port", "path", "query", "headers", "body"}`.
pub(crate) fn request<'v>(heap: &'v Heap, request: &Request) -> Value<'v> {
    heap.alloc(AllocDict([
        ("method", heap.alloc(request.method.as_str())),
        ("host", heap.alloc(request.host.as_str())),
        ("port", heap.alloc(i32::from(request.port))),
        ("path", heap.alloc(request.path.as_str())),
        ("query", heap.alloc(request.query.as_str())),
        ("headers", headers(heap, &request.headers)),
        ("body", text(heap, request.body.as_deref())),
    ]))
}

/// `{"status", "headers", "body"}`.
pub(crate) fn response<'v>(heap: &'v Heap, response: &Response) -> Value<'v> {
    heap.alloc(AllocDict([
        ("status", heap.alloc(i32::from(response.status))),
        ("headers", headers(heap, &response.headers)),
        ("body", text(heap, response.body.as_deref())),
    ]))
}

/// A value, or a list of those where a name stands several times.
fn headers<'v>(heap: &'v Heap, headers: &[(String, String)]) -> Value<'v> {
    let mut names: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, value) in headers {
        match names.iter_mut().find(|(own, _)| own == name) {
            Some((_, values)) => values.push(value),
            None => names.push((name, vec![value])),
        }
    }
    heap.alloc(AllocDict(names.into_iter().map(|(name, values)| {
        let value = match values.as_slice() {
            [one] => heap.alloc(*one),
            _ => heap.alloc(AllocList(values)),
        };
        (name, value)
    })))
}

fn text<'v>(heap: &'v Heap, text: Option<&str>) -> Value<'v> {
    text.map_or(Value::new_none(), |text| heap.alloc(text))
}

/// What a function's result says.
pub(crate) fn said(ask: &Ask, value: Value<'_>) -> Result<Said, String> {
    match (ask, value.unpack_bool()) {
        (_, Some(true)) => return Ok(Said::Pass),
        (_, Some(false)) => return Ok(Said::Deny("the script returned False".to_owned())),
        (Ask::Host { .. }, None) => {
            return Err(format!("is_host_allowed returned {}, not True or False", value.get_type()));
        }
        _ if value.is_none() => return Ok(Said::Pass),
        _ => {}
    }
    let json = value.to_json_value().map_err(|err| err.to_string())?;
    match ask {
        Ask::Request(old) => changed_request(old, &json),
        Ask::Response(_, old) => changed_response(old, &json),
        _ => Err("nothing was asked".to_owned()),
    }
}

fn changed_request(old: &Request, json: &Json) -> Result<Said, String> {
    let read = |key: &str| json.get(key).and_then(Json::as_str);
    let kept = [("method", &old.method), ("host", &old.host), ("path", &old.path), ("query", &old.query)];
    for (key, old) in kept {
        if read(key) != Some(old.as_str()) {
            return Err(format!("on_request cannot change {key}: the rules have judged it"));
        }
    }
    if json.get("port").and_then(Json::as_u64) != Some(old.port.into()) {
        return Err("on_request cannot change port: the rules have judged it".to_owned());
    }
    let (headers, body) = (read_headers(json)?, body("on_request", old.body.as_deref(), json)?);
    if same(&headers, &old.headers) && body == old.body {
        return Ok(Said::Pass);
    }
    Ok(Said::Request(headers, body))
}

fn changed_response(old: &Response, json: &Json) -> Result<Said, String> {
    let status = json.get("status").and_then(Json::as_u64).and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (200..600).contains(status));
    let status = status.ok_or("on_response returned no status from 200 to 599")?;
    let (headers, body) = (read_headers(json)?, body("on_response", old.body.as_deref(), json)?);
    if status == old.status && same(&headers, &old.headers) && body == old.body {
        return Ok(Said::Pass);
    }
    Ok(Said::Response(Response { status, headers, body }))
}

/// Whether two lists say the same of each name.
fn same(one: &[(String, String)], other: &[(String, String)]) -> bool {
    let sorted = |headers: &[(String, String)]| {
        let mut headers = headers.to_vec();
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        headers
    };
    sorted(one) == sorted(other)
}

fn read_headers(json: &Json) -> Result<Vec<(String, String)>, String> {
    let Some(Json::Object(headers)) = json.get("headers") else {
        return Err("what was returned has no headers".to_owned());
    };
    let mut read = Vec::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        match value {
            Json::String(value) => read.push((name, value.clone())),
            Json::Array(values) => {
                for value in values {
                    let value = value.as_str().ok_or_else(|| format!("the header {name} is not text"))?;
                    read.push((name.clone(), value.to_owned()));
                }
            }
            _ => return Err(format!("the header {name} is neither text nor a list of texts")),
        }
    }
    Ok(read)
}

fn body(function: &str, old: Option<&str>, json: &Json) -> Result<Option<String>, String> {
    match (old, json.get("body")) {
        (Some(_), Some(Json::String(body))) => Ok(Some(body.clone())),
        (Some(_), _) => Err(format!("{function} cannot take the body away; write \"\"")),
        (None, None | Some(Json::Null)) => Ok(None),
        (None, Some(_)) => {
            Err(format!("{function} cannot set a body that it was not shown: the rule needs body = \"1M\""))
        }
    }
}
