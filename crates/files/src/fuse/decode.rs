//! Bytes become requests. Pure; every message gives a request or is malformed, whatever its bytes.

use super::{
    request::{Head, Locking, Malformed, Request},
    wire::Bytes,
};
use crate::provider::{
    Allocate, Change, Handle, Kind, Lock, LockKind, LockRange, Locked, Name, Node, Remove, Rename,
    Result as Answer, Seek, SetAttribute, Time, Want,
};
use rustix::io::Errno;

/// Reads a message.
pub fn decode(message: &[u8]) -> Result<(Head, Request<'_>), Malformed> {
    let mut bytes = Bytes::new(message);
    let head = head(&mut bytes).ok_or(Malformed::Head)?;
    match body(&head, bytes) {
        Ok(Some(request)) => Ok((head, request)),
        Ok(None) => Err(Malformed::Body(head, Errno::INVAL)),
        Err(err) => Err(Malformed::Body(head, err)),
    }
}

fn head(bytes: &mut Bytes<'_>) -> Option<Head> {
    let (_length, operation) = (bytes.u32()?, bytes.u32()?);
    let (unique, node) = (bytes.u64()?, Node(bytes.u64()?));
    let (user, group) = (bytes.u32()?, bytes.u32()?);
    let (_process, _extension, _padding) = (bytes.u32()?, bytes.u16()?, bytes.u16()?);
    Some(Head { unique, node, user, group, operation })
}

/// `Ok(None)` where bytes are missing.
fn body<'a>(head: &Head, bytes: Bytes<'a>) -> Answer<Option<Request<'a>>> {
    let operation = head.operation;
    match operation {
        1 | 6 | 8..=13 | 45 => names(operation, bytes),
        14..=16 | 18 | 20 | 35 | 43 | 46 | 47 => files(operation, bytes),
        21..=24 => attributes(operation, bytes),
        27..=30 | 44 => Ok(directories(operation, bytes)),
        31..=33 => locks(operation, bytes),
        _ => Ok(rest(head, bytes)),
    }
}

fn names(operation: u32, mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    macro_rules! given {
        ($found:expr) => {
            match $found {
                Some(found) => found,
                None => return Ok(None),
            }
        };
    }
    let request = match operation {
        1 => Request::Lookup(Name::new(given!(bytes.text()))?),
        6 => {
            let (name, target) = (given!(bytes.text()), given!(bytes.text()));
            match target {
                b"" => return Err(Errno::NOENT),
                long if long.len() > 4095 => return Err(Errno::NAMETOOLONG),
                target => Request::Symlink { name: Name::new(name)?, target },
            }
        }
        8 => {
            let mode = given!(bytes.u32());
            given!(bytes.skip(12));
            let kind = Kind::from_bits(mode).filter(|kind| !matches!(kind, Kind::Directory | Kind::Link));
            let name = Name::new(given!(bytes.text()))?;
            Request::Make { name, kind: kind.ok_or(Errno::PERM)?, mode: mode & 0o7777 }
        }
        9 => {
            let mode = given!(bytes.u32());
            given!(bytes.skip(4));
            let name = Name::new(given!(bytes.text()))?;
            Request::Make { name, kind: Kind::Directory, mode: mode & 0o7777 }
        }
        10 => Request::Remove(Name::new(given!(bytes.text()))?, Remove::File),
        11 => Request::Remove(Name::new(given!(bytes.text()))?, Remove::Directory),
        13 => {
            let node = Node(given!(bytes.u64()));
            Request::Link(node, Name::new(given!(bytes.text()))?)
        }
        _ => {
            let directory = Node(given!(bytes.u64()));
            let how = match operation {
                45 => rename_how(given!(bytes.u64())),
                _ => Some(Rename::Replace),
            };
            let (from, to) = (given!(bytes.text()), given!(bytes.text()));
            let how = how.ok_or(Errno::INVAL)?;
            Request::Rename { from: Name::new(from)?, to: (directory, Name::new(to)?), how }
        }
    };
    Ok(Some(request))
}

/// The flags of renameat2(2), and padding.
fn rename_how(flags: u64) -> Option<Rename> {
    match flags & u64::from(u32::MAX) {
        0 => Some(Rename::Replace),
        1 => Some(Rename::Keep),
        2 => Some(Rename::Exchange),
        _ => None,
    }
}

fn files(operation: u32, mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    Ok(match operation {
        14 => bytes.u32().map(|flags| Request::Open(want(flags))),
        35 => return create(bytes),
        15 => range(&mut bytes).map(|(handle, offset, size)| Request::Read { handle, offset, size }),
        16 => (|| {
            let (handle, offset, size) = range(&mut bytes)?;
            bytes.skip(20)?;
            let bytes = bytes.take(usize::try_from(size).ok()?)?;
            Some(Request::Write { handle, offset, bytes })
        })(),
        18 => bytes.u64().map(|handle| Request::Release(Handle(handle))),
        20 => bytes.u64().map(|handle| Request::Sync(Handle(handle))),
        43 => return allocate(bytes),
        47 => copy(bytes),
        _ => {
            let found = (|| Some((Handle(bytes.u64()?), bytes.u64()?, bytes.u32()?)))();
            let Some((handle, offset, whence)) = found else { return Ok(None) };
            let what = match whence {
                3 => Seek::Data,
                4 => Seek::Hole,
                _ => return Err(Errno::INVAL),
            };
            Some(Request::Seek { handle, offset, what })
        }
    })
}

fn create(mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    let found = (|| {
        let (flags, mode) = (bytes.u32()?, bytes.u32()?);
        bytes.skip(8)?;
        Some((flags, mode, bytes.text()?))
    })();
    let Some((flags, mode, name)) = found else { return Ok(None) };
    Ok(Some(Request::Create { name: Name::new(name)?, mode: mode & 0o7777, want: want(flags) }))
}

fn allocate(mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    let found = (|| Some((Handle(bytes.u64()?), bytes.u64()?, bytes.u64()?, bytes.u32()?)))();
    let Some((handle, offset, length, mode)) = found else { return Ok(None) };
    let how = match mode {
        0 => Allocate::Grow,
        1 => Allocate::Keep,
        3 => Allocate::Punch,
        0x10 => Allocate::Zero,
        _ => return Err(Errno::OPNOTSUPP),
    };
    if length == 0 || offset.checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    Ok(Some(Request::Allocate { handle, how, offset, length }))
}

fn copy(mut bytes: Bytes<'_>) -> Option<Request<'_>> {
    let from = (Handle(bytes.u64()?), bytes.u64()?);
    bytes.skip(8)?;
    let to = (Handle(bytes.u64()?), bytes.u64()?);
    Some(Request::Copy { from, to, length: bytes.u64()? })
}

/// The flags of open(2).
fn want(flags: u32) -> Want {
    let access = flags & 3;
    Want {
        read: access != 1,
        write: access == 1 || access == 2,
        truncate: flags & 0o1000 != 0,
        append: flags & 0o2000 != 0,
        exclusive: flags & 0o200 != 0,
    }
}

fn range(bytes: &mut Bytes<'_>) -> Option<(Handle, u64, u32)> {
    Some((Handle(bytes.u64()?), bytes.u64()?, bytes.u32()?))
}

fn attributes(operation: u32, mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    if operation == 24 {
        return Ok(bytes.text().map(Request::RemoveAttribute));
    }
    let Some((size, flags)) = (|| Some((bytes.u32()?, bytes.u32()?)))() else { return Ok(None) };
    if operation == 23 {
        return Ok(Some(Request::AttributeNames { size }));
    }
    let Some(name) = bytes.text() else { return Ok(None) };
    if operation == 22 {
        return Ok(Some(Request::Attribute { name, size }));
    }
    let how = match flags {
        0 => SetAttribute::Any,
        1 => SetAttribute::Create,
        2 => SetAttribute::Replace,
        _ => return Err(Errno::INVAL),
    };
    let value = usize::try_from(size).ok().and_then(|size| bytes.take(size));
    Ok(value.map(|value| Request::SetAttribute { name, value, how }))
}

fn directories(operation: u32, mut bytes: Bytes<'_>) -> Option<Request<'_>> {
    match operation {
        27 => Some(Request::OpenDirectory),
        29 => Some(Request::ReleaseDirectory(Handle(bytes.u64()?))),
        30 => Some(Request::SyncDirectory),
        _ => {
            let (handle, from, size) = range(&mut bytes)?;
            Some(Request::List { handle, from, size, plus: operation == 44 })
        }
    }
}

fn locks(operation: u32, mut bytes: Bytes<'_>) -> Answer<Option<Request<'_>>> {
    let found = (|| {
        let (handle, owner) = (Handle(bytes.u64()?), bytes.u64()?);
        let (from, to, kind) = (bytes.u64()?, bytes.u64()?, bytes.u32()?);
        bytes.skip(4)?;
        Some((handle, owner, (from, to), kind, bytes.u32()?))
    })();
    let Some((handle, owner, (from, to), kind, flags)) = found else { return Ok(None) };
    let kind = match kind {
        0 => Some(LockKind::Shared),
        1 => Some(LockKind::Exclusive),
        2 => None,
        _ => return Err(Errno::INVAL),
    };
    let range = match (i64::try_from(from), i64::try_from(to)) {
        (Ok(from), Ok(to)) if from <= to => LockRange { from, to },
        _ => return Err(Errno::INVAL),
    };
    let what = if flags & 1 == 0 { Locked::Range(range) } else { Locked::Whole };
    let how = match operation {
        31 => Locking::Find,
        32 => Locking::Try,
        _ => Locking::Wait,
    };
    Ok(Some(Request::Lock { handle, lock: Lock { owner, what, kind }, how }))
}

fn rest<'a>(head: &Head, mut bytes: Bytes<'a>) -> Option<Request<'a>> {
    match head.operation {
        2 => Some(Request::Forget(vec![(head.node, bytes.u64()?)])),
        42 => {
            let count = bytes.u32()?;
            bytes.skip(4)?;
            let each = (0..count).map_while(|_| Some((Node(bytes.u64()?), bytes.u64()?)));
            Some(Request::Forget(each.collect()))
        }
        3 => Some(Request::Attributes),
        4 => change(bytes),
        5 => Some(Request::Readlink),
        17 => Some(Request::Room),
        26 => {
            let version = (bytes.u32()?, bytes.u32()?);
            let (read_ahead, low) = (bytes.u32().unwrap_or(0), bytes.u32().unwrap_or(0));
            let high = if low & (1 << 30) != 0 { bytes.u32().unwrap_or(0) } else { 0 };
            Some(Request::Init { version, read_ahead, flags: u64::from(low) | u64::from(high) << 32 })
        }
        25 => {
            let handle = Handle(bytes.u64()?);
            bytes.skip(8)?;
            Some(Request::Flush(handle, bytes.u64()?))
        }
        36 => Some(Request::Interrupt(bytes.u64()?)),
        38 => Some(Request::Destroy),
        _ => Some(Request::Other),
    }
}

fn change(mut bytes: Bytes<'_>) -> Option<Request<'_>> {
    let valid = bytes.u32()?;
    bytes.skip(4)?;
    let (handle, size) = (bytes.u64()?, bytes.u64()?);
    bytes.skip(8)?;
    let (accessed, modified, _changed) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let (accessed_nanos, modified_nanos, _changed_nanos) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
    let mode = bytes.u32()?;
    bytes.skip(4)?;
    let (user, group) = (bytes.u32()?, bytes.u32()?);
    let is_set = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, seconds: u64, nanos: u32| match (is_set(now), is_set(set)) {
        (true, _) => Some(Time::now()),
        (false, true) => Some(Time { seconds: seconds.cast_signed(), nanos: nanos.min(999_999_999) }),
        (false, false) => None,
    };
    let change = Change {
        mode: is_set(1).then_some(mode & 0o7777),
        user: is_set(2).then_some(user),
        group: is_set(4).then_some(group),
        size: is_set(8).then_some(size),
        accessed: time(16, 128, accessed, accessed_nanos),
        modified: time(32, 256, modified, modified_nanos),
    };
    Some(Request::Change(is_set(64).then_some(Handle(handle)), change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::{request::HEAD, wire::Put};
    use proptest::prelude::*;

    fn message(operation: u32, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        message.put32(u32::try_from(HEAD + body.len()).unwrap());
        message.put32(operation);
        message.put64(7);
        message.put64(1);
        for number in [1000, 1000, 1, 0] {
            message.put32(number);
        }
        message.extend_from_slice(body);
        message
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_body_of_any_operation_is_read_without_a_panic(
            operation in 0..60u32, body in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let message = message(operation, &body);
            match decode(&message) {
                Ok((head, _)) | Err(Malformed::Body(head, _)) => prop_assert_eq!(head.unique, 7),
                Err(Malformed::Head) => prop_assert!(false),
            }
        }

        #[test]
        fn a_name_with_a_slash_or_dots_never_gets_through(name in "[./a]{0,4}") {
            let mut body = name.clone().into_bytes();
            body.push(0);
            let message = message(1, &body);
            if let Ok((_, Request::Lookup(found))) = decode(&message) {
                prop_assert!(!found.bytes().contains(&b'/'));
                prop_assert!(found.bytes() != b"." && found.bytes() != b"..");
            }
        }
    }

    #[test]
    fn a_write_carries_its_bytes_and_no_more() {
        let mut body = Vec::new();
        body.put64(3);
        body.put64(4096);
        body.put32(5);
        body.put32(0);
        body.put64(0);
        body.put64(0);
        body.extend_from_slice(b"helloworld");
        let message = message(16, &body);
        let expected = Request::Write { handle: Handle(3), offset: 4096, bytes: b"hello" };
        assert_eq!(decode(&message).unwrap().1, expected);
        assert!(decode(&message[..HEAD + 43]).is_err());
    }

    #[test]
    fn a_lock_is_of_bytes_or_of_the_whole_file_and_never_ends_before_it_begins() {
        let lock = |from: u64, to: u64, kind: u32, flags: u32| {
            let mut body = Vec::new();
            [3, 77, from, to].into_iter().for_each(|number| body.put64(number));
            [kind, 1, flags, 0].into_iter().for_each(|number| body.put32(number));
            message(33, &body)
        };
        let asked = |what, kind| {
            let lock = Lock { owner: 77, what, kind };
            Ok(Request::Lock { handle: Handle(3), lock, how: Locking::Wait })
        };
        let read = |message: &[u8]| decode(message).map(|(_, request)| format!("{request:?}")).map_err(drop);
        let told =
            |request: std::result::Result<Request<'_>, ()>| request.map(|request| format!("{request:?}"));
        let range = Locked::Range(LockRange { from: 5, to: 9 });
        assert_eq!(read(&lock(5, 9, 1, 0)), told(asked(range, Some(LockKind::Exclusive))));
        assert_eq!(read(&lock(0, u64::MAX >> 1, 2, 1)), told(asked(Locked::Whole, None)));
        for wrong in [lock(9, 5, 0, 0), lock(0, u64::MAX, 0, 0), lock(0, 1, 3, 0)] {
            assert_eq!(read(&wrong), Err(()));
        }
    }

    #[test]
    fn a_device_is_never_asked_of_a_provider() {
        let mut body = Vec::new();
        for number in [0o020_666, 0x0103, 0, 0] {
            body.put32(number);
        }
        body.extend_from_slice(b"null\0");
        let message = message(8, &body);
        assert!(matches!(decode(&message), Err(Malformed::Body(_, Errno::PERM))));
    }
}
