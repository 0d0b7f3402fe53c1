//! What a rule still allows: its rate, its bytes, its bandwidth, and the bandwidth of the sandbox.

use airlock_protocol::policy::{Bounds, Origin, Policy, Rate, Rule};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    rc::Rc,
    time::Duration,
};
use tokio::time::Instant;

/// Bytes that are taken at once where a bandwidth is low: a part of what may move in a second.
const PARTS: u64 = 10;
/// But at least so many, and at most.
const SMALLEST: u64 = 1024;
const LARGEST: u64 = 64 * 1024;
/// Into so many parts the time of a rate is divided.
const SLOTS: u32 = 64;

/// The budget is spent: the flow ends, and this is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rule's budget of bytes is spent")]
pub struct Spent;

/// What flows of one rule share. Clones share it too.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    rule: Option<Rc<Account>>,
    sandbox: Option<Rc<Account>>,
}

/// Uses of one rule, or of all together. What it allows may change while flows live.
#[derive(Debug, Default)]
struct Account {
    bounds: Cell<Bounds>,
    uses: RefCell<Window>,
    moved: RefCell<Bucket>,
    spent: Cell<u64>,
}

/// The accounts of a policy's rules.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    /// By what the rule says, bounds and origin left out: so long as it says the same, its account stays.
    accounts: HashMap<String, Rc<Account>>,
    /// By the rule's place.
    rules: HashMap<usize, Rc<Account>>,
    /// All flows share it, also those that began under other rules.
    sandbox: Rc<Account>,
}

impl Meter {
    /// Whether nothing has to be counted.
    pub fn is_unbounded(&self) -> bool {
        let counts = |account: &Rc<Account>| {
            let Bounds { bytes, bandwidth, .. } = account.bounds.get();
            bytes.is_some() || bandwidth.is_some()
        };
        !self.rule.iter().chain(&self.sandbox).any(counts)
    }

    /// Counts bytes that are about to move, and tells how long to wait before they do.
    pub fn take(&self, bytes: u64) -> Result<Duration, Spent> {
        if let Some(rule) = &self.rule {
            rule.spend(bytes)?;
        }
        let waits = self.rule.iter().chain(&self.sandbox).map(|account| account.wait(bytes));
        Ok(waits.max().unwrap_or_default())
    }

    /// How many bytes are best taken at once: few where the bandwidth is low, so that flows take turns.
    pub fn piece(&self) -> u64 {
        let bandwidths =
            self.rule.iter().chain(&self.sandbox).filter_map(|account| account.bounds.get().bandwidth);
        bandwidths.min().map_or(LARGEST, |least| (least / PARTS).clamp(SMALLEST, LARGEST))
    }

    /// As it is where nothing is denied: no budget ends a flow.
    pub(crate) fn without_budget(self) -> Meter {
        Meter { rule: None, ..self }
    }

    /// Whether the budget of bytes is spent.
    pub(crate) fn is_spent(&self) -> bool {
        let is_spent =
            |account: &Account| account.bounds.get().bytes.is_some_and(|most| account.spent.get() >= most);
        self.rule.as_deref().is_some_and(is_spent)
    }

    /// One more request or connection; if the rate has no room for it, the rate.
    pub(crate) fn use_once(&self) -> Result<(), Rate> {
        let Some(account) = &self.rule else { return Ok(()) };
        let Some(rate) = account.bounds.get().rate else { return Ok(()) };
        match account.uses.borrow_mut().take_one(rate) {
            true => Ok(()),
            false => Err(rate),
        }
    }
}

impl Account {
    /// Counts bytes of the budget. Once some do not fit, it is spent.
    fn spend(&self, bytes: u64) -> Result<(), Spent> {
        let Some(most) = self.bounds.get().bytes else {
            self.spent.set(self.spent.get().saturating_add(bytes));
            return Ok(());
        };
        match self.spent.get().checked_add(bytes).filter(|sum| *sum <= most) {
            Some(sum) => {
                self.spent.set(sum);
                Ok(())
            }
            None => {
                self.spent.set(most.max(self.spent.get()));
                Err(Spent)
            }
        }
    }

    fn wait(&self, bytes: u64) -> Duration {
        let Some(bandwidth) = self.bounds.get().bandwidth else { return Duration::ZERO };
        self.moved.borrow_mut().owe(bytes, bandwidth.max(1))
    }
}

impl Meters {
    /// Accounts for the rules of `policy`; those of rules that stay are kept, with what was used of them.
    pub(crate) fn for_policy(policy: &Policy, before: &Meters) -> Meters {
        let mut meters = Meters { sandbox: Rc::clone(&before.sandbox), ..Meters::default() };
        meters.sandbox.bounds.set(Bounds { bandwidth: policy.bandwidth, ..Bounds::default() });
        for (index, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| !rule.bounds.is_none()) {
            let key = key(rule);
            let known = meters.accounts.get(&key).or_else(|| before.accounts.get(&key));
            let account = known.map(Rc::clone).unwrap_or_default();
            account.bounds.set(rule.bounds);
            meters.accounts.insert(key, Rc::clone(&account));
            meters.rules.insert(index, account);
        }
        meters
    }

    /// What the rule at this place allows, within what the sandbox may.
    pub(crate) fn of(&self, rule: Option<usize>) -> Meter {
        let rule = rule.and_then(|index| self.rules.get(&index)).map(Rc::clone);
        Meter { rule, sandbox: Some(Rc::clone(&self.sandbox)) }
    }
}

fn key(rule: &Rule) -> String {
    let said = Rule { bounds: Bounds::default(), origin: Origin::default(), ..rule.clone() };
    serde_json::to_string(&said).unwrap_or_default()
}

/// Uses in a time that goes along: at no moment were there more in the time before it than the rate says. Uses that came shortly
/// after each other are counted together, and until the last of them has passed.
#[derive(Debug, Default)]
struct Window {
    slots: VecDeque<Slot>,
}

#[derive(Debug)]
struct Slot {
    first: Instant,
    last: Instant,
    uses: u32,
}

impl Window {
    /// Uses one; `false` if none is left.
    fn take_one(&mut self, rate: Rate) -> bool {
        let (now, length) = (Instant::now(), Duration::from_secs(rate.seconds.max(1).into()));
        let is_over = |slot: &Slot| now.saturating_duration_since(slot.last) >= length;
        while self.slots.front().is_some_and(is_over) {
            self.slots.pop_front();
        }
        let used = self.slots.iter().fold(0_u32, |sum, slot| sum.saturating_add(slot.uses));
        if used >= rate.count {
            return false;
        }
        let is_near = |slot: &&mut Slot| now.saturating_duration_since(slot.first) < length / SLOTS;
        match self.slots.back_mut().filter(is_near) {
            Some(slot) => (slot.last, slot.uses) = (now, slot.uses.saturating_add(1)),
            None => self.slots.push_back(Slot { first: now, last: now, uses: 1 }),
        }
        true
    }
}

/// What is left of an allowance that refills with time.
#[derive(Debug, Default)]
struct Bucket {
    /// Uses that are left; below zero what is owed. None: it is full.
    left: Option<f64>,
    counted_at: Option<Instant>,
}

impl Bucket {
    /// Fills it up to `burst` for the time since it was last looked at.
    fn refill(&mut self, burst: f64, per_second: f64) -> f64 {
        let now = Instant::now();
        let before = self.counted_at.replace(now).unwrap_or(now);
        let gained = now.saturating_duration_since(before).as_secs_f64() * per_second;
        (self.left.unwrap_or(burst) + gained).min(burst)
    }

    /// Uses so many bytes, also those that are not there yet; how long until they are. The burst is one second's.
    fn owe(&mut self, bytes: u64, per_second: u64) -> Duration {
        let per_second = as_float(per_second);
        let left = self.refill(per_second, per_second) - as_float(bytes);
        self.left = Some(left);
        match left < 0.0 {
            true => Duration::try_from_secs_f64(-left / per_second).unwrap_or(Duration::MAX),
            false => Duration::ZERO,
        }
    }
}

/// Exact up to 2^53, and beyond that near enough.
#[expect(clippy::cast_precision_loss, reason = "a byte in 2^53 does not matter")]
fn as_float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::policy::{Ports, Verdict};
    use proptest::prelude::*;

    fn policy(bounds: Bounds, bandwidth: Option<u64>) -> Policy {
        let rule = Rule::new(Verdict::Allow, vec!["a.test".into()], vec![Ports::one(443)], Origin::default());
        Policy { rules: vec![Rule { bounds, ..rule }], bandwidth, ..Policy::default() }
    }

    fn meters(bounds: Bounds) -> Meters {
        Meters::for_policy(&policy(bounds, None), &Meters::default())
    }

    #[test]
    fn a_rule_without_bounds_counts_nothing() {
        let meter = meters(Bounds::default()).of(Some(0));
        assert!(meter.is_unbounded() && !meter.is_spent());
        assert_eq!(meter.take(u64::MAX), Ok(Duration::ZERO));
        assert_eq!(meter.use_once(), Ok(()));
    }

    #[test]
    fn bytes_are_spent_once_for_all_flows_and_other_rules_do_not_give_them_back() {
        let bounds = Bounds { bytes: Some(100), ..Bounds::default() };
        let meters = meters(bounds);
        let (one, other) = (meters.of(Some(0)), meters.of(Some(0)));
        assert_eq!((one.take(60), other.take(40)), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert!(one.is_spent());
        assert_eq!(one.take(1), Err(Spent));

        let again = Meters::for_policy(&policy(bounds, Some(5)), &meters);
        assert_eq!(again.of(Some(0)).take(1), Err(Spent));
        let more = Meters::for_policy(&policy(Bounds { bytes: Some(101), ..bounds }, None), &again);
        assert_eq!(one.take(1), Ok(Duration::ZERO));
        assert_eq!(more.of(Some(0)).take(1), Err(Spent));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_used_up_at_once_and_comes_back_when_its_time_is_over() {
        let rate = Rate { count: 6, seconds: 3 };
        let meter = meters(Bounds { rate: Some(rate), ..Bounds::default() }).of(Some(0));
        let used = || (0..20).filter(|_| meter.use_once().is_ok()).count();
        assert_eq!(used(), 6);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(used(), 0);
        assert_eq!(meter.use_once(), Err(rate));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(used(), 6);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(used(), 6);
    }

    #[test]
    fn pieces_are_small_where_little_may_move() {
        let piece = |bandwidth| meters(Bounds { bandwidth, ..Bounds::default() }).of(Some(0)).piece();
        assert_eq!(
            [piece(None), piece(Some(1)), piece(Some(1 << 17)), piece(Some(1 << 40))],
            [65_536, 1024, 13_107, 65_536]
        );
    }

    proptest! {
        /// Whoever waits as long as told never has more than a second's burst and what came since.
        #[test]
        fn a_bandwidth_is_never_exceeded(rate in 1_u64..10_000, takes in prop::collection::vec((1_u64..5_000, 0_u64..3_000), 1..40), shared: bool) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let own = Bounds { bandwidth: Some(rate).filter(|_| !shared), ..Bounds::default() };
                let meters = Meters::for_policy(&policy(own, Some(rate).filter(|_| shared)), &Meters::default());
                let flows = [meters.of(Some(0)), meters.of(Some(0))];
                let start = Instant::now();
                let mut moved = 0;
                for (turn, (bytes, idle)) in takes.into_iter().enumerate() {
                    let wait = flows[turn % 2].take(bytes).unwrap();
                    tokio::time::sleep(wait).await;
                    moved += bytes;
                    let allowed = as_float(rate) * (1.0 + start.elapsed().as_secs_f64() + 0.002);
                    assert!(as_float(moved) <= allowed, "{moved} bytes, {allowed} allowed");
                    tokio::time::sleep(Duration::from_millis(idle)).await;
                }
            });
        }

        /// Whenever one looks, and however uses were spread; and what is held is bounded.
        #[test]
        fn a_rate_is_never_exceeded_in_any_time_of_its_length(count in 1_u32..30, seconds in 1_u32..20, waits in prop::collection::vec(0_u64..4_000, 1..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (mut window, rate) = (Window::default(), Rate { count, seconds });
                let mut taken = Vec::new();
                for wait in waits {
                    tokio::time::advance(Duration::from_millis(wait)).await;
                    if window.take_one(rate) {
                        taken.push(Instant::now());
                    }
                    assert!(window.slots.len() <= 66, "{}", window.slots.len());
                }
                let length = Duration::from_secs(seconds.into());
                for (at, first) in taken.iter().enumerate() {
                    let within = taken[at..].iter().take_while(|taken| **taken - *first < length).count();
                    assert!(within <= count as usize, "{within} of {count}");
                }
            });
        }

        #[test]
        fn a_budget_is_never_exceeded(most in 0_u64..10_000, takes in prop::collection::vec(0_u64..3_000, 0..40)) {
            let meter = meters(Bounds { bytes: Some(most), ..Bounds::default() }).of(Some(0));
            let moved: u64 = takes.into_iter().filter(|bytes| meter.take(*bytes).is_ok()).sum();
            prop_assert!(moved <= most);
        }
    }
}
