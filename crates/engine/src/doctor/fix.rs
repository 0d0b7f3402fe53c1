//! Commands and files that put something right.
//!
//! ```
//! use airlock_engine::doctor::{Fix, Step};
//! let fix = Fix::root(vec![Step::run(["modprobe", "loop"])]);
//! assert_eq!(fix.words("disk"), "sudo modprobe loop");
//! ```

use std::path::PathBuf;

/// What puts something right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// Who may do it.
    pub power: Power,
    /// What airlock can do itself, in order; empty where only a person can.
    pub steps: Vec<Step>,
    /// What a person can do instead, or has to do afterwards, or has to do at all.
    pub advice: Option<String>,
}

/// Who may apply a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// Root of this host.
    Root,
    /// Whoever owns what is fixed.
    Anyone,
}

/// One step of a fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Run a program.
    Run(Vec<String>),
    /// Replace a file.
    Write {
        /// Which.
        path: PathBuf,
        /// With what.
        text: String,
    },
}

impl Fix {
    /// Steps for root.
    #[must_use]
    pub fn root(steps: Vec<Step>) -> Fix {
        Fix { power: Power::Root, steps, advice: None }
    }

    /// Steps for whoever asks.
    #[must_use]
    pub fn own(steps: Vec<Step>) -> Fix {
        Fix { power: Power::Anyone, steps, advice: None }
    }

    /// What only a person can do.
    pub fn advice(advice: impl Into<String>) -> Fix {
        Fix { power: Power::Anyone, steps: Vec::new(), advice: Some(advice.into()) }
    }

    /// Another way to the same end.
    #[must_use]
    pub fn or(self, advice: impl Into<String>) -> Fix {
        Fix { advice: Some(format!("or {}", advice.into())), ..self }
    }

    /// What a person has to do afterwards.
    #[must_use]
    pub fn then(self, advice: impl Into<String>) -> Fix {
        Fix { advice: Some(format!("then {}", advice.into())), ..self }
    }

    /// The command to type. Where a whole file has to be written, that is airlock's own.
    #[must_use]
    pub fn words(&self, name: &str) -> String {
        let before = if self.power == Power::Root { "sudo " } else { "" };
        let lines: Option<Vec<String>> = self.steps.iter().map(|step| step.line(before)).collect();
        let command = match lines {
            Some(lines) => lines.join(" && "),
            None => format!("{before}airlock doctor --fix {name}"),
        };
        match (&self.advice, command.is_empty()) {
            (Some(advice), true) => advice.clone(),
            (Some(advice), false) => format!("{command}   ({advice})"),
            (None, _) => command,
        }
    }
}

impl Step {
    /// A program and its arguments.
    pub fn run<const N: usize>(words: [&str; N]) -> Step {
        Step::Run(words.map(str::to_owned).to_vec())
    }

    /// A setting of the kernel, now and after the next start.
    #[must_use]
    pub fn sysctl(key: &str, value: u64) -> [Step; 2] {
        let path = PathBuf::from(format!("/etc/sysctl.d/99-airlock-{}.conf", key.replace(['.', '_'], "-")));
        let setting = format!("{key}={value}");
        [Step::run(["sysctl", "-w", &setting]), Step::Write { path, text: format!("{setting}\n") }]
    }

    /// As one line for a shell; `None` for a file of many lines.
    #[must_use]
    pub fn line(&self, before: &str) -> Option<String> {
        match self {
            Step::Run(words) => {
                let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                Some(format!("{before}{}", words.join(" ")))
            }
            Step::Write { path, text } => {
                let line = text.strip_suffix('\n').filter(|line| !line.contains('\n'))?;
                Some(format!("echo {} | {before}tee {}", quoted(line), quoted(&path.display().to_string())))
            }
        }
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_become_one_line_for_a_shell() {
        let fix = Fix::root(Step::sysctl("user.max_user_namespaces", 15_000).into());
        assert_eq!(
            fix.words("userns"),
            "sudo sysctl -w user.max_user_namespaces=15000 && \
             echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/99-airlock-user-max-user-namespaces.conf"
        );
    }

    #[test]
    fn a_file_of_many_lines_is_written_by_airlock_itself() {
        let fix =
            Fix::root(vec![Step::Write { path: "/etc/x".into(), text: "a\nb\n".into() }]).or("do it by hand");
        assert_eq!(fix.words("userns"), "sudo airlock doctor --fix userns   (or do it by hand)");
    }

    #[test]
    fn a_word_with_a_quote_stays_one_word() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
