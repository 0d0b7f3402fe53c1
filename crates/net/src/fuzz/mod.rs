//! Hostile bytes for what reads hostile bytes: seeds that are changed over and over, by what came of them.
//!
//! As part of the tests each target gets a few thousand inputs, the same ones every time. `cargo xtask fuzz` gives each as long as it
//! is told, and other ones every time. An input whose outcome was not seen before becomes a seed itself, so that what
//! is deep inside is found step by step. What panics or breaks a promise is printed, to become a test of its own.

mod targets;

use std::{
    collections::{HashSet, hash_map::RandomState},
    env,
    hash::{BuildHasher as _, Hasher as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

/// Seconds for each target; a fixed number of inputs where it is not set.
const SECONDS: &str = "AIRLOCK_FUZZ_SECONDS";
/// As part of the tests.
const FEW: u64 = 3_000;
/// Seeds that are kept.
const MOST_SEEDS: usize = 2_000;
/// Longest input.
const LONGEST: usize = 4_096;
/// Bytes and texts that parsers are touchy about.
const TOUCHY: [&[u8]; 22] = [
    b"\0",
    b"\xff",
    b"\xff\xff",
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"%00",
    b"%2f",
    b"..",
    b"0x",
    b"-1",
    b"18446744073709551616",
    b"chunked",
    b"\x80",
    b"\xc0\x0c",
    b"\"",
];

/// Gives `target` one input after another. It tells in words what came of it.
pub(crate) fn run(seeds: &[&[u8]], target: impl Fn(&[u8]) -> String) {
    run_some(FEW, seeds, target);
}

/// As [`run`], for a target that takes long: so many inputs as part of the tests.
pub(crate) fn run_some(few: u64, seeds: &[&[u8]], target: impl Fn(&[u8]) -> String) {
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut dice =
        Dice(if until.is_some() { RandomState::new().build_hasher().finish() | 1 } else { 0x5eed });
    let mut pool: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    let (mut seen, mut count) = (HashSet::new(), 0_u64);
    while until.map_or(count < few, |until| Instant::now() < until) {
        let input = match pool.get(usize::try_from(count).unwrap_or(usize::MAX)) {
            Some(seed) if count < seeds.len() as u64 => seed.clone(),
            _ => changed(&pool, &mut dice),
        };
        count += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input))).unwrap_or_else(|panic| {
            eprintln!("input: b\"{}\"", input.escape_ascii());
            resume_unwind(panic)
        });
        if seen.insert(outcome) && pool.len() < MOST_SEEDS {
            pool.push(input);
        }
    }
    if until.is_some() {
        eprintln!("{count} inputs, {} outcomes", seen.len());
    }
}

/// One of the pool with a few changes.
fn changed(pool: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut input = pool.get(dice.below(pool.len())).cloned().unwrap_or_default();
    for _ in 0..=dice.below(6) {
        let at = dice.below(input.len() + 1);
        match dice.below(8) {
            0 => {
                let byte = dice.byte();
                input.insert(at, byte);
            }
            1 if at < input.len() => {
                input.remove(at);
            }
            2 if at < input.len() => input[at] ^= 1 << dice.below(8),
            3 if at < input.len() => input[at] = dice.byte(),
            4 => {
                input.splice(at..at, TOUCHY[dice.below(TOUCHY.len())].iter().copied());
            }
            5 => {
                let end = at + dice.below(input.len() - at + 1);
                let piece = input[at..end].to_vec();
                let to = dice.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            6 => {
                let end = at + dice.below(input.len() - at + 1);
                input.drain(at..end);
            }
            _ => {
                let other = &pool[dice.below(pool.len())];
                let from = dice.below(other.len() + 1);
                let piece = other[from..].to_vec();
                input.truncate(at);
                input.extend(piece);
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// Numbers that look like chance (xorshift64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Less than `most`; 0 where that is 0.
    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() >> 11).unwrap_or_default().checked_rem(most).unwrap_or_default()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// Where an input is cut in two; by its own bytes, so that the same input is always cut the same.
pub(crate) fn cut(input: &[u8]) -> (&[u8], &[u8]) {
    let sum = input.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    input.split_at(sum % (input.len() + 1))
}

#[test]
fn what_is_deep_inside_is_found_step_by_step() {
    let found = std::cell::Cell::new(false);
    run(&[b"begin"], |input| {
        let right = input.iter().zip(b"\xff\r\n:%00").take_while(|(is, wanted)| is == wanted).count();
        found.set(found.get() || right >= 3);
        right.to_string()
    });
    assert!(found.get());
}
