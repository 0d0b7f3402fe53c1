//! Which paths of a workspace are protected or hidden.
