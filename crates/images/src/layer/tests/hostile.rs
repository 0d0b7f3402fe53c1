//! Layers that mean harm, each made by the generator here: refused, or contained in their tree.
//!
//! Every case stands beside a file and a directory that no layer may touch. What a case is meant to come to is told with it.

use super::{super::unpack::chain, *};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
};
use tempfile::TempDir;

/// What becomes of a layer.
enum Fate {
    /// It is refused, with these words.
    Refused(&'static str),
    /// It is unpacked, and its tree holds exactly these paths: `/` at the end of directories, `@` of links.
    Holds(&'static [&'static str]),
}
use Fate::{Holds, Refused};

/// Raw headers, with everything in them a lie if need be.
struct Archive(Vec<u8>);

/// One header and what follows it.
struct Piece<'a> {
    kind: u8,
    name: &'a [u8],
    link: &'a [u8],
    bytes: &'a [u8],
    mode: u32,
    owner: (u64, u64),
    size: Option<u64>,
}

impl Default for Piece<'_> {
    fn default() -> Self {
        Piece { kind: b'0', name: b"", link: b"", bytes: b"", mode: 0o644, owner: (0, 0), size: None }
    }
}

impl Archive {
    fn new() -> Archive {
        Archive(Vec::new())
    }

    fn piece(mut self, piece: Piece<'_>) -> Archive {
        let mut block = [0u8; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &piece.name[..piece.name.len().min(100)]);
        put(100, format!("{:07o}\0", piece.mode).as_bytes());
        put(108, &number(piece.owner.0, 8));
        put(116, &number(piece.owner.1, 8));
        put(124, &number(piece.size.unwrap_or(piece.bytes.len() as u64), 12));
        put(136, &number(1_600_000_000, 12));
        put(148, b"        ");
        put(156, &[piece.kind]);
        put(157, &piece.link[..piece.link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(block);
        self.bytes(piece.bytes)
    }

    fn bytes(mut self, bytes: &[u8]) -> Archive {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str) -> Archive {
        self.piece(Piece { name: name.as_bytes(), bytes: b"evil", ..Piece::default() })
    }

    fn directory(self, name: &str) -> Archive {
        self.piece(Piece { kind: b'5', name: name.as_bytes(), mode: 0o755, ..Piece::default() })
    }

    fn symlink(self, name: &str, to: &str) -> Archive {
        self.piece(Piece { kind: b'2', name: name.as_bytes(), link: to.as_bytes(), ..Piece::default() })
    }

    fn link(self, name: &str, to: &str) -> Archive {
        self.piece(Piece { kind: b'1', name: name.as_bytes(), link: to.as_bytes(), ..Piece::default() })
    }

    fn kind(self, kind: u8, name: &str) -> Archive {
        self.piece(Piece { kind, name: name.as_bytes(), ..Piece::default() })
    }

    /// Words before the next entry, as pax has them.
    fn pax(self, words: &[(&str, &[u8])]) -> Archive {
        let mut bytes = Vec::new();
        for (key, value) in words {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length.to_string().len() + rest != length {
                length = length.to_string().len() + rest;
            }
            bytes.extend(format!("{length} {key}=").bytes());
            bytes.extend(*value);
            bytes.push(b'\n');
        }
        self.piece(Piece { kind: b'x', name: b"pax", bytes: &bytes, ..Piece::default() })
    }

    fn words(self, bytes: &[u8]) -> Archive {
        self.piece(Piece { kind: b'x', name: b"pax", bytes, ..Piece::default() })
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0u8; 1024]);
        self.0
    }
}

/// As octal digits, or as GNU has numbers that are too large for them.
fn number(value: u64, width: usize) -> Vec<u8> {
    let text = format!("{value:0digits$o}\0", digits = width - 1);
    if text.len() <= width {
        return text.into_bytes();
    }
    let mut bytes = vec![0u8; width];
    bytes[0] = 0x80;
    for (to, from) in bytes.iter_mut().rev().zip(value.to_le_bytes()) {
        *to |= from;
    }
    bytes
}

/// The outside, which no layer may change, and the tree in it.
struct Place {
    outside: TempDir,
}

impl Place {
    fn new() -> Place {
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("tree")).unwrap();
        fs::create_dir(outside.path().join("trash")).unwrap();
        fs::write(outside.path().join("canary"), "sings").unwrap();
        fs::create_dir(outside.path().join("victim")).unwrap();
        fs::write(outside.path().join("victim/file"), "whole").unwrap();
        Place { outside }
    }

    fn unpack(&self, archive: &[u8]) -> io::Result<Told> {
        let open = |name: &str| File::open(self.outside.path().join(name)).unwrap();
        let blob = blob(archive, Compression::Gzip);
        let (tree, trash) = (open("tree"), open("trash"));
        unpack(&blob, &Digest::of(archive), (tree.as_fd(), trash.as_fd()), Owners::One, &mut |_| {})
    }

    fn assert_untouched(&self, case: &str) {
        let outside = self.outside.path();
        let names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "{case}: {names:?}");
        assert_eq!(fs::read_to_string(outside.join("canary")).unwrap(), "sings", "{case}");
        assert_eq!(fs::read_to_string(outside.join("victim/file")).unwrap(), "whole", "{case}");
        assert_eq!(fs::read_dir(outside.join("victim")).unwrap().count(), 1, "{case}");
        assert_eq!(fs::metadata(outside.join("canary")).unwrap().nlink(), 1, "{case}");
    }

    fn holds(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(&self.outside.path().join("tree"), "", &mut found);
        found.sort();
        found
    }
}

fn list(directory: &Path, above: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{above}{}", String::from_utf8_lossy(entry.file_name().as_encoded_bytes()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.push(format!("{name}/"));
            list(&entry.path(), &format!("{name}/"), found);
        } else {
            found.push(if kind.is_symlink() { format!("{name}@") } else { name });
        }
    }
}

type Case = (&'static str, Vec<u8>, Fate);

fn case(name: &'static str, archive: Archive, fate: Fate) -> Case {
    (name, archive.end(), fate)
}

/// Paths and links that lead elsewhere.
#[expect(clippy::too_many_lines, reason = "a list")]
fn leading_out() -> Vec<Case> {
    let up = "its path leads upwards";
    vec![
        case("a path upwards", Archive::new().file("../canary"), Refused(up)),
        case("a path upwards in the middle", Archive::new().file("a/../../canary"), Refused(up)),
        case("a path that ends upwards", Archive::new().directory("a/.."), Refused(up)),
        case("nothing but upwards", Archive::new().directory(".."), Refused(up)),
        case(
            "a path upwards said by pax",
            Archive::new().pax(&[("path", b"../canary")]).file("x"),
            Refused(up),
        ),
        case(
            "a path upwards said by GNU",
            Archive::new()
                .piece(Piece { kind: b'L', name: b"l", bytes: b"../canary\0", ..Piece::default() })
                .file("x"),
            Refused(up),
        ),
        case(
            "a path upwards in the prefix",
            Archive::new()
                .pax(&[
                    ("GNU.sparse.name", b"../canary"),
                    ("GNU.sparse.size", b"4"),
                    ("GNU.sparse.map", b"0,4"),
                ])
                .file("x"),
            Refused(up),
        ),
        case("an absolute path", Archive::new().file("/etc/passwd"), Holds(&["etc/", "etc/passwd"])),
        case("many slashes", Archive::new().file("///a//.//b"), Holds(&["a/", "a/b"])),
        case(
            "an absolute link, and through it",
            Archive::new().symlink("a", "/victim").file("a/file"),
            Refused("a link that leads nowhere"),
        ),
        case(
            "a link upwards, and through it",
            Archive::new().symlink("a", "../victim").file("a/file"),
            Refused("a link that leads nowhere"),
        ),
        case(
            "a link upwards to a directory of the same name inside",
            Archive::new().directory("victim").symlink("a", "../../../victim").file("a/file"),
            Holds(&["a@", "victim/", "victim/file"]),
        ),
        case(
            "a link to the root, and through it",
            Archive::new().symlink("a", "/").file("a/file"),
            Holds(&["a@", "file"]),
        ),
        case(
            "a link through proc",
            Archive::new().symlink("a", "/proc/self/cwd").file("a/file"),
            Refused("a link that leads nowhere"),
        ),
        case("a link over a link's place", Archive::new().symlink("a", "../canary").file("a"), Holds(&["a"])),
        case(
            "a directory over a link, then into it",
            Archive::new().symlink("a", "../victim").directory("a").file("a/file"),
            Holds(&["a/", "a/file"]),
        ),
        case(
            "a link to itself, and through it",
            Archive::new().symlink("a", "a").file("a/b"),
            Refused("never end"),
        ),
        case(
            "links in a circle",
            Archive::new().symlink("a", "b").symlink("b", "a").file("a/x"),
            Refused("never end"),
        ),
        case(
            "a chain of links out",
            Archive::new()
                .directory("d")
                .symlink("d/up", "..")
                .symlink("d/out", "up/../victim")
                .file("d/out/file"),
            Refused("a link that leads nowhere"),
        ),
        case("a hard link upwards", Archive::new().link("a", "../canary"), Refused(up)),
        case(
            "a hard link to an absolute path",
            Archive::new().link("a", "/canary"),
            Refused("not in this layer"),
        ),
        case(
            "a hard link through a link",
            Archive::new().symlink("s", "..").link("a", "s/canary"),
            Refused("not in this layer"),
        ),
        case(
            "a hard link to a link out",
            Archive::new().symlink("s", "../canary").link("a", "s"),
            Holds(&["a@", "s@"]),
        ),
        case(
            "a hard link to a link out, then written",
            Archive::new().symlink("s", "../canary").link("a", "s").file("a"),
            Holds(&["a", "s@"]),
        ),
        case("a hard link to a directory", Archive::new().directory("d").link("a", "d"), Refused("no file")),
        case("a hard link to nothing", Archive::new().link("a", "b"), Refused("not in this layer")),
        case("a hard link to itself", Archive::new().file("a").link("a", "a"), Refused("its own first name")),
        case("a hard link to the top", Archive::new().link("a", "."), Refused("no first name")),
        case("a file, and below it", Archive::new().file("a").file("a/b"), Refused("no directory")),
        case(
            "a link to nowhere, and below it",
            Archive::new().symlink("a", "b").file("a/c"),
            Refused("leads nowhere"),
        ),
        case("a link without a target", Archive::new().symlink("a", ""), Refused("leads nowhere")),
    ]
}

/// Whiteouts, devices and other things that mean something.
#[expect(clippy::too_many_lines, reason = "a list")]
fn meaning_something() -> Vec<Case> {
    vec![
        case("a whiteout upwards", Archive::new().file(".wh..."), Holds(&[])),
        case("a whiteout of the parent", Archive::new().file("a/.wh..."), Holds(&["a/"])),
        case("a whiteout of here", Archive::new().file(".wh.."), Holds(&[])),
        case("a whiteout of nothing", Archive::new().file(".wh."), Holds(&[])),
        case("a whiteout of a whiteout", Archive::new().file(".wh..wh.x"), Holds(&[])),
        case(
            "what only aufs had",
            Archive::new().directory(".wh..wh.plnk").file(".wh..wh.plnk/1.2"),
            Holds(&[]),
        ),
        case("an opaque top", Archive::new().file(".wh..wh..opq"), Holds(&[])),
        case(
            "an opaque directory that is a link",
            Archive::new().symlink("a", "../victim").file("a/.wh..wh..opq"),
            Refused("leads nowhere"),
        ),
        case(
            "a whiteout through a link",
            Archive::new().symlink("a", "../victim").file("a/.wh.file"),
            Refused("leads nowhere"),
        ),
        case("a whiteout of what the layer has", Archive::new().file("a").file(".wh.a"), Holds(&["a"])),
        case("a device", Archive::new().kind(b'3', "null"), Holds(&[])),
        case("a disk", Archive::new().kind(b'4', "sda"), Holds(&[])),
        case("a device in place of a file", Archive::new().file("a").kind(b'3', "a"), Holds(&[])),
        case("a pipe", Archive::new().kind(b'6', "pipe"), Holds(&["pipe"])),
        case("an unheard-of kind", Archive::new().kind(b'Z', "a"), Refused("nobody knows")),
        case("a volume's name", Archive::new().kind(b'V', "a"), Refused("nobody knows")),
        case("a file with no name", Archive::new().file(""), Refused("no name")),
        case("a file that is the top", Archive::new().file("."), Refused("no name")),
        case("a link that is the top", Archive::new().symlink("./", "../victim"), Refused("no name")),
        case("the top itself", Archive::new().directory("./"), Holds(&[])),
        case("a file twice", Archive::new().file("a").file("a"), Holds(&["a"])),
        case("a directory, then a file", Archive::new().file("a/b/c").file("a"), Holds(&["a"])),
        case("a file, then a directory", Archive::new().file("a").directory("a"), Holds(&["a/"])),
        case(
            "a directory twice keeps what is in it",
            Archive::new().file("a/b").directory("a"),
            Holds(&["a/", "a/b"]),
        ),
        case(
            "attributes of an overlay",
            Archive::new()
                .pax(&[
                    ("SCHILY.xattr.user.overlay.redirect", b"/victim"),
                    ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ])
                .directory("a"),
            Holds(&["a/"]),
        ),
        case(
            "an attribute with no name",
            Archive::new().pax(&[("SCHILY.xattr.", b"x")]).file("a"),
            Holds(&["a"]),
        ),
        case(
            "an attribute with a long name",
            Archive::new().pax(&[(&format!("SCHILY.xattr.user.{}", "n".repeat(300)), b"x")]).file("a"),
            Holds(&["a"]),
        ),
        case(
            "an attribute with a long value",
            Archive::new().pax(&[("SCHILY.xattr.user.a", &[b'x'; 100_000])]).file("a"),
            Holds(&["a"]),
        ),
    ]
}

/// What is damaged, or lies about sizes.
#[expect(clippy::too_many_lines, reason = "a list")]
fn lying() -> Vec<Case> {
    let sparse = |map: &'static [u8], size: &'static [u8]| {
        Archive::new().pax(&[("GNU.sparse.map", map), ("GNU.sparse.size", size)]).file("a")
    };
    let cut = |archive: Archive, length: usize| archive.0.into_iter().take(length).collect::<Vec<u8>>();
    let of_size =
        |size| Archive::new().piece(Piece { name: b"a", bytes: b"x", size: Some(size), ..Piece::default() });
    let mut damaged = Archive::new().file("a").end();
    damaged[0] ^= 1;
    vec![
        (
            "an archive that ends in a header",
            cut(Archive::new().file("a"), 300),
            Refused("ends in the middle"),
        ),
        ("an archive that ends in a file", cut(of_size(5000), 600), Refused("ends in the middle")),
        ("a header that is damaged", damaged, Refused("damaged")),
        ("no archive at all", vec![b'x'; 4096], Refused("damaged")),
        ("an empty blob", Vec::new(), Holds(&[])),
        case("a file that says it is huge", of_size(1 << 62), Refused("more than it may")),
        case("a size that is no size", of_size(u64::MAX), Refused("no size")),
        case(
            "a huge size said by pax",
            Archive::new().pax(&[("size", b"99999999999999999999999")]).file("a"),
            Refused("is none"),
        ),
        case("a size below zero", Archive::new().pax(&[("size", b"-1")]).file("a"), Refused("is none")),
        case(
            "words without end",
            Archive::new().piece(Piece {
                kind: b'x',
                name: b"p",
                bytes: b"x",
                size: Some(1 << 40),
                ..Piece::default()
            }),
            Refused("too much is said"),
        ),
        case("words without a length", Archive::new().words(b"path=x\n"), Refused("make no sense")),
        case("words longer than they are", Archive::new().words(b"999 path=x\n"), Refused("make no sense")),
        case("words of no length", Archive::new().words(b"0 path=x\n"), Refused("make no sense")),
        case("a path with a zero in it", Archive::new().pax(&[("path", b"a\0b")]).file("x"), Refused("nul")),
        case(
            "a path that is too long",
            Archive::new().pax(&[("path", &[b"a/".as_slice(); 4000].concat())]).file("x"),
            Refused("too long"),
        ),
        case(
            "a name that is too long",
            Archive::new().pax(&[("path", &[b'n'; 300])]).file("x"),
            Refused("too long"),
        ),
        case(
            "a long target of a link",
            Archive::new().pax(&[("linkpath", &[b'n'; 5000])]).symlink("a", "b"),
            Refused("leads nowhere"),
        ),
        case(
            "headers before headers without end",
            (0..20).fold(Archive::new(), |archive, _| archive.pax(&[("path", b"a")])).file("a"),
            Refused("too much is said"),
        ),
        case(
            "a time that is none",
            Archive::new().pax(&[("mtime", b"soon")]).file("a"),
            Refused("time is none"),
        ),
        case(
            "a time before time",
            Archive::new().pax(&[("mtime", b"-99999999999.5")]).file("a"),
            Holds(&["a"]),
        ),
        case("a sparse file that overlaps itself", sparse(b"0,2,1,2", b"10"), Refused("makes no sense")),
        case("a sparse file backwards", sparse(b"8,2,0,2", b"10"), Refused("makes no sense")),
        case("a sparse file beyond its end", sparse(b"8,4", b"10"), Refused("makes no sense")),
        case(
            "a sparse file that overflows",
            sparse(b"18446744073709551615,4", b"10"),
            Refused("makes no sense"),
        ),
        case("a sparse file of an odd map", sparse(b"0,2,4", b"10"), Refused("makes no sense")),
        case(
            "a sparse file that is huge",
            sparse(b"0,4", b"9000000000000000000"),
            Refused("more than it may"),
        ),
        case(
            "a sparse file without a size",
            Archive::new().pax(&[("GNU.sparse.map", b"0,4")]).file("a"),
            Refused("no size"),
        ),
        case(
            "a sparse file of the future",
            Archive::new().pax(&[("GNU.sparse.major", b"7"), ("GNU.sparse.size", b"4")]).file("a"),
            Refused("nobody knows"),
        ),
        case(
            "a map in front that is none",
            Archive::new().pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"4")]).file("a"),
            Refused("is none"),
        ),
        case(
            "an owner that is none",
            Archive::new().piece(Piece { name: b"a", owner: (1 << 40, 1 << 40), ..Piece::default() }),
            Holds(&["a"]),
        ),
        case(
            "every bit of a mode",
            Archive::new().piece(Piece { name: b"a", mode: 0o7777, ..Piece::default() }),
            Holds(&["a"]),
        ),
        case(
            "a link that says it has bytes",
            Archive::new().piece(Piece {
                kind: b'2',
                name: b"a",
                link: b"b",
                size: Some(512),
                ..Piece::default()
            }),
            Holds(&["a@"]),
        ),
        case(
            "a name that is no text",
            Archive::new().piece(Piece { name: b"\xff\xfe\x01", ..Piece::default() }),
            Holds(&["\u{fffd}\u{fffd}\u{1}"]),
        ),
        case("names that differ in case", Archive::new().file("A").file("a"), Holds(&["A", "a"])),
    ]
}

#[test]
fn every_hostile_layer_is_refused_or_contained() {
    let cases: Vec<Case> = [leading_out(), meaning_something(), lying()].into_iter().flatten().collect();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut wrong = BTreeMap::new();
    for (name, archive, fate) in cases {
        let place = Place::new();

        let outcome = place.unpack(&archive);

        place.assert_untouched(name);
        let came_to = match (outcome, fate) {
            (Err(err), Refused(why)) => {
                let said = chain(&err);
                (!said.contains(why)).then(|| format!("refused with {said:?}, not {why:?}"))
            }
            (Ok(_), Refused(why)) => Some(format!("not refused with {why:?}: holds {:?}", place.holds())),
            (Err(err), Holds(_)) => Some(format!("refused: {}", chain(&err))),
            (Ok(_), Holds(paths)) => {
                let found = place.holds();
                (found != paths).then(|| format!("holds {found:?}"))
            }
        };
        wrong.extend(came_to.map(|came_to| (name, came_to)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_hostile_layer_is_bounded_when_it_is_cut_anywhere() {
    for (name, archive, _) in [leading_out(), meaning_something(), lying()].into_iter().flatten() {
        for part in 1..4 {
            let place = Place::new();
            let _ = place.unpack(archive.get(..archive.len() * part / 4).unwrap_or_default());
            place.assert_untouched(name);
        }
    }
}

#[test]
fn a_bomb_is_bounded_by_what_it_is_made_of() {
    // Zeros compress to next to nothing by zstd, whatever their number.
    let bytes = 6u64 << 30;
    let mut file = tempfile::tempfile().unwrap();
    let mut encoder =
        airlock_files::layers::compression::Encoder::new(&mut file, Compression::Zstd, 1).unwrap();
    let head = Archive::new().piece(Piece { name: b"zeros", size: Some(bytes), ..Piece::default() });
    io::Write::write_all(&mut encoder, &head.0).unwrap();
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        io::Write::write_all(&mut encoder, &zeros).unwrap();
    }
    encoder.finish().unwrap();
    let place = Place::new();
    let open = |name: &str| File::open(place.outside.path().join(name)).unwrap();
    let (tree, trash) = (open("tree"), open("trash"));

    let outcome = unpack(&file, &Digest::of(b""), (tree.as_fd(), trash.as_fd()), Owners::One, &mut |_| {});

    let said = chain(&outcome.unwrap_err());
    assert!(said.contains("it holds more than it may"), "{said}");
    place.assert_untouched("a bomb");
}
