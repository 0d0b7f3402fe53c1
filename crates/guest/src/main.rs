//! PID 1 inside every sandbox.
//!
//! It starts programs the keeper asks for, forwards signals, reaps, and reports. It holds no secret; it stands
//! inside the wall, so the keeper trusts nothing it says. When its link to the keeper closes it ends, and the kernel
//! ends everything else with it.
//!
//! - [`link`]: frames and descriptors to and from the keeper
//! - [`init`]: the loop: requests, ended children, reports of session leaders
//! - [`stillness`]: whether every other process has stopped
//! - [`programs`]: starting, signalling and finding programs
//! - [`copies`]: files in and out

mod copies;
mod init;
mod link;
mod programs;
mod stillness;

fn main() {
    if std::process::id() != 1 {
        eprintln!("airlock-guest: this program is started by airlock as PID 1 of a sandbox");
        std::process::exit(125);
    }
    let code = match init::run() {
        Ok(()) => 0,
        Err(_) => 125,
    };
    std::process::exit(code);
}
