//! What serves a programmable mount.
