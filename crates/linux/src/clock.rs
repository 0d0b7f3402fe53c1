//! How fast the processor counts.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Thousands of ticks a second of this processor's time stamp counter, measured. `None` where it has none.
///
/// Takes a few hundredths of a second.
#[must_use]
pub fn ticks_per_millisecond() -> Option<u64> {
    let (from, at) = (ticks()?, now());
    std::thread::sleep(MEASURED);
    let (until, then) = (ticks()?, now());
    let passed = then.checked_sub(at).filter(|passed| !passed.is_zero())?;
    let counted = u128::from(until.checked_sub(from)?);
    u64::try_from(counted.checked_mul(1_000_000)?.checked_div(passed.as_nanos())?).ok()
}

const MEASURED: Duration = Duration::from_millis(30);

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: reads a counter that every processor of this architecture has.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

/// Unlike the monotonic clock it is never made to go faster or slower.
fn now() -> Duration {
    let now = clock_gettime(ClockId::MonotonicRaw);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_processor_counts_between_a_hundred_megahertz_and_ten_gigahertz() {
        let counted = ticks_per_millisecond().unwrap();
        assert!((100_000..10_000_000).contains(&counted), "{counted}");
    }
}
