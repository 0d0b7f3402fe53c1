//! Other rules, and people's answers.

use super::Gate;
use crate::{
    approvals::Answered,
    host::Target,
    judge::{CompiledRule, Judge},
    ledger,
    meter::Meters,
    policy::BadPolicy,
};
use airlock_protocol::{
    approval::{Answer, Given, Pending, Scope},
    event::Event,
    ledger::Entry,
    policy::{Origin, Policy, Ports, Rule, Verdict},
};
use std::rc::Rc;

/// An answer that did not count.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Nothing of this id waits.
    #[error("no request {id:?} waits: it was answered, its time was up, or the program gave up")]
    NoSuch {
        /// The id.
        id: String,
    },
    /// The rule it makes cannot be used.
    #[error("the answer could not be made a rule")]
    Rule(#[source] Box<BadPolicy>),
    /// It could not be recorded; the request still waits.
    #[error("the answer could not be recorded, and the request still waits: {0}")]
    Ledger(#[source] ledger::Error),
}

impl Gate {
    /// Other rules from now on. Whoever waits for a person is judged anew.
    pub fn set_policy(&self, policy: Policy, by: &str) -> Result<(), BadPolicy> {
        let judge = self.compile(&policy)?;
        self.install(policy, judge, by);
        Ok(())
    }

    /// Rules in front of those in force.
    pub fn add_rules(&self, rules: Vec<Rule>, by: &str) -> Result<(), BadPolicy> {
        let policy = self.with_in_front(rules);
        self.set_policy(policy, by)
    }

    /// A person's answer. It counts once, for the crossings that wait for this request; with another scope than `Once` it
    /// is a rule as well.
    pub fn answer(&self, answer: &Answer, by: &str) -> Result<(), AnswerError> {
        let no_such = || AnswerError::NoSuch { id: answer.id.chars().take(64).collect() };
        let pending = self.approvals.find(&answer.id).ok_or_else(no_such)?;
        let change = match answer.scope {
            Scope::Once => None,
            Scope::Sandbox | Scope::Always => {
                let policy = self.with_answer(&pending, answer.verdict);
                let judge = self.compile(&policy).map_err(|bad| AnswerError::Rule(Box::new(bad)))?;
                Some((policy, judge))
            }
        };
        let Answer { id, verdict, scope } = answer.clone();
        let entry = Entry::Approval { request: id.clone(), verdict, scope, by: by.to_owned() };
        self.record(|_| entry).map_err(AnswerError::Ledger)?;
        if let Some((policy, judge)) = change {
            self.install(policy, judge, "approval");
        }
        let answered = Answered { request: id, verdict, by: by.to_owned() };
        match self.approvals.answer(&answered, scope) {
            true => Ok(()),
            false => Err(no_such()),
        }
    }

    fn compile(&self, policy: &Policy) -> Result<Judge, BadPolicy> {
        let judge = Judge::compile(policy)?;
        self.opening.check(&judge)?;
        Ok(judge)
    }

    fn with_in_front(&self, mut rules: Vec<Rule>) -> Policy {
        let known = self.policy.borrow();
        rules.extend_from_slice(&known.rules);
        Policy { rules, ..known.clone() }
    }

    /// With the answer right before the rule that asks: what rules before it deny, perhaps for the query alone, stays denied.
    fn with_answer(&self, pending: &Pending, given: Given) -> Policy {
        let judge = self.judge();
        let mut policy = self.policy.borrow().clone();
        let asking = asking(&judge, pending).map(CompiledRule::index);
        let rule = rule_for(pending, given, asking.and_then(|index| policy.rules.get(index)));
        let place = asking.unwrap_or(policy.rules.len()).min(policy.rules.len());
        policy.rules.insert(place, rule);
        policy
    }

    /// In force at once, also if it cannot be recorded now: nothing crosses before it is.
    fn install(&self, policy: Policy, judge: Judge, by: &str) {
        let rules = policy.rules.len() as u64;
        let meters = Meters::for_policy(&policy, &self.meters.borrow());
        self.meters.replace(meters);
        self.policy.replace(policy);
        self.judge.replace(Rc::new(judge));
        self.generation.send_modify(|generation| *generation += 1);
        let generation = *self.generation.borrow();
        self.record_or_owe(Entry::Policy { generation, rules, by: by.to_owned() });
        self.events.tell(|| Event::PolicyChanged { generation });
    }
}

/// The rule that asks. One about requests is found by its words: it need not be the first that speaks of the host.
fn asking<'a>(judge: &'a Judge, pending: &Pending) -> Option<&'a CompiledRule> {
    if pending.method.is_some() {
        return judge.rules().iter().find(|rule| rule.words() == pending.rule);
    }
    let target = pending.host.parse::<Target>().ok()?;
    judge.connect(&target, pending.port).rule
}

/// About exactly what was asked; what the asking rule demands of TLS and addresses stays.
fn rule_for(pending: &Pending, given: Given, asking: Option<&Rule>) -> Rule {
    let origin = Origin { from: "approved".to_owned(), line: 0 };
    let (hosts, ports) = (vec![pending.host.clone()], vec![Ports::one(pending.port)]);
    let request = pending.grant.clone();
    if given == Given::Refused {
        return Rule { request, ..Rule::new(Verdict::Deny, hosts, ports, origin) };
    }
    let tls = asking.map(|rule| rule.tls).filter(|_| request.is_any()).unwrap_or_default();
    Rule {
        tls,
        private: asking.map(|rule| rule.private.clone()).unwrap_or_default(),
        pins: asking.map(|rule| rule.pins.clone()).unwrap_or_default(),
        bounds: asking.map(|rule| rule.bounds).unwrap_or_default(),
        request,
        ..Rule::new(Verdict::Allow, hosts, ports, origin)
    }
}
