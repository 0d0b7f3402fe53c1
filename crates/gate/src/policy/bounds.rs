//! Rates, budgets and bandwidths as people write them, and pins.

use super::{
    BadPolicy, Source,
    read::{Value, wrong},
};
use airlock_protocol::{
    policy::{Bounds, Rate},
    size,
};
use toml::de::{DeTable, DeValue};

const UNITS: [(&str, u32); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

/// Reads `rate`, `bytes` and `bandwidth` of a rule.
pub(super) fn read(source: Source<'_>, table: &DeTable<'_>) -> Result<Bounds, BadPolicy> {
    let bytes = match table.get("bytes") {
        None => None,
        Some(value) => {
            Some(one(source, value, "bytes", BYTES, |text| size::parse(text).ok().filter(|most| *most > 0))?)
        }
    };
    let rate = match table.get("rate") {
        None => None,
        Some(value) => Some(one(source, value, "rate", RATE, rate)?),
    };
    Ok(Bounds { rate, bytes, bandwidth: read_bandwidth(source, table)? })
}

/// Reads `bandwidth` of a rule, or of the policy.
pub(super) fn read_bandwidth(source: Source<'_>, table: &DeTable<'_>) -> Result<Option<u64>, BadPolicy> {
    let Some(value) = table.get("bandwidth") else { return Ok(None) };
    one(source, value, "bandwidth", BANDWIDTH, bandwidth).map(Some)
}

const RATE: &str = "write \"60/m\": so many a second (s), minute (m), hour (h) or day (d)";
const BYTES: &str = "write \"100M\": bytes, or a number with K, M, G or T";
const BANDWIDTH: &str = "write \"5M/s\": so many bytes a second, with K, M, G or T";

fn one<T>(
    source: Source<'_>,
    value: Value<'_, '_>,
    key: &str,
    fix: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, BadPolicy> {
    let DeValue::String(text) = value.get_ref() else {
        return Err(wrong(source, value, key, "a text").fix(fix));
    };
    parse(text).ok_or_else(|| source.bad(value.span(), format!("this is no `{key}`")).fix(fix))
}

/// `60/m`, `5/10s`.
fn rate(text: &str) -> Option<Rate> {
    let (count, time) = text.split_once('/')?;
    let (unit, seconds) = UNITS.iter().find(|(unit, _)| time.ends_with(unit))?;
    let times = time.strip_suffix(unit)?;
    let times: u32 = if times.is_empty() { 1 } else { digits(times)? };
    let rate = Rate { count: digits(count)?, seconds: times.checked_mul(*seconds)? };
    (rate.count > 0 && rate.seconds > 0).then_some(rate)
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn bandwidth(text: &str) -> Option<u64> {
    size::parse(text.strip_suffix("/s")?).ok().filter(|bytes| *bytes > 0)
}

/// A rate as it is read.
pub(super) fn shown_rate(rate: Rate) -> String {
    let whole = UNITS.iter().rev().find(|(_, seconds)| rate.seconds.is_multiple_of(*seconds));
    match whole {
        Some((unit, seconds)) if rate.seconds == *seconds => format!("{}/{unit}", rate.count),
        Some((unit, seconds)) => format!("{}/{}{unit}", rate.count, rate.seconds / seconds),
        None => format!("{}/{}s", rate.count, rate.seconds),
    }
}

/// Bytes as they are read, to the last one.
pub(super) fn shown_bytes(bytes: u64) -> String {
    let shifts = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = shifts.iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or(bytes.to_string(), |(shift, suffix)| format!("{}{suffix}", bytes >> shift))
}

/// A pin: `sha256/` and the base64 of 32 bytes.
pub(crate) fn check_pin(text: &str) -> Result<(), &'static str> {
    let decoded = text.strip_prefix("sha256/").map(|rest| data_encoding::BASE64.decode(rest.as_bytes()));
    match decoded {
        Some(Ok(hash)) if hash.len() == 32 => Ok(()),
        _ => Err("a pin is `sha256/` and the base64 of 32 bytes"),
    }
}
