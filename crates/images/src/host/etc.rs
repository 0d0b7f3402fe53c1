//! The files of `/etc` that are always the sandbox's own: pure functions from the host's text to ours.
//!
//! Accounts of the system keep their names and ids, so that package scripts work; people's accounts are not shown.
//!
//! ```
//! use airlock_images::host::etc;
//! let ours = etc::passwd("root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann:/home/ann:/bin/zsh\n", None);
//! assert_eq!(ours, "root:x:0:0:root:/root:/bin/bash\n");
//! ```

use std::{collections::BTreeSet, fmt::Write as _, net::IpAddr};

/// The user that the sandbox's program runs as, if it is not root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The account's and its group's name.
    pub name: String,
    /// The id inside.
    pub uid: u32,
    /// The group's id inside.
    pub gid: u32,
    /// The home directory inside.
    pub home: String,
}

/// Longest text that is read of any account file; what follows is left out.
pub const LONGEST: usize = 1 << 20;

/// The account and group of what has no owner inside.
pub const NOBODY: u32 = 65534;

/// One line of a passwd file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account<'a> {
    pub(super) name: &'a str,
    pub(super) uid: u32,
    pub(super) gid: u32,
    about: &'a str,
    pub(super) home: &'a str,
    shell: &'a str,
}

/// One line of a group file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    pub(super) gid: u32,
    pub(super) members: &'a str,
}

/// Our `/etc/passwd`: root with home `/root`, the host's system accounts (ids below 1000, and nobody), and `person`.
pub fn passwd(host: &str, person: Option<&Person>) -> String {
    let shell = accounts(host).find(|account| account.uid == 0).map(|root| root.shell);
    let shell = shell
        .filter(|shell| shell.starts_with("/bin/") || shell.starts_with("/usr/bin/"))
        .unwrap_or("/bin/sh");
    let mut out = format!("root:x:0:0:root:/root:{shell}\n");
    let mut names = BTreeSet::from(["root"]);
    let mut uids = BTreeSet::from([0]);
    if let Some(person) = person {
        names.insert(person.name.as_str());
        uids.insert(person.uid);
    }
    for account in accounts(host).filter(|account| is_system(account.uid)) {
        if names.insert(account.name) && uids.insert(account.uid) {
            let Account { name, uid, gid, about, home, shell } = account;
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name}:x:{uid}:{gid}:{about}:{home}:{shell}");
        }
    }
    if let Some(Person { name, uid, gid, home }) = person.filter(|person| is_usable(person)) {
        let _ = writeln!(out, "{name}:x:{uid}:{gid}::{home}:{shell}");
    }
    out
}

/// Our `/etc/group`: root, the host's system groups with those members that `ours` (from [`passwd`]) has, and the group
/// of `person`.
pub fn group(host: &str, ours: &str, person: Option<&Person>) -> String {
    let known: BTreeSet<&str> = accounts(ours).map(|account| account.name).collect();
    let mut out = "root:x:0:\n".to_owned();
    let mut names = BTreeSet::from(["root"]);
    let mut gids = BTreeSet::from([0]);
    if let Some(person) = person.filter(|person| person.gid >= super::judge::FIRST_PERSON) {
        names.insert(person.name.as_str());
        gids.insert(person.gid);
    }
    for group in groups(host).filter(|group| is_system(group.gid)) {
        if names.insert(group.name) && gids.insert(group.gid) {
            let members: Vec<&str> =
                group.members.split(',').filter(|member| known.contains(member)).collect();
            let _ = writeln!(out, "{}:x:{}:{}", group.name, group.gid, members.join(","));
        }
    }
    if let Some(Person { name, gid, .. }) =
        person.filter(|person| is_usable(person) && !is_system(person.gid))
    {
        let _ = writeln!(out, "{name}:x:{gid}:");
    }
    out
}

/// A shadow file in which every account of `ours` (from [`passwd`]) is locked.
pub fn shadow(ours: &str) -> String {
    accounts(ours).fold(String::new(), |out, account| out + account.name + ":!*:19000:0:99999:7:::\n")
}

/// A gshadow file in which every group of `ours` (from [`group`]) is locked.
pub fn gshadow(ours: &str) -> String {
    groups(ours).fold(String::new(), |out, group| out + group.name + ":!::" + group.members + "\n")
}

/// `/etc/hosts`: this machine under its usual names and under `hostname`.
pub fn hosts(hostname: &str) -> String {
    let hostname = plain_hostname(hostname);
    let own = if hostname.is_empty() { String::new() } else { format!("127.0.1.1\t{hostname}\n") };
    format!("127.0.0.1\tlocalhost\n{own}::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// `/etc/hostname`.
pub fn hostname(hostname: &str) -> String {
    plain_hostname(hostname) + "\n"
}

/// `/etc/resolv.conf`: the sandbox's own resolver, or none.
pub fn resolv_conf(nameserver: Option<IpAddr>) -> String {
    match nameserver {
        Some(address) => format!("nameserver {address}\noptions edns0 timeout:1 attempts:5\n"),
        None => "# this sandbox has no network, so no name resolves\n".to_owned(),
    }
}

/// The well-formed lines of a passwd file.
pub(super) fn accounts(text: &str) -> impl Iterator<Item = Account<'_>> {
    lines(text).filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| is_name(name))?;
        let _password = fields.next()?;
        let (uid, gid) = (id(fields.next()?)?, id(fields.next()?)?);
        let (about, home, shell) = (fields.next()?, fields.next()?, fields.next()?);
        let account = Account { name, uid, gid, about, home, shell };
        fields.next().is_none().then_some(account)
    })
}

/// The well-formed lines of a group file.
pub(super) fn groups(text: &str) -> impl Iterator<Item = Group<'_>> {
    lines(text).filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| is_name(name))?;
        let _password = fields.next()?;
        let gid = id(fields.next()?)?;
        let group = Group { name, gid, members: fields.next()? };
        fields.next().is_none().then_some(group)
    })
}

/// A user or group id in plain decimal. The largest number means "none" to the kernel and is no id.
pub(super) fn id(text: &str) -> Option<u32> {
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id: u32 = is_decimal.then(|| text.parse().ok())??;
    (id != u32::MAX).then_some(id)
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    // A line that the bound cuts in two is left out with the rest.
    let whole = if end < text.len() { text.get(..end).and_then(|t| t.rfind('\n')).unwrap_or(0) } else { end };
    text.get(..whole).unwrap_or_default().split('\n').filter(|line| !line.contains(|c: char| c.is_control()))
}

fn is_system(id: u32) -> bool {
    id < super::judge::FIRST_PERSON || id == NOBODY
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=256).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name
            .bytes()
            .enumerate()
            .all(|(at, byte)| is_plain(byte) || (byte == b'$' && at.saturating_add(1) == name.len()))
}

fn is_usable(person: &Person) -> bool {
    person.uid != 0 && is_name(&person.name) && !person.home.contains(|c: char| c == ':' || c.is_control())
}

fn plain_hostname(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(253).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "root:x:0:0:root:/var/roothome:/bin/bash\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n\
        toor:x:0:0::/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nann:x:1000:1000:Ann:/home/ann:/bin/zsh\n\
        broken:x:5\n";

    #[test]
    fn passwd_keeps_the_system_and_drops_people() {
        let person = Person { name: "ann".into(), uid: 1000, gid: 1000, home: "/home/ann".into() };

        let ours = passwd(HOST, Some(&person));

        let expected = "root:x:0:0:root:/root:/bin/bash\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n\
            nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nann:x:1000:1000::/home/ann:/bin/bash\n";
        assert_eq!(ours, expected);
        assert_eq!(passwd("", None), "root:x:0:0:root:/root:/bin/sh\n");
    }

    #[test]
    fn group_keeps_system_groups_and_system_members_only() {
        let ours =
            group("root:x:0:\nadm:x:4:ann,_apt\nann:x:1000:\nnogroup:x:65534:\n", &passwd(HOST, None), None);
        assert_eq!(ours, "root:x:0:\nadm:x:4:_apt\nnogroup:x:65534:\n");
        assert_eq!(gshadow(&ours), "root:!::\nadm:!::_apt\nnogroup:!::\n");
    }

    #[test]
    fn every_account_is_locked_in_shadow() {
        let ours = shadow(&passwd(HOST, None));
        assert_eq!(ours.lines().count(), 3);
        assert!(ours.lines().all(|line| line.split(':').nth(1) == Some("!*")));
    }

    #[test]
    fn hosts_cannot_be_given_a_second_line() {
        assert_eq!(
            hosts("a\n1.2.3.4 bank"),
            "127.0.0.1\tlocalhost\n127.0.1.1\ta1.2.3.4bank\n::1\tlocalhost ip6-localhost ip6-loopback\n"
        );
        assert_eq!(hostname("box"), "box\n");
        assert!(resolv_conf(None).starts_with('#'));
    }

    proptest! {
        #[test]
        fn nobody_but_root_has_id_0_and_no_person_is_shown(text in "([a-z$:0-9,/\u{e9}\n-]{0,40}:x:[0-9]{1,6}:0::/:/bin/sh\n){0,9}") {
            let ours = passwd(&text, None);
            let read: Vec<_> = accounts(&ours).collect();
            prop_assert_eq!(read.len(), ours.lines().count());
            prop_assert_eq!(read.iter().filter(|account| account.uid == 0).count(), 1);
            prop_assert!(read.iter().all(|account| is_system(account.uid)));
        }

        #[test]
        fn any_text_makes_a_well_formed_file(text: String) {
            prop_assert!(passwd(&text, None).lines().all(|line| line.split(':').count() == 7));
            prop_assert!(group(&text, &text, None).lines().all(|line| line.split(':').count() == 4));
            prop_assert_eq!(hosts(&text).lines().count() <= 3, true);
        }
    }

    #[test]
    fn what_follows_the_first_megabyte_is_left_out() {
        let long = format!("{}\nlate:x:7:7::/:/bin/sh\n", "x".repeat(LONGEST));
        assert_eq!(accounts(&long).count(), 0);
    }
}
