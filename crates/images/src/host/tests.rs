//! The image of a made-up host, as root and as an ordinary user (the test program started again under another id).

use super::*;
use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
        process::CommandExt,
    },
    process::{Command, Stdio},
};
use tempfile::TempDir;

const USER: u32 = 4711;
const ROLE: &str = "AIRLOCK_TEST_HOST_ROLE";
const PLACE: &str = "AIRLOCK_TEST_HOST_PLACE";

/// A made-up host in `place/root`, and a state directory in `place/state`.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let place = Self { dir };
        for file in ["usr/bin/ls", "etc/hosts", "etc/shadow", "etc/ssl/certs/ca.pem", "var/lib/app/config"] {
            place.file(file, 0o644);
        }
        for file in ["etc/app/password", "var/lib/app/private/a", "var/log/app.log"] {
            place.file(file, 0o600);
        }
        place.chmod("var/lib/app/private", 0o700);
        place.chmod("var/lib/app", 0o2775);
        place.file("var/tmp/left", 0o644);
        place.file("etc/pip.conf", 0o644);
        fs::write(place.path("etc/pip.conf"), "index-url = https://a:b@c.test/").unwrap();
        drop(UnixListener::bind(place.path("var/lib/app/socket")).unwrap());
        symlink("usr/bin", place.path("bin")).unwrap();
        fs::create_dir(place.path("home")).unwrap();
        fs::create_dir(place.state()).unwrap();
        fs::set_permissions(place.state(), fs::Permissions::from_mode(0o777)).unwrap();
        place
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn file(&self, path: &str, mode: u32) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn view(&self) -> View {
        view_of(self.dir.path(), Reader::Root)
    }

    fn open(&self) -> HostImage {
        open(&self.view(), &mut |_| {}).unwrap()
    }

    /// Makes the last full scan look so many seconds old, and the directories at rest since.
    fn age(&self, by: i64) {
        let (host, store) =
            (Host::look(&self.view()).unwrap(), Store::at(&self.view().cache, &Reader::Root).unwrap());
        let writer = store.write().unwrap();
        let generation = store.current().unwrap().unwrap();
        let mut index = generation.index.clone();
        (index.checked, index.looked) = (index.checked - by, index.looked - by);
        for stamp in &mut index.watched {
            stamp.seen = host.times(&stamp.path);
        }
        writer.refresh(&generation, &index).unwrap();
        assert_eq!(host.compare(&index), if by < 600 { Drift::None } else { Drift::NotPackaged });
    }

    /// Starts this test program again, in one of the roles of `in_another_process`.
    fn start(&self, role: &str, uid: u32) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "host::tests::in_another_process", "--nocapture"]);
        command.env(ROLE, role).env(PLACE, self.dir.path()).stdout(Stdio::null());
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        command
    }
}

fn view_of(place: &Path, reader: Reader) -> View {
    let (root, state) = (place.join("root"), place.join("state"));
    let root = root.canonicalize().unwrap();
    View { hidden: vec![root.join("var/lib/airlock")], cache: state.join("host"), root, reader }
}

fn layer_of<'a>(image: &'a HostImage, host: &str) -> &'a Path {
    match &image.trees.iter().find(|tree| tree.host == Path::new(host)).unwrap().hide {
        Hide::Layer(layer) => layer,
        other => panic!("{host} has {other:?}"),
    }
}

/// Every whiteout below `dir`, sorted.
fn whiteouts(dir: &Path) -> Vec<String> {
    fn walk(top: &Path, dir: &Path, out: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            if found.is_dir() {
                walk(top, &path, out);
            } else {
                assert!(found.file_type().is_char_device() && found.rdev() == 0, "{path:?}");
                out.push(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, dir, &mut out);
    out.sort();
    out
}

/// Whether this process is root; says so if a test needs it and cannot run.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("not root");
    }
    is_root
}

fn skip(why: &str) {
    assert!(std::env::var_os("AIRLOCK_TEST_STRICT").is_none(), "cannot run here: {why}");
    println!("skipped: {why}");
}

#[test]
fn what_others_may_not_read_is_whited_out_for_root() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.file("var/lib/airlock/state.json", 0o644);
    place.file("var/people/ann/diary", 0o644);
    fs::write(place.path("etc/passwd"), "ann:x:1000:1000::/var/people/ann:/bin/sh\n").unwrap();
    std::os::unix::fs::chown(place.path("var/people/ann"), Some(1000), Some(1000)).unwrap();

    let image = place.open();

    let hosts: Vec<_> = image.trees.iter().map(|tree| tree.host.to_str().unwrap()).collect();
    assert_eq!(hosts, ["/etc", "/usr", "/var"]);
    assert_eq!(whiteouts(layer_of(&image, "/etc")), ["app/password", "pip.conf", "shadow"]);
    let var = ["lib/airlock", "lib/app/private", "lib/app/socket", "log/app.log", "people/ann"];
    assert_eq!(whiteouts(layer_of(&image, "/var")), var);
    assert_eq!(image.trees[1].hide, Hide::Nothing);
    assert_eq!(image.covered, [Path::new("/var/tmp")]);
    assert_eq!(image.links, [Link { path: "/bin".into(), target: "usr/bin".into() }]);
    assert!(!image.is_recheck_due);
}

#[test]
fn directories_of_the_layer_look_like_the_hosts() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.path("var/lib/app"), Some(12), Some(34)).unwrap();
    place.chmod("var/lib/app", 0o2775);

    let image = place.open();

    let facts = |path: &Path| {
        let found = path.symlink_metadata().unwrap();
        (found.mode(), found.uid(), found.gid(), found.mtime(), found.mtime_nsec())
    };
    let layer = layer_of(&image, "/var").to_owned();
    for at in ["", "lib", "lib/app"] {
        assert_eq!(facts(&layer.join(at)), facts(&place.path("var").join(at)), "{at}");
    }
}

#[test]
fn a_new_secret_in_etc_is_caught_at_the_next_open() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let before = place.open();

    place.file("etc/app/deep/key", 0o600);
    let after = place.open();

    assert_eq!(whiteouts(layer_of(&before, "/etc")), ["app/password", "pip.conf", "shadow"]);
    assert_eq!(whiteouts(layer_of(&after, "/etc")), ["app/deep/key", "app/password", "pip.conf", "shadow"]);
    assert_eq!(whiteouts(layer_of(&after, "/var")), whiteouts(layer_of(&before, "/var")));
}

#[test]
fn a_quick_look_finds_a_change_in_a_directory_that_was_at_rest() {
    if !is_root() {
        return;
    }
    // Given a scan that takes every directory for settled.
    let place = Place::new();
    let (view, host) = (place.view(), Host::look(&place.view()).unwrap());
    let rules = rules(&view, &[]);
    let mut progress = |_| {};
    let mut scan = Scan::new(&host.root, &view.reader, &rules, &mut progress);
    scan.began = i64::MAX;
    scan.tree(Path::new("etc")).unwrap();
    let index =
        Index { key: host.key.clone(), looked: scan::now(), watched: scan.found.watched, ..Index::default() };
    assert_eq!(host.compare(&index), Drift::None);

    // When an entry is made, then the next look tells (on older kernels after the clock's next tick).
    let mut made = 0;
    while host.compare(&index) == Drift::None {
        place.file(&format!("etc/ssl/certs/{made}"), 0o600);
        made += 1;
    }
    assert_eq!(host.compare(&index), Drift::Etc);
}

#[test]
fn a_changed_mode_is_found_by_the_recheck() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let before = place.open();
    place.chmod("var/lib/app/config", 0o640);
    assert_eq!(recheck(&place.view()).unwrap(), Changed::NotDue);

    place.age(100);
    assert!(place.open().is_recheck_due);
    assert_eq!(recheck(&place.view()).unwrap(), Changed::Layer);

    let after = place.open();
    assert!(whiteouts(layer_of(&after, "/var")).contains(&"lib/app/config".to_owned()));
    assert!(!whiteouts(layer_of(&before, "/var")).contains(&"lib/app/config".to_owned()));
    place.age(100);
    assert_eq!(recheck(&place.view()).unwrap(), Changed::Nothing);
    assert!(!place.open().is_recheck_due);
}

#[test]
fn a_start_after_long_rest_scans_what_programs_write() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    drop(place.open());
    place.chmod("var/lib/app/config", 0o640);

    place.age(1000);
    let image = place.open();

    assert!(whiteouts(layer_of(&image, "/var")).contains(&"lib/app/config".to_owned()));
    assert!(image.is_recheck_due);
    assert_eq!(image.trees[1].hide, Hide::Nothing);
}

#[test]
fn a_layer_stays_while_a_sandbox_uses_it_and_goes_afterwards() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (first, also_first) = (place.open(), place.open());
    let layer = layer_of(&first, "/etc").to_owned();

    place.file("etc/one", 0o600);
    drop((place.open(), first));
    place.file("etc/two", 0o600);
    drop(place.open());
    assert!(layer.exists());

    drop(also_first);
    place.file("etc/three", 0o600);
    drop(place.open());
    assert!(!layer.exists());
    let generations = fs::read_dir(place.view().cache.join("root")).unwrap();
    let generations = generations.filter(|entry| entry.as_ref().unwrap().path().is_dir());
    // The link to the current one counts as a directory too.
    assert_eq!(generations.count(), 2);
}

#[test]
fn opens_at_the_same_time_agree() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let images: Vec<HostImage> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| place.open())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(images.windows(2).all(|pair| pair[0].trees == pair[1].trees));
}

#[test]
fn a_builder_killed_anywhere_leaves_a_cache_that_can_be_used() {
    if !is_root() {
        return;
    }
    let marks = [
        "writer",
        "making",
        "making/layer/0",
        "making/layer/2/many",
        "making/index",
        "generation-1",
        "next",
        "current",
    ];
    for mark in marks {
        // Given many entries to hide, so that the build takes a while.
        let place = Place::new();
        place.file("var/many/0", 0o600);
        for number in 1..1000 {
            fs::hard_link(place.path("var/many/0"), place.path(&format!("var/many/{number}"))).unwrap();
        }

        // When the builder is killed as soon as it is so far.
        let mut child = place.start("open", 0).spawn().unwrap();
        let mark = place.view().cache.join("root").join(mark);
        while fs::symlink_metadata(&mark).is_err() && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();

        // Then the next open has the whole layer.
        assert_eq!(whiteouts(layer_of(&place.open(), "/var")).len(), 1003, "{mark:?}");
        assert!(!place.view().cache.join("root/making").exists());
    }
}

#[test]
fn a_damaged_cache_is_made_again() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for damage in ["index", "lock", "layer"] {
        drop(place.open());
        let current = place.view().cache.join("root/current").canonicalize().unwrap();
        match damage {
            "index" => fs::write(current.join("index"), "airlock").unwrap(),
            "lock" => fs::remove_file(current.join("lock")).unwrap(),
            _ => fs::remove_dir_all(&current).unwrap(),
        }
        assert_eq!(whiteouts(layer_of(&place.open(), "/etc")).len(), 3, "{damage}");
    }
}

#[test]
fn a_directory_deeper_than_any_real_one_is_hidden_whole() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let deep = "d/".repeat(140);
    place.file(&format!("var/{deep}secret"), 0o600);

    let image = place.open();

    let hidden = whiteouts(layer_of(&image, "/var"));
    assert!(hidden.iter().any(|path| path.starts_with("d/d") && path.ends_with("/d")), "{hidden:?}");
}

#[test]
fn without_a_place_for_the_layer_there_is_no_image() {
    let place = Place::new();
    fs::write(place.state().join("host"), "a file").unwrap();
    let reader = Reader::User { uid: USER, groups: vec![] };
    let error = open(&view_of(place.dir.path(), reader), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Make { .. }), "{error}");
}

#[test]
fn an_ordinary_user_loses_only_what_this_user_could_read() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.file("var/lib/mine", 0o600);
    std::os::unix::fs::chown(place.path("var/lib/mine"), Some(USER), Some(USER)).unwrap();
    place.file("var/lib/group/x", 0o644);
    place.chmod("var/lib/group", 0o710);
    std::os::unix::fs::chown(place.path("var/lib/group"), Some(0), Some(USER)).unwrap();
    place.file("opt/tool/run", 0o755);
    place.file("opt/tool/through/x", 0o644);
    place.chmod("opt/tool/through", 0o711);

    place.file("lib/x.so", 0o644);

    let status = place.start("user", USER).status().unwrap();

    assert!(status.success());
}

#[test]
fn a_mounted_layer_hides() {
    if !is_root() {
        return;
    }
    for (reader, uid) in [("overlay-root", 0), ("overlay-user", USER)] {
        let place = Place::new();
        let status = place.start(reader, uid).status().unwrap();
        assert!(status.success(), "{reader}");
    }
}

#[test]
fn a_mount_below_a_tree_is_a_tree_of_its_own_or_is_masked() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for path in ["var/data/x", "var/far/x", "var/lib/docker/merged/x"] {
        place.file(path, 0o644);
    }
    // Given mounts that only the child's namespace has: a local one, a foreign one, one in a hidden directory.
    let script = "mount -t tmpfs x $1/data && touch $1/data/plain && (umask 077; touch $1/data/secret) && \
        mount -t proc x $1/far && mount -t tmpfs x $1/lib/docker/merged && shift && exec \"$@\"";
    for role in ["mounts-root", "mounts-user"] {
        let child = place.start(role, 0);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", script, "sh"]).arg(place.path("var"));
        command.arg(child.get_program()).args(child.get_args()).env(ROLE, role).env(PLACE, place.dir.path());
        assert!(command.stdout(Stdio::null()).status().unwrap().success(), "{role}");
    }
}

/// What the other tests start under another id or to be killed; by itself it does nothing.
#[test]
fn in_another_process() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let user = Reader::User { uid: USER, groups: vec![USER] };
    match role.to_str().unwrap() {
        "open" => drop(open(&view_of(&place, Reader::Root), &mut |_| {}).unwrap()),
        "user" => check_user_image(&open(&view_of(&place, user), &mut |_| {}).unwrap()),
        "mounts-root" => check_mounts(&open(&view_of(&place, Reader::Root), &mut |_| {}).unwrap()),
        "mounts-user" => check_masks(&open(&view_of(&place, user), &mut |_| {}).unwrap()),
        "overlay-root" => check_overlay(&place, &open(&view_of(&place, Reader::Root), &mut |_| {}).unwrap()),
        _ => check_overlay(&place, &open(&view_of(&place, user), &mut |_| {}).unwrap()),
    }
}

fn check_user_image(image: &HostImage) {
    assert_eq!(whiteouts(layer_of(image, "/etc")), ["pip.conf", "shadow"]);
    assert_eq!(whiteouts(layer_of(image, "/opt")), ["tool/through"]);
    assert_eq!(whiteouts(layer_of(image, "/var")), ["lib/app/socket", "lib/group", "lib/mine"]);
    let plain = image.trees.iter().filter(|tree| tree.hide == Hide::Nothing);
    assert_eq!(plain.map(|tree| tree.host.to_str().unwrap()).collect::<Vec<_>>(), ["/lib", "/usr"]);
}

#[test]
fn an_ordinary_users_opt_is_an_overlay_even_with_nothing_to_hide() {
    let place = Place::new();
    place.file("opt/tool/run", 0o755);
    let uid = rustix::process::geteuid().as_raw();
    let reader = Reader::User { uid, groups: vec![] };
    let image = open(&view_of(place.dir.path(), reader), &mut |_| {}).unwrap();
    assert_eq!(whiteouts(layer_of(&image, "/opt")), [""; 0]);
}

fn check_mounts(image: &HostImage) {
    let hosts: Vec<_> = image.trees.iter().map(|tree| tree.host.to_str().unwrap()).collect();
    assert_eq!(hosts, ["/etc", "/usr", "/var", "/var/data"]);
    assert_eq!(whiteouts(layer_of(image, "/var/data")), ["secret"]);
    assert!(whiteouts(layer_of(image, "/var")).contains(&"lib/docker".to_owned()));
}

fn check_masks(image: &HostImage) {
    let var = image.trees.iter().find(|tree| tree.host == Path::new("/var")).unwrap();
    let Hide::Masks(masks) = &var.hide else { panic!("{:?}", var.hide) };
    for (path, by) in [
        ("/var/far", Cover::Directory),
        ("/var/lib/docker", Cover::Directory),
        ("/var/lib/app/socket", Cover::File),
    ] {
        assert!(masks.contains(&Mask { path: path.into(), by }), "{path} in {masks:?}");
    }
    assert!(!masks.iter().any(|mask| mask.path.starts_with("/var/data") || mask.path.starts_with("/var/lib/docker/merged")));
    assert!(image.trees.iter().any(|tree| tree.host == Path::new("/var/data")));
}

/// Mounts `/etc` as an overlay in new namespaces, and looks.
fn check_overlay(place: &Path, image: &HostImage) {
    let source = &image.trees[0].source;
    let script = "mount -t overlay x -o lowerdir=\"$1:$2\" /mnt && ls /mnt && cat /mnt/hosts && ! cat /mnt/shadow 2>/dev/null";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    let output = command.arg(layer_of(image, "/etc")).arg(source).current_dir(place).output().unwrap();
    if !output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("hosts") {
        return skip(&format!("no overlay in a user namespace: {}", String::from_utf8_lossy(&output.stderr)));
    }
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown, "app\nhosts\nssl\nx", "{shown}");
}

/// `cargo test -p airlock-images --release -- --ignored --nocapture figures` prints what the real host costs.
#[test]
#[ignore = "measures this machine"]
fn figures_of_this_host() {
    let state = TempDir::new().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let groups = rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
    let reader = if uid == 0 { Reader::Root } else { Reader::User { uid, groups } };
    let view = View::of_this_host(state.path().join("host"), reader, vec![]);
    let mut seen = 0;
    let began = std::time::Instant::now();
    let image = open(&view, &mut |progress| seen = progress.seen).unwrap();
    println!("first open {:?}, {seen} entries; {:?}", began.elapsed(), image.trees);
    let store = Store::at(&view.cache, &view.reader).unwrap();
    let mut index = store.current().unwrap().unwrap().index;
    println!("hidden {}, watched {}", index.hidden.len(), index.watched.len());
    index.hidden.retain(|hidden| !hidden.path.starts_with("etc"));
    println!("{:?}", index.hidden);
    let host = Host::look(&view).unwrap();
    let began = std::time::Instant::now();
    scan_all(&view, &host, &mut |_| {}).unwrap();
    println!("full scan, warm {:?}", began.elapsed());
    let began = std::time::Instant::now();
    let index = store.current().unwrap().unwrap().index;
    scan_part(&view, &host, Part::Etc, &index, &mut |_| {}).unwrap();
    println!("scan of /etc, warm {:?}", began.elapsed());
    let began = std::time::Instant::now();
    scan_part(&view, &host, Part::NotPackaged, &index, &mut |_| {}).unwrap();
    println!("scan of /etc, /opt and /var, warm {:?}", began.elapsed());
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let began = std::time::Instant::now();
            drop(open(&view, &mut |_| {}).unwrap());
            began.elapsed()
        })
        .collect();
    times.sort();
    println!("open with a good layer: median {:?}, worst {:?}", times[100], times[199]);
}
