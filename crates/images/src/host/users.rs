//! Who `--user` means: looks a name or number up in the texts of a root file system's passwd and group.
//!
//! ```
//! use airlock_images::host::users::find_user;
//! let user = find_user("www:x:33:33::/var/www:/bin/sh\n", "web:x:40:www\n", "www").unwrap();
//! assert_eq!((user.uid, user.gid, user.groups), (33, 33, vec![40]));
//! assert!(find_user("", "", "4294967295").is_err());
//! ```

use super::etc::{accounts, groups, id};
use std::collections::BTreeSet;
use thiserror::Error;

/// Whom a program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user's id.
    pub uid: u32,
    /// The main group's id.
    pub gid: u32,
    /// The other groups, ascending, without the main one; none if a group was asked for by name or number.
    pub groups: Vec<u32>,
    /// An absolute path; `/` if the account has none or is not listed.
    pub home: String,
}

/// Why a user was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Nothing was named.
    #[error("{asked:?} names no user: write name, uid, name:group or uid:gid")]
    Empty {
        /// What was asked for.
        asked: String,
    },
    /// A number that is no id.
    #[error("{number} is not an id: the largest is 4294967294")]
    TooLarge {
        /// The number.
        number: String,
    },
    /// No such account.
    #[error("no user {name:?} in /etc/passwd of this root: name one that is there, or a number")]
    NoUser {
        /// The name.
        name: String,
    },
    /// No such group.
    #[error("no group {name:?} in /etc/group of this root: name one that is there, or a number")]
    NoGroup {
        /// The name.
        name: String,
    },
}

/// More groups than these are not given to a process.
const MOST_GROUPS: usize = 1024;

/// Finds `name`, `uid`, `name:group` or `uid:gid`. Digits are always a number, never a name; a number need not be listed
/// and then has group 0 and home `/`.
pub fn find_user(passwd: &str, group: &str, asked: &str) -> Result<User, Error> {
    let (user, chosen) = match asked.split_once(':') {
        Some((user, chosen)) => (user, Some(chosen)),
        None => (asked, None),
    };
    if user.is_empty() || chosen.is_some_and(str::is_empty) {
        return Err(Error::Empty { asked: asked.to_owned() });
    }
    let account = match number(user)? {
        Some(uid) => accounts(passwd).find(|account| account.uid == uid).ok_or(uid),
        None => Ok(accounts(passwd)
            .find(|account| account.name == user)
            .ok_or_else(|| Error::NoUser { name: user.to_owned() })?),
    };
    let uid = account.map_or_else(|uid| uid, |account| account.uid);
    let gid = match chosen {
        Some(chosen) => find_group(group, chosen)?,
        None => account.map_or(0, |account| account.gid),
    };
    let listed = match (chosen, account) {
        (None, Ok(account)) => groups_of(group, account.name, gid),
        _ => Vec::new(),
    };
    let home = account.map_or("/", |account| account.home);
    let home = if home.starts_with('/') { home } else { "/" };
    Ok(User { uid, gid, groups: listed, home: home.to_owned() })
}

fn find_group(group: &str, chosen: &str) -> Result<u32, Error> {
    if let Some(gid) = number(chosen)? {
        return Ok(gid);
    }
    let found = groups(group).find(|group| group.name == chosen);
    found.map(|group| group.gid).ok_or_else(|| Error::NoGroup { name: chosen.to_owned() })
}

fn groups_of(group: &str, name: &str, main: u32) -> Vec<u32> {
    let listed = groups(group)
        .filter(|group| group.gid != main && group.members.split(',').any(|member| member == name));
    listed.map(|group| group.gid).collect::<BTreeSet<u32>>().into_iter().take(MOST_GROUPS).collect()
}

/// None if it is not made of digits alone; an error if it is and no id has that number.
fn number(text: &str) -> Result<Option<u32>, Error> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    id(text).map(Some).ok_or_else(|| Error::TooLarge { number: text.chars().take(40).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nwww:x:33:34::/var/www:/bin/sh\nodd:x:7:7::nowhere:/bin/sh\n1000:x:0:0::/root:/bin/sh\n\
        wrap:x:4294967296:0::/:/bin/sh\nall:x:4294967295:0::/:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nweb:x:40:www,odd\nmain:x:34:www\nlog:x:4:www\n";

    fn user(uid: u32, gid: u32, groups: &[u32], home: &str) -> User {
        User { uid, gid, groups: groups.to_vec(), home: home.into() }
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let find = |asked| find_user(PASSWD, GROUP, asked).unwrap();
        assert_eq!(find("www"), user(33, 34, &[4, 40], "/var/www"));
        assert_eq!(find("33"), user(33, 34, &[4, 40], "/var/www"));
        assert_eq!(find("www:web"), user(33, 40, &[], "/var/www"));
        assert_eq!(find("33:99"), user(33, 99, &[], "/var/www"));
        assert_eq!(find("12345"), user(12345, 0, &[], "/"));
        assert_eq!(find("odd"), user(7, 7, &[40], "/"));
    }

    #[test]
    fn digits_are_never_a_name() {
        assert_eq!(find_user(PASSWD, GROUP, "1000").unwrap(), user(1000, 0, &[], "/"));
    }

    #[test]
    fn forms_that_would_overflow_or_wrap_to_root_are_refused() {
        let forms = [
            "18446744073709551616",
            "-1",
            "0x0",
            "4294967296",
            "4294967295",
            "+0",
            " 0",
            "0 ",
            "",
            ":",
            "0:",
            ":0",
            "0:-1",
        ];
        for asked in
            forms.into_iter().chain(["0:4294967295", "0:4294967296", "0:0:0", "wrap", "all", "0\n", "٠"])
        {
            assert!(find_user(PASSWD, GROUP, asked).is_err(), "{asked:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered_and_never_with_the_id_that_means_none(passwd: String, group: String, asked: String) {
            if let Ok(user) = find_user(&passwd, &group, &asked) {
                prop_assert!(user.uid != u32::MAX && user.gid != u32::MAX && user.home.starts_with('/'));
            }
        }

        #[test]
        fn a_number_is_found_as_itself(uid in 0_u32..u32::MAX, gid in 0_u32..u32::MAX) {
            let found = find_user("", "", &format!("{uid}:{gid}")).unwrap();
            prop_assert_eq!((found.uid, found.gid), (uid, gid));
        }
    }
}
