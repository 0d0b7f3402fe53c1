//! `SOURCE_DATE_EPOCH`: the moment that counts as now, for images that are to come out the same again.
//! <https://reproducible-builds.org/specs/source-date-epoch/>

use crate::failure::Failure;
use jiff::Timestamp;

/// The second it names, if it is set.
pub(crate) fn from_environment() -> Result<Option<u64>, Failure> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) if !text.is_empty() => parse(&text).map(Some),
        _ => Ok(None),
    }
}

/// The moment that counts as now, in RFC 3339.
pub(crate) fn now(epoch: Option<u64>) -> Result<String, Failure> {
    let Some(second) = epoch else { return Ok(airlock_engine::store::now()) };
    let second = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
    second.map(|second| second.to_string()).ok_or_else(|| wrong("a moment that no calendar knows"))
}

fn parse(text: &str) -> Result<u64, Failure> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or_else(|| wrong("it is to be a number of seconds since 1970"))
}

fn wrong(why: &str) -> Failure {
    Failure::new("SOURCE_DATE_EPOCH makes no sense").why(why).code(2).fix("unset SOURCE_DATE_EPOCH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_seconds_since_1970() {
        assert_eq!(parse("1700000000").unwrap(), 1_700_000_000);
        assert_eq!(now(Some(1_700_000_000)).unwrap(), "2023-11-14T22:13:20Z");
        for text in ["-1", "+1", "1.5", "now", "99999999999999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(now(Some(u64::MAX)).is_err());
    }
}
