use super::*;
use proptest::prelude::*;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    process::Command,
};

/// Every entry of an archive, as far as it is understood, with its bytes.
fn read(archive: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = Reader::new(archive);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let mut bytes = Vec::new();
        loop {
            let some = reader.bytes()?.to_vec();
            if some.is_empty() {
                break;
            }
            reader.pass(some.len());
            bytes.extend(some);
        }
        entries.push((entry, bytes));
    }
    Ok(entries)
}

#[test]
fn a_sparse_file_in_each_way_of_gnu_tar_is_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("sparse")).unwrap();
    file.set_len(64 << 20).unwrap();
    for number in 0..40u64 {
        file.write_all_at(b"piece", number << 20).unwrap();
    }
    let ways: [&[&str]; 4] = [
        &["--format=gnu"],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ];
    for way in ways {
        let made = Command::new("tar")
            .args(way)
            .arg("--sparse")
            .arg("-C")
            .arg(dir.path())
            .args(["-cf", "-", "sparse"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{way:?}");

        let entries = read(&made.stdout).unwrap();

        let (entry, bytes) = entries.first().unwrap();
        assert_eq!(
            (entry.path.as_slice(), entry.kind, entry.size),
            (&b"sparse"[..], Kind::File, 64 << 20),
            "{way:?}"
        );
        let mut whole = vec![0u8; 64 << 20];
        let mut from = bytes.as_slice();
        for (offset, length) in &entry.pieces {
            let (piece, rest) = from.split_at(usize::try_from(*length).unwrap());
            whole[usize::try_from(*offset).unwrap()..][..piece.len()].copy_from_slice(piece);
            from = rest;
        }
        assert!(whole == fs::read(dir.path().join("sparse")).unwrap(), "{way:?}");
        assert!(bytes.len() < 1 << 20, "{way:?}");
    }
}

#[test]
fn what_pax_says_counts_more_than_the_header() {
    let mut archive = tar::Builder::new(Vec::new());
    let words: [(&str, &[u8]); 6] = [
        ("path", b"a name\n=\xff"),
        ("uid", b"3000000"),
        ("mtime", b"12.5"),
        ("SCHILY.xattr.user.colour", b"r\0d"),
        ("SCHILY.xattr.user.overlay.opaque", b"y"),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
    ];
    archive.append_pax_extensions(words).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(2);
    header.set_mode(0o4755);
    header.set_mtime(7);
    header.set_cksum();
    archive.append(&header, &b"hi"[..]).unwrap();

    let entries = read(&archive.into_inner().unwrap()).unwrap();

    let expected = Entry {
        path: b"a name\n=\xff".to_vec(),
        kind: Kind::File,
        link: Vec::new(),
        mode: 0o4755,
        user: 3_000_000,
        group: 0,
        time: Time { seconds: 12, nanoseconds: 500_000_000 },
        size: 2,
        pieces: vec![(0, 2)],
        attributes: vec![(c"user.colour".to_owned(), b"r\0d".to_vec())],
        other_attributes: 2,
    };
    assert_eq!(entries, [(expected, b"hi".to_vec())]);
}

/// A block that says of itself that it is a header.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(b"\x000123456 7xgLKSVMDN".to_vec());
    (prop::collection::vec(any::<u8>(), BLOCK), kinds, 0u64..2000).prop_map(|(mut block, kind, size)| {
        block[field::TYPE].copy_from_slice(&[kind]);
        block[field::SIZE].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[field::MODE].copy_from_slice(b"0000644\0");
        block[field::CHECKSUM].copy_from_slice(b"        ");
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[field::CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    })
}

proptest! {
    #[test]
    fn no_bytes_panic_the_reader(blocks in prop::collection::vec(header(), 0..12), cut in 0usize..600) {
        let bytes = blocks.concat();
        let _ = read(&bytes);
        let _ = read(bytes.get(..bytes.len().saturating_sub(cut)).unwrap_or_default());
    }

    #[test]
    fn no_words_are_too_strange_to_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[0-9 =a\n]{0,60}") {
        let _ = Words::default().read(&bytes);
        let _ = Words::default().read(text.as_bytes());
    }

    #[test]
    fn no_words_about_an_entry_panic_the_reader(words in "([0-9]{1,3} (path|size|mtime|GNU.sparse.(map|major|size|offset))=[0-9,.-]{0,9}\n){0,4}") {
        let mut said = Words::default();
        let _ = said.read(words.as_bytes());
        let _ = said.sparse.told();
    }
}
