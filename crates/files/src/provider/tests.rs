//! Providers built of others, without a kernel between.

use super::{
    Caller, Errno, Hooked, Memory, Name, New, Node, Overlay, Provider, Readonly, Remove, Rename, Router,
    Rules, Want, types::Kind,
};
use airlock_protocol::files::{Action, Hook, Touch};
use proptest::prelude::*;
use std::sync::Arc;

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(1 << 20, Caller::default()))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

const BOTH: Want = Want { read: true, write: true, truncate: false, append: false, exclusive: false };

fn write(provider: &dyn Provider, parent: Node, file: &str, text: &str) -> Node {
    let (entry, handle) = provider.create((parent, name(file)), 0o644, BOTH, Caller::default()).unwrap();
    provider.write(handle, 0, text.as_bytes()).unwrap();
    provider.release(handle);
    entry.node
}

fn read(provider: &dyn Provider, parent: Node, file: &str) -> Result<String, Errno> {
    let entry = provider.lookup(parent, name(file))?;
    let handle = provider.open(entry.node, Want { read: true, ..Want::default() })?;
    let mut bytes = Vec::new();
    provider.read(handle, 0, 1000, &mut bytes)?;
    provider.release(handle);
    Ok(String::from_utf8(bytes).unwrap())
}

fn list(provider: &dyn Provider, node: Node) -> Vec<String> {
    let handle = provider.open_directory(node).unwrap();
    let mut names = Vec::new();
    provider
        .list(handle, 0, &mut |listed| {
            names.push(String::from_utf8(listed.name.to_vec()).unwrap());
            true
        })
        .unwrap();
    provider.release_directory(handle);
    names.sort();
    names
}

#[test]
fn an_overlay_shows_both_and_changes_only_its_upper() {
    let (lower, upper) = (memory(), memory());
    write(&*lower, Node::ROOT, "a", "lower");
    write(&*lower, Node::ROOT, "b", "lower");
    let overlay = Overlay::new(lower.clone(), upper.clone());

    write(&overlay, Node::ROOT, "a", "upper");
    overlay.remove(Node::ROOT, name("b"), Remove::File).unwrap();

    assert_eq!(list(&overlay, Node::ROOT), ["a"]);
    assert_eq!(read(&overlay, Node::ROOT, "a"), Ok("upper".into()));
    assert_eq!(read(&overlay, Node::ROOT, "b"), Err(Errno::NOENT));
    assert_eq!(read(&*lower, Node::ROOT, "a"), Ok("lower".into()));
    assert_eq!(list(&*lower, Node::ROOT), ["a", "b"]);
    assert_eq!(list(&*upper, Node::ROOT), ["a", "b"]);
}

#[test]
fn who_reads_below_sees_what_another_writes_above() {
    let lower = memory();
    write(&*lower, Node::ROOT, "a", "old");
    let overlay = Overlay::new(lower, memory());
    let entry = overlay.lookup(Node::ROOT, name("a")).unwrap();
    let reader = overlay.open(entry.node, Want { read: true, ..Want::default() }).unwrap();

    write(&overlay, Node::ROOT, "a", "new");

    let mut bytes = Vec::new();
    overlay.read(reader, 0, 10, &mut bytes).unwrap();
    assert_eq!(bytes, b"new");
}

#[test]
fn a_readonly_provider_refuses_every_change() {
    let inner = memory();
    let node = write(&*inner, Node::ROOT, "a", "text");
    let readonly = Readonly::new(inner);

    assert_eq!(read(&readonly, Node::ROOT, "a"), Ok("text".into()));
    assert_eq!(readonly.open(node, BOTH), Err(Errno::ROFS));
    assert_eq!(readonly.remove(Node::ROOT, name("a"), Remove::File), Err(Errno::ROFS));
    let made = readonly.make(
        Node::ROOT,
        name("d"),
        New::Plain { kind: Kind::Directory, mode: 0o755 },
        Caller::default(),
    );
    assert_eq!(made, Err(Errno::ROFS));
}

#[test]
fn a_router_leads_to_each_and_moves_nothing_between() {
    let (one, two) = (memory(), memory());
    let routes: Vec<super::Route> =
        vec![(vec![b"one".to_vec()], one), (vec![b"deep".to_vec(), b"two".to_vec()], two)];
    let router = Router::new(routes, Caller::default()).unwrap();
    let one = router.lookup(Node::ROOT, name("one")).unwrap().node;
    let deep = router.lookup(Node::ROOT, name("deep")).unwrap().node;
    let two = router.lookup(deep, name("two")).unwrap().node;
    write(&router, one, "a", "text");

    assert_eq!(list(&router, Node::ROOT), ["deep", "one"]);
    assert_eq!(read(&router, one, "a"), Ok("text".into()));
    assert_eq!(router.rename((one, name("a")), (two, name("a")), Rename::Replace), Err(Errno::XDEV));
    assert_eq!(router.remove(Node::ROOT, name("one"), Remove::Directory), Err(Errno::ROFS));
}

#[test]
fn a_hook_denies_by_every_name() {
    let inner = memory();
    let hook = Hook { paths: "a".into(), on: vec![Touch::Write, Touch::Rename], action: Action::Deny };
    let rules = Rules::new(&[hook], Arc::new(|_| {})).unwrap();
    let hooked = Hooked::new(inner.clone(), Arc::new(rules));
    write(&*inner, Node::ROOT, "a", "text");
    write(&*inner, Node::ROOT, "b", "other");
    let node = hooked.lookup(Node::ROOT, name("a")).unwrap().node;

    assert_eq!(hooked.open(node, BOTH), Err(Errno::ACCESS));
    assert_eq!(hooked.link(node, Node::ROOT, name("c")), Err(Errno::ACCESS));
    let onto = hooked.rename((Node::ROOT, name("b")), (Node::ROOT, name("a")), Rename::Replace);
    let away = hooked.rename((Node::ROOT, name("a")), (Node::ROOT, name("c")), Rename::Replace);
    assert_eq!((onto, away), (Err(Errno::ACCESS), Err(Errno::ACCESS)));
    assert_eq!(read(&hooked, Node::ROOT, "a"), Ok("text".into()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Numbers that were never given out, in any order: no panic, and nothing leaks out of the bound.
    #[test]
    fn no_numbers_harm_a_provider(calls in prop::collection::vec((0..12u8, 0..40u64, 0..40u64, 0..4usize), 0..200)) {
        let overlay: Arc<dyn Provider> = Arc::new(Overlay::new(memory(), memory()));
        let rules = Rules::new(&[], Arc::new(|_| {})).unwrap();
        let routes = vec![(vec![b"r".to_vec()], memory() as Arc<dyn Provider>)];
        let router: Arc<dyn Provider> = Arc::new(Router::new(routes, Caller::default()).unwrap());
        let hooked: Arc<dyn Provider> = Arc::new(Hooked::new(memory(), Arc::new(rules)));
        for provider in [memory() as Arc<dyn Provider>, overlay, router, hooked] {
            for (call, one, two, text) in &calls {
                let (one, two) = (Node(*one), Node(*two));
                let name = name(["a", "b", "c", "r"][*text]);
                let handle = super::Handle(two.0);
                match call {
                    0 => drop(provider.lookup(one, name)),
                    1 => provider.forget(one, two.0),
                    2 => drop(provider.make(one, name, New::Plain { kind: Kind::Directory, mode: 0o755 }, Caller::default())),
                    3 => drop(provider.create((one, name), 0o644, BOTH, Caller::default())),
                    4 => drop(provider.remove(one, name, Remove::File)),
                    5 => drop(provider.rename((one, name), (two, name), Rename::Replace)),
                    6 => drop(provider.link(one, two, name)),
                    7 => drop(provider.write(handle, u64::MAX - one.0, b"x")),
                    8 => provider.release(handle),
                    9 => drop(provider.open_directory(one)),
                    10 => drop(provider.list(handle, one.0, &mut |_| true)),
                    _ => drop(provider.rename((one, name), (two, Name::new(b"z").unwrap()), Rename::Exchange)),
                }
            }
            let _ = list(&*provider, Node::ROOT);
        }
    }
}
