//! Who a name is inside an image: by its own `/etc/passwd` and `/etc/group`.

use super::job::{Job, Layer};
use crate::failure::Failure;
use airlock_images::build::tree::{Kind, Tree, take::Taken};
use std::{collections::BTreeSet, io::Read as _};

/// Longest list of users.
const LONGEST: u64 = 4 << 20;

/// The ids that `USER[:GROUP]` means, or why it means none.
pub(super) fn find(
    job: &Job,
    layers: &[Layer],
    image: &Tree,
    text: &str,
) -> Result<Result<(u32, u32), String>, Failure> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let users = match user.parse::<u32>() {
        Ok(_) => String::new(),
        Err(_) => file(job, layers, image, b"etc/passwd")?,
    };
    let is_numeric = group.unwrap_or(user).parse::<u32>().is_ok();
    let groups = if is_numeric { String::new() } else { file(job, layers, image, b"etc/group")? };
    Ok(ids(user, group, &users, &groups))
}

/// The same, of the files' texts. Pure.
fn ids(user: &str, group: Option<&str>, users: &str, groups: &str) -> Result<(u32, u32), String> {
    let uid = user
        .parse::<u32>()
        .ok()
        .or_else(|| field(users, user, 2))
        .ok_or_else(|| format!("the image has no user `{user}` in /etc/passwd"))?;
    let gid = match group {
        Some(group) => group
            .parse::<u32>()
            .ok()
            .or_else(|| field(groups, group, 2))
            .ok_or_else(|| format!("the image has no group `{group}` in /etc/group"))?,
        None => field(groups, user, 2).or_else(|| field(users, user, 3)).unwrap_or(uid),
    };
    Ok((uid, gid))
}

fn field(text: &str, name: &str, at: usize) -> Option<u32> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(at)?.parse().ok()
}

/// A small file of the image; empty if there is none.
fn file(job: &Job, layers: &[Layer], image: &Tree, path: &[u8]) -> Result<String, Failure> {
    let Some(node) = image.resolve(path).ok().and_then(|path| image.get(&path)) else {
        return Ok(String::new());
    };
    let Kind::File { size, .. } = node.kind else { return Ok(String::new()) };
    let Some(layer) = layers.get(node.place.archive).filter(|_| size <= LONGEST) else {
        return Ok(String::new());
    };
    let fail = |err: &dyn std::error::Error| Failure::because("the image's users cannot be read", err);
    let mut taken = Taken::new(job.hold.spool()?.into_file()?);
    let wanted = BTreeSet::from([node.place.path.clone()]);
    taken.add(0, job.plain(layer)?, &wanted).map_err(|err| fail(&err))?;
    let mut bytes = Vec::new();
    let mut content = taken.open(0, &node.place.path).map_err(|err| fail(&err))?;
    content.read_to_end(&mut bytes).map_err(|err| fail(&err))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let users = "root:x:0:0::/:/bin/sh\nada:x:1000:1001::/:/bin/sh\n";
        let groups = "root:x:0:\nstaff:x:50:\nboth:x:7:\n";
        for (user, group, wanted) in [
            ("ada", None, Ok((1000, 1001))),
            ("ada", Some("staff"), Ok((1000, 50))),
            ("5", None, Ok((5, 5))),
            ("5", Some("6"), Ok((5, 6))),
            ("root", Some("9"), Ok((0, 9))),
        ] {
            assert_eq!(ids(user, group, users, groups), wanted);
        }
        assert!(ids("nobody", None, users, groups).is_err());
        assert!(ids("ada", Some("none"), users, groups).is_err());
    }
}
