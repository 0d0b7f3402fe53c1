//! Linux namespaces: the default place.
//!
//! User namespace A and the network namespace are made ahead, while the keeper plans ([`outer`]). The keeper forks into
//! them, with mount, PID, IPC and UTS namespaces of their own ([`launch`]). The child, PID 1 already, builds the whole root in A ([`root`], [`system`]), turns to user and mount namespace B,
//! in which every mount is locked, seals itself ([`seal`]) and becomes the guest.
//!
//! The child is a fork of a process with one thread, so it may run ordinary code until it executes the guest.

pub(crate) mod child;
mod etc;
mod guard;
mod home;
mod host;
mod inside;
pub(crate) mod launch;
mod layered;
mod layers;
pub(crate) mod neighbour;
pub(crate) mod outer;
mod own;
mod porter;
mod probe;
mod root;
mod seal;
mod served;
mod staging;
mod system;
mod trust;
mod workspace;

pub use inside::perform as perform_inside;
pub use launch::Namespaces;

use std::io;

/// A step of building that failed; what it was doing, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub(crate) struct Failed {
    step: String,
    #[source]
    source: io::Error,
    about: About,
}

/// What a step was about: it decides what a person is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// The wall and what is behind it.
    Wall,
    /// A workspace that cannot be copied on write.
    Workspace,
    /// A path of the host whose ids cannot be shifted.
    Ids,
    /// An image that cannot be a root.
    Image,
}

impl Failed {
    fn of_ids(self) -> Failed {
        Failed { about: About::Ids, ..self }
    }

    fn of_the_image(self) -> Failed {
        Failed { about: About::Image, ..self }
    }

    fn of_the_workspace(self) -> Failed {
        Failed { about: About::Workspace, ..self }
    }
}

/// Names the step an error happened in.
pub(crate) trait During<T> {
    /// `step` completes the sentence "could not …".
    fn during(self, step: &str) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, Failed> {
        self.map_err(|source| Failed {
            step: format!("could not {step}"),
            source: source.into(),
            about: About::Wall,
        })
    }
}
