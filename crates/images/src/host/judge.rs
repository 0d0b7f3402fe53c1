//! Whether one file of the host is shown, decided from what `stat` says of it.
//!
//! ```ignore
//! let shadow = Facts { kind: Kind::File, mode: 0o640, uid: 0, gid: 42 };
//! assert_eq!(judge(&Reader::Root, shadow), Judged::Hide);
//! ```

use super::Reader;

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Link,
    /// A socket, a pipe or a device: a way to talk to the host, not a file.
    Special,
}

/// What the decision stands on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    /// The permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// Others may read it.
    Show,
    /// It must be whited out.
    Hide,
    /// Others may not read it, and the reader may or may not (an access control list can say so): hide it if the kernel
    /// would let the reader in.
    HideIfReachable,
}

/// Ids from here on belong to people, or are handed out to user namespaces: the reader's sandbox may hold any of them.
pub(super) const FIRST_PERSON: u32 = 1000;

/// Decides for `reader` about an entry that no rule names.
pub(super) fn judge(reader: &Reader, facts: Facts) -> Judged {
    let open_to_others = match facts.kind {
        Kind::Special => return Judged::Hide,
        Kind::Link => return Judged::Show,
        Kind::File => facts.mode & 0o004 == 0o004,
        Kind::Directory => facts.mode & 0o005 == 0o005,
    };
    if open_to_others {
        return Judged::Show;
    }
    match reader {
        Reader::Root => Judged::Hide,
        Reader::User { uid, groups } => {
            let is_theirs = facts.uid == *uid || groups.contains(&facts.gid);
            let may_be_mapped = facts.uid >= FIRST_PERSON || facts.gid >= FIRST_PERSON;
            if is_theirs || may_be_mapped { Judged::Hide } else { Judged::HideIfReachable }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(mode: u32, uid: u32, gid: u32) -> Facts {
        Facts { kind: Kind::File, mode, uid, gid }
    }

    #[test]
    fn a_user_loses_what_only_they_or_their_group_may_read() {
        let alice = Reader::User { uid: 500, groups: vec![500, 4] };
        assert_eq!(judge(&alice, file(0o600, 500, 0)), Judged::Hide);
        assert_eq!(judge(&alice, file(0o640, 0, 4)), Judged::Hide);
        assert_eq!(judge(&alice, file(0o640, 0, 42)), Judged::HideIfReachable);
        assert_eq!(judge(&alice, file(0o644, 500, 500)), Judged::Show);
        assert_eq!(judge(&alice, file(0o600, 100_000, 100_000)), Judged::Hide);
    }

    #[test]
    fn a_directory_needs_both_read_and_search_for_others() {
        for (mode, judged) in
            [(0o755, Judged::Show), (0o711, Judged::Hide), (0o754, Judged::Hide), (0o1777, Judged::Show)]
        {
            let facts = Facts { kind: Kind::Directory, mode, uid: 0, gid: 0 };
            assert_eq!(judge(&Reader::Root, facts), judged, "{mode:o}");
        }
    }

    proptest! {
        #[test]
        fn root_is_shown_nothing_that_others_may_not_read(mode in 0_u32..0o10000, uid: u32, gid: u32) {
            let judged = judge(&Reader::Root, file(mode, uid, gid));
            prop_assert_eq!(judged == Judged::Show, mode & 4 == 4);
        }
    }
}
