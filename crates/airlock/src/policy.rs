//! From flags and files to the rules of a sandbox.
//!
//! The order, in which the first match wins:
//!
//! 1. `--deny`, `--ask`, `--allow`
//! 2. the project's `airlock.toml`: its keys `deny`, `ask`, `allow`, then its `[[rule]]`s, then the files its `policy` names
//! 3. each `--policy FILE`, in the order typed
//! 4. the person's own `$AIRLOCK_HOME/config.toml`, as the project's file
//!
//! In front of them stand answers that a person gave for good (`$AIRLOCK_HOME/answers.toml`), but only where the rules would
//! ask: an answer never opens what they deny.

use crate::{
    args::{Network, NetworkArgs},
    config::{
        self, Project,
        own::{self, Own},
        project::{self, Word},
        reader::Source,
    },
    failure::{Excerpt, Failure},
    registries,
    spec::Host,
};
use airlock_gate::{
    groups::{Discovered, REGISTRIES},
    host::Target,
    judge::Judge,
    policy::{BadPolicy, Reader, union},
};
use airlock_protocol::policy::{Origin, Policy, Ports, RegistryKind, Rule, Tls, Verdict};
use std::path::{Path, PathBuf};

/// Ranges that the registries of a company are in.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

/// A file of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What a rule's origin calls it.
    pub(crate) name: String,
    /// What it says.
    pub(crate) text: String,
    /// Whether it is the person's own file of settings.
    pub(crate) own: bool,
}

/// The rules that flags and files give, and the answers kept in `home`.
pub(crate) fn assemble(
    flags: &NetworkArgs,
    project: Option<&Project>,
    own: &Own,
    host: &Host,
    home: &Path,
) -> Result<Policy, Failure> {
    if flags.network == Some(Network::None) {
        return none(flags);
    }
    let files = files(flags, project, own, &host.directory)?;
    let mut known = discovered(flags, &files, host);
    let read = read_files(&files, &mut known)?;
    let typed = [
        (Verdict::Deny, "--deny", &flags.deny),
        (Verdict::Ask, "--ask", &flags.ask),
        (Verdict::Allow, "--allow", &flags.allow),
    ];
    let mut rules = Vec::new();
    for (verdict, flag, texts) in typed {
        for text in texts {
            rules.extend(from_word(&known, verdict, text, flag).map_err(failure)?);
        }
    }
    let mut written =
        read.iter().zip(&files).filter(|(_, file)| !file.own).map(|(policy, _)| policy).peekable();
    let audit_only =
        flags.audit_only || (written.peek().is_some() && written.all(|policy| policy.audit_only));
    let mut all = vec![Policy { rules, ..Policy::default() }];
    all.extend(read);
    let mut all = union(all);
    if flags.open_all {
        all.rules.push(open_all());
    }
    let rules = with_answers(all.rules, home)?;
    let mut policy = Policy { rules, audit_only, bandwidth: all.bandwidth, packages: all.packages };
    gate_packages(&mut policy, flags, &files, host);
    Judge::compile(&policy).map_err(failure)?;
    Ok(policy)
}

/// Opens every connection to a name, so that what is inside is recorded.
fn open_all() -> Rule {
    let ports = vec![Ports::one(80), Ports::one(443)];
    let origin = Origin { from: "--requests".to_owned(), line: 0 };
    Rule { tls: Tls::Opened, ..Rule::new(Verdict::Allow, vec!["*".to_owned()], ports, origin) }
}

/// The rules of files alone, as `--policy` would read them.
pub(crate) fn from_files(paths: &[PathBuf], host: &Host) -> Result<Policy, Failure> {
    let files = paths.iter().map(|path| rule_file(path, &host.directory)).collect::<Result<Vec<_>, _>>()?;
    let mut known = discovered(&NetworkArgs::default(), &files, host);
    let read = read_files(&files, &mut known)?;
    let mut policy = union(read);
    gate_packages(&mut policy, &NetworkArgs::default(), &files, host);
    Judge::compile(&policy).map_err(failure)?;
    Ok(policy)
}

/// Whoever allows a registry by its group has its packages looked at.
fn gate_packages(policy: &mut Policy, flags: &NetworkArgs, files: &[RuleFile], host: &Host) {
    let is_typed = |name: &str| flags.allow.iter().chain(&flags.ask).any(|word| word == name);
    let is_written = |name: &str| {
        let quoted = [format!("\"{name}\""), format!("'{name}'")];
        files.iter().any(|file| quoted.iter().any(|word| file.text.contains(word)))
    };
    let names = RegistryKind::ALL.map(RegistryKind::word);
    let named = names.into_iter().filter(|name| is_typed(name) || is_written(name));
    policy.packages.registries.extend(registries::places(host, named));
    policy.packages.registries.sort();
    policy.packages.registries.dedup();
}

/// The rules of words as after `--allow`, for a sandbox that runs.
pub(crate) fn from_words(
    verdict: Verdict,
    words: &[String],
    from: &str,
    host: &Host,
) -> Result<Vec<Rule>, Failure> {
    let known = registries::discover(host, words.iter().map(String::as_str));
    let mut rules = Vec::new();
    for word in words {
        rules.extend(from_word(&known, verdict, word, from).map_err(failure)?);
    }
    Ok(rules)
}

/// A complaint of the gate in the form of all our complaints.
pub(crate) fn failure(bad: BadPolicy) -> Failure {
    let failure = Failure::new(bad.headline()).code(2);
    let failure = if bad.why.is_empty() { failure } else { failure.why(bad.why) };
    let failure = if bad.fix.is_empty() { failure } else { failure.fix(bad.fix) };
    match (usize::try_from(bad.line), usize::try_from(bad.column)) {
        (Ok(line), Ok(column)) if line > 0 => {
            failure.excerpt(Excerpt { line, column, text: bad.line_text.into() })
        }
        _ => failure,
    }
}

fn none(flags: &NetworkArgs) -> Result<Policy, Failure> {
    let typed = [&flags.allow, &flags.ask].iter().any(|words| !words.is_empty()) || !flags.policy.is_empty();
    if typed || !flags.publish.is_empty() {
        return Err(Failure::new("--network none and rules beside it mean two things")
            .code(2)
            .why("with --network none nothing crosses the wall, whatever rules say")
            .fix("leave out one of them"));
    }
    Ok(Policy::default())
}

/// The project's own file, those it names, and those typed.
fn files(
    flags: &NetworkArgs,
    project: Option<&Project>,
    own: &Own,
    directory: &Path,
) -> Result<Vec<RuleFile>, Failure> {
    let mut files = Vec::new();
    if let Some(project) = project {
        files.extend(with_named(project, false, directory));
    }
    for path in &flags.policy {
        let file = rule_file(path, directory)?;
        refuse_secrets(&file)?;
        files.push(file);
    }
    if let Some(run) = &own.run {
        files.extend(with_named(run, true, directory));
    }
    Ok(files)
}

/// A file of settings and those of rules that it names, as they were read when they were checked: another look could see
/// something else.
fn with_named(file: &Project, own: bool, directory: &Path) -> Vec<RuleFile> {
    let one = |path: &Path, text: &str, own: bool| RuleFile {
        path: path.to_owned(),
        name: shown(path, directory),
        text: text.to_owned(),
        own,
    };
    let named = file.settings.policy.iter().filter_map(|path| Some(one(path, file.named(path)?, false)));
    std::iter::once(one(&file.path, &file.text, own)).chain(named).collect()
}

/// A file of rules gives no secrets: one that it described would be missed by whoever wrote it.
fn refuse_secrets(file: &RuleFile) -> Result<(), Failure> {
    if file.path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(());
    }
    let source = Source { name: &file.name, text: &file.text };
    let top = source.parse()?;
    let Some(value) = source.entries(&top).find(|value| ["secrets", "secret"].contains(&value.key())) else {
        return Ok(());
    };
    Err(value
        .wrong("a file of rules gives no secrets")
        .fix("name the file with --config in place of --policy, or the secret with --secret NAME@HOST"))
}

fn rule_file(path: &Path, directory: &Path) -> Result<RuleFile, Failure> {
    let text = config::read_named(path)?;
    Ok(RuleFile { path: config::absolute(path)?, name: shown(path, directory), text, own: false })
}

/// A path as it is read most easily from a directory.
fn shown(path: &Path, directory: &Path) -> String {
    path.strip_prefix(directory).unwrap_or(path).display().to_string()
}

fn discovered(flags: &NetworkArgs, files: &[RuleFile], host: &Host) -> Discovered {
    let words = [&flags.allow, &flags.deny, &flags.ask].into_iter().flatten().map(String::as_str);
    registries::discover(host, words.chain(files.iter().map(|file| file.text.as_str())))
}

/// The rules of each file. Groups that one defines are known to those after it, and to flags.
fn read_files(files: &[RuleFile], known: &mut Discovered) -> Result<Vec<Policy>, Failure> {
    let mut policies = Vec::new();
    for file in files {
        policies.push(match file.path.extension().and_then(|extension| extension.to_str()) {
            Some("md" | "markdown") => {
                Reader { discovered: known }.markdown(&file.name, &file.text).map_err(failure)?.policy
            }
            _ => read_toml(file, known)?,
        });
    }
    Ok(policies)
}

fn read_toml(file: &RuleFile, known: &mut Discovered) -> Result<Policy, Failure> {
    let source = Source { name: &file.name, text: &file.text };
    let folder = file.path.parent().unwrap_or(Path::new("/"));
    let read = Reader { discovered: known }.toml(&file.name, &file.text).map_err(failure)?;
    let settings = if file.own { own::flags(source, folder)? } else { project::parse(source, folder)? };
    read.groups.into_iter().for_each(|group| known.insert(group));
    let mut rules = Vec::new();
    for (verdict, words) in
        [(Verdict::Deny, &settings.deny), (Verdict::Ask, &settings.ask), (Verdict::Allow, &settings.allow)]
    {
        for Word { text, at } in words {
            let found = from_word(known, verdict, text, &file.name).map_err(|bad| {
                let placed = source.wrong(*at, &bad.what);
                Failure { excerpt: placed.excerpt, what: placed.what, ..failure(bad) }
            })?;
            let line = u32::try_from(source.place(*at).line).unwrap_or_default();
            rules.extend(found.into_iter().map(|mut rule| {
                rule.origin.line = if rule.origin.from == file.name { line } else { rule.origin.line };
                rule
            }));
        }
    }
    rules.extend(read.policy.rules);
    Ok(Policy { rules, ..read.policy })
}

/// `HOST[:PORT]` or a group. A registry may have a company's private addresses.
fn from_word(known: &Discovered, verdict: Verdict, text: &str, from: &str) -> Result<Vec<Rule>, BadPolicy> {
    let reader = Reader { discovered: known };
    let is_registry = REGISTRIES.iter().any(|(name, ..)| *name == text) && verdict != Verdict::Deny;
    let mut rules = reader.flag(verdict, text, from)?;
    for rule in rules.iter_mut().filter(|_| is_registry) {
        rule.private = PRIVATE.map(str::to_owned).to_vec();
    }
    Ok(rules)
}

/// Where answers that count for good are kept.
pub(crate) fn answers_path(home: &Path) -> PathBuf {
    home.join("answers.toml")
}

/// The rules, with kept answers in front of them where they would ask.
fn with_answers(rules: Vec<Rule>, home: &Path) -> Result<Vec<Rule>, Failure> {
    if !rules.iter().any(|rule| rule.verdict == Verdict::Ask) {
        return Ok(rules);
    }
    let path = answers_path(home);
    if !path.exists() {
        return Ok(rules);
    }
    let name = path.display().to_string();
    let kept = airlock_gate::policy::parse_toml(&name, &config::read_named(&path)?).map_err(failure)?;
    let asking = Policy { rules, ..Policy::default() };
    let judge = Judge::compile(&asking).map_err(failure)?;
    // Each right before the rule that asks: what rules before that deny stays denied.
    let mut answers: Vec<(usize, Rule)> =
        kept.policy.rules.iter().flat_map(|rule| answering(rule, &judge)).collect();
    answers.sort_by_key(|(place, _)| *place);
    let mut answers = answers.into_iter().peekable();
    let mut all = Vec::new();
    for (place, rule) in asking.rules.into_iter().enumerate() {
        while let Some((_, answer)) = answers.next_if(|(before, _)| *before <= place) {
            all.push(answer);
        }
        all.push(rule);
    }
    Ok(all)
}

/// What of a kept answer answers a question of these rules, with the place of the rule that asks: single hosts and ports, and
/// single requests, as that rule wants them.
fn answering(kept: &Rule, judge: &Judge) -> Vec<(usize, Rule)> {
    let mut rules = Vec::new();
    for host in &kept.hosts {
        let Ok(target) = host.parse::<Target>() else { continue };
        for ports in kept.ports.iter().filter(|ports| ports.first == ports.last) {
            let Some(asking) = judge.asking(kept, &target, ports.first) else { continue };
            let rule = Rule::new(
                kept.verdict,
                vec![host.clone()],
                vec![Ports::one(ports.first)],
                kept.origin.clone(),
            );
            let rule = Rule { request: kept.request.clone(), ..rule };
            let opens = kept.verdict != Verdict::Deny;
            let tls = if opens && kept.request.is_any() { asking.tls() } else { rule.tls };
            let private =
                if opens { asking.private().iter().map(ToString::to_string).collect() } else { Vec::new() };
            let pins = if opens { asking.pins().to_vec() } else { Vec::new() };
            rules.push((asking.index(), Rule { tls, private, pins, ..rule }));
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wanted;
    use std::{collections::BTreeMap, fs};

    struct World {
        folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("project")).unwrap();
            World { folder }
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        }

        fn host(&self) -> Host {
            let home = self.folder.path().display().to_string();
            let variables = BTreeMap::from([("HOME".to_owned(), home)]);
            Host { directory: self.folder.path().join("project"), variables, ..Host::default() }
        }

        fn assemble(&self, flags: &NetworkArgs, project: Option<&str>) -> Result<Policy, Failure> {
            let path = project.map(|text| self.write("project/airlock.toml", text));
            let wanted = path.as_deref().map_or(Wanted::Nothing, Wanted::Named);
            let own = Own::default();
            let project = config::project(wanted, self.folder.path(), &own.flags())?;
            assemble(flags, project.as_ref(), &own, &self.host(), self.folder.path())
        }
    }

    fn flags(allow: &[&str], deny: &[&str], ask: &[&str]) -> NetworkArgs {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        NetworkArgs { allow: owned(allow), deny: owned(deny), ask: owned(ask), ..NetworkArgs::default() }
    }

    /// `allow a.example.com --allow`.
    fn told(policy: &Policy) -> Vec<String> {
        let rule = |rule: &Rule| {
            format!("{:?} {} {}:{}", rule.verdict, rule.hosts.join(","), rule.origin.from, rule.origin.line)
        };
        policy.rules.iter().map(rule).collect()
    }

    #[test]
    fn rules_stand_in_the_documented_order() {
        let world = World::new();
        let project = "deny = \"d2.example.com\"\nallow = [\"a2.example.com\"]\npolicy = \"more.toml\"\n\n[[rule]]\nallow = \"r.example.com\"\n";
        world.write("project/more.toml", "[[rule]]\nallow = \"m.example.com\"\n");
        let typed = world.write("typed.toml", "[[rule]]\nallow = \"t.example.com\"\n");
        let markdown = world.write("skill.md", "---\ndomains:\n  - s.example.com\n---\n# x\n");
        let mut flags = flags(&["a.example.com"], &["d.example.com"], &["q.example.com"]);
        flags.policy = vec![typed.clone(), markdown.clone()];

        let policy = world.assemble(&flags, Some(project)).unwrap();

        let expected = [
            "Deny d.example.com --deny:0".to_owned(),
            "Ask q.example.com --ask:0".to_owned(),
            "Allow a.example.com --allow:0".to_owned(),
            "Deny d2.example.com airlock.toml:1".to_owned(),
            "Allow a2.example.com airlock.toml:2".to_owned(),
            "Allow r.example.com airlock.toml:5".to_owned(),
            "Allow m.example.com more.toml:1".to_owned(),
            format!("Allow t.example.com {}:1", typed.display()),
            format!("Allow s.example.com {}:3", markdown.display()),
        ];
        assert_eq!(told(&policy), expected);
    }

    #[test]
    fn nothing_said_is_nothing_allowed() {
        assert_eq!(World::new().assemble(&NetworkArgs::default(), None).unwrap(), Policy::default());
    }

    #[test]
    fn network_none_means_no_rule_and_no_rule_beside_it() {
        let world = World::new();
        let none = NetworkArgs { network: Some(Network::None), ..NetworkArgs::default() };
        assert_eq!(world.assemble(&none, Some("allow = \"a.example.com\"\n")).unwrap(), Policy::default());
        let both = NetworkArgs { network: Some(Network::None), ..flags(&["a.example.com"], &[], &[]) };
        assert_eq!(world.assemble(&both, None).unwrap_err().code, 2);
    }

    #[test]
    fn a_registry_is_the_one_that_the_hosts_own_client_uses() {
        let world = World::new();
        let silent = world.assemble(&flags(&["npm"], &[], &[]), None).unwrap_err();
        assert!(silent.fix.as_deref().unwrap_or_default().contains("npm config set registry"), "{silent}");

        world.write(
            ".npmrc",
            "registry=http://npm.example.com:4873/\n@acme:registry=https://acme.example.com/\n",
        );
        let policy = world.assemble(&flags(&["npm"], &[], &[]), None).unwrap();

        assert_eq!(
            told(&policy),
            ["Allow npm.example.com group npm:0", "Allow acme.example.com group npm:0"]
        );
        assert_eq!(policy.rules[0].ports, [Ports::one(4873)]);
        assert_eq!(policy.rules[1].ports, [Ports::one(80), Ports::one(443)]);
        assert_eq!(policy.rules[0].private, PRIVATE);
        let urls: Vec<&str> =
            policy.packages.registries.iter().map(|registry| registry.url.as_str()).collect();
        assert_eq!(urls, ["http://npm.example.com:4873/", "https://acme.example.com/"]);
        assert!(world.assemble(&flags(&["npm.example.com"], &[], &[]), None).unwrap().packages.is_none());
    }

    #[test]
    fn a_word_that_is_no_host_is_shown_with_its_place() {
        let world = World::new();
        let typed = world.assemble(&flags(&["*.com"], &[], &[]), None).unwrap_err();
        assert!(typed.what.starts_with("--allow: `*.com` is not a host"), "{typed}");
        let written = world
            .assemble(&NetworkArgs::default(), Some("allow = [\"a.example.com\", \"*.com\"]\n"))
            .unwrap_err();
        assert!(written.what.contains("airlock.toml:1:27: `*.com` is not a host"), "{written}");
        assert_eq!(written.excerpt.as_ref().map(|excerpt| excerpt.column), Some(27));
        let rule =
            world.assemble(&NetworkArgs::default(), Some("[[rule]]\nallow = \"*.com\"\n")).unwrap_err();
        assert!(rule.what.contains("airlock.toml:2:9: ") && rule.excerpt.is_some(), "{rule}");
    }

    #[test]
    fn a_kept_answer_answers_a_question_and_opens_nothing_else() {
        let world = World::new();
        world.write(
            "answers.toml",
            "[[rule]]\nallow = \"a.example.com\"\nports = [443]\n\n[[rule]]\ndeny = \"b.example.com\"\nports = [443]\n\n\
             [[rule]]\nallow = \"evil.example.org\"\nports = [443]\n",
        );
        let asks = "[[rule]]\ndeny = \"b.example.com\"\n\n[[rule]]\nask = \"*.example.com\"\nprivate = [\"10.1.0.0/16\"]\n";

        let policy = world.assemble(&NetworkArgs::default(), Some(asks)).unwrap();

        let answers = world.folder.path().join("answers.toml").display().to_string();
        let expected = [
            "Deny b.example.com airlock.toml:1".to_owned(),
            format!("Allow a.example.com {answers}:1"),
            "Ask *.example.com airlock.toml:4".to_owned(),
        ];
        assert_eq!(told(&policy), expected);
        assert_eq!(policy.rules[1].private, ["10.1.0.0/16"]);
        assert_eq!(world.assemble(&NetworkArgs::default(), None).unwrap(), Policy::default());
    }

    #[test]
    fn only_recording_is_asked_for_by_flag_or_by_every_file() {
        let world = World::new();
        let flag = NetworkArgs { audit_only: true, ..NetworkArgs::default() };
        assert!(world.assemble(&flag, None).unwrap().audit_only);
        assert!(world.assemble(&NetworkArgs::default(), Some("audit_only = true\n")).unwrap().audit_only);
    }
}
