//! What the rules say about a request inside a connection that was opened.

use super::{CompiledRule, Judge, Judged, Said};
use crate::{
    address::Cidr,
    conditions::{Conditions, Glance},
    glob::Glob,
    host::Target,
    request::{GitCall, Request},
};
use airlock_protocol::policy::{self, Rule, Tls, Verdict};

impl Judge {
    /// What the rules say about a request. A rule about whole connections decides requests too, where no rule before it does.
    pub fn request(&self, request: &Request) -> Judged<'_> {
        match &request.target {
            Target::Name(name) => self.judge_request(self.about_name(name), request),
            Target::Address(address) => {
                self.judge_request(self.about_address(address.to_canonical().into()), request)
            }
        }
    }

    fn judge_request<'a>(
        &'a self,
        about: impl Iterator<Item = &'a Said> + Clone,
        request: &Request,
    ) -> Judged<'a> {
        let whole = about.clone().filter_map(|said| said.whole.at(request.port)).min();
        let before = whole.unwrap_or(usize::MAX);
        let fits = |index: &usize| {
            let conditions = self.rules.get(*index).and_then(CompiledRule::conditions);
            conditions.is_some_and(|conditions| conditions.missed(request).is_none())
        };
        let method = Glance::of_method(&request.method);
        let first =
            |said: &'a Said| said.inside_for(request, method).take_while(|index| *index < before).find(fits);
        // Encoded slashes pass by a rule that says so, and by no other.
        let opens =
            |index: &usize| self.rules.get(*index).is_some_and(|rule| rule.verdict() != Verdict::Deny);
        let whole = whole.filter(|index| request.read_as.is_none() || !opens(index));
        let first = about.filter_map(first).chain(whole).min();
        let rule = first.and_then(|index| self.rules.get(index));
        Judged { verdict: rule.map(CompiledRule::verdict), rule, tls: Tls::Opened, inside: false }
    }

    /// The rule that asks about what `answer` answers for `target` and `port`: a connection, or exactly one request whatever its
    /// query. None where another rule decides.
    pub fn asking(&self, answer: &Rule, target: &Target, port: u16) -> Option<&CompiledRule> {
        let judged = match answer.request.is_any() {
            true => self.connect(target, port),
            false => self.request(&sample(&answer.request, target, port)?),
        };
        judged.rule.filter(|_| judged.verdict == Some(Verdict::Ask))
    }

    /// Special ranges that a connection to `target` may lead into.
    pub fn private(&self, target: &Target, port: u16) -> Vec<Cidr> {
        let judged = self.connect(target, port);
        match judged.inside {
            true => self.narrowest(target, port).private,
            false => judged.rule.map(|rule| rule.private().to_vec()).unwrap_or_default(),
        }
    }

    /// What a connection may lead to and whom it must meet, before it is known which rule its requests meet: no more than every
    /// rule allows that could let one of them pass.
    pub(crate) fn narrowest(&self, target: &Target, port: u16) -> Narrowest {
        let mut rules = self.rules_inside(target, port);
        let Some(first) = rules.next() else { return Narrowest::default() };
        let mut narrowest = Narrowest { private: first.private().to_vec(), pins: first.pins().to_vec() };
        for rule in rules {
            narrowest.private.retain(|range| rule.private().iter().any(|other| other.covers(range)));
            // A rule that names no keys takes any; what it lets pass is judged by itself.
            match narrowest.pins.is_empty() || rule.pins().is_empty() {
                true => narrowest.pins.clear(),
                false => narrowest.pins.extend_from_slice(rule.pins()),
            }
        }
        narrowest
    }

    /// Whether a rule lets some path with encoded slashes pass.
    pub fn takes_encoded_slashes(&self, target: &Target, port: u16) -> bool {
        let takes = |rule: &CompiledRule| rule.conditions().is_some_and(Conditions::takes_encoded_slashes);
        self.rules_inside(target, port).any(takes)
    }

    /// Whether a rule lets some command of git pass, inside SSH too.
    pub fn speaks_git(&self, target: &Target, port: u16) -> bool {
        self.rules_inside(target, port).any(CompiledRule::is_about_git)
    }

    /// The rules that could let a request of this connection pass.
    fn rules_inside(&self, target: &Target, port: u16) -> impl Iterator<Item = &CompiledRule> {
        let about: Vec<&Said> = match target {
            Target::Name(name) => self.about_name(name).collect(),
            Target::Address(address) => self.about_address(address.to_canonical().into()).collect(),
        };
        let whole = about.iter().filter_map(|said| said.whole.at(port)).min();
        let before = whole.unwrap_or(usize::MAX);
        let inside =
            about.into_iter().flat_map(move |said| said.inside_at(port).filter(move |rule| *rule < before));
        let rules = inside.chain(whole).filter_map(|index| self.rules.get(index));
        rules.filter(|rule| rule.verdict() != Verdict::Deny)
    }
}

/// A request that fits, where only one does, but for its query.
fn sample(asked: &policy::Request, target: &Target, port: u16) -> Option<Request> {
    let literal = |texts: &[String]| match texts {
        [text] => text.parse::<Glob>().ok()?.literal(),
        _ => None,
    };
    let (method, path, git) = match (asked.git, asked.methods.as_slice()) {
        (Some(wants), _) => {
            let repository = literal(&asked.repositories)?;
            ("GET".to_owned(), format!("/{repository}/info/refs"), Some(GitCall { wants, repository }))
        }
        (None, [method]) => (method.clone(), literal(&asked.paths)?, None),
        (None, _) => return None,
    };
    let websocket = asked.websocket.unwrap_or(false);
    let (query, headers) = (Vec::new(), Vec::new());
    Some(Request {
        target: target.clone(),
        port,
        is_tls: port != 80,
        method,
        path,
        read_as: None,
        query,
        headers,
        websocket,
        git,
        is_ssh: false,
    })
}

/// What holds for a whole connection whose requests decide.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Narrowest {
    /// Special ranges that the name may lead into.
    pub(crate) private: Vec<Cidr>,
    /// Keys of which the server's certificate must have one; any where empty.
    pub(crate) pins: Vec<String>,
}
