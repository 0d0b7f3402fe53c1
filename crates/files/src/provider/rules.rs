//! Hooks as a file or a flag gives them: patterns, and what is refused or told.

use super::{
    hooked::{Hooks, Touched},
    types::Result,
};
use airlock_gate::glob::{BadGlob, Glob};
use airlock_protocol::files::{Action, Hook, Touch};
use rustix::io::Errno;
use std::sync::Arc;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// The file, from the mount's root.
    pub path: String,
    /// Whether it was refused.
    pub is_denied: bool,
    /// In words: `open`, `write`, `rename`, `remove`, `create`.
    pub touch: &'static str,
}

/// Who hears of it. Called from the threads that serve, so quick.
pub type Sink = Arc<dyn Fn(Told) + Send + Sync>;

/// Hooks made of patterns.
pub struct Rules {
    rules: Vec<Rule>,
    sink: Sink,
}

struct Rule {
    glob: Glob,
    /// The same where `**/` stands for no directory at all.
    without: Vec<Glob>,
    on: Vec<Touch>,
    action: Action,
}

impl Rules {
    /// Checks the patterns.
    pub fn new(hooks: &[Hook], sink: Sink) -> std::result::Result<Rules, BadGlob> {
        let rule = |hook: &Hook| {
            let text = hook.paths.trim_start_matches('/');
            let without = without_directories(text)
                .iter()
                .map(|text| text.parse::<Glob>())
                .collect::<std::result::Result<_, _>>()?;
            Ok(Rule { glob: text.parse()?, without, on: hook.on.clone(), action: hook.action })
        };
        Ok(Rules { rules: hooks.iter().map(rule).collect::<std::result::Result<_, BadGlob>>()?, sink })
    }

    fn matching(&self, touched: Touched<'_>, action: Action) -> bool {
        let is_about = |rule: &Rule| {
            rule.action == action && rule.on.contains(&touched.touch) && rule.matches(touched.path)
        };
        self.rules.iter().any(is_about)
    }

    fn tell(&self, touched: Touched<'_>, is_denied: bool) {
        let touch = match touched.touch {
            Touch::Open => "open",
            Touch::Write => "write",
            Touch::Rename => "rename",
            Touch::Remove => "remove",
            Touch::Create => "create",
        };
        (self.sink)(Told { path: touched.path.to_owned(), is_denied, touch });
    }
}

impl Rule {
    /// A pattern of a directory counts for everything in it.
    fn matches(&self, path: &str) -> bool {
        let mut parts = path.match_indices('/').filter_map(|(at, _)| path.get(..at)).chain([path]);
        parts.any(|part| self.glob.matches(part) || self.without.iter().any(|glob| glob.matches(part)))
    }

    /// Whether a directory's name decides about what is in it: always, unless the pattern looks at the last part only.
    fn hangs_on(&self, directory: &str) -> bool {
        let text = self.glob.to_string();
        let Some(last) = text.strip_prefix("**/").filter(|rest| !rest.contains('/')) else {
            let head = text.split(['*', '\\']).next().unwrap_or_default();
            let inside = format!("{directory}/");
            return text.contains('/') && (head.starts_with(&inside) || inside.starts_with(head));
        };
        last.is_empty()
    }
}

/// What a pattern is where its first `**/`, or those within it, stand for nothing: `**/*.key` is about the top too.
fn without_directories(text: &str) -> Vec<String> {
    let top = text.strip_prefix("**/").unwrap_or(text);
    let mut others: Vec<String> =
        [top.to_owned(), text.replace("/**/", "/"), top.replace("/**/", "/")].into();
    others.retain(|other| other != text && !other.is_empty());
    others.dedup();
    others
}

impl Hooks for Rules {
    fn wants(&self, touch: Touch) -> bool {
        self.rules.iter().any(|rule| rule.on.contains(&touch))
    }

    fn before(&self, touched: Touched<'_>) -> Result<()> {
        if self.matching(touched, Action::Deny) {
            self.tell(touched, true);
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    fn after(&self, touched: Touched<'_>, outcome: Result<()>) {
        if outcome.is_ok() && self.matching(touched, Action::Tell) {
            self.tell(touched, false);
        }
    }

    fn before_moving(&self, directory: &str) -> Result<()> {
        let holds = |rule: &Rule| rule.action == Action::Deny && rule.hangs_on(directory);
        if self.rules.iter().any(holds) {
            self.tell(Touched { touch: Touch::Rename, path: directory }, true);
            return Err(Errno::ACCESS);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn rules(paths: &str, on: &[Touch], action: Action) -> (Rules, Arc<Mutex<Vec<Told>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = heard.clone();
        let hook = Hook { paths: paths.to_owned(), on: on.to_vec(), action };
        (Rules::new(&[hook], Arc::new(move |told| ears.lock().unwrap().push(told))).unwrap(), heard)
    }

    #[test]
    fn a_pattern_counts_for_everything_below_it() {
        let (rules, heard) = rules("secret", &[Touch::Open], Action::Deny);
        let open = |path| rules.before(Touched { touch: Touch::Open, path });
        assert_eq!((open("secret"), open("secret/a/b")), (Err(Errno::ACCESS), Err(Errno::ACCESS)));
        assert_eq!((open("secrets"), open("a/secret")), (Ok(()), Ok(())));
        assert_eq!(heard.lock().unwrap().len(), 2);
    }

    #[test]
    fn two_stars_stand_for_no_directory_too() {
        for (pattern, path) in [
            ("**/*.key", "a.key"),
            ("**/*.key", "b/c/a.key"),
            ("a/**/b", "a/b"),
            ("**/a/**/b", "a/b"),
            ("**/a/**/b", "x/a/y/b"),
        ] {
            let (rules, _) = rules(pattern, &[Touch::Open], Action::Deny);
            assert_eq!(
                rules.before(Touched { touch: Touch::Open, path }),
                Err(Errno::ACCESS),
                "{pattern} {path}"
            );
        }
        let (rules, _) = rules("**/*.key", &[Touch::Open], Action::Deny);
        assert_eq!(rules.before(Touched { touch: Touch::Open, path: "key" }), Ok(()));
    }

    #[test]
    fn a_directory_whose_name_decides_keeps_it() {
        let (rules, _) = rules("conf/*.pem", &[Touch::Open], Action::Deny);
        assert_eq!(rules.before_moving("conf"), Err(Errno::ACCESS));
        assert_eq!(rules.before_moving("other"), Ok(()));
        let (anywhere, _) = super::tests::rules("**/*.pem", &[Touch::Open], Action::Deny);
        assert_eq!(anywhere.before_moving("conf"), Ok(()));
    }

    #[test]
    fn what_failed_is_not_told() {
        let (rules, heard) = rules("**", &[Touch::Write], Action::Tell);
        let touched = Touched { touch: Touch::Write, path: "a" };
        rules.after(touched, Err(Errno::NOSPC));
        rules.after(touched, Ok(()));
        let told = Told { path: "a".into(), is_denied: false, touch: "write" };
        assert_eq!(*heard.lock().unwrap(), [told]);
    }
}
