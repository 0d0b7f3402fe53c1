//! Sandboxes that go on from layers.

use super::{
    layers::{self, Chain, Guard},
    memory::Memory,
    refused,
};
use crate::{
    plan::refusal,
    store::{Error, Lock, Sandbox, Store},
};
use airlock_protocol::{
    Name,
    control::Refusal,
    spec::{Spec, Stdio, Stream},
    state::Status,
};

/// What a new sandbox goes on from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// How the one it comes from was asked for.
    pub spec: Spec,
    /// Its layers.
    pub chain: Chain,
    /// Since when its workspace was copied on write.
    pub copied_since: Option<i64>,
    /// The memory of its machine, to go on from at the first start.
    pub memory: Option<Memory>,
}

/// How often another name is tried.
const NAMES_TRIED: u32 = 10_000;

/// A stopped sandbox that goes on from there: under this name, or under the first free one of `name-1`, `name-2`, ….
pub fn fork(guard: &Guard, origin: &Origin, name: &Naming) -> Result<Sandbox, Refusal> {
    match name {
        Naming::Exactly(name) => make(guard, origin, name.clone()).map_err(|err| refused(&err)),
        Naming::Near(name) => match make(guard, origin, name.clone()) {
            Err(Error::NameTaken { .. }) => fork(guard, origin, &Naming::After(name.clone())),
            other => other.map_err(|err| refused(&err)),
        },
        Naming::After(name) => {
            for number in 1..NAMES_TRIED {
                match make(guard, origin, numbered(name, number)) {
                    Err(Error::NameTaken { .. }) => {}
                    other => return other.map_err(|err| refused(&err)),
                }
            }
            Err(refusal(125, &format!("every name like {name}-1 is taken"), None, Some("--name NAME")))
        }
    }
}

/// A new sandbox on top of these layers, as [`Store::create`] makes one; what they hold of a workspace does not count. Whoever keeps
/// the layers must not let them go before this returns.
pub fn create(store: &Store, spec: &Spec, chain: &Chain) -> Result<(Sandbox, Lock), Error> {
    let (sandbox, lock) = store.create(spec)?;
    match sandbox.write_chain(&Chain { layers: chain.layers.clone(), workspace: 0 }) {
        Ok(()) => Ok((sandbox, lock)),
        Err(err) => {
            let _ = sandbox.remove(lock);
            Err(err)
        }
    }
}

/// What a new sandbox is called.
#[derive(Debug, Clone)]
pub enum Naming {
    /// This.
    Exactly(Name),
    /// This where it is free, else this and a number.
    Near(Name),
    /// This and a number.
    After(Name),
}

fn make(guard: &Guard, origin: &Origin, name: Name) -> Result<Sandbox, Error> {
    let spec = spec_of(&origin.spec, name);
    let ids = layers::ids_in_common(guard.store(), &origin.chain)?;
    let (sandbox, lock) = guard.store().create(&spec)?;
    let filled = || -> Result<(), Error> {
        sandbox.write_chain(&origin.chain)?;
        origin.memory.as_ref().map_or(Ok(()), |memory| memory.share(sandbox.folder()))?;
        let mut state = sandbox.first_state(&spec);
        state.status = Status::Stopped;
        state.copied_since = origin.copied_since;
        if let Some((users, groups)) = &ids {
            // Whoever looks at its changes before it ever ran needs them.
            state.id_map.clone_from(users);
            state.group_map.clone_from(groups);
        }
        sandbox.write_state(&state)
    };
    match filled() {
        Ok(()) => Ok(sandbox),
        Err(err) => {
            let _ = sandbox.remove(lock);
            Err(err)
        }
    }
}

/// The same wish, for one that stays, whose streams lead to its log and whose published ports are free ones.
fn spec_of(spec: &Spec, name: Name) -> Spec {
    let mut spec = spec.clone();
    if spec.hostname == spec.name.as_str() {
        spec.hostname = name.to_string();
    }
    spec.name = name;
    spec.keep = true;
    if spec.stdio.streams().iter().any(|stream| matches!(stream, Stream::Passed | Stream::Terminal)) {
        spec.stdio =
            Stdio { stdin: Stream::Null, stdout: Stream::Captured, stderr: Stream::Captured, size: None };
    }
    spec.publish.iter_mut().for_each(|publish| publish.port = 0);
    spec
}

/// `name-number`, at most as long as a name may be.
fn numbered(name: &Name, number: u32) -> Name {
    let ending = format!("-{number}");
    let kept: String = name.as_str().chars().take(63 - ending.len()).collect();
    #[expect(clippy::expect_used, reason = "a beginning of a name with a dash and digits is a name")]
    format!("{kept}{ending}").parse().expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numbered_name_is_a_name_of_any_length() {
        assert_eq!(numbered(&"web".parse().unwrap(), 3).as_str(), "web-3");
        let long: Name = "a".repeat(63).parse().unwrap();
        assert_eq!(numbered(&long, 9_999).as_str().len(), 63);
    }
}
