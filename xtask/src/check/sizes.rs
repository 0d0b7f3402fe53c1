//! No file is longer than 500 lines. The tests at its end do not count, nor do files of tests.

use super::complain;
use crate::workspace;
use anyhow::Result;
use std::path::Path;

/// The most lines a file may have without its tests.
const MOST: usize = 500;

/// Fails with the list of files that are too long.
pub(crate) fn run(_: Vec<String>) -> Result<()> {
    let mut wrong = Vec::new();
    for path in workspace::files("rs")?.iter().filter(|path| !is_tests(path)) {
        let lines = product_lines(&workspace::read(path)?);
        if lines > MOST {
            wrong.push(format!("{} has {lines} lines without its tests; {MOST} is the most", path.display()));
        }
    }
    complain(&wrong)
}

/// Files of tests: `tests.rs`, and everything below a folder `tests`.
fn is_tests(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs") || path.iter().any(|part| part == "tests")
}

/// The number of lines before the `#[cfg(test)] mod tests` that ends the file.
fn product_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begins = lines
        .windows(2)
        .rposition(|pair| matches!(pair, ["#[cfg(test)]", module] if module.starts_with("mod tests")));
    let tests = begins.map_or(&[][..], |at| lines.get(at..).unwrap_or_default());
    match ends_with(tests) {
        true => lines.len() - tests.len(),
        false => lines.len(),
    }
}

/// Whether nothing follows the module: its closing brace, the only one at the margin, is in the last line.
fn ends_with(tests: &[&str]) -> bool {
    let closing = tests.iter().position(|line| line.starts_with('}'));
    let declared_only = tests.len() == 2;
    declared_only || closing.is_some_and(|at| at + 1 == tests.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_at_the_end_do_not_count() {
        assert_eq!(product_lines("a\nb\n#[cfg(test)]\nmod tests {\n    c\n}\n"), 2);
        assert_eq!(product_lines("a\nb\n#[cfg(test)]\nmod tests;\n"), 2);
    }

    #[test]
    fn code_after_the_tests_makes_them_count() {
        assert_eq!(product_lines("a\n#[cfg(test)]\nmod tests {\n}\nfn late() {\n}\n"), 6);
    }

    #[test]
    fn files_of_tests_are_exempt() {
        assert!(is_tests(Path::new("crates/linux/src/mount/tests.rs")));
        assert!(is_tests(Path::new("tests/src/attacks.rs")));
        assert!(!is_tests(Path::new("crates/linux/src/mount/mod.rs")));
    }
}
