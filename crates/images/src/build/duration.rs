//! Times as Go writes them: `1m30s`, `1.5h`, `500ms`.

use std::time::Duration;

/// Reads a time that is not negative. `0` needs no unit.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut whole = 0f64;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, behind) = rest.split_at_checked(end)?;
        let end = behind.find(|char: char| char.is_ascii_digit() || char == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(end)?;
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        whole += number.parse::<f64>().ok()? * unit;
        rest = behind;
    }
    if text.is_empty() || whole > 1e9 {
        return None;
    }
    Duration::try_from_secs_f64(whole).ok()
}

/// Writes a time as Go does: `1m30s`, `0s`, `1.5s`, `500ms`.
pub fn write(time: Duration) -> String {
    let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1_000_000.. => fraction(nanos.into(), 6, "ms"),
            1_000.. => fraction(nanos.into(), 3, "µs"),
            _ => format!("{nanos}ns"),
        };
    }
    let rest = fraction(u64::from(nanos) + seconds % 60 * 1_000_000_000, 9, "s");
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

/// A number of 10^-digits units, without zeros at the end.
fn fraction(number: u64, digits: u32, unit: &str) -> String {
    let one = 10u64.pow(digits);
    let (whole, part) = (number / one, number % one);
    if part == 0 {
        return format!("{whole}{unit}");
    }
    let width = usize::try_from(digits).unwrap_or_default();
    let part = format!("{part:0width$}");
    format!("{whole}.{}{unit}", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_go_reads_them() {
        for (text, wanted) in
            [("30s", 30_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("500ms", 500), ("0", 0)]
        {
            assert_eq!(parse(text), Some(Duration::from_millis(wanted)), "{text}");
        }
        for bad in ["", "5", "-5s", "s", "5x", "1..2s", "99999999999999999999h"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (millis, wanted) in [
            (0, "0s"),
            (30_000, "30s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
            (1_500, "1.5s"),
            (500, "500ms"),
        ] {
            assert_eq!(write(Duration::from_millis(millis)), wanted);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_time_or_not(text in "[0-9.hmsnuµ-]{0,20}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_is_read(millis in 0u64..10_000_000) {
            let time = Duration::from_millis(millis);
            let read = parse(&write(time)).unwrap();
            prop_assert!(read.abs_diff(time) < Duration::from_micros(1));
        }
    }
}
