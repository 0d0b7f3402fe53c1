//! A machine with a kernel of its own, inside the namespaces that a sandbox has anyway.
//!
//! - [`launch`]: the `Backend`; what it adds to that of namespaces
//! - [`monitor`]: which program runs machines here, and how
//! - [`qemu`], [`firecracker`]: what these programs are told; pure
//! - [`disk`]: disks of a machine whose root is an image
//! - [`elf`]: kernels as they are in memory; pure
//! - [`kernel`]: kernels and their modules in the state directory
//! - [`initramfs`]: what a machine boots into; pure
//! - [`memory`]: the memory of a machine, saved
//! - [`warm`]: machines that were booted before
//! - [`qmp`]: what QEMU is asked while a machine is saved
//! - [`trial`]: whether this host's processor runs machines

pub mod disk;
pub mod elf;
pub mod firecracker;
pub mod initramfs;
pub mod kernel;
mod launch;
pub mod memory;
pub mod monitor;
pub mod qemu;
pub mod qmp;
pub mod trial;
pub mod warm;

pub use launch::{Asked, Microvm, Programs};
