//! Sizes as people write them: `512M`, `1.5G`, `4096`.
//!
//! ```
//! use airlock_protocol::size::parse;
//! assert_eq!(parse("64K")?, 65_536);
//! assert_eq!(parse("1.5g")?, 1_610_612_736);
//! assert_eq!(airlock_protocol::size::show(1_610_612_736), "1.5G");
//! # Ok::<(), airlock_protocol::size::Invalid>(())
//! ```

/// A text that is no size.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a size: write bytes, or a number with K, M, G or T such as 512M")]
pub struct Invalid(String);

/// Bytes in a size with an optional binary suffix (`K M G T`, also `Ki`, `KiB`, `KB`), case ignored.
pub fn parse(text: &str) -> Result<u64, Invalid> {
    let invalid = || Invalid(text.chars().take(64).collect());
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
    let (number, suffix) = lower.split_at(split);
    let shift = match suffix.trim_start().trim_end_matches('b').trim_end_matches('i') {
        "" if !suffix.contains('i') => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(invalid()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| invalid())?;
    let bytes = whole.checked_mul(1 << shift).ok_or_else(invalid)?;
    bytes.checked_add(fraction_bytes(fraction, shift).ok_or_else(invalid)?).ok_or_else(invalid)
}

/// A size for a person: one decimal, binary suffix.
pub fn show(bytes: u64) -> String {
    for (shift, suffix) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >> shift == 0 {
            continue;
        }
        let tenths = (u128::from(bytes) * 10) >> shift;
        let (whole, tenth) = (tenths / 10, tenths % 10);
        return if tenth == 0 { format!("{whole}{suffix}") } else { format!("{whole}.{tenth}{suffix}") };
    }
    bytes.to_string()
}

fn fraction_bytes(digits: &str, shift: u32) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    if digits.len() > 9 {
        return None;
    }
    let value: u128 = digits.parse().ok()?;
    let scale = 10u128.pow(u32::try_from(digits.len()).ok()?);
    u64::try_from((value << shift) / scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_a_size_is_refused() {
        for bad in
            ["", "G", "-1", "1X", "1.2.3", "i", "5i", "99999999999999999999", "18446744073709551615K", "1e3"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn plain_bytes_parse_as_themselves(bytes: u64) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
