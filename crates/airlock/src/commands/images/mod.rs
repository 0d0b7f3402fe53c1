//! `airlock images`: root file systems that came from elsewhere.

mod pull;
mod push;

pub(crate) use pull::tell;

use crate::{
    args::{ImagesArgs, ImagesVerb},
    failure::Outcome,
};

pub(crate) fn perform(args: &ImagesArgs) -> Outcome {
    match &args.verb {
        ImagesVerb::Pull(args) => pull::pull(args),
        ImagesVerb::Push(args) => push::push(args),
    }
}
