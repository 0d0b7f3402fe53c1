//! Why a limit cannot be enforced here, and what to type so that it can.
//!
//! ```no_run
//! use airlock_linux::cgroup::{Controller, layout};
//! if let Err(cannot) = layout()?.can(Controller::Memory) {
//!     eprintln!("{cannot}\nhint: {}", cannot.fix());
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

use std::path::PathBuf;

use super::layout::{Controller, Version};

/// A limit that this host does not let this process enforce.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot limit {controller} here: {reason}")]
pub struct Cannot {
    /// What was to be limited.
    pub controller: Controller,
    /// Why it cannot be.
    pub reason: Reason,
    /// The ordinary user who asked, or 0.
    pub uid: u32,
}

/// Why a control group cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No mounted hierarchy has the controller.
    #[error("no mounted control group hierarchy has this controller")]
    Absent,
    /// The hierarchy is mounted, but the part we are in is not below the mount.
    #[error("our own control group is not visible below {mount}")]
    Hidden {
        /// Where the hierarchy is mounted.
        mount: PathBuf,
    },
    /// The hierarchy is mounted read-only, as in most containers.
    #[error("{mount} is mounted read-only")]
    ReadOnly {
        /// Where the hierarchy is mounted.
        mount: PathBuf,
    },
    /// Nobody gave us a directory in which to make groups.
    #[error("{dir} does not belong to us")]
    NotOurs {
        /// The group we are in.
        dir: PathBuf,
        /// Where its hierarchy is mounted.
        mount: PathBuf,
        /// Which kind of hierarchy it is.
        version: Version,
    },
    /// We could write there, but the service manager owns that group and has not delegated it.
    #[error("{dir} is managed by systemd and not delegated to us")]
    Managed {
        /// The group we are in.
        dir: PathBuf,
    },
    /// The host has the controller, but it was not handed down to the group we are in.
    #[error("the controller was not handed down to {dir}")]
    NotHandedDown {
        /// The group in which we would make ours.
        dir: PathBuf,
    },
}

impl Cannot {
    /// One command, or one step, after which the limit can be enforced.
    #[must_use]
    pub fn fix(&self) -> String {
        match &self.reason {
            Reason::Absent => self.fix_absent(),
            Reason::Hidden { mount } => {
                format!("make the control groups of this container its own (docker run --cgroupns=private) and mount them at {}", mount.display())
            }
            Reason::ReadOnly { mount } => format!("mount -o remount,rw {}", mount.display()),
            Reason::NotOurs { mount, version: Version::V1, .. } => {
                let dir = mount.join(delegated_name(self.uid));
                format!("sudo install -d -o {} {}", self.uid, dir.display())
            }
            Reason::NotOurs { version: Version::V2, .. } | Reason::Managed { .. } => {
                "systemd-run --user --scope -p Delegate=yes airlock …".to_owned()
            }
            Reason::NotHandedDown { .. } => "sudo mkdir -p /etc/systemd/system/user@.service.d && \
                printf '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/airlock.conf && \
                sudo systemctl daemon-reload, then log in again"
                .to_owned(),
        }
    }

    fn fix_absent(&self) -> String {
        match self.controller {
            Controller::Memory => {
                "start the kernel with cgroup_enable=memory, and mount -t cgroup2 none /sys/fs/cgroup"
                    .to_owned()
            }
            _ => "mount -t cgroup2 none /sys/fs/cgroup".to_owned(),
        }
    }
}

/// The directory of a version 1 hierarchy that an administrator gives to one user.
pub(super) fn delegated_name(uid: u32) -> String {
    format!("airlock.{uid}")
}
