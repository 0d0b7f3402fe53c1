//! Where the state directory is, and what else of the person's home a keeper is told of.

use crate::failure::Failure;
use airlock_engine::store::Store;
use airlock_protocol::control::Ssh;
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

/// Who the person is at other hosts: the agent, the usual key, the hosts that are known.
pub(crate) fn ssh() -> Ssh {
    let own = std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".ssh"));
    let in_own = |name: &str| own.iter().map(|own| own.join(name)).collect::<Vec<PathBuf>>();
    let mut known_hosts = [in_own("known_hosts"), in_own("known_hosts2")].concat();
    known_hosts.extend(["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"].map(PathBuf::from));
    let agent = std::env::var_os("SSH_AUTH_SOCK").map(PathBuf::from).filter(|agent| agent.is_absolute());
    Ssh { agent, keys: in_own("id_ed25519"), known_hosts }
}
