//! Debian's packages by this host's own client, for images that are made of them. The client has its own settings of this host
//! (sources, keys, proxies) and directories of ours: it changes nothing of the host's, and needs no root.

use crate::{
    failure::Failure,
    say::{Voice, say},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The client, with directories of ours.
pub(crate) struct Client {
    program: PathBuf,
    folder: PathBuf,
}

/// A directory with exactly the packages of one image, which goes when this is dropped.
pub(crate) struct Downloaded(PathBuf);

impl Downloaded {
    /// Where.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Downloaded {
    fn drop(&mut self) {
        // What is left is replaced by the next one.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where Debian has it. `PATH` may hold others' programs.
const PROGRAM: &str = "/usr/bin/apt-get";
/// Every package without which Debian is none.
pub(crate) const ESSENTIAL: &str = "?essential";

impl Client {
    /// Ready to be asked. What was downloaded before is still there.
    pub(crate) fn open() -> Result<Client, Failure> {
        let program = PathBuf::from(PROGRAM);
        if !program.exists() {
            return Err(Failure::new("images cannot be made of packages on this host")
                .why(format!("there is no {PROGRAM}: only Debian and its kin have it"))
                .fix("airlock images pull NAME, or airlock images load -i FILE")
                .code(5));
        }
        let folder = folder()?;
        let made = prepare(&folder);
        made.map_err(|err| Failure::because(format!("could not make {}", folder.display()), &err))?;
        Ok(Client { program, folder })
    }

    /// Asks the sources what there is.
    pub(crate) fn update(&self, voice: Voice) -> Result<(), Failure> {
        say(voice, "asking this host's package sources what there is");
        self.ask(&["--quiet", "--quiet", "update"], &[]).map(drop)
    }

    /// What it would do to install these into an empty system, in its own words.
    pub(crate) fn simulate(&self, packages: &[&str]) -> Result<String, Failure> {
        let output = self.ask(&["--simulate", "install"], packages)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Downloads and verifies these and what they depend on. What is there already is not downloaded again.
    pub(crate) fn download(&self, packages: &[&str]) -> Result<Downloaded, Failure> {
        self.ask(&["--quiet", "--quiet", "--yes", "--download-only", "install"], packages)?;
        // It tells what it would have to download: from nothing, everything.
        let nothing = format!("-oDir::Cache::archives={}/nothing", self.folder.display());
        let told = self.ask(&[&nothing, "--quiet", "--quiet", "--print-uris", "install"], packages)?;
        let folder = self.folder.join(format!("making-{}", std::process::id()));
        let kept = keep(&self.folder.join("cache/archives"), &folder, &String::from_utf8_lossy(&told.stdout));
        kept.map_err(|err| Failure::because("the downloaded packages cannot be put together", &err))?;
        Ok(Downloaded(folder))
    }

    /// Downloads and verifies one package, without what it depends on.
    #[cfg_attr(not(feature = "microvm"), expect(dead_code, reason = "only kernels are fetched so"))]
    pub(crate) fn fetch(&self, package: &str) -> Result<Downloaded, Failure> {
        let folder = self.folder.join(format!("making-{}", std::process::id()));
        let made = match fs::remove_dir_all(&folder) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => fs::create_dir(&folder),
        };
        made.map_err(|err| Failure::because(format!("could not make {}", folder.display()), &err))?;
        let downloaded = Downloaded(folder);
        self.ask_in(downloaded.path(), &["--quiet", "--quiet", "download"], &[package])?;
        Ok(downloaded)
    }

    fn ask(&self, words: &[&str], packages: &[&str]) -> Result<Output, Failure> {
        self.ask_in(&self.folder, words, packages)
    }

    fn ask_in(&self, folder: &Path, words: &[&str], packages: &[&str]) -> Result<Output, Failure> {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--").args(packages).current_dir(folder);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        let what = "the package client of this host failed";
        let output = command.output().map_err(|err| Failure::because(what, &err))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| line.starts_with("E:")).or_else(|| said.lines().last());
        Err(Failure::new(what)
            .why(why.unwrap_or("it said nothing").to_owned())
            .fix("see that `apt-get update` works on this host"))
    }
}

/// What the client is told besides the host's own settings.
fn settings(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Dir::State \"{folder}/state\";\nDir::State::status \"{folder}/state/status\";\n\
         Dir::Cache \"{folder}/cache\";\nAPT::Sandbox::User \"\";\nAPT::Install-Recommends \"false\";\n\
         APT::Keep-Downloaded-Packages \"true\";\n"
    )
}

/// Links each file that `told` names.
fn keep(archives: &Path, folder: &Path, told: &str) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => fs::create_dir(folder)?,
    }
    told.lines()
        .filter_map(file_name)
        .try_for_each(|name| fs::hard_link(archives.join(name), folder.join(name)))
}

/// The file of a line such as `'http://…/bash_5.2_amd64.deb' bash_5.2_amd64.deb 1490980 SHA256:…`.
fn file_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix('\'')?.split_once("' ")?.1.split(' ').next()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+.~%_-".contains(&byte);
    (name.ends_with(".deb") && !name.starts_with('.') && name.bytes().all(is_plain)).then_some(name)
}

fn prepare(folder: &Path) -> io::Result<()> {
    if folder.to_str().is_none_or(|text| text.contains(['"', '\\', '\n'])) {
        return Err(io::Error::other("its name cannot be written into settings"));
    }
    for part in ["state/lists/partial", "cache/archives/partial", "nothing/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    // An empty system: everything is to be installed.
    fs::write(folder.join("state/status"), "")?;
    fs::write(folder.join("apt.conf"), settings(folder))
}

/// Packages lie where caches do, and not in the state directory, no part of which is ever shown inside.
fn folder() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = named.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("airlock/packages")).ok_or_else(|| {
        Failure::new("there is no place for packages")
            .why("neither XDG_CACHE_HOME nor HOME is set")
            .fix("export XDG_CACHE_HOME=/a/directory/of/yours")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_the_client_and_lead_nowhere_else() {
        for (line, name) in [
            ("'http://x/bash_5.2_amd64.deb' bash_5.2_amd64.deb 149 SHA256:ab", Some("bash_5.2_amd64.deb")),
            ("'http://x/a.deb' libfoo_1%3a2+b1~rc_all.deb 1 ", Some("libfoo_1%3a2+b1~rc_all.deb")),
            ("'http://x/a.deb' ../../etc/a.deb 1 ", None),
            ("'http://x/a.deb' .a.deb 1 ", None),
            ("'http://x/a.deb' a.txt 1 ", None),
            ("Reading package lists...", None),
        ] {
            assert_eq!(file_name(line), name, "{line}");
        }
    }

    #[test]
    fn exactly_what_was_named_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (archives, folder) = (dir.path().join("archives"), dir.path().join("making"));
        fs::create_dir(&archives).unwrap();
        for name in ["a_1_all.deb", "a_2_all.deb"] {
            fs::write(archives.join(name), name).unwrap();
        }
        fs::create_dir_all(folder.join("old")).unwrap();

        keep(&archives, &folder, "'http://x/a' a_2_all.deb 7 \n").unwrap();

        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a_2_all.deb"]);
        assert!(keep(&archives, &folder, "'http://x/a' b_2_all.deb 7 \n").is_err());
    }
}
