//! Choke points that lints can be talked out of: `unsafe` stands in `crates/linux` alone, nothing is allowed that a
//! reasoned expectation could say, and every crate takes the workspace's lints.

use super::{complain, source::code_only};
use crate::workspace;
use anyhow::Result;
use std::path::Path;

/// The keyword, and the lint that would let it in.
const UNSAFE: [&str; 2] = ["unsafe", "unsafe_code"];

/// Fails with every place that goes around a choke point.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for path in workspace::files("rs")? {
        wrong.extend(judge(&path, &workspace::read(&path)?));
    }
    for path in workspace::files("toml")?
        .iter()
        .filter(|path| path.ends_with("Cargo.toml") && path.iter().count() > 1)
    {
        if !workspace::read(path)?.contains("[lints]\nworkspace = true") {
            wrong.push(format!("{} does not take the workspace's lints", path.display()));
        }
    }
    complain(&wrong)
}

fn judge(path: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, code) in code_only(text).lines().enumerate() {
        let here = format!("{}:{}", path.display(), line + 1);
        if !path.starts_with("crates/linux") && code.split(not_of_a_word).any(|word| UNSAFE.contains(&word)) {
            wrong.push(format!("{here}: unsafe code outside crates/linux"));
        }
        if code.contains("#[allow") || code.contains("#![allow") {
            wrong.push(format!("{here}: allow; expect with a reason says when it is no longer needed"));
        }
    }
    wrong
}

fn not_of_a_word(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_found_outside_the_kernel_crate_only() {
        let text =
            "//! not unsafe\nfn f() { unsafe { g() } }\n#![expect(unsafe_code)]\nlet s = \"unsafe\";\n";

        let elsewhere = judge(Path::new("crates/engine/src/lib.rs"), text);
        let at_home = judge(Path::new("crates/linux/src/lib.rs"), text);

        assert_eq!(
            elsewhere,
            [
                "crates/engine/src/lib.rs:2: unsafe code outside crates/linux",
                "crates/engine/src/lib.rs:3: unsafe code outside crates/linux"
            ]
        );
        assert_eq!(at_home, Vec::<String>::new());
    }

    #[test]
    fn allow_is_found_everywhere() {
        let wrong = judge(Path::new("crates/linux/src/lib.rs"), "#[allow(dead_code)]\nfn f() {}\n");

        assert_eq!(
            wrong,
            ["crates/linux/src/lib.rs:1: allow; expect with a reason says when it is no longer needed"]
        );
    }
}
