//! What is looked for: placeholders in requests, values in answers.

use super::{
    forms::{self, Form},
    table::{Found, Needles},
};
use airlock_gate::secrets::{Bound, Secrets, Value};
use std::rc::Rc;

/// What is looked for on both ways.
pub(super) struct Tables {
    pub(super) outward: Outward,
    pub(super) inward: Inward,
}

/// Placeholders.
pub(super) struct Outward {
    needles: Needles,
    sought: Vec<Sought>,
}

/// A placeholder in one form.
#[derive(Debug, Clone)]
pub(super) struct Sought {
    /// The name of its secret.
    pub(super) name: Rc<str>,
    pub(super) form: Form,
}

/// Values.
pub(super) struct Inward {
    needles: Needles,
    known: Vec<Known>,
    keeps_length: bool,
}

/// What comes in place of a value in one form.
struct Known {
    exact: Vec<u8>,
    fitted: Vec<u8>,
}

/// How long what comes in place of a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The placeholder, whole.
    Exact,
    /// As long as what it stands for, repeated or cut: for messages that tell their length.
    Same,
}

/// They could not be built. Has no cause: a cause could show bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secrets cannot be looked for: there are too many, or they are too long")]
pub(super) struct TooMany;

impl Tables {
    /// `tokens` gives what else is known for a secret: tokens that were fetched for it.
    pub(super) fn new(secrets: &Secrets, tokens: impl Fn(&str) -> Vec<Rc<Value>>) -> Result<Tables, TooMany> {
        Ok(Tables { outward: Outward::new(secrets)?, inward: Inward::new(secrets, tokens)? })
    }
}

impl Outward {
    fn new(secrets: &Secrets) -> Result<Outward, TooMany> {
        let (mut texts, mut sought) = (Vec::new(), Vec::new());
        for secret in secrets.iter() {
            let name: Rc<str> = secret.name().into();
            for (form, text) in forms::every(secret.placeholder()) {
                texts.push(text);
                sought.push(Sought { name: name.clone(), form });
            }
        }
        Ok(Outward { needles: Needles::new(&texts).map_err(|_| TooMany)?, sought })
    }

    pub(super) fn needles(&self) -> &Needles {
        &self.needles
    }

    /// Whose placeholder was found, in which form.
    pub(super) fn sought(&self, found: Found) -> Option<&Sought> {
        self.sought.get(found.which)
    }
}

impl Inward {
    fn new(secrets: &Secrets, tokens: impl Fn(&str) -> Vec<Rc<Value>>) -> Result<Inward, TooMany> {
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut known = Vec::new();
        for secret in secrets.iter() {
            for value in values(secret, &tokens) {
                for (form, text) in forms::every(value.reveal()) {
                    if texts.contains(&text) {
                        continue;
                    }
                    known.push(Known::new(secret.placeholder(), value.reveal().len(), form, text.len()));
                    texts.push(text);
                }
            }
        }
        let keeps_length = known.iter().zip(&texts).all(|(known, text)| known.exact.len() == text.len());
        let needles = Needles::new(&texts).map_err(|_| TooMany);
        texts.iter_mut().for_each(zeroize::Zeroize::zeroize);
        Ok(Inward { needles: needles?, known, keeps_length })
    }

    pub(super) fn needles(&self) -> &Needles {
        &self.needles
    }

    /// What comes in its place.
    pub(super) fn instead(&self, found: Found, fit: Fit) -> Vec<u8> {
        let Some(known) = self.known.get(found.which) else { return vec![b'x'; found.end - found.start] };
        match fit {
            Fit::Exact => known.exact.clone(),
            Fit::Same => known.fitted.clone(),
        }
    }

    /// Whether everything that comes in place of something is as long as it.
    pub(super) fn keeps_length(&self) -> bool {
        self.keeps_length
    }
}

impl Known {
    fn new(placeholder: &str, value: usize, form: Form, text: usize) -> Known {
        if let Form::Base64(..) = form {
            let written = form.write(&forms::fitted(placeholder, value));
            return Known { exact: written.clone(), fitted: written };
        }
        Known { exact: form.write(placeholder), fitted: forms::fitted(placeholder, text).into_bytes() }
    }
}

fn values(secret: &Bound, tokens: impl Fn(&str) -> Vec<Rc<Value>>) -> Vec<Rc<Value>> {
    let mut values = vec![secret.value()];
    values.extend(secret.former());
    values.extend(tokens(secret.name()));
    values
}
