//! When something is tried again, and how long to wait before. Pure.

use std::time::Duration;

/// How often something is tried that gets nowhere.
pub(super) const MOST: u32 = 6;
/// The first wait; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(200);
/// The longest wait of our own, and the longest that a server can demand.
const LONGEST: Duration = Duration::from_secs(10);
const LONGEST_DEMANDED: Duration = Duration::from_secs(60);

/// Whether a status may be another one next time.
pub(super) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// How long to wait before try `number`, counted from 1; none where there is no further one. `demanded` is what a server
/// said in `Retry-After`, `spread` is any number: those who failed together do not come back together.
pub(super) fn wait(number: u32, demanded: Option<&str>, spread: u32) -> Option<Duration> {
    if number >= MOST {
        return None;
    }
    let demanded = demanded.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    if let Some(demanded) = demanded {
        return (demanded <= LONGEST_DEMANDED).then_some(demanded.max(FIRST));
    }
    let whole = FIRST.saturating_mul(2u32.saturating_pow(number.saturating_sub(1))).min(LONGEST);
    Some(whole.mul_f64(0.5 + f64::from(spread % 1000) / 2000.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_grow_and_end() {
        let waits: Vec<_> = (1..10).map_while(|number| wait(number, None, 1000)).collect();
        assert_eq!(waits.len(), 5);
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    }

    #[test]
    fn a_server_can_demand_a_minute_and_no_more() {
        assert_eq!(wait(1, Some(" 7 "), 0), Some(Duration::from_secs(7)));
        assert_eq!(wait(1, Some("0"), 0), Some(FIRST));
        assert_eq!(wait(1, Some("61"), 0), None);
        assert!(wait(1, Some("Wed, 21 Oct 2026 07:28:00 GMT"), 0).is_some());
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_a_minute(number: u32, demanded in proptest::option::of("\\PC{0,20}"), spread: u32) {
            if let Some(waits) = wait(number, demanded.as_deref(), spread) {
                prop_assert!(waits <= LONGEST_DEMANDED);
            }
        }
    }
}
