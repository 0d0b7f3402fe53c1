//! Directories that outlive the sandbox.

use super::{Bind, Caller, Identity, places, refusal};
use crate::store::{
    Store,
    volumes::{self, Volumes},
};
use airlock_linux::mount::Access;
use airlock_protocol::{Name, control::Refusal, files::VolumeUse, spec::Spec};
use std::path::{Path, PathBuf};

/// Opens every volume that the spec wants inside; those that are not there are made.
pub(super) fn binds(
    spec: &Spec,
    store: &Store,
    caller: &Caller,
    identity: &Identity,
) -> Result<Vec<Bind>, Refusal> {
    if spec.volumes.is_empty() {
        return Ok(Vec::new());
    }
    let home = spec.env.get("HOME").unwrap_or(&identity.home);
    let all = store.volumes().map_err(|err| refused(&err))?;
    spec.volumes.iter().map(|shown| bind(&all, shown, Path::new(home), (caller, identity))).collect()
}

fn bind(
    all: &Volumes,
    shown: &VolumeUse,
    home: &Path,
    (caller, identity): (&Caller, &Identity),
) -> Result<Bind, Refusal> {
    let name: Name = shown.volume.parse().map_err(|_| {
        let what = format!("{:?} is not a volume's name", shown.volume);
        let fix = "a letter or digit, then letters, digits, '-', '_' and '.', at most 63 characters";
        refusal(125, &what, None, Some(fix))
    })?;
    let target = expand(&shown.target, home);
    places::check_target(&target)?;
    let (source, host) = all.open(shown, &name, caller, identity).map_err(|err| refused(&err))?;
    let stat = rustix::fs::fstat(&source).map_err(|err| {
        refusal(125, &format!("volume {name} cannot be read"), Some(&err.to_string()), None)
    })?;
    Ok(Bind {
        source,
        host,
        target,
        access: if shown.read_only { Access::ReadOnly } else { Access::ReadWrite },
        kind: places::Kind::Directory,
        owner: (stat.st_uid, stat.st_gid),
        shown_as: places::ShownAs::Volume,
        writes: places::Writes::Host,
        // Only sandboxes make sockets there: whoever shares a volume may speak through it.
        found: Default::default(),
        placeholders: Vec::new(),
    })
}

/// `~` is the home directory inside.
fn expand(target: &Path, home: &Path) -> PathBuf {
    match target.strip_prefix("~") {
        Ok(below) => home.join(below),
        Err(_) => target.to_owned(),
    }
}

fn refused(err: &volumes::Error) -> Refusal {
    refusal(125, &err.to_string(), err.why().as_deref(), err.fix().as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_inside() {
        assert_eq!(expand(Path::new("~/.cache"), Path::new("/root")), Path::new("/root/.cache"));
        assert_eq!(expand(Path::new("/a/~/b"), Path::new("/root")), Path::new("/a/~/b"));
    }
}
