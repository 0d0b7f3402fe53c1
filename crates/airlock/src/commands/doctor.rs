//! `airlock doctor`: what this machine can do.

use crate::{
    args::DoctorArgs,
    failure::{Failure, Outcome},
};

pub(crate) fn doctor(args: &DoctorArgs) -> Outcome {
    let asked = args.fix.as_deref().unwrap_or(if args.json { "json" } else { "checks" });
    Err(Failure::new(format!("this build has no doctor ({asked})")).code(5))
}
