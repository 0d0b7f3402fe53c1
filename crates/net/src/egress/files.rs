//! What the host's own files say about names: `/etc/resolv.conf` and `/etc/hosts`. Pure, and lenient as the C library is:
//! a line that makes no sense is passed over.

use std::net::{IpAddr, SocketAddr};

/// Name servers that are asked; the C library looks at three.
const MOST_SERVERS: usize = 3;
/// Addresses taken of one name.
const MOST_ADDRESSES: usize = 32;
/// Where a name server listens.
const PORT: u16 = 53;

/// The name servers of a `resolv.conf`, in order; the host itself where it names none (resolv.conf(5)). Search lists and
/// `ndots` are not looked at: names are absolute here.
pub(super) fn servers(text: &str) -> Vec<SocketAddr> {
    let mut found: Vec<_> = text.lines().filter_map(server).take(MOST_SERVERS).collect();
    if found.is_empty() {
        found.push(SocketAddr::from(([127, 0, 0, 1], PORT)));
    }
    found
}

fn server(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("nameserver") {
        return None;
    }
    let address: IpAddr = words.next()?.parse().ok()?;
    Some(SocketAddr::new(address, PORT))
}

/// The addresses that a `hosts` file gives `name`, in its order.
pub(super) fn addresses(text: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        let named = words.any(|word| word.strip_suffix('.').unwrap_or(word).eq_ignore_ascii_case(name));
        if named && !found.contains(&address) && found.len() < MOST_ADDRESSES {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_three_name_servers_are_asked() {
        let text = "# ours\nsearch corp.example\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 # x\nnameserver oops\noptions ndots:5\n\
                    nameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let found: Vec<_> = servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.2:53"]);
    }

    #[test]
    fn a_file_without_name_servers_means_this_host() {
        assert_eq!(servers("search example\n"), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[test]
    fn hosts_names_are_found_in_any_case_and_in_order() {
        let text = "127.0.0.1 localhost\n192.0.2.9\tGit.Example git # git.other\n2001:db8::9 git.example.\nbad git.example\n192.0.2.9 git.example\n";
        assert_eq!(addresses(text, "git.example"), parsed(&["192.0.2.9", "2001:db8::9"]));
        assert_eq!(addresses(text, "git.other"), parsed(&[]));
        assert_eq!(addresses(text, "192.0.2.9"), parsed(&[]));
    }
}
