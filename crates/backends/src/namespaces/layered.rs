//! A root made of layers: an overlay of what the sandbox changed, of layers that it was forked from, of a layer with what we
//! need for mounting, and of the trees of an image.
//!
//! The image is hostile. Mount points are plain directories and files, found or made one name at a time; what would have
//! to be reached through a link is refused. They are made in a layer of their own, `init`, so that the sandbox's layer holds what its
//! programs did and nothing else.

use super::{
    During, Failed, etc, home, layers,
    layers::Chain,
    probe,
    root::{Builder, fd_path, variable},
    staging::{Staging, open_dir},
};
use airlock_engine::{
    Plan,
    plan::{Base, places::Kind},
};
use airlock_images::trust;
use airlock_linux::mount::{self, Access, Overlay};
use airlock_protocol::fingerprint::fingerprint;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Directories that every root has.
const DIRECTORIES: [&str; 5] = ["proc", "sys", "dev", "etc", "run"];
/// The layer of what we need for mounting.
const INIT: &str = "init";

/// Opens the trees of the image by path, for an ordinary user.
pub(super) fn open(plan: &Plan) -> Result<Vec<OwnedFd>, Failed> {
    let Base::Layers(lower) = &plan.base else { return Ok(Vec::new()) };
    let open = |tree: &PathBuf| open_dir(CWD, tree).during(&format!("open {}", tree.display()));
    lower.iter().map(|lower| open(&lower.tree)).collect()
}

/// Attaches those that the keeper shifted, for host root.
pub(super) fn stage(
    plan: &Plan,
    staging: &Staging,
    trees: &mut VecDeque<OwnedFd>,
) -> Result<Vec<OwnedFd>, Failed> {
    let Base::Layers(lower) = &plan.base else { return Ok(Vec::new()) };
    let mut staged = Vec::new();
    for number in 0..lower.len() {
        let tree = trees.pop_front().ok_or(io::ErrorKind::NotFound).during("show a layer of the image")?;
        staged.push(staging.attach(&format!("image{number}"), &tree)?);
    }
    Ok(staged)
}

/// The root, detached. `lower` are the trees of the image, topmost first.
pub(super) fn root(
    plan: &Plan,
    disk: BorrowedFd<'_>,
    chain: &Chain,
    lower: &[OwnedFd],
) -> Result<OwnedFd, Failed> {
    let init = initial(plan, disk, lower).map_err(Failed::of_the_image)?;
    let mut below = chain.part(Path::new("root"))?;
    below.push(init);
    let upper = layers::make(disk, "root", below.first())?;
    let lower: Vec<&OwnedFd> = below.iter().chain(lower).collect();
    joined(&lower, &upper).during("join the layers of the image")
}

/// The layer of what we need for mounting, made anew where it is not there. It looks like the image's topmost layer.
fn initial(plan: &Plan, disk: BorrowedFd<'_>, lower: &[OwnedFd]) -> Result<OwnedFd, Failed> {
    let (init, work) = layers::make(disk, INIT, lower.first())?;
    if lower.is_empty() {
        furnish(plan, init.as_fd())?;
        return Ok(init);
    }
    let lower: Vec<&OwnedFd> = lower.iter().collect();
    let pair = (init, work);
    // It is gone before its upper layer becomes a lower one.
    let image = joined(&lower, &pair).during("look into the layers of the image")?;
    furnish(plan, image.as_fd())?;
    Ok(pair.0)
}

fn joined(lower: &[&OwnedFd], (upper, work): &(OwnedFd, OwnedFd)) -> io::Result<OwnedFd> {
    let lower: Vec<PathBuf> = lower.iter().map(|place| fd_path(place)).collect();
    let lower: Vec<&Path> = lower.iter().map(PathBuf::as_path).collect();
    let (upper, work) = (fd_path(upper), fd_path(work));
    mount::overlay(&Overlay { lower: &lower, upper: Some((&upper, &work)) })
}

/// Makes every place that something will be mounted at.
fn furnish(plan: &Plan, root: BorrowedFd<'_>) -> Result<(), Failed> {
    for name in DIRECTORIES {
        plain_directory(root, Path::new(name))?;
    }
    if !mount::exists(root, Path::new("tmp")) {
        layers::make_own(root, "tmp", 0o1777)?;
    }
    let etc = plain_directory(root, Path::new("etc"))?;
    for (name, _) in &plan.etc {
        plain_file(etc.as_fd(), name).during(&format!("make /etc/{name} of this image a file"))?;
    }
    if plan.certificate.is_some() {
        plain_directory(root, Path::new(trust::OWN))?;
    }
    let shown = plan.binds.iter().map(|bind| (&bind.target, bind.kind));
    let others = plan.anonymous.iter().chain(plan.tmpfs.iter().map(|tmpfs| &tmpfs.target));
    let others = others.chain(plan.provided.iter().map(|served| &served.target));
    for (target, kind) in shown.chain(others.map(|target| (target, Kind::Directory))) {
        match kind {
            Kind::Directory => drop(plain_directory(root, target)?),
            Kind::File => {
                let step = format!("show a file at {}: no such place in this image", target.display());
                mount::make_file(root, target).during(&step)?;
            }
        }
    }
    // One that is reached through links, or not at all, is the program's own business.
    match mount::open_beneath(root, Path::new(&plan.workdir)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            let _ = mount::make_dir(root, Path::new(&plan.workdir));
        }
        _ => {}
    }
    Ok(())
}

/// A directory that no link leads to.
fn plain_directory(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Failed> {
    let place = Path::new("/").join(path);
    let step =
        format!("mount at {}: in this image it is no plain directory and cannot be made", place.display());
    mount::make_dir(root, path).during(&step)
}

/// Has an empty file where there is something else, or nothing. What a link pointed to stays as it is.
fn plain_file(directory: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?,
            _ => rustix::fs::unlinkat(directory, name, AtFlags::empty())?,
        },
        Err(Errno::NOENT) => {}
        Err(err) => return Err(err.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))?;
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(0o644))?)
}

impl Builder<'_> {
    /// The image's volumes, our own files over those of the image, and what is in the home from the start.
    pub(super) fn furnish_layered(&self) -> Result<(), Failed> {
        let memory = etc::memory().during("make room for our own files of /etc")?;
        let memory = self.staging.attach("etc", &memory)?;
        self.anonymous()?;
        etc::cover(self.root.as_fd(), &memory, &self.plan.etc, self.plan.root)?;
        if self.plan.home_files.is_empty() {
            return Ok(());
        }
        let owner = (self.plan.user.uid, self.plan.user.gid);
        let home = variable(self.plan, "HOME").unwrap_or("/");
        home::write(self.root.as_fd(), Path::new(home), &self.plan.home_files, owner)
    }

    /// Whether it can be written.
    pub(super) fn probe_layered(&self) -> Result<(), Failed> {
        if self.plan.root == Access::ReadOnly {
            return Ok(());
        }
        probe::write(self.root.as_fd(), Path::new(".")).during("write into the overlay of the image")
    }

    /// Volumes of the image: each is a part of the disk, over what the image has there.
    fn anonymous(&self) -> Result<(), Failed> {
        let mut trees = Vec::new();
        for path in &self.plan.anonymous {
            let step = format!("make the volume {}", path.display());
            let place = mount::make_dir(self.root.as_fd(), path).during(&step)?;
            let part = part_name(path);
            let mut below = self.chain.part(Path::new(&part))?;
            below.push(place);
            let upper = layers::make(self.disk.as_fd(), &part, below.first())?;
            let below: Vec<&OwnedFd> = below.iter().collect();
            trees.push((path, joined(&below, &upper).during(&step)?));
        }
        // A volume may lie below another; what it begins with is the image's all the same.
        trees.sort_by_key(|(path, _)| *path);
        for (path, tree) in trees {
            let step = format!("mount the volume {}", path.display());
            let place = mount::make_dir(self.root.as_fd(), path).during(&step)?;
            mount::attach(tree.as_fd(), place.as_fd()).during(&step)?;
        }
        Ok(())
    }
}

/// What stands on the disk for a volume of the image: readable, and another one for every other path.
fn part_name(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    let hash = fingerprint(bytes.iter().copied());
    let word = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '-' };
    let words: String = bytes.iter().take(100).map(word).collect();
    format!("own{words}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_the_place_of_whatever_an_image_has_there_and_what_a_link_points_to_stays() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().join("target");
        std::fs::write(&target, "host").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join("resolv.conf")).unwrap();
        std::fs::create_dir(dir.path().join("hosts")).unwrap();
        std::fs::write(dir.path().join("hostname"), "kept").unwrap();
        let etc = std::fs::File::open(dir.path()).unwrap();

        for name in ["resolv.conf", "hosts", "hostname", "new"] {
            plain_file(etc.as_fd(), name).unwrap();
            assert!(std::fs::symlink_metadata(dir.path().join(name)).unwrap().is_file(), "{name}");
        }

        assert_eq!(std::fs::read_to_string(&target).unwrap(), "host");
        assert_eq!(std::fs::read_to_string(dir.path().join("hostname")).unwrap(), "kept");
    }

    #[test]
    fn volumes_have_parts_of_their_own() {
        let names = ["/a/b", "/a-b", "/a_b", "/ä"].map(|path| part_name(Path::new(path)));
        let plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        assert!(names.iter().all(|name| name.starts_with("own-") && plain(name)), "{names:?}");
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
