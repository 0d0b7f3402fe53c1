//! The harness of the black-box suites: a private state directory, a workspace, the command line as a person types it.
//!
//! ```no_run
//! use airlock_tests::World;
//! let world = World::new();
//! assert_eq!(world.airlock(["run", "--", "echo", "hello"]).run().succeeded(), "hello\n");
//! ```
//!
//! The suites use nothing of the product but its binary: what they see, a user can see. They run as root, as a user
//! with ranges of ids and as one with a single id; [`who`] tells. Nothing may be left behind when a [`World`] ends.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a harness that cannot go on ends its test"
)]

mod binary;
pub mod build;
pub mod dockerd;
mod events;
pub mod images;
pub mod internet;
mod leftovers;
mod machine;
pub mod posix;
mod process;
pub mod registry;
mod terminal;
mod who;
mod world;

pub use binary::binary;
pub use events::Events;
pub use internet::{Internet, internet};
pub use machine::{is_machine, least_memory, many, not_for_a_machine, search};
pub use process::{Airlock, Output, Running};
pub use terminal::Terminal;
pub use who::{Who, has_program, not_applicable, skip, who};
pub use world::World;

use std::time::{Duration, Instant};

/// Flags that show a Rust toolchain at `/rust` inside: the host's own usually lies in a home directory, which is not shown.
/// Nothing where `cargo xtask test` did not say where one is; return then.
pub fn rust() -> Option<[String; 4]> {
    let Some(place) = std::env::var_os("AIRLOCK_TEST_RUST") else {
        skip("there is no toolchain that every user can read (cargo xtask test)");
        return None;
    };
    let mount = format!("{}:/rust:ro", place.display());
    let path = "PATH=/rust/bin:/usr/local/bin:/usr/bin:/bin:/root/.cargo/bin".to_owned();
    Some(["--mount".to_owned(), mount, "--env".to_owned(), path])
}

/// How long anything may take before a test fails; far more than it needs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer, for facts that nobody announces; fails after [`DEADLINE`], or later where every sandbox is a machine.
#[track_caller]
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    asked_until(Instant::now() + machine::patience(), ask)
        .unwrap_or_else(|| panic!("waited too long for: {what}"))
}

fn asked_until<T>(end: Instant, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let answer = ask();
        if answer.is_some() || Instant::now() >= end {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
