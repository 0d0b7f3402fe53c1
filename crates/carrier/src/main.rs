//! Both ends of a machine.
//!
//! On the host it is executed in the guest's place, with the whole root of the sandbox around it; in the machine it is
//! `/init`. Between them are two ports: one for messages and streams, one for files.
//!
//! - [`mux`]: many streams over one port
//! - [`link`]: frames and descriptors
//! - [`hold`]: messages that wait for streams
//! - [`host`]: the end on the host
//! - [`machine`]: the end in the machine
//! - [`starter`]: a third one, beside a monitor that has to be told what to do

mod hold;
mod host;
mod link;
mod machine;
mod mux;
mod starter;

use airlock_protocol::carry::STARTER;
use std::{env, process};

fn main() {
    let name = env::args().next().unwrap_or_default();
    if name == STARTER {
        process::exit(starter::run());
    }
    if process::id() != 1 {
        eprintln!(
            "airlock-carrier: this program is started by airlock as PID 1 of a sandbox or of a machine"
        );
        process::exit(125);
    }
    let ended = match name.ends_with("init") {
        true => machine::run(),
        false => host::run(),
    };
    process::exit(if ended.is_ok() { 0 } else { 125 });
}
