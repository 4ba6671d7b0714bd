//! The `Host` header and the authority of an absolute URI.

use std::net::Ipv6Addr;

/// Checks that a request names one well-formed host, and the same in its URI if that names one.
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

/// `name[:port]`, `a.b.c.d[:port]` or `[v6][:port]`.
fn is_host(text: &str) -> bool {
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
