//! Being a keeper: what runs behind `airlock keep`.

use crate::{
    args::KeepArgs,
    failure::{Failure, Outcome},
};

/// Owns the sandbox until it ends.
pub(crate) fn run(args: &KeepArgs) -> Outcome {
    Err(Failure::new(format!("sandbox {} cannot be kept by this build", args.id)))
}
