//! Choke points that lints can be talked out of: `unsafe` stands in `crates/linux` alone, nothing is allowed that a
//! reasoned expectation could say, every crate takes the workspace's lints, and one module dials.

use super::{complain, source::code_only};
use crate::workspace;
use anyhow::Result;
use std::path::Path;

/// The keyword, and the lint that would let it in.
const UNSAFE: [&str; 2] = ["unsafe", "unsafe_code"];

/// Ways to connect, where the keeper does it: outwards only the dialler, which takes a permit, and inwards one function.
const DIAL: [&str; 3] = ["TcpStream::connect", "TcpSocket", "UdpSocket::connect"];
const DIALLERS: [&str; 2] = ["crates/net/src/egress/", "crates/engine/src/keeper/wall.rs"];
const DIALLING: [&str; 6] =
    ["crates/net/", "crates/images/", "crates/engine/", "crates/gate/", "crates/doors/", "crates/airlock/"];

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
    let shown = path.to_string_lossy();
    let may_dial = DIALLERS.iter().any(|place| shown.starts_with(place))
        || !DIALLING.iter().any(|place| shown.starts_with(place))
        || shown.contains("/tests");
    let code = code_only(text);
    let product = code.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    for (line, code) in code.lines().enumerate() {
        if !may_dial && line < product && DIAL.iter().any(|way| code.contains(way)) {
            wrong.push(format!(
                "{}:{}: connects; only crates/net/src/egress dials",
                path.display(),
                line + 1
            ));
        }
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
    fn only_the_dialler_connects() {
        let text = "let far = TcpStream::connect(address).await;\n#[cfg(test)]\nmod tests { TcpStream::connect(x) }\n";
        let wrong = judge(Path::new("crates/net/src/accept.rs"), text);
        assert_eq!(wrong, ["crates/net/src/accept.rs:1: connects; only crates/net/src/egress dials"]);
        assert_eq!(judge(Path::new("crates/net/src/egress/race.rs"), text), Vec::<String>::new());
        assert_eq!(judge(Path::new("crates/net/src/wall/tests.rs"), text), Vec::<String>::new());
    }

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
