//! The kernel: the only crate with `unsafe` code. It takes and returns owned types, so that no caller can misuse it.
//!
//! | module | what |
//! |---|---|
//! | [`clone`] | new processes in new namespaces, pidfds |
//! | [`idmap`] | ids inside and outside |
//! | [`mount`] | trees, overlays, masks, pivot |
//! | [`interfaces`] | what is covered of `/proc` and `/sys`, what is in `/dev` |
//! | [`fuse`] | file systems that a process serves |
//! | [`lock`] | locks that meet those of the whole host |
//! | [`fd`] | passing and closing descriptors |
//! | [`spawn`] | starting a program from PID 1: what runs between fork and exec |
//! | [`alone`] | a program with nothing around it |
//! | [`cell`] | a program with a few files around it, beside a sandbox |
//! | [`signal`] | signals as a descriptor |
//! | [`job`], [`detach`] | the command as a job of its shell, processes that outlive it |
//! | [`pty`], [`tty`] | terminals of sandboxes, the terminal of the person |
//! | [`net`] | the sealed network namespace |
//! | [`caps`], [`seccomp`], [`fence`] | what a program may ask of the kernel |
//! | [`random`] | random numbers of a machine that was somebody else's |
//! | [`cgroup`], [`disk`] | how much it may use |
//! | [`probe`] | what this kernel allows |
#![expect(
    unsafe_code,
    reason = "this is the crate that talks to the kernel; every block names its invariant"
)]

pub mod alone;
pub mod caps;
pub mod cell;
pub mod cgroup;
pub mod clock;
pub mod clone;
pub mod detach;
pub mod disk;
pub mod fd;
pub mod fence;
pub mod fuse;
pub mod idmap;
pub mod interfaces;
pub mod job;
pub mod lock;
pub mod made_up;
pub mod mount;
pub mod net;
pub mod probe;
pub mod pty;
pub mod random;
pub mod seccomp;
pub mod signal;
pub mod spawn;
pub mod tty;
