use super::*;
use airlock_protocol::{
    spec::{Limits, Restart, Spec, Stdio, Stream, Workspace},
    state::{Cause, Status},
};
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, fs::symlink, net::UnixListener},
    },
    process::{Command, Stdio as Pipe},
};
use tempfile::TempDir;

fn spec(name: &str) -> Spec {
    Spec {
        command: vec!["true".into()],
        name: name.parse().unwrap(),
        backend: Default::default(),
        kernel: None,
        monitor: None,
        image: None,
        rootfs: None,
        workdir: "/".into(),
        workspace: Workspace::None,
        mounts: Vec::new(),
        volumes: Vec::new(),
        anonymous: Vec::new(),
        provided: Vec::new(),
        paths: Default::default(),
        tmpfs: Vec::new(),
        env: BTreeMap::new(),
        user: "0".into(),
        hostname: name.into(),
        limits: Limits::default(),
        cap_add: Vec::new(),
        cap_drop: Vec::new(),
        read_only: false,
        nested: false,
        restart: Restart::No,
        stop_signal: None,
        health: None,
        keep: true,
        stdio: Stdio::all(Stream::Null),
        policy: Default::default(),
        script: None,
        secrets: Vec::new(),
        home_files: Vec::new(),
        publish: Default::default(),
        egress: Default::default(),
        approvals: Default::default(),
        ledger: Default::default(),
    }
}

fn store() -> (TempDir, Store) {
    let parent = tempfile::tempdir().unwrap();
    let store = Store::open(&parent.path().join("home")).unwrap();
    (parent, store)
}

fn names(store: &Store) -> Vec<String> {
    store.list().unwrap().iter().map(|entry| entry.state.name.to_string()).collect()
}

/// A sandbox whose keeper has written its first state.
fn begun(store: &Store, name: &str) -> (Sandbox, Lock) {
    let (sandbox, lock) = store.create(&spec(name)).unwrap();
    sandbox.write_state(&sandbox.first_state(&spec(name))).unwrap();
    (sandbox, lock)
}

fn stopped(store: &Store, name: &str) -> Sandbox {
    let (sandbox, _lock) = begun(store, name);
    let mut state = sandbox.state().unwrap();
    state.status = Status::Stopped;
    sandbox.write_state(&state).unwrap();
    sandbox
}

#[test]
fn a_new_home_is_private_and_opens_again() {
    let (parent, store) = store();

    let mode = fs::metadata(store.home()).unwrap().permissions().mode();

    assert_eq!(mode & 0o7777, 0o700);
    Store::open(&parent.path().join("home")).unwrap();
}

#[test]
fn a_home_that_others_may_enter_is_refused_with_the_fix() {
    let (_parent, store) = store();
    fs::set_permissions(store.home(), Permissions::from_mode(0o755)).unwrap();

    let refusal = Store::open(store.home()).unwrap_err();

    assert!(refusal.to_string().ends_with("others may enter it (mode 755)"), "{refusal}");
    assert!(refusal.fix().unwrap().contains("chmod 700"));
}

#[test]
fn a_home_below_a_directory_that_everybody_may_write_is_refused() {
    let (parent, _store) = store();
    fs::set_permissions(parent.path(), Permissions::from_mode(0o777)).unwrap();

    let refusal = Store::open(&parent.path().join("home")).unwrap_err();

    assert!(refusal.to_string().ends_with("everybody may write there"), "{refusal}");
}

#[test]
fn a_home_below_a_link_of_another_user_is_refused() {
    let (parent, store) = store();
    let link = parent.path().join("link");
    symlink(store.home(), &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(12_345), None).is_err() {
        assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "chown needs root");
        println!("skipped: chown needs root");
        return;
    }

    let refusal = Store::open(&link).unwrap_err();

    assert!(refusal.to_string().ends_with("it belongs to user 12345"), "{refusal}");
}

#[test]
fn a_sandbox_whose_lock_is_held_is_alive_and_one_whose_lock_is_free_has_crashed() {
    let (_parent, store) = store();
    let (sandbox, lock) = begun(&store, "one");
    assert_eq!(sandbox.repaired_state().unwrap().status, Status::Creating);

    drop(lock);

    let state = store.list().unwrap().remove(0).state;
    assert_eq!(state.status, Status::Crashed);
    assert_eq!(state.exit.unwrap().cause, Cause::KeeperDied);
    assert_eq!(sandbox.state().unwrap().status, Status::Crashed);
}

#[test]
fn a_sandbox_that_ran_before_the_host_was_started_anew_is_stopped() {
    let (_parent, store) = store();
    let (sandbox, lock) = begun(&store, "one");
    drop(lock);
    let told = fs::File::options().write(true).open(sandbox.folder().join("state.json")).unwrap();
    told.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();

    let state = sandbox.repaired_state().unwrap();

    assert_eq!((state.status, state.exit.unwrap().cause), (Status::Stopped, Cause::HostRebooted));
}

#[test]
fn a_lock_outlives_the_process_that_took_it_in_a_child_that_inherited_it_until_kill_9() {
    let (_parent, store) = store();
    let (sandbox, lock) = begun(&store, "one");
    let inherited = lock.as_fd().try_clone_to_owned().unwrap();
    let mut keeper = Command::new("cat").stdin(Pipe::piped()).stdout(inherited).spawn().unwrap();
    drop(lock);
    assert_eq!(sandbox.repaired_state().unwrap().status, Status::Creating);

    keeper.kill().unwrap();
    keeper.wait().unwrap();

    assert_eq!(sandbox.repaired_state().unwrap().status, Status::Crashed);
}

#[test]
fn of_many_creators_with_one_name_exactly_one_wins() {
    let (_parent, store) = store();

    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let creators: Vec<_> = (0..8).map(|_| scope.spawn(|| store.create(&spec("same")))).collect();
        creators.into_iter().map(|creator| creator.join().unwrap()).collect()
    });

    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Error::NameTaken { .. }))));
    assert_eq!(fs::read_dir(store.sandboxes()).unwrap().count(), 1);
}

#[test]
fn creators_and_sweepers_at_once_lose_no_sandbox() {
    let (_parent, store) = store();

    let made: Vec<_> = std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| (0..200).for_each(|_| drop(store.sweep().unwrap())));
        let creators: Vec<_> = (0..4)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || -> Vec<_> {
                    (0..20).map(|n| begun(store, &format!("s{thread}-{n}"))).collect()
                })
            })
            .collect();
        let made = creators.into_iter().flat_map(|creator| creator.join().unwrap()).collect();
        sweeper.join().unwrap();
        made
    });

    assert_eq!(store.list().unwrap().len(), made.len());
    assert!(made.iter().all(|(sandbox, _)| sandbox.state().unwrap().status == Status::Creating));
}

#[test]
fn a_name_is_free_again_after_removal() {
    let (_parent, store) = store();
    let sandbox = stopped(&store, "again");

    let lock = sandbox.try_lock().unwrap().unwrap();
    sandbox.remove(lock).unwrap();

    assert!(names(&store).is_empty());
    assert_eq!(fs::read_dir(store.sandboxes()).unwrap().count(), 0);
    store.create(&spec("again")).unwrap();
}

#[test]
fn a_half_made_sandbox_is_swept_and_its_name_is_free() {
    let (_parent, store) = store();
    let (_sandbox, lock) = store.create(&spec("half")).unwrap();
    assert_eq!(store.sweep().unwrap().removed, 0, "its creator is alive");

    drop(lock);
    let swept = store.sweep().unwrap();

    assert_eq!(swept.removed, 1);
    store.create(&spec("half")).unwrap();
}

#[test]
fn a_name_held_by_a_half_made_or_deleted_sandbox_is_taken_over() {
    let (_parent, store) = store();
    let (_half, lock) = store.create(&spec("half")).unwrap();
    drop(lock);
    let (deleted, lock) = store.create(&spec("deleted")).unwrap();
    fs::remove_dir_all(deleted.folder()).unwrap();
    drop(lock);

    store.create(&spec("half")).unwrap();
    store.create(&spec("deleted")).unwrap();
}

#[test]
fn selectors_are_ids_names_and_unambiguous_beginnings() {
    let (_parent, store) = store();
    let first = stopped(&store, "calm-otter");
    let second = stopped(&store, "calm-owl");

    let found = |selector: &str| store.find(selector).map(|sandbox| sandbox.id().clone());

    assert_eq!(found("calm-otter").unwrap(), *first.id());
    assert_eq!(found("calm-ot").unwrap(), *first.id());
    assert_eq!(found(first.id().as_str()).unwrap(), *first.id());
    assert_eq!(found(&first.id().as_str()[..11]).unwrap(), *first.id());
    assert_eq!(found("-").unwrap(), *second.id());
    assert_eq!(found("").unwrap(), *second.id());
    let ambiguous = found("calm").unwrap_err();
    assert!(ambiguous.to_string().contains("calm-otter (") && ambiguous.to_string().contains("calm-owl ("));
    let nothing = found("../sandboxes").unwrap_err();
    assert_eq!((nothing.to_string().as_str(), nothing.exit_code()), ("no sandbox \"../sandboxes\"", 3));
}

#[test]
fn an_exact_name_wins_over_a_beginning() {
    let (_parent, store) = store();
    stopped(&store, "web-2");
    let exact = stopped(&store, "web");

    assert_eq!(store.find("web").unwrap().id(), exact.id());
}

#[test]
fn the_newest_of_nothing_is_an_error_that_says_so() {
    let (_parent, store) = store();
    assert!(matches!(store.find("-"), Err(Error::NoneYet)));
}

#[test]
fn removal_copes_with_what_a_program_leaves_and_follows_no_link() {
    let (parent, store) = store();
    let outside = parent.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keep"), "me").unwrap();
    let sandbox = stopped(&store, "messy");
    let mut deep = sandbox.disk();
    for _ in 0..300 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    symlink(&outside, deep.join("link")).unwrap();
    symlink(&outside, sandbox.disk().join("link")).unwrap();
    let closed = sandbox.disk().join("closed");
    fs::create_dir_all(closed.join("inner/.emptying-1")).unwrap();
    fs::write(closed.join("inner/.emptying-1/file"), "x").unwrap();
    fs::set_permissions(closed.join("inner"), Permissions::from_mode(0o0)).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();

    let lock = sandbox.try_lock().unwrap().unwrap();
    sandbox.remove(lock).unwrap();

    assert_eq!(fs::read_to_string(outside.join("keep")).unwrap(), "me");
    assert_eq!(fs::read_dir(store.sandboxes()).unwrap().count(), 0);
}

#[test]
fn an_empty_state_file_is_told_anew_as_crashed() {
    let (_parent, store) = store();
    let (sandbox, lock) = store.create(&spec("cut")).unwrap();
    fs::write(sandbox.folder().join("state.json"), "").unwrap();
    drop(lock);

    let state = sandbox.repaired_state().unwrap();

    assert_eq!((state.name.as_str(), state.status), ("cut", Status::Crashed));
}

#[test]
fn a_control_socket_can_be_bound_and_reached_below_a_path_of_any_length() {
    let parent = tempfile::tempdir().unwrap();
    let store = Store::open(&parent.path().join("x".repeat(200)).join("home")).unwrap();
    let (sandbox, _lock) = store.create(&spec("far")).unwrap();

    let listener = UnixListener::bind(sandbox.control_path().unwrap().path()).unwrap();

    std::os::unix::net::UnixStream::connect(sandbox.control_path().unwrap().path()).unwrap();
    listener.accept().unwrap();
}

#[test]
fn two_may_delete_the_same_tree_at_once() {
    for _ in 0..20 {
        let place = TempDir::new().unwrap();
        let tree = place.path().join("tree");
        for number in 0..200 {
            let deep = tree.join(format!("a{number}/b/c"));
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), "x").unwrap();
        }

        let outcomes = std::thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| remove_tree(&tree)));
            both.map(|one| one.join().unwrap())
        });

        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(!tree.exists());
    }
}
