//! Texts of single flags, parsed: sizes, times, mounts, variables. Pure.

use super::run::Network;
use airlock_protocol::{
    Name,
    files::VolumeUse,
    size as sizes,
    spec::{Disk, DiskBy, Monitor, Mount, Publish, Restart, Tmpfs},
};
use std::{
    net::{IpAddr, Ipv4Addr},
    path::{Component, Path, PathBuf},
    time::Duration,
};

/// A variable as a person names it: with a value, or to be taken from this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnvWord {
    /// `NAME=VALUE`
    Set(String, String),
    /// `NAME`
    FromHost(String),
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    match sizes::parse(text) {
        Ok(0) => Err("a limit of nothing leaves nothing to run with".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(err) => Err(err.to_string()),
    }
}

/// `90`, `90s`, `1.5m`, `5m`, `1h`, `2d`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("{text:?} is not a time: write seconds, or a number with ms, s, m, h or d such as 5m");
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(invalid()),
    };
    decimal(number, millis).map(Duration::from_millis).ok_or_else(invalid)
}

/// `1.5` CPUs are 1500 thousandths.
pub(crate) fn cpus(text: &str) -> Result<u64, String> {
    match decimal(text, 1000) {
        Some(millis) if millis >= 10 => Ok(millis),
        _ => Err(format!("{text:?} is not a number of CPUs: write 2, 0.5 or 1.5 (at least 0.01)")),
    }
}

/// `SIZE`, `SIZE,tmpfs` or `SIZE,watched`.
pub(crate) fn disk(text: &str) -> Result<Disk, String> {
    let (amount, how) = text.split_once(',').map_or((text, None), |(amount, how)| (amount, Some(how)));
    let by = match how {
        None => DiskBy::Kernel,
        Some("tmpfs") => DiskBy::Tmpfs,
        Some("watched") => DiskBy::Watched,
        Some(other) => return Err(format!("{other:?} is no way to bound a disk: write ,tmpfs or ,watched")),
    };
    Ok(Disk { bytes: size(amount)?, by })
}

/// `no`, `on-failure`, `on-failure:5`, `always`.
pub(crate) fn restart(text: &str) -> Result<Restart, String> {
    match text {
        "no" => return Ok(Restart::No),
        "always" => return Ok(Restart::Always),
        "on-failure" => return Ok(Restart::OnFailure { max: None }),
        _ => {}
    }
    let most = text.strip_prefix("on-failure:").and_then(|most| most.parse().ok());
    most.map(|most| Restart::OnFailure { max: Some(most) })
        .ok_or_else(|| "write no, on-failure, on-failure:N or always".to_owned())
}

/// `SRC:DST`, `SRC:DST:ro`, `SRC:DST:rw`. A relative source is meant from the current directory.
pub(crate) fn mount(text: &str) -> Result<Mount, String> {
    let mut parts = text.split(':');
    let (Some(source), Some(target), mode, None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("write SRC:DST or SRC:DST:ro".to_owned());
    };
    let read_only = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(other) => return Err(format!("{other:?} is neither ro nor rw")),
    };
    if source.is_empty() {
        return Err("the source is empty".to_owned());
    }
    // Where links in it lead is looked at by `mounts`.
    let source = std::path::absolute(source).map_err(|err| err.to_string())?;
    Ok(Mount { source, target: inside(target)?, read_only })
}

/// `NAME:DIR`, `NAME:DIR:ro`, `NAME:DIR:rw`.
pub(crate) fn volume(text: &str) -> Result<VolumeUse, String> {
    let mut parts = text.split(':');
    let (Some(name), Some(target), mode, None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("write NAME:DIR or NAME:DIR:ro".to_owned());
    };
    if name.starts_with(['/', '.', '~']) {
        return Err(format!("{name:?} is a path of this host: show it with --mount {text}"));
    }
    let read_only = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(other) => return Err(format!("{other:?} is neither ro nor rw")),
    };
    let volume = volume_name(name)?.to_string();
    Ok(VolumeUse { volume, target: inside_or_home(target)?, read_only, project: None })
}

/// What a volume may be called.
pub(crate) fn volume_name(text: &str) -> Result<Name, String> {
    let rule = "a letter or digit, then letters, digits, '-', '_' and '.', at most 63 characters";
    text.parse().map_err(|_| format!("{text:?} is not a volume's name: {rule}"))
}

/// `KEY=VALUE` or `KEY`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match key.is_empty() || text.chars().any(char::is_control) {
        true => Err(format!("{text:?} is not KEY=VALUE")),
        false => Ok((key.to_owned(), value.to_owned())),
    }
}

/// An absolute path inside, or `~/DIR` below the home there.
pub(crate) fn inside_or_home(target: &str) -> Result<PathBuf, String> {
    let Some(below) = target.strip_prefix("~/") else { return inside(target) };
    match inside(&format!("/{below}")) {
        Ok(path) => Ok(Path::new("~").join(path.strip_prefix("/").unwrap_or(&path))),
        Err(_) => Err(format!("{target:?} is not a directory below the home inside")),
    }
}

/// `DIR` or `DIR:SIZE`, also `DIR:size=SIZE`.
pub(crate) fn tmpfs(text: &str) -> Result<Tmpfs, String> {
    let (target, bound) = text.split_once(':').map_or((text, None), |(target, bound)| (target, Some(bound)));
    let bytes = bound.map(|bound| size(bound.strip_prefix("size=").unwrap_or(bound))).transpose()?;
    Ok(Tmpfs { target: inside(target)?, size: bytes })
}

/// `PORT`, `PORT:INSIDE`, `ADDR:PORT` or `ADDR:PORT:INSIDE`; an IPv6 address stands in brackets. Port 0 of the host
/// takes a free one.
pub(crate) fn publish(text: &str) -> Result<Publish, String> {
    let invalid = || format!("{text:?} is not [ADDR:]PORT[:PORT], such as 8080:80 or 0.0.0.0:8080:80");
    let (address, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        Some((address, ports)) => (Some(address), ports),
        None => match text.split_once(':') {
            Some((address, ports)) if address.contains('.') => (Some(address), ports),
            _ => (None, text),
        },
    };
    let address = match address {
        Some(address) => address.parse::<IpAddr>().map_err(|_| invalid())?,
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let (port, inside) = ports.split_once(':').unwrap_or((ports, ports));
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u16>().map_err(|_| invalid()),
        false => Err(invalid()),
    };
    match (number(port)?, number(inside)?) {
        (_, 0) => Err(format!("{text:?} names no port inside: write PORT:PORT")),
        (port, inside) => Ok(Publish { address, port, inside }),
    }
}

/// `none`; `host` is refused with what serves instead.
pub(crate) fn network(text: &str) -> Result<Network, String> {
    match text {
        "none" => Ok(Network::None),
        "host" => {
            Err("a sandbox never has the host's network: name what it may reach with --allow HOST[:PORT], \
                       and what may reach it with --publish PORT"
                .to_owned())
        }
        other => Err(format!("there is no network {other:?}: write none, or --allow and --publish")),
    }
}

/// `qemu`, `firecracker`, or a path.
pub(crate) fn monitor(text: &str) -> Result<Monitor, String> {
    match Monitor::from(text.to_owned()) {
        Monitor::At(path) if path.components().count() < 2 => Err(format!(
            "there is no monitor {text:?}: write qemu, firecracker, or the path of a Firecracker"
        )),
        monitor => Ok(monitor),
    }
}

/// `NAME=VALUE` or `NAME`.
pub(crate) fn env_word(text: &str) -> Result<EnvWord, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if name.is_empty() || name.contains(char::is_whitespace) || text.contains('\0') {
        return Err(format!("{name:?} is not a variable's name"));
    }
    Ok(match value {
        Some(value) => EnvWord::Set(name.to_owned(), value.to_owned()),
        None => EnvWord::FromHost(name.to_owned()),
    })
}

/// A host name as RFC 1123 has it.
pub(crate) fn hostname(text: &str) -> Result<String, String> {
    let label = |label: &str| {
        let edges = [label.bytes().next(), label.bytes().next_back()];
        edges.iter().all(|edge| edge.is_some_and(|byte| byte.is_ascii_alphanumeric()))
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if text.len() <= 63 && text.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err("letters, digits, '-' and '.', at most 63 characters".to_owned())
}

/// A capability's name, with or without `CAP_`, in capitals and without it.
pub(crate) fn capability(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
        return Ok(name.to_owned());
    }
    Err(format!("{text:?} is not a capability: write a name such as SYS_PTRACE"))
}

/// A signal's name or number.
pub(crate) fn signal(text: &str) -> Result<i32, String> {
    airlock_linux::signal::parse(text)
        .ok_or_else(|| format!("{text:?} is not a signal: write TERM, HUP, 15 …"))
}

/// A time, or an age counted back from now.
pub(crate) fn since(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time);
    }
    let age = duration(text)
        .map_err(|_| format!("{text:?} is neither a time (2026-01-31T12:00:00Z) nor an age (5m)"))?;
    let age = jiff::SignedDuration::try_from(age).map_err(|err| err.to_string())?;
    jiff::Timestamp::now().checked_sub(age).map_err(|err| err.to_string())
}

pub(super) fn inside(target: &str) -> Result<PathBuf, String> {
    let path = Path::new(target);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && plain && path != Path::new("/") {
        return Ok(path.components().collect());
    }
    Err(format!("{target:?} is not an absolute path below / inside"))
}

/// A decimal number times `scale`, without floating point.
fn decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.len() > 6 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let digits: u64 = fraction.parse().ok()?;
    let parts = digits.checked_mul(scale)? / 10u64.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(scale)?.checked_add(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_carry_a_unit() {
        let millis = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(millis("90"), Ok(90_000));
        assert_eq!(millis("90s"), Ok(90_000));
        assert_eq!(millis("1.5m"), Ok(90_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        assert_eq!(millis("250ms"), Ok(250));
        for bad in ["", "s", "-1", "5x", "1.2.3", "1e3", "99999999999999999999h", "999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn cpus_are_thousandths() {
        assert_eq!(cpus("1.5"), Ok(1500));
        assert_eq!(cpus("2"), Ok(2000));
        for bad in ["0", "0.001", "-1", "", ".", "x"] {
            assert!(cpus(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_disk_names_its_size_and_how_it_is_bounded() {
        assert_eq!(disk("1G"), Ok(Disk { bytes: 1 << 30, by: DiskBy::Kernel }));
        assert_eq!(disk("64M,tmpfs"), Ok(Disk { bytes: 64 << 20, by: DiskBy::Tmpfs }));
        assert_eq!(disk("64M,watched"), Ok(Disk { bytes: 64 << 20, by: DiskBy::Watched }));
        assert!(disk("64M,quota").is_err() && disk(",tmpfs").is_err() && disk("0").is_err());
    }

    #[test]
    fn restarts_are_three_words_and_a_number() {
        assert_eq!(restart("on-failure:3"), Ok(Restart::OnFailure { max: Some(3) }));
        assert_eq!(restart("on-failure"), Ok(Restart::OnFailure { max: None }));
        assert!(restart("on-failure:").is_err() && restart("unless-stopped").is_err());
    }

    #[test]
    fn mounts_have_an_absolute_target_that_is_not_the_root() {
        let expected = Mount { source: "/srv".into(), target: "/data".into(), read_only: true };
        assert_eq!(mount("/srv:/data/:ro"), Ok(expected));
        for bad in ["/srv", "/srv:data", "/srv:/", "/srv:/a/../b", ":/a", "/a:/b:rx", "/a:/b:ro:x"] {
            assert!(mount(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_volume_has_a_name_and_a_place_inside() {
        let shown = |target: &str, read_only| {
            Ok(VolumeUse { volume: "cache".into(), target: target.into(), read_only, project: None })
        };
        assert_eq!(volume("cache:/var/cache"), shown("/var/cache", false));
        assert_eq!(volume("cache:~/.cache/:ro"), shown("~/.cache", true));
        for bad in
            ["cache", "cache:", ":/a", "./a:/b", "/a:/b", "a b:/c", "a:b", "a:/", "a:~/", "a:~", "a:/b:rx"]
        {
            assert!(volume(bad).is_err(), "{bad:?}");
        }
        assert!(volume("a:~/../b").is_err() && inside_or_home("~/a/../../b").is_err());
    }

    #[test]
    fn a_tmpfs_may_have_a_size() {
        assert_eq!(tmpfs("/scratch"), Ok(Tmpfs { target: "/scratch".into(), size: None }));
        assert_eq!(tmpfs("/scratch:64K"), Ok(Tmpfs { target: "/scratch".into(), size: Some(65_536) }));
        assert_eq!(tmpfs("/scratch:size=64K"), tmpfs("/scratch:64K"));
    }

    #[test]
    fn a_published_port_is_on_loopback_unless_an_address_is_named() {
        let published = |text| publish(text).map(|p| (p.address.to_string(), p.port, p.inside));
        let expected = |address: &str, port, inside| Ok((address.to_owned(), port, inside));
        assert_eq!(published("8080"), expected("127.0.0.1", 8080, 8080));
        assert_eq!(published("8080:80"), expected("127.0.0.1", 8080, 80));
        assert_eq!(published("0:80"), expected("127.0.0.1", 0, 80));
        assert_eq!(published("0.0.0.0:8080"), expected("0.0.0.0", 8080, 8080));
        assert_eq!(published("0.0.0.0:8080:80"), expected("0.0.0.0", 8080, 80));
        assert_eq!(published("[::1]:8080:80"), expected("::1", 8080, 80));
        for bad in
            ["", "0", "80:0", "65536", "+80", "::1:80", "1.2.3:80", "a:80", "80:80:80", "[::1]80", "8080/udp"]
        {
            assert!(publish(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_host_network_is_refused_with_what_serves_instead() {
        assert_eq!(network("none"), Ok(Network::None));
        let refusal = network("host").unwrap_err();
        assert!(refusal.contains("--allow") && refusal.contains("--publish"), "{refusal}");
        assert!(network("bridge").is_err());
    }

    #[test]
    fn variables_are_set_or_taken_from_the_host() {
        assert_eq!(env_word("A=b=c"), Ok(EnvWord::Set("A".into(), "b=c".into())));
        assert_eq!(env_word("A="), Ok(EnvWord::Set("A".into(), String::new())));
        assert_eq!(env_word("A"), Ok(EnvWord::FromHost("A".into())));
        assert!(env_word("=x").is_err() && env_word("A B=x").is_err());
    }

    #[test]
    fn capabilities_are_named_without_their_prefix() {
        assert_eq!(capability("cap_sys_ptrace"), Ok("SYS_PTRACE".into()));
        assert!(capability("sys-ptrace").is_err());
    }

    #[test]
    fn host_names_are_labels() {
        assert!(hostname("web-1.example").is_ok());
        for bad in ["", "-a", "a-", "a..b", "a_b", "a b", &"a".repeat(64)] {
            assert!(hostname(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn since_takes_a_time_or_an_age() {
        assert_eq!(since("2026-01-31T12:00:00Z").unwrap().to_string(), "2026-01-31T12:00:00Z");
        assert!(since("5m").unwrap() < jiff::Timestamp::now());
        assert!(since("yesterday").is_err());
    }
}
