//! What the gate answers: a permit or a denial.

use crate::{address::Cidr, host::Target, meter::Meter, request::Request};
use airlock_protocol::policy::{Body, Tls};
use std::{fmt, rc::Rc, sync::Arc};

/// Proof that a crossing was permitted and recorded. Only the gate makes one; it cannot be copied, and whoever acts on it
/// uses it up.
///
/// ```compile_fail
/// fn twice(permit: airlock_gate::Permit) {
///     let _copy = permit.clone();
/// }
/// ```
///
/// ```compile_fail
/// let forged = airlock_gate::Permit { kind: airlock_gate::Kind::Connect };
/// ```
#[derive(Debug)]
#[must_use = "a permit that is not used up stands for nothing"]
pub struct Permit {
    pub(crate) kind: Kind,
    pub(crate) trace: Trace,
    pub(crate) tls: Tls,
    pub(crate) private: Vec<Cidr>,
    pub(crate) pins: Vec<String>,
    pub(crate) body: Option<Body>,
    pub(crate) meter: Meter,
    pub(crate) was_asked: bool,
}

/// What a permit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A name is known inside.
    Resolve,
    /// A connection out.
    Connect,
    /// A request.
    Request,
    /// A secret in a request.
    Reveal,
    /// A connection in.
    Publish,
}

/// What is left of a permit that is used up: enough to tell how it went. It permits nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub(crate) flow: u64,
    pub(crate) target: Target,
    pub(crate) port: u16,
    /// Of a request.
    pub(crate) call: Option<Rc<Request>>,
    pub(crate) rule: Option<Arc<str>>,
    /// Whether it shares its record with others (see `gate::busy`).
    pub(crate) is_counted: bool,
}

/// A crossing that may not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Why, in a word.
    pub reason: Reason,
    /// What was denied (`connecting to api.example.com:443`).
    pub what: String,
    /// The rule that denied it, in words (`deny *.example.com (airlock.toml:12)`).
    pub rule: Option<String>,
    /// More about why.
    pub detail: Option<String>,
    /// What a person can do (`airlock allow web api.example.com:443`); empty where nothing helps.
    pub hint: String,
}

/// Why something was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// No rule allows it.
    NoRule,
    /// A rule denies it.
    Rule,
    /// A person has to be asked, and nothing waits with `--audit-only`.
    Ask,
    /// A person refused it.
    Refused,
    /// Nobody answered in time.
    Unanswered,
    /// The program gave up before anybody answered.
    Abandoned,
    /// Too many crossings wait for a person already.
    Crowded,
    /// The name leads to an address that may not be dialled.
    Address,
    /// TLS inside names another host, or none.
    Sni,
    /// A request is for another host than its connection.
    Host,
    /// A request can be read in more than one way.
    Ambiguous,
    /// The server's certificate is not to be trusted, or not one of the rule's.
    Certificate,
    /// More requests than the rule's rate.
    Rate,
    /// The rule's bytes are spent.
    Bytes,
    /// A placeholder on its way to where its secret may not go.
    Secret,
    /// A script said no, or failed.
    Script,
    /// A package that may not be fetched.
    Package,
    /// Only TCP and DNS cross.
    Protocol,
    /// More names under a wildcard than its budget.
    Budget,
    /// The ledger cannot be written.
    Ledger,
    /// Denials for different reasons, counted together.
    Several,
}

impl Permit {
    /// What it is for. Whoever dials takes [`Kind::Connect`] only.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where to: the name or address; for [`Kind::Publish`] where it came from.
    pub fn target(&self) -> &Target {
        &self.trace.target
    }

    /// The port; 0 for [`Kind::Resolve`], the port inside for [`Kind::Publish`].
    pub fn port(&self) -> u16 {
        self.trace.port
    }

    /// What must be true of TLS inside.
    pub fn tls(&self) -> Tls {
        self.tls
    }

    /// Keys of which the server's certificate must have one (`sha256/<base64>`); any where empty.
    pub fn pins(&self) -> &[String] {
        &self.pins
    }

    /// How much of bodies the rule shows to scripts.
    pub fn body(&self) -> Option<Body> {
        self.body
    }

    /// What the rule still allows.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// Special ranges that the name may lead into.
    pub fn private(&self) -> &[Cidr] {
        &self.private
    }

    /// Whether the rule that permitted it asks a person, who said yes.
    pub fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Joins the decision with the end of its flow; 0 for a lookup that was only counted.
    pub fn flow(&self) -> u64 {
        self.trace.flow
    }

    /// The rule that permitted it, in words; none with `--audit-only` where no rule did.
    pub fn rule(&self) -> Option<&str> {
        self.trace.rule.as_deref()
    }

    /// Uses it up.
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    /// What is left when it is used up.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }
}

impl Trace {
    /// Joins the decision with the end of its flow.
    pub fn flow(&self) -> u64 {
        self.flow
    }

    /// Where to.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Reason {
    /// The word in the ledger. These stay as they are.
    pub fn word(self) -> &'static str {
        match self {
            Reason::NoRule => "no_rule",
            Reason::Rule => "rule",
            Reason::Ask => "ask",
            Reason::Refused => "refused",
            Reason::Unanswered => "unanswered",
            Reason::Abandoned => "abandoned",
            Reason::Crowded => "crowded",
            Reason::Address => "address",
            Reason::Sni => "sni",
            Reason::Host => "host",
            Reason::Ambiguous => "ambiguous",
            Reason::Certificate => "certificate",
            Reason::Rate => "rate",
            Reason::Bytes => "bytes",
            Reason::Secret => "secret",
            Reason::Script => "script",
            Reason::Package => "package",
            Reason::Protocol => "protocol",
            Reason::Budget => "budget",
            Reason::Ledger => "ledger",
            Reason::Several => "several",
        }
    }

    /// Whether it is no matter of rules, so that `--audit-only` does not excuse it.
    pub(crate) fn is_final(self) -> bool {
        matches!(
            self,
            Reason::Address
                | Reason::Certificate
                | Reason::Ambiguous
                | Reason::Host
                | Reason::Secret
                | Reason::Ledger
        )
    }

    fn sentence(self) -> &'static str {
        match self {
            Reason::NoRule => "no rule allows it",
            Reason::Rule => "a rule denies it",
            Reason::Ask => "a person has to be asked",
            Reason::Refused => "a person refused it",
            Reason::Unanswered => "nobody answered in time",
            Reason::Abandoned => "the program gave up before anybody answered",
            Reason::Crowded => "too many crossings wait for a person already",
            Reason::Address => "its address may not be dialled",
            Reason::Sni => "TLS inside does not name this host",
            Reason::Host => "the request is for another host than its connection",
            Reason::Ambiguous => "the request can be read in more than one way",
            Reason::Certificate => "the server's certificate is not to be trusted",
            Reason::Rate => "too many requests for the rule's rate",
            Reason::Bytes => "the rule's bytes are spent",
            Reason::Secret => "a secret may not go there",
            Reason::Script => "the script does not allow it",
            Reason::Package => "this package may not be fetched",
            Reason::Protocol => "only TCP and DNS cross the wall",
            Reason::Budget => "too many names were looked up under one wildcard",
            Reason::Ledger => "the ledger cannot be written, and nothing crosses unrecorded",
            Reason::Several => "for several reasons",
        }
    }
}

impl fmt::Display for Denial {
    /// One sentence: what, why, by which rule, and what to do next.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not allowed: {}", self.what, self.reason.sentence())?;
        if let Some(rule) = &self.rule {
            write!(f, ", {rule}")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, " ({detail})")?;
        }
        if !self.hint.is_empty() {
            write!(f, "; hint: {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Denial {}
