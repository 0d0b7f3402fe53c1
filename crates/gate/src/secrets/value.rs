//! A value, in memory only.

use std::fmt;
use zeroize::Zeroizing;

/// What a secret is. Wiped when dropped; no `Debug` shows it, and there is no `Display`.
///
/// ```compile_fail
/// fn show(value: &airlock_gate::secrets::Value) -> String {
///     value.to_string()
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Value(Zeroizing<String>);

impl Value {
    /// Takes a copy.
    pub fn new(text: &str) -> Value {
        Value(Zeroizing::new(text.to_owned()))
    }

    /// The bytes, for whoever puts them into a permitted request or takes them out of an answer.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(…)")
    }
}
