//! The hosts that secrets go to: rules for those that a person named, and contradictions between rules and secrets.

use super::{clouds, wanted::Wanted};
use crate::{failure::Failure, policy};
use airlock_gate::{
    host::{Destination, Target},
    judge::{Judge, Judged},
    pattern::Pattern,
};
use airlock_protocol::{
    policy::{Origin, Policy, Ports, Request, Rule, Tls, Verdict},
    secret::Use,
};

/// Where a secret may go: HTTPS, and nothing else.
const HTTPS: u16 = 443;

/// Lets hosts through that a person named with a secret, behind all other rules. A secret that can go nowhere is refused.
pub(super) fn add_rules(wanted: &[Wanted], policy: &mut Policy) -> Result<(), Failure> {
    for wish in wanted {
        for host in &wish.secret.hosts {
            let judge = Judge::compile(policy).map_err(policy::failure)?;
            let Some(target) = one_of(host) else { continue };
            let judged = judge.connect(&target, HTTPS);
            match (judged.verdict, wish.opens) {
                (Some(Verdict::Deny), _) if !policy.audit_only => return Err(denied(wish, host, &judged)),
                (Some(_), _) => refuse_opaque(wish, host, &judged)?,
                (None, true) => policy.rules.push(rule(&wish.secret.name, host)),
                (None, false) if policy.audit_only || reaches(&judge, &target) => {}
                (None, false) => return Err(unreachable(wish, host)),
            }
        }
        for rule in rules_for_tokens(wish) {
            let judge = Judge::compile(policy).map_err(policy::failure)?;
            if !policy.rules.contains(&rule) && may_be_looked_at(&judge, &rule) {
                policy.rules.push(rule);
            }
        }
    }
    Ok(())
}

/// Lets programs ask for tokens themselves, where the keeper answers them, and what they ask before. Only for hosts that a person named.
fn rules_for_tokens(wish: &Wanted) -> Vec<Rule> {
    let Use::OAuth { token_url, .. } = &wish.secret.use_as else { return Vec::new() };
    let Some(Destination { target, port: Some(port) }) = token_url.parse().ok().filter(|_| wish.opens) else {
        return Vec::new();
    };
    let path = token_url.splitn(4, '/').nth(3).unwrap_or_default();
    let path = format!("/{}", path.split(['?', '#']).next().unwrap_or_default());
    let before = clouds::asked_before(wish);
    let one = |method: &str, paths: Vec<String>| Rule {
        ports: vec![Ports::one(port)],
        request: Request { methods: vec![method.to_owned()], paths, ..Request::default() },
        ..rule(&wish.secret.name, &target.to_string())
    };
    let mut rules = vec![one("POST", vec![path])];
    rules.extend((!before.is_empty()).then(|| one("GET", before)));
    rules
}

/// Whether no other rule stands against it.
fn may_be_looked_at(judge: &Judge, rule: &Rule) -> bool {
    let place = rule.hosts.first().and_then(|host| host.parse().ok()).zip(rule.ports.first());
    let judged = place.map(|(target, ports): (Target, _)| judge.connect(&target, ports.first));
    judged.is_some_and(|judged| match judged.verdict {
        None => true,
        Some(Verdict::Deny) => false,
        Some(_) => judged.rule.is_none_or(|rule| rule.tls() != Tls::Opaque),
    })
}

fn rule(name: &str, host: &str) -> Rule {
    let origin = Origin { from: format!("--secret {name}"), line: 0 };
    let rule = Rule::new(Verdict::Allow, vec![host.to_owned()], vec![Ports::one(HTTPS)], origin);
    Rule { tls: Tls::Opened, ..rule }
}

/// The host itself, or some name in the domain.
fn one_of(host: &str) -> Option<Target> {
    match host.parse::<Pattern>().ok()? {
        Pattern::Name(name) => Some(Target::Name(name)),
        Pattern::Under(suffix) => format!("some-name.{suffix}").parse().ok(),
        Pattern::Addresses(range) => Some(Target::Address(range.network())),
        Pattern::EveryName => None,
    }
}

/// Whether another port of it may be reached.
fn reaches(judge: &Judge, target: &Target) -> bool {
    match target {
        Target::Name(name) => !judge.could_match(name).is_empty(),
        Target::Address(_) => true,
    }
}

fn refuse_opaque(wish: &Wanted, host: &str, judged: &Judged<'_>) -> Result<(), Failure> {
    let Some(rule) = judged.rule.filter(|rule| rule.tls() == Tls::Opaque) else { return Ok(()) };
    Err(Failure::new(format!("the secret {} cannot go to {host}", wish.secret.name))
        .code(2)
        .why(format!("a rule leaves connections to it unopened: {}", rule.words()))
        .fix("remove tls = \"opaque\" from that rule"))
}

fn denied(wish: &Wanted, host: &str, judged: &Judged<'_>) -> Failure {
    let rule = judged.rule.map_or_else(String::new, |rule| format!(": {}", rule.words()));
    Failure::new(format!("the secret {} is bound to {host}, which a rule denies", wish.secret.name))
        .code(2)
        .why(format!("the first rule that matches decides{rule}"))
        .fix("change the rule, or leave out the secret")
}

fn unreachable(wish: &Wanted, host: &str) -> Failure {
    let name = &wish.secret.name;
    Failure::new(format!("the secret {name} is bound to {host}, which no rule lets through"))
        .code(2)
        .why("a file that describes a secret does not open the way to its hosts")
        .fix(format!("--allow {host}, or --secret {name}@{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use airlock_protocol::secret::{From, Grant, Place, Secret};

    fn wish(hosts: &[&str], opens: bool) -> Wanted {
        let secret = Secret {
            name: "T".into(),
            from: From::Env("T".into()),
            placeholder: String::new(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            methods: vec![],
            paths: vec![],
            places: vec![Place::Header],
            use_as: Use::Plain,
        };
        Wanted { secret, also: vec![], files: vec![], user: None, opens }
    }

    fn policy(text: &str) -> Policy {
        airlock_gate::policy::parse_toml("x.toml", text).unwrap().policy
    }

    #[test]
    fn hosts_that_a_person_named_are_opened_on_one_port_behind_all_other_rules() {
        let mut rules = policy("[[rule]]\nallow = \"a.example.com\"\n");
        add_rules(&[wish(&["a.example.com", "b.example.com", "*.example.org"], true)], &mut rules).unwrap();
        let added: Vec<(&str, &str, Tls)> =
            rules.rules[1..].iter().map(|rule| (&*rule.hosts[0], &*rule.origin.from, rule.tls)).collect();
        assert_eq!(
            added,
            [("b.example.com", "--secret T", Tls::Opened), ("*.example.org", "--secret T", Tls::Opened)]
        );
        assert_eq!(rules.rules[1].ports, [Ports::one(443)]);
    }

    #[test]
    fn where_tokens_are_fetched_programs_may_ask_for_them_and_nothing_else() {
        let mut own = wish(&["a.example.com"], true);
        own.secret.use_as = Use::OAuth {
            token_url: "https://b.example.com:8443/token?x=1".into(),
            client_id: "me".into(),
            client_secret: None,
            grant: Grant::RefreshToken,
            scope: None,
        };
        let mut rules = Policy::default();
        add_rules(&[own.clone(), own.clone()], &mut rules).unwrap();
        let [_, added] = &rules.rules[..] else { panic!("{rules:?}") };
        assert_eq!((&added.hosts[0], &added.ports), (&"b.example.com".into(), &vec![Ports::one(8443)]));
        assert_eq!(
            (&added.request.methods[..], &added.request.paths[..]),
            (&["POST".into()][..], &["/token".into()][..])
        );

        for other in [
            "[[rule]]\nallow = \"a.example.com\"\n[[rule]]\ndeny = \"b.example.com\"\nports = [8443]\n",
            "[[rule]]\nallow = \"a.example.com\"\n[[rule]]\nallow = \"b.example.com\"\nports = [8443]\ntls = \"opaque\"\n",
        ] {
            let mut rules = policy(other);
            add_rules(&[own.clone()], &mut rules).unwrap();
            assert_eq!(rules.rules.len(), 2);
        }
    }

    #[test]
    fn a_file_opens_no_way() {
        let refused = add_rules(&[wish(&["a.example.com"], false)], &mut Policy::default()).unwrap_err();
        assert!(refused.fix.unwrap().contains("--allow a.example.com"));
        let mut rules = policy("[[rule]]\nask = \"a.example.com\"\nports = [8443]\n");
        add_rules(&[wish(&["a.example.com"], false)], &mut rules).unwrap();
        assert_eq!(rules.rules.len(), 1);
    }

    #[test]
    fn contradictions_are_refused() {
        for rules in [
            "[[rule]]\ndeny = \"a.example.com\"\n",
            "[[rule]]\nallow = \"a.example.com\"\ntls = \"opaque\"\n",
        ] {
            assert_eq!(add_rules(&[wish(&["a.example.com"], true)], &mut policy(rules)).unwrap_err().code, 2);
        }
    }
}
