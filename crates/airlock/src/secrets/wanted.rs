//! Which secrets a sandbox gets, from flags, files and what is known of well-known services. Pure.
//!
//! A flag names a secret, with hosts or without. A project's file may describe one; so may the person's own, and what that says
//! of hosts, methods, paths and places is the most that a project's file can have: it narrows and never widens.

use super::{
    clouds,
    files::Kind,
    table::{Table, Word},
};
use crate::failure::Failure;
use airlock_gate::{
    host::Destination,
    pattern::Pattern,
    providers::{self, Provided},
};
use airlock_protocol::secret::{From, Place, Secret, Use};

/// What was asked for, and where.
pub(super) struct Asked<'a> {
    /// After `--secret`.
    pub(super) typed: &'a [Word],
    /// Under `secret` of the project's file.
    pub(super) named: &'a [Word],
    /// `[secrets.NAME]` of the project's file.
    pub(super) project: &'a [Table],
    /// `[secrets.NAME]` of the person's own.
    pub(super) own: &'a [Table],
}

/// One secret that the sandbox is to have; its placeholder comes with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) secret: Secret,
    /// Further variables that hold the placeholder.
    pub(super) also: Vec<String>,
    pub(super) files: Vec<Kind>,
    /// Whom such a file names.
    pub(super) user: Option<String>,
    /// Whether its hosts may be reached because of it.
    pub(super) opens: bool,
}

/// Every secret that was asked for, once. `is_set` tells whether this host has a variable.
pub(super) fn put_together(asked: &Asked<'_>, is_set: &dyn Fn(&str) -> bool) -> Result<Vec<Wanted>, Failure> {
    let mut names: Vec<String> = Vec::new();
    let tables = asked.project.iter().map(|table| &table.name);
    for name in tables.chain(asked.named.iter().chain(asked.typed).map(|word| &word.name)) {
        add_with_what_it_brings(&mut names, name, is_set);
    }
    let wanted = names.iter().map(|name| one(asked, name)).collect::<Result<Vec<Wanted>, Failure>>()?;
    wanted.iter().try_for_each(clouds::check)?;
    Ok(wanted)
}

fn add_with_what_it_brings(names: &mut Vec<String>, name: &str, is_set: &dyn Fn(&str) -> bool) {
    if names.iter().any(|own| own == name) {
        return;
    }
    names.push(name.to_owned());
    let Some(known) = providers::find(name) else { return };
    let set = known.may_bring.iter().filter(|name| is_set(name));
    for other in known.brings.iter().chain(set) {
        add_with_what_it_brings(names, other, is_set);
    }
}

fn one(asked: &Asked<'_>, name: &str) -> Result<Wanted, Failure> {
    let find = |tables: &[Table]| tables.iter().find(|table| table.name == name).cloned().unwrap_or_default();
    let (own, mut project) = (find(asked.own), find(asked.project));
    let hosts_of = |words: &[Word]| -> Vec<String> {
        words.iter().filter(|word| word.name == name).flat_map(|word| word.hosts.clone()).collect()
    };
    project.hosts.extend(hosts_of(asked.named));
    let (typed, is_typed) = (hosts_of(asked.typed), asked.typed.iter().any(|word| word.name == name));
    let known = providers::find(name);
    let wider = |what: &str| wider(name, what);
    let written =
        narrowed(&own.hosts, &project.hosts, |own, wish| covers(own, wish)).ok_or_else(|| wider("hosts"))?;
    // Whose hosts nobody but the project's file names, it may also have fetch tokens elsewhere.
    let is_named = typed.is_empty() && !project.hosts.is_empty();
    let (hosts, opens) = match (typed.is_empty(), written.is_empty(), &known) {
        (false, ..) => (typed, true),
        (true, false, _) => (written, is_typed),
        (true, true, Some(known)) => (known.hosts.clone(), true),
        (true, true, None) => return Err(no_host(name)),
    };
    let same = |a: &String, b: &String| a == b;
    let methods = narrowed(&own.methods, &project.methods, same).ok_or_else(|| wider("methods"))?;
    let paths = narrowed(&own.paths, &project.paths, same).ok_or_else(|| wider("paths"))?;
    let places = narrowed(&own.places, &project.places, |a, b| a == b).ok_or_else(|| wider("places (in)"))?;
    let limit = if is_named { &own.hosts } else { &hosts };
    if project.use_as != own.use_as && !fetches_within(&project.use_as, limit) {
        return Err(wider("places to fetch tokens at"));
    }
    let use_as = if project.use_as.is_plain() { own.use_as } else { project.use_as };
    let from = project.from.or(own.from).unwrap_or_else(|| From::Env(name.to_owned()));
    let secret = Secret {
        name: name.to_owned(),
        from,
        placeholder: String::new(),
        hosts,
        methods,
        paths,
        places: places_of(places, known.as_ref()),
        use_as: use_of(use_as, known.as_ref()),
    };
    let files = [project.files, own.files].concat();
    let user = project.user.or(own.user);
    Ok(with_known(Wanted { secret, also: Vec::new(), files, user, opens }, known))
}

/// What `project` says, if `own` has all of it; what `own` says, if `project` says nothing.
fn narrowed<T: Clone>(own: &[T], project: &[T], covers: impl Fn(&T, &T) -> bool) -> Option<Vec<T>> {
    if own.is_empty() || project.is_empty() {
        return Some([own, project].concat());
    }
    let has = |wish: &T| own.iter().any(|own| covers(own, wish));
    project.iter().all(has).then(|| project.to_vec())
}

fn covers(own: &str, wish: &str) -> bool {
    let patterns = own.parse::<Pattern>().ok().zip(wish.parse::<Pattern>().ok());
    patterns.is_some_and(|(own, wish)| own.covers(&wish))
}

/// Whether tokens are fetched at one of these hosts, if any are; anywhere where there are no hosts.
fn fetches_within(use_as: &Use, hosts: &[String]) -> bool {
    let Use::OAuth { token_url, .. } = use_as else { return true };
    let target = token_url.parse::<Destination>().map(|place| place.target);
    let has = |host: &String| {
        let pattern = host.parse::<Pattern>().ok();
        pattern.zip(target.as_ref().ok()).is_some_and(|(host, target)| host.matches(target))
    };
    hosts.is_empty() || hosts.iter().any(has)
}

fn places_of(places: Vec<Place>, known: Option<&Provided>) -> Vec<Place> {
    match (places.is_empty(), known) {
        (false, _) => places,
        (true, Some(known)) => known.places.clone(),
        (true, None) => vec![Place::Header, Place::Basic],
    }
}

fn use_of(use_as: Use, known: Option<&Provided>) -> Use {
    match known.and_then(|known| known.aws_access_key.clone()) {
        Some(access_key) if use_as.is_plain() => Use::AwsKey { access_key },
        _ => use_as,
    }
}

fn with_known(mut wanted: Wanted, known: Option<Provided>) -> Wanted {
    let Some(known) = known else { return wanted };
    wanted.also = known.also.into_iter().filter(|name| *name != wanted.secret.name).collect();
    if wanted.files.is_empty() {
        wanted.files = known.files.iter().filter_map(|word| Kind::of(word)).collect();
    }
    wanted.user = wanted.user.or(known.user);
    wanted
}

fn wider(name: &str, what: &str) -> Failure {
    Failure::new(format!(
        "the project's file gives the secret {name} more {what} than your own config.toml does"
    ))
    .code(2)
    .why("a project's file may only narrow what your own says of a secret")
    .fix(format!("change [secrets.{name}] in one of them, or name hosts yourself: --secret {name}@HOST"))
}

fn no_host(name: &str) -> Failure {
    Failure::new(format!("the secret {name} is bound to no host"))
        .code(2)
        .why("a secret goes only to hosts that are named, and no service is known that this one belongs to")
        .fix(format!("--secret {name}@HOST, or hosts = [\"HOST\"] under [secrets.{name}]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::table::word;
    use airlock_protocol::secret::Grant;

    fn table(name: &str, hosts: &[&str]) -> Table {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Table { name: name.to_owned(), hosts, ..Table::default() }
    }

    fn wanted(typed: &[&str], project: &[Table], own: &[Table]) -> Result<Vec<Wanted>, Failure> {
        let typed: Vec<Word> = typed.iter().map(|text| word(text).unwrap()).collect();
        let asked = Asked { typed: &typed, named: &[], project, own };
        put_together(&asked, &|name| name == "AWS_SESSION_TOKEN")
    }

    #[test]
    fn a_known_secret_needs_nothing_but_its_name() {
        let all = wanted(&["ANTHROPIC_API_KEY"], &[], &[]).unwrap();
        let [one] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&*one.secret.hosts, one.opens), (&["api.anthropic.com".to_owned()][..], true));
        assert_eq!(one.secret.from, From::Env("ANTHROPIC_API_KEY".into()));
        assert_eq!(one.secret.places, [Place::Header]);

        let github = wanted(&["GH_TOKEN"], &[], &[]).unwrap();
        assert_eq!(github[0].also, ["GITHUB_TOKEN"]);
        assert_eq!(github[0].files, [Kind::Gh, Kind::Netrc]);
    }

    #[test]
    fn a_key_of_aws_brings_what_belongs_to_it() {
        let all = wanted(&["AWS_SECRET_ACCESS_KEY"], &[], &[]).unwrap();
        let names: Vec<&str> = all.iter().map(|wanted| wanted.secret.name.as_str()).collect();
        assert_eq!(names, ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]);
        assert_eq!(all[0].secret.use_as, Use::AwsKey { access_key: "AWS_ACCESS_KEY_ID".into() });
    }

    #[test]
    fn a_secret_without_a_host_is_refused_with_the_fix() {
        let refused = wanted(&["MY_TOKEN"], &[], &[]).unwrap_err();
        assert!(refused.fix.unwrap().starts_with("--secret MY_TOKEN@HOST"));
    }

    #[test]
    fn typed_hosts_have_the_last_word_and_a_files_hosts_open_nothing() {
        let file = [table("T", &["a.example.com"])];
        let of_file = wanted(&[], &file, &[]).unwrap().remove(0);
        assert_eq!((of_file.secret.hosts[0].as_str(), of_file.opens), ("a.example.com", false));
        let typed = wanted(&["T@b.example.com", "T@c.example.com"], &file, &[]).unwrap().remove(0);
        assert_eq!(
            (typed.secret.hosts, typed.opens),
            (vec!["b.example.com".into(), "c.example.com".into()], true)
        );
    }

    #[test]
    fn a_projects_file_only_narrows_what_the_persons_own_says() {
        let own = [Table {
            from: Some(From::Command("pass x".into())),
            methods: vec!["GET".into()],
            ..table("T", &["*.example.com"])
        }];
        let narrower = wanted(&[], &[table("T", &["a.example.com"])], &own).unwrap().remove(0).secret;
        assert_eq!((narrower.hosts[0].as_str(), narrower.methods), ("a.example.com", vec!["GET".to_owned()]));
        assert_eq!(narrower.from, From::Command("pass x".into()));

        assert!(wanted(&[], &[table("T", &["evil.test"])], &own).is_err());
        let posts = Table { methods: vec!["POST".into()], ..table("T", &[]) };
        assert!(wanted(&[], &[posts], &own).is_err());
    }

    #[test]
    fn a_projects_file_has_no_tokens_fetched_where_the_value_may_not_go() {
        let fetching = |hosts: &[&str]| Table {
            use_as: Use::OAuth {
                token_url: "https://evil.test/token".into(),
                client_id: "x".into(),
                client_secret: None,
                grant: Grant::RefreshToken,
                scope: None,
            },
            ..table("T", hosts)
        };
        let own = [table("T", &["*.example.com"])];
        assert!(wanted(&[], &[fetching(&["a.example.com"])], &own).is_err());
        assert!(wanted(&["T"], &[fetching(&[])], &own).is_err());
        assert!(wanted(&["T@a.example.com"], &[fetching(&[])], &[]).is_err());
        let known = Table { name: "ANTHROPIC_API_KEY".into(), ..fetching(&[]) };
        assert!(wanted(&[], &[known], &[]).is_err());

        assert!(wanted(&[], &[fetching(&["a.example.com"])], &[]).is_ok());
        assert!(wanted(&["T@evil.test"], &[fetching(&[])], &[]).is_ok());
        assert!(wanted(&["T"], &[fetching(&[])], &[fetching(&["a.example.com"])]).is_ok());
    }

    #[test]
    fn what_is_only_in_the_persons_own_file_enters_no_sandbox() {
        assert_eq!(wanted(&[], &[], &[table("T", &["a.example.com"])]).unwrap(), []);
        assert!(wanted(&["T"], &[], &[table("T", &["a.example.com"])]).unwrap()[0].opens);
    }
}
