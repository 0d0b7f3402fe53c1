//! How often something may happen: a burst, then so many a second.

use tokio::time::Instant;

/// Uses that are left, refilled with time.
#[derive(Debug)]
pub(crate) struct Allowance {
    burst: f64,
    per_second: f64,
    left: f64,
    counted_at: Option<Instant>,
}

impl Allowance {
    /// `burst` at once, then `per_second`.
    pub(crate) fn new(burst: u32, per_second: u32) -> Allowance {
        let burst = f64::from(burst);
        Allowance { burst, per_second: f64::from(per_second), left: burst, counted_at: None }
    }

    /// Uses one; `false` if none is left.
    pub(crate) fn take(&mut self) -> bool {
        let now = Instant::now();
        let before = self.counted_at.replace(now).unwrap_or(now);
        let refilled = self.left + now.saturating_duration_since(before).as_secs_f64() * self.per_second;
        self.left = refilled.min(self.burst);
        let is_left = self.left >= 1.0;
        self.left -= if is_left { 1.0 } else { 0.0 };
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_used_up_and_comes_back_with_time_but_never_more_of_it() {
        let mut allowance = Allowance::new(5, 2);
        let mut used = || (0..10).filter(|_| allowance.take()).count();
        assert_eq!(used(), 5);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(used(), 2);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(used(), 5);
    }
}
