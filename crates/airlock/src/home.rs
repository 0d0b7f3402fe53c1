//! Where the state directory is.

use crate::failure::Failure;
use airlock_engine::store::Store;
use std::path::PathBuf;

/// The state directory, opened: `$AIRLOCK_HOME`, or `.airlock` in the home directory.
pub(crate) fn store() -> Result<Store, Failure> {
    Ok(Store::open(&path()?)?)
}

/// Where it is, whether or not it is there.
pub(crate) fn path() -> Result<PathBuf, Failure> {
    if let Some(home) = std::env::var_os("AIRLOCK_HOME").filter(|home| !home.is_empty()) {
        let home = PathBuf::from(home);
        return std::path::absolute(&home)
            .map_err(|err| Failure::because(format!("AIRLOCK_HOME={} is no path", home.display()), &err));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    home.map(|home| home.join(".airlock")).ok_or_else(|| {
        Failure::new("there is no place for sandboxes")
            .why("neither AIRLOCK_HOME nor HOME is set")
            .fix("export AIRLOCK_HOME=/a/directory/of/yours")
    })
}
