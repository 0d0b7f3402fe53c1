//! Records as OCSF events (Open Cybersecurity Schema Framework, <https://schema.ocsf.io>), for other people's tools.
//!
//! A connection, a published port and the end of a flow are Network Activity (4001), a request, its end and a secret in one are
//! HTTP Activity (4002), a name that was asked for is DNS Activity (4003); what the framework has no class for is a Base Event (0) with the record under `unmapped`.

use airlock_protocol::{
    ledger::{Crossing, Entry, Record},
    policy::Verdict,
};
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// The version of the schema.
const VERSION: &str = "1.3.0";

const FILE: u64 = 1001;
const NETWORK: u64 = 4001;
const HTTP: u64 = 4002;
const DNS: u64 = 4003;
/// Methods in the order of their activities, which count from 1.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PATCH"];
const OTHER: u64 = 99;
const BASE: u64 = 0;

/// One event, as a JSON object.
pub fn event(record: &Record) -> Value {
    let mut event = match &record.entry {
        Entry::Decision { crossing, .. } => decision(record, crossing),
        Entry::Flow { .. } => flow(record),
        Entry::Policy { generation, rules, by } => {
            base(record, format!("the policy was changed by {by}: generation {generation}, {rules} rules"))
        }
        Entry::Asked { request, rule, .. } => {
            base(record, format!("request {request} waits for a person: {rule}"))
        }
        Entry::Approval { request, verdict, by, .. } => {
            base(record, format!("request {request} was answered by {by}: {verdict:?}").to_lowercase())
        }
        Entry::Rotated { dropped, .. } => {
            base(record, format!("the ledger was rotated: {dropped} records were dropped"))
        }
        Entry::Torn { bytes } => base(record, format!("an unfinished line of {bytes} bytes was cut off")),
    };
    event.insert("time".into(), json!(millis(&record.at)));
    event.insert("metadata".into(), metadata(record));
    Value::Object(event)
}

fn metadata(record: &Record) -> Value {
    json!({
        "version": VERSION,
        "product": { "name": "Airlock", "vendor_name": "Airlock" },
        "profiles": ["security_control"],
        "log_name": "ledger",
        "uid": format!("{}-{}", record.sandbox, record.seq),
        "sequence": record.seq,
        "original_time": record.at,
    })
}

fn mount(source: &str, target: &str, access: &str) -> Map<String, Value> {
    let mut event = class(FILE, OTHER);
    event.insert("activity_name".into(), json!(if access == "none" { "unmount" } else { "mount" }));
    event.insert("file".into(), json!({ "path": target, "type_id": 2 }));
    event.insert("message".into(), json!(format!("{source} at {target} ({access})")));
    event
}

fn touched(path: &str, touch: &str) -> Map<String, Value> {
    let mut event = class(FILE, OTHER);
    event.insert("activity_name".into(), json!(touch));
    event.insert("file".into(), json!({ "path": path, "type_id": 1 }));
    event
}

fn decision(record: &Record, crossing: &Crossing) -> Map<String, Value> {
    let Entry::Decision { verdict, audit_only, rule, reason, detail, flow, times, .. } = &record.entry else {
        return Map::new();
    };
    let is_allowed = *verdict == Verdict::Allow;
    let mut event = match crossing {
        Crossing::Resolve { host, question } => {
            let mut event = class(DNS, 1);
            event.insert("query".into(), json!({ "hostname": host, "type": question }));
            event
        }
        Crossing::Connect { host, port, protocol } => {
            let mut event = class(NETWORK, if is_allowed { 1 } else { 5 });
            event.insert("dst_endpoint".into(), endpoint(host, *port));
            event.insert("connection_info".into(), connection(protocol, 2));
            event
        }
        Crossing::Request { host, port, method, path } => {
            let known = (1..).zip(METHODS).find(|(_, name)| name == method);
            let mut event = class(HTTP, known.map_or(OTHER, |(activity, _)| activity));
            event.insert("dst_endpoint".into(), endpoint(host, *port));
            let url = json!({ "hostname": host, "port": port, "path": path });
            event.insert("http_request".into(), json!({ "http_method": method, "url": url }));
            event
        }
        Crossing::Reveal { secret, host, port } => {
            let mut event = class(HTTP, OTHER);
            event.insert("dst_endpoint".into(), endpoint(host, *port));
            event.insert("activity_name".into(), json!("reveal"));
            event.insert("message".into(), json!(format!("the secret {secret}")));
            event
        }
        Crossing::Mount { source, target, access } => mount(source, target, access),
        Crossing::File { path, touch } => touched(path, touch),
        Crossing::Publish { from, port } => {
            let mut event = class(NETWORK, if is_allowed { 1 } else { 5 });
            event.insert("src_endpoint".into(), socket(from));
            event.insert(
                "dst_endpoint".into(),
                json!({ "port": port, "instance_uid": record.sandbox.as_str() }),
            );
            event.insert("connection_info".into(), connection("tcp", 1));
            event
        }
    };
    let (action, disposition) = match (is_allowed, audit_only) {
        (true, false) => (1, 1),
        // Seen, and let through all the same.
        (true, true) => (1, 17),
        (false, _) => (2, 2),
    };
    event.insert("action_id".into(), json!(action));
    event.insert("disposition_id".into(), json!(disposition));
    event.insert("status_id".into(), json!(if is_allowed { 1 } else { 2 }));
    event.insert("severity_id".into(), json!(if is_allowed && !audit_only { 1 } else { 2 }));
    put(&mut event, "firewall_rule", rule.as_ref().map(|rule| json!({ "name": rule })));
    put(&mut event, "status_code", reason.as_ref().map(|reason| json!(reason)));
    put(&mut event, "status_detail", detail.as_ref().map(|detail| json!(detail)));
    put(&mut event, "count", times.map(|times| json!(times)));
    put(&mut event, "unmapped", flow.map(|flow| json!({ "flow": flow })));
    event
}

fn flow(record: &Record) -> Map<String, Value> {
    let Entry::Flow { flow, host, port, address, sent, received, millis, status, code, times } =
        &record.entry
    else {
        return Map::new();
    };
    let activity = match status.as_str() {
        "closed" => 2,
        "reset" => 3,
        _ => 4,
    };
    let mut event = match code {
        None => class(NETWORK, activity),
        Some(code) => {
            let mut event = class(HTTP, OTHER);
            event.insert("activity_name".into(), json!("answer"));
            event.insert("http_response".into(), json!({ "code": code }));
            event
        }
    };
    let mut destination = endpoint(host, *port);
    if let (Some(address), Value::Object(destination)) = (address, &mut destination) {
        // With or without its port.
        let ip = address.parse::<std::net::SocketAddr>().map(|at| at.ip()).or_else(|_| address.parse());
        put(destination, "ip", ip.ok().map(|ip: IpAddr| json!(ip)));
    }
    event.insert("dst_endpoint".into(), destination);
    event.insert("connection_info".into(), connection("tcp", 2));
    let traffic = json!({ "bytes_out": sent, "bytes_in": received, "bytes": sent.saturating_add(*received) });
    event.insert("traffic".into(), traffic);
    event.insert("duration".into(), json!(millis));
    event.insert("action_id".into(), json!(1));
    event.insert("disposition_id".into(), json!(1));
    event.insert("status_id".into(), json!(if status == "closed" { 1 } else { 2 }));
    event.insert("status_code".into(), json!(status));
    event.insert("severity_id".into(), json!(1));
    put(&mut event, "count", times.map(|times| json!(times)));
    event.insert("unmapped".into(), json!({ "flow": flow }));
    event
}

fn base(record: &Record, message: String) -> Map<String, Value> {
    let mut event = class(BASE, 99);
    event.insert("severity_id".into(), json!(1));
    event.insert("activity_name".into(), json!("ledger"));
    event.insert("message".into(), json!(message));
    event.insert("unmapped".into(), json!(record.entry));
    event
}

fn class(class: u64, activity: u64) -> Map<String, Value> {
    let fields = [
        ("category_uid", class / 1000),
        ("class_uid", class),
        ("activity_id", activity),
        ("type_uid", class * 100 + activity),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

fn endpoint(host: &str, port: u16) -> Value {
    match host.parse::<IpAddr>() {
        Ok(ip) => json!({ "ip": ip, "port": port }),
        Err(_) => json!({ "hostname": host, "port": port }),
    }
}

fn socket(text: &str) -> Value {
    match text.parse::<std::net::SocketAddr>() {
        Ok(at) => json!({ "ip": at.ip(), "port": at.port() }),
        Err(_) => json!({ "name": text }),
    }
}

fn connection(protocol: &str, direction: u64) -> Value {
    let number = match protocol {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        _ => -1,
    };
    json!({ "protocol_name": protocol, "protocol_num": number, "direction_id": direction })
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value);
    }
}

fn millis(at: &str) -> i64 {
    at.parse::<jiff::Timestamp>().map_or(0, |at| at.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entry: Value) -> Record {
        let mut whole =
            json!({ "seq": 7, "at": "2026-01-31T12:00:00.250000Z", "sandbox": "3f9a0c2e7b14", "prev": "" });
        whole.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn a_denied_connection_is_a_refused_network_activity() {
        let denied = record(json!({
            "kind": "decision", "verdict": "deny", "reason": "rule", "rule": "deny *.test (airlock.toml:3)",
            "crossing": { "crossing": "connect", "host": "evil.test", "port": 443, "protocol": "tcp" },
        }));

        let expected = json!({
            "category_uid": 4, "class_uid": 4001, "activity_id": 5, "type_uid": 400_105, "time": 1_769_860_800_250_u64,
            "dst_endpoint": { "hostname": "evil.test", "port": 443 },
            "connection_info": { "protocol_name": "tcp", "protocol_num": 6, "direction_id": 2 },
            "action_id": 2, "disposition_id": 2, "status_id": 2, "severity_id": 2, "status_code": "rule",
            "firewall_rule": { "name": "deny *.test (airlock.toml:3)" },
            "metadata": {
                "version": "1.3.0", "product": { "name": "Airlock", "vendor_name": "Airlock" },
                "profiles": ["security_control"], "log_name": "ledger", "uid": "3f9a0c2e7b14-7", "sequence": 7,
                "original_time": "2026-01-31T12:00:00.250000Z",
            },
        });
        assert_eq!(event(&denied), expected);
    }

    #[test]
    fn the_end_of_a_flow_tells_its_bytes_and_its_address() {
        let ended = event(&record(json!({
            "kind": "flow", "flow": 3, "host": "api.test", "port": 443, "address": "192.0.2.7:443",
            "sent": 10, "received": 20, "millis": 5, "status": "closed",
        })));
        assert_eq!(ended["type_uid"], 400_102);
        assert_eq!(ended["dst_endpoint"], json!({ "hostname": "api.test", "ip": "192.0.2.7", "port": 443 }));
        assert_eq!(ended["traffic"], json!({ "bytes_out": 10, "bytes_in": 20, "bytes": 30 }));
    }

    #[test]
    fn a_request_and_its_answer_are_http_activity() {
        let request = event(&record(json!({
            "kind": "decision", "verdict": "allow", "flow": 7,
            "crossing": { "crossing": "request", "host": "api.test", "port": 443, "method": "POST", "path": "/v1" },
        })));
        assert_eq!((&request["class_uid"], &request["type_uid"]), (&json!(4002), &json!(400_206)));
        let url = json!({ "hostname": "api.test", "port": 443, "path": "/v1" });
        assert_eq!(request["http_request"], json!({ "http_method": "POST", "url": url }));
        let ended = event(&record(json!({
            "kind": "flow", "flow": 7, "host": "api.test", "port": 443, "sent": 1, "received": 2, "millis": 5,
            "status": "closed", "code": 404,
        })));
        assert_eq!((&ended["class_uid"], &ended["http_response"]), (&json!(4002), &json!({ "code": 404 })));
    }

    #[test]
    fn every_kind_of_record_has_a_class_a_type_and_a_time() {
        for entry in [
            json!({ "kind": "decision", "verdict": "allow", "crossing": { "crossing": "resolve", "host": "a.test", "question": "A" } }),
            json!({ "kind": "decision", "verdict": "allow", "crossing": { "crossing": "publish", "from": "127.0.0.1:9", "port": 80 } }),
            json!({ "kind": "decision", "verdict": "deny", "crossing": { "crossing": "request", "host": "a.test", "port": 80, "method": "BREW", "path": "/" } }),
            json!({ "kind": "decision", "verdict": "allow", "crossing": { "crossing": "reveal", "secret": "T", "host": "a.test", "port": 443 } }),
            json!({ "kind": "policy", "generation": 1, "rules": 2, "by": "allow" }),
            json!({ "kind": "asked", "request": "r", "rule": "ask a.test", "crossing": { "crossing": "publish", "from": "x", "port": 80 } }),
            json!({ "kind": "approval", "request": "r", "verdict": "approved", "scope": "once", "by": "terminal" }),
            json!({ "kind": "rotated", "dropped": 3 }),
            json!({ "kind": "torn", "bytes": 3 }),
        ] {
            let event = event(&record(entry));
            let (class, activity) =
                (event["class_uid"].as_u64().unwrap(), event["activity_id"].as_u64().unwrap());
            assert_eq!(event["type_uid"].as_u64().unwrap(), class * 100 + activity);
            assert!(event["time"].as_u64().unwrap() > 0 && event["severity_id"].is_u64());
        }
    }
}
