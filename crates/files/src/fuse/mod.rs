//! The kernel's file system protocol, served for a provider.
