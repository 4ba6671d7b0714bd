//! The `Host` header and the authority of an absolute URI.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Entry of the operator's list that stands for all hosts.
const ANY: &str = "*";
/// Name of this machine in local requests, which no name server resolves.
const LOCALHOST: &str = "localhost";

/// A host that the operator lists: a name in lower case without a port, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<HostName, Self::Err> {
        match text == ANY || (is_host(text) && name(text) == text) {
            true => Ok(HostName(text.to_ascii_lowercase())),
            false => Err("must be a host name without a port, or *"),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hosts that requests may name in `Host`.
///
/// Protection against DNS rebinding: a page whose name was made to point at this machine can send
/// requests to this server from a local browser, but `Host` still has the page's name. Addresses
/// are always allowed, since a page cannot choose where an address leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    #[default]
    Any,
    Named(Vec<HostName>),
}

impl Hosts {
    /// Hosts that the operator `listed`, and localhost. With an empty list, a server that only this
    /// machine can reach allows localhost alone, and any other server all names.
    pub fn of(listed: &[HostName], bound: Option<IpAddr>) -> Hosts {
        let local = bound.is_some_and(|address| address.is_loopback());
        let any = listed.iter().any(|host| host.0 == ANY);
        if any || (listed.is_empty() && !local) {
            return Hosts::Any;
        }
        let own = HostName(LOCALHOST.to_string());
        Hosts::Named(listed.iter().cloned().chain([own]).collect())
    }

    /// Whether a request may name `host`, which is well-formed.
    pub fn allow(&self, host: &str) -> bool {
        let Hosts::Named(names) = self else {
            return true;
        };
        let name = name(host);
        let is_address = name.starts_with('[') || name.parse::<IpAddr>().is_ok();
        // A name may end with a dot, for the root of the domain name system.
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut names = names.iter();
        is_address || names.any(|listed| name.eq_ignore_ascii_case(&listed.0))
    }
}

/// Name in a well-formed host, without the port.
fn name(host: &str) -> &str {
    match host.split_once(']') {
        Some((address, _)) => &host[..=address.len()],
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Checks that a request names one well-formed host, and no other host in its URI.
///
/// # Errors
/// A sentence fit for the client.
pub fn check(hosts: &[&[u8]], required: bool, authority: Option<&str>) -> Result<(), String> {
    let host = match hosts {
        [] if required => return Err("the Host header is missing".to_string()),
        [] => return Ok(()),
        [host] => *host,
        _ => return Err("there is more than one Host header".to_string()),
    };
    let text = std::str::from_utf8(host).ok().filter(|host| is_host(host));
    let text = text.ok_or("the Host header must be a host name, and perhaps a port")?;
    match authority {
        Some(authority) if !authority.eq_ignore_ascii_case(text) => {
            Err("the URI and the Host header name different hosts".to_string())
        }
        _ => Ok(()),
    }
}

/// Whether a text has the form `name[:port]`, `a.b.c.d[:port]` or `[v6][:port]`.
pub fn is_host(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        return address.parse::<Ipv6Addr>().is_ok() && is_port_suffix(port);
    }
    let name = text.split(':').next().unwrap_or_default();
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.is_empty() && name.bytes().all(legal) && is_port_suffix(&text[name.len()..])
}

fn is_port_suffix(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else {
        return text.is_empty();
    };
    port.is_empty()
        || (port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listed: &[&str], bound: &str) -> Hosts {
        let listed: Vec<HostName> = listed.iter().map(|text| text.parse().unwrap()).collect();
        Hosts::of(&listed, bound.parse().ok())
    }

    #[test]
    fn a_server_for_this_machine_answers_to_its_own_names() {
        for bound in ["127.0.0.1", "::1"] {
            let hosts = hosts(&[], bound);
            for host in [
                "localhost",
                "LOCALHOST.:8000",
                "127.0.0.1:8000",
                "[::1]:8000",
            ] {
                assert!(hosts.allow(host), "{host}");
            }
            for host in [
                "evil.example",
                "localhost.evil",
                "127.0.0.1.evil:80",
                "1.2.3.4.x",
            ] {
                assert!(!hosts.allow(host), "{host}");
            }
        }
    }

    #[test]
    fn listed_hosts_are_answered_beside_those() {
        let hosts = hosts(&["Spark.local", "chat.example"], "0.0.0.0");
        for host in [
            "spark.local:8000",
            "CHAT.example",
            "localhost",
            "192.168.0.7:8000",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        assert!(!hosts.allow("evil.example"));
    }

    #[test]
    fn a_server_for_others_answers_to_all_unless_hosts_are_listed() {
        assert_eq!(hosts(&[], "0.0.0.0"), Hosts::Any);
        assert_eq!(hosts(&[], "no address, a socket"), Hosts::Any);
        assert_eq!(hosts(&["a", "*"], "127.0.0.1"), Hosts::Any);
        for text in ["", "a:80", "a b", "https://a", "*.a", "[::1]:80"] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
        assert!("[::1]".parse::<HostName>().is_ok());
    }

    #[test]
    fn usual_hosts_pass() {
        for host in [
            "localhost",
            "127.0.0.1:8000",
            "[::1]:8000",
            "spark-1.local",
            "a_b:80",
            "a:",
        ] {
            assert_eq!(check(&[host.as_bytes()], true, None), Ok(()), "{host}");
        }
    }

    #[test]
    fn malformed_hosts_are_refused() {
        for host in [
            "", "a/?x=", "a b", "a@b", "a:b", "a:99999", "[::1", "[x]", "a,b", "::1", ":80",
        ] {
            assert!(check(&[host.as_bytes()], true, None).is_err(), "{host}");
        }
        assert!(check(&[b"\xff"], true, None).is_err());
    }

    #[test]
    fn there_is_exactly_one_host_where_required() {
        assert!(check(&[], true, None).is_err());
        assert_eq!(check(&[], false, None), Ok(()));
        assert!(check(&[b"a", b"a"], false, None).is_err());
    }

    #[test]
    fn an_absolute_uri_names_the_same_host() {
        assert_eq!(check(&[b"A:80"], true, Some("a:80")), Ok(()));
        assert!(check(&[b"a"], true, Some("b")).is_err());
        assert!(check(&[b"a"], true, Some("user@a")).is_err());
    }
}
