//! Archives written and read.

use super::*;
use proptest::prelude::*;

fn read_all(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = reader.next()? {
        let (mut body, mut piece) = (Vec::new(), [0u8; 100]);
        loop {
            match reader.read(&mut piece)? {
                0 => break,
                count => body.extend(&piece[..count]),
            }
        }
        all.push((entry, body));
    }
    Ok(all)
}

fn write_all(entries: &[(Entry, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (entry, body) in entries {
        bytes.extend(head(entry));
        bytes.extend(body);
        bytes.extend(padding(entry.size));
    }
    bytes.extend(END);
    bytes
}

/// An archive that the system's tar wrote in this format.
fn by_tar(format: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let long = "d".repeat(90);
    std::fs::create_dir_all(dir.path().join(&long).join(&long)).unwrap();
    std::fs::write(dir.path().join(&long).join(&long).join("file"), vec![b'x'; 700]).unwrap();
    std::os::unix::fs::symlink("l".repeat(150), dir.path().join("link")).unwrap();
    std::fs::hard_link(dir.path().join(&long).join(&long).join("file"), dir.path().join("z")).unwrap();
    let made = std::process::Command::new("tar")
        .args(["-c", "--sort=name", &format!("--format={format}"), "-C"])
        .arg(dir.path())
        .arg(".")
        .output()
        .unwrap();
    assert!(made.status.success());
    made.stdout
}

#[test]
fn what_gnu_tar_writes_is_read() {
    for format in ["gnu", "pax"] {
        let all = read_all(&by_tar(format)).unwrap();

        let long = "d".repeat(90);
        let paths: Vec<String> =
            all.iter().map(|(entry, _)| String::from_utf8(entry.path.clone()).unwrap()).collect();
        let expected = [
            "./",
            &format!("./{long}/"),
            &format!("./{long}/{long}/"),
            &format!("./{long}/{long}/file"),
            "./link",
            "./z",
        ];
        assert_eq!(paths, expected, "{format}");
        assert_eq!(all[3].1, vec![b'x'; 700]);
        assert_eq!(all[4].0.kind, Kind::Link(vec![b'l'; 150]));
        assert_eq!(all[5].0.kind, Kind::HardLink(format!("./{long}/{long}/file").into_bytes()));
    }
}

#[test]
fn what_is_written_gnu_tar_reads() {
    let path = ["./", &"n".repeat(200)].concat();
    let entry = Entry::new(path.clone().into_bytes(), Kind::File).size(3);
    let bytes = write_all(&[(entry, b"abc".to_vec())]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.tar");
    std::fs::write(&file, bytes).unwrap();

    let told = std::process::Command::new("tar").arg("-tf").arg(&file).output().unwrap();

    assert_eq!(String::from_utf8(told.stdout).unwrap(), path + "\n");
}

#[test]
fn an_archive_that_breaks_off_is_noticed() {
    let entry = Entry::new(b"./f".to_vec(), Kind::File).size(600);
    let bytes = write_all(&[(entry, vec![7; 600])]);
    for cut in [0, 1, 511, 512, 700, 1112, 1535, 1536] {
        assert!(matches!(read_all(&bytes[..cut]), Err(Malformed::Truncated)), "{cut}");
    }
}

#[test]
fn what_is_compressed_or_sparse_is_told() {
    assert!(matches!(read_all(&[0x1f, 0x8b, 8, 0]), Err(Malformed::Compressed("gzip"))));
    let mut header = head(&Entry::new(b"s".to_vec(), Kind::File));
    header[156] = b'S';
    // The checksum knows the type.
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, b)| if (148..156).contains(&at) { 32 } else { u64::from(*b) })
        .sum();
    header.splice(148..156, format!("{sum:06o}\0 ").into_bytes());
    assert!(matches!(read_all(&header), Err(Malformed::Unsupported)));
}

fn entries() -> impl Strategy<Value = Vec<(Entry, Vec<u8>)>> {
    let path = proptest::collection::vec(1u8..=255, 1..300);
    let one = (
        path.clone(),
        path,
        0u8..3,
        0u32..0o10000,
        proptest::collection::vec(any::<u8>(), 0..1500),
        0u64..1 << 33,
        proptest::collection::vec(
            ("user\\.[a-z \n]{1,40}", proptest::collection::vec(any::<u8>(), 0..300)),
            0..3,
        ),
    );
    let one = one.prop_map(|(path, link, kind, mode, body, mtime, attributes)| {
        let (kind, body) = match kind {
            0 => (Kind::File, body),
            1 => (Kind::Directory, Vec::new()),
            _ => (Kind::Link(link), Vec::new()),
        };
        let size = u64::try_from(body.len()).unwrap();
        let attributes = attributes.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
        (Entry { path, kind, mode, size, mtime, attributes }, body)
    });
    proptest::collection::vec(one, 0..6)
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(entries in entries()) {
        let bytes = write_all(&entries);
        prop_assert_eq!(bytes.len() % BLOCK, 0);
        prop_assert_eq!(read_all(&bytes).unwrap(), entries);
    }

    #[test]
    fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let _ = read_all(&bytes);
    }

    #[test]
    fn a_damaged_archive_panics_nobody(
        entries in entries(), damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8)
    ) {
        let mut bytes = write_all(&entries);
        for (at, byte) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        let _ = read_all(&bytes);
    }

    #[test]
    fn a_pax_header_of_any_text_panics_nobody(text in proptest::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()) {
        let text = if valid { [b"13 path=a/..\n".as_slice(), &text].concat() } else { text };
        let size = u64::try_from(text.len()).unwrap();
        let mut header = head(&Entry::new(b"pax".to_vec(), Kind::File).size(size));
        header[156] = b'x';
        let sum: u64 = header.iter().enumerate().map(|(at, b)| if (148..156).contains(&at) { 32 } else { u64::from(*b) }).sum();
        header.splice(148..156, format!("{sum:06o}\0 ").into_bytes());
        header.extend(&text);
        header.extend(padding(size));
        header.extend(write_all(&[(Entry::new(b"f".to_vec(), Kind::File), Vec::new())]));
        let _ = read_all(&header);
    }
}
