//! What a case must show, and whether it did: pure, so that the judgement itself is tested.
//!
//! ```ignore
//! Expect::Says(0, &["memory"]).judge(0, &["memory pids".into()])?;
//! ```

use serde_json::Value;

/// What a case must show.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expect {
    /// It ends with this code, and each of these words stands somewhere in what it said.
    Says(u8, &'static [&'static str]),
    /// It ends well and prints a sandbox as JSON whose limits, these at least, are enforced by these.
    Enforced(&'static [(&'static str, &'static str)]),
    /// It ends well, and Rust's test programs report at least one passed test, none failed and none skipped.
    TestsPass,
}

impl Expect {
    /// Whether a case that ended with `code` and said `said` showed it; if not, why.
    pub(super) fn judge(self, code: u8, said: &[String]) -> Result<(), String> {
        match self {
            Self::Says(wanted, words) => {
                same_code(wanted, code)?;
                let missing = words.iter().find(|word| !said.iter().any(|line| line.contains(**word)));
                missing.map_or(Ok(()), |word| Err(format!("did not say `{word}`")))
            }
            Self::Enforced(limits) => {
                same_code(0, code)?;
                enforced(limits, &said.join("\n"))
            }
            Self::TestsPass => {
                same_code(0, code)?;
                tests_passed(said)
            }
        }
    }
}

fn same_code(wanted: u8, code: u8) -> Result<(), String> {
    if wanted == code {
        return Ok(());
    }
    Err(format!("ended with {code}, not {wanted}"))
}

fn enforced(limits: &[(&str, &str)], said: &str) -> Result<(), String> {
    let json = said.find('{').zip(said.rfind('}')).and_then(|(from, to)| said.get(from..=to));
    let sandbox: Value =
        json.and_then(|json| serde_json::from_str(json).ok()).ok_or("printed no sandbox as JSON")?;
    let entries = sandbox.get("limits").and_then(Value::as_array).ok_or("the sandbox has no `limits`")?;
    for (limit, wanted) in limits {
        let entry = entries.iter().find(|entry| text(entry, "limit") == Some(limit));
        let by = entry.and_then(|entry| text(entry, "by"));
        if by != Some(wanted) {
            return Err(format!("{limit} is enforced by {}, not {wanted}", by.unwrap_or("nothing named")));
        }
    }
    Ok(())
}

fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

fn tests_passed(said: &[String]) -> Result<(), String> {
    if let Some(skipped) = said.iter().find(|line| line.starts_with("skipped:")) {
        return Err(format!("a test did not run: {skipped}"));
    }
    let passed: u32 = said.iter().filter_map(|line| passed_in(line)).sum();
    if passed == 0 {
        return Err("no test ran".into());
    }
    Ok(())
}

/// `test result: ok. 12 passed; 0 failed; …` is 12.
fn passed_in(line: &str) -> Option<u32> {
    let (count, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
    count.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(String::from).collect()
    }

    #[test]
    fn a_wrong_exit_code_fails_whatever_was_said() {
        let verdict = Expect::Says(137, &["memory"]).judge(0, &lines("out of memory"));
        assert_eq!(verdict, Err("ended with 0, not 137".into()));
    }

    #[test]
    fn every_word_must_be_said() {
        let expect = Expect::Says(0, &["cpu", "pids"]);
        assert_eq!(expect.judge(0, &lines("cpu\nmemory pids")), Ok(()));
        assert_eq!(expect.judge(0, &lines("cpu memory")), Err("did not say `pids`".into()));
    }

    #[test]
    fn a_limit_enforced_by_something_else_is_told() {
        let expect = Expect::Enforced(&[("memory", "cgroup_v2"), ("pids", "cgroup_v2")]);
        let one = r#"{"limits":[{"limit":"memory","by":"cgroup_v2"},{"limit":"pids","by":"rlimit"}]}"#;
        assert_eq!(expect.judge(0, &lines(one)), Err("pids is enforced by rlimit, not cgroup_v2".into()));
        assert_eq!(expect.judge(0, &lines(&one.replace("rlimit", "cgroup_v2"))), Ok(()));
        assert_eq!(expect.judge(0, &lines("} {")), Err("printed no sandbox as JSON".into()));
    }

    #[test]
    fn a_filter_that_matches_no_test_fails() {
        let none = lines("test result: ok. 0 passed; 0 failed; 0 ignored");
        assert_eq!(Expect::TestsPass.judge(0, &none), Err("no test ran".into()));
        let some = lines("test result: ok. 0 passed; 0 failed\ntest result: ok. 7 passed; 0 failed");
        assert_eq!(Expect::TestsPass.judge(0, &some), Ok(()));
    }
}
