//! The scripts that make a root file system of packages. They run in sandboxes, where the packages are at [`PACKAGES`]. Pure.
//!
//! Names come from [`super::order`], which lets nothing through that a shell would read as anything else.

use super::order::Turn;

/// Where a sandbox sees the packages.
pub const PACKAGES: &str = "/run/packages";

/// Lays out the essential packages below a new directory, without running anything of theirs, and writes an archive of it to stdout.
/// Accounts are those that `base-passwd` brings: the first scripts of packages need them.
pub fn bootstrap(essential: &[&str]) -> String {
    let names = essential.join(" ");
    format!(
        r#"set -e
umask 022
top=$(mktemp -d)
cd "$top"
mkdir -p usr/bin usr/sbin usr/lib usr/lib64 var/lib/dpkg/info var/lib/dpkg/updates
for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
: >var/lib/dpkg/status
for name in {names}; do
    dpkg-deb --fsys-tarfile {PACKAGES}/"${{name%:*}}"_*.deb | tar -x --keep-directory-symlink
done
for name in passwd group; do
    if [ -e "usr/share/base-passwd/$name.master" ] && [ ! -e "etc/$name" ]; then
        cp "usr/share/base-passwd/$name.master" "etc/$name"
    fi
done
tar -c --numeric-owner --sort=name .
"#
    )
}

/// Sets everything up, in order, in a root file system that [`bootstrap`] made.
pub fn configure(turns: &[Turn]) -> String {
    let mut script = String::from(BEGIN);
    for turn in turns {
        let (verb, words): (_, Vec<String>) = match turn {
            Turn::Unpack(names) => ("unpack", names.iter().map(|name| file(name)).collect()),
            Turn::Configure(names) => ("configure", names.clone()),
        };
        script.push_str(&format!("dpkg {FORCED} --{verb} {}\n", words.join(" ")));
    }
    script.push_str(END);
    script
}

/// The file of a package, whatever its version.
fn file(name: &str) -> String {
    let plain = name.split_once(':').map_or(name, |(plain, _)| plain);
    format!("{PACKAGES}/{plain}_*.deb")
}

/// Dependencies are in order already; nothing is to be on disk before all of it is.
const FORCED: &str = "--force-depends --force-unsafe-io";

/// No service starts, no question is asked.
const BEGIN: &str = r#"set -e
umask 022
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
"#;

/// What is left over goes; what is broken is an error.
const END: &str = r#"dpkg --configure --pending
test -z "$(dpkg --audit)"
rm -f /usr/sbin/policy-rc.d
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/lib/dpkg/*-old
rm -f /var/log/dpkg.log /var/log/alternatives.log /etc/machine-id
find /var/log -type f -exec truncate -s 0 {} +
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Whether a shell can read it.
    fn is_read(script: &str) -> bool {
        let read = Command::new("sh").args(["-n", "-c", script]).stderr(Stdio::null()).status();
        read.is_ok_and(|status| status.success())
    }

    #[test]
    fn what_is_made_can_be_read_by_a_shell() {
        let turns =
            [Turn::Unpack(vec!["libc6:amd64".into(), "g++".into()]), Turn::Configure(vec!["g++".into()])];
        assert!(is_read(&bootstrap(&["base-files", "libc6:amd64"])));
        let configured = configure(&turns);
        assert!(is_read(&configured));
        assert!(configured.contains(
            "--unpack /run/packages/libc6_*.deb /run/packages/g++_*.deb\n\
             dpkg --force-depends --force-unsafe-io --configure g++\n"
        ));
    }
}
