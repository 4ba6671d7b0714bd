//! Web pages that may use the server: cross-origin resource sharing of the Fetch standard.
//!
//! A browser names the origin of the page that sends a request. Pages of this server may always use
//! it; others only if the operator lists them, or any page that a user visits could use it.

use std::fmt;
use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use super::error::ApiError;
use super::hosts;

/// Characters of a header's value that are repeated to the client.
const SHOWN_CHARS: usize = 64;
/// Wildcard for all origins.
const ANY: &str = "*";
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
/// Headers of responses that pages may read beside the usual ones.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, request-id, retry-after");
/// Header in which a browser states whether page and target share an origin; no page can set it.
/// Browsers send it only to origins whose names nobody can take over: by TLS, or to this machine.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SAME_ORIGIN: &str = "same-origin";
/// Seconds for which a browser may cache an answer to a preflight.
const PREFLIGHT_AGE_S: u64 = 600;

/// An origin that the operator lists: `scheme://host[:port]` in lower case, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl FromStr for Origin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Origin, Self::Err> {
        let parts = text.split_once("://");
        let fits = parts.is_some_and(|(scheme, authority)| {
            let mut bytes = scheme.bytes();
            let letters = bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            !scheme.is_empty() && letters && hosts::is_host(authority)
        });
        match fits || text == ANY {
            true => Ok(Origin(text.to_ascii_lowercase())),
            false => Err("must be scheme://host[:port] without a path, or *"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a request is a preflight, by which a browser asks if a page may send a request.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Refuses requests of pages that are neither listed nor of this server.
///
/// # Errors
/// 403 with the proxy setting, or the flag, that would allow the page.
pub fn check(listed: &[Origin], headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    if is_listed(listed, origin) || is_own(origin, headers) {
        return Ok(());
    }
    let shown = shown(origin);
    let host = headers.get(HOST).map(self::shown).unwrap_or_default();
    let message = format!(
        "pages of the origin {shown:?} may not use this server, which was asked for {host:?}: if a \
         proxy in front gave it that name, let it pass the client's on (nginx: proxy_set_header \
         Host $http_host;), or else start the server with --allow-origin {shown}"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, message).coded("origin_not_allowed"))
}

/// Whether a page of another server sent the request, listed or not.
pub fn is_foreign(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN);
    origin.is_some_and(|origin| !is_own(origin, headers))
}

/// Start of a header's value, to be shown in a message.
fn shown(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.chars().take(SHOWN_CHARS).collect()
}

fn is_listed(listed: &[Origin], origin: &HeaderValue) -> bool {
    let named = |allowed: &Origin| {
        allowed.0 == ANY || origin.as_bytes().eq_ignore_ascii_case(allowed.0.as_bytes())
    };
    listed.iter().any(named)
}

/// Whether the page came from this server: the browser states it, or origin and `Host` have the
/// same host. The statement counts since a proxy may have replaced `Host`.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let vouched = headers.get(SEC_FETCH_SITE);
    vouched.is_some_and(|site| site == SAME_ORIGIN) || is_of(origin, headers.get(HOST))
}

/// Whether `origin` has the host `host`. The scheme does not count: a proxy may speak TLS.
fn is_of(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let text = |value: &HeaderValue| value.to_str().map(str::to_ascii_lowercase).ok();
    let (Some(origin), Some(host)) = (text(origin), host.and_then(text)) else {
        return false;
    };
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    let port = if scheme == "https" { ":443" } else { ":80" };
    authority == host.strip_suffix(port).unwrap_or(&host)
}

/// Lets the page read the answer, if its origin is listed.
pub fn grant(listed: &[Origin], origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
    if listed.is_empty() {
        return;
    }
    // A cache must not give one page the answer for another.
    answer.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin.filter(|origin| is_listed(listed, origin)) {
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

/// Headers that the answer to a preflight adds: pages may send any header, since none is trusted.
pub fn grant_preflight(asked: &HeaderMap, answer: &mut HeaderMap) {
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    if let Some(headers) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, headers.clone());
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_AGE_S));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(origin: &str, host: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        headers
    }

    fn allows(listed: &[&str], origin: &str, host: &str) -> bool {
        let listed: Vec<Origin> = listed.iter().map(|text| text.parse().unwrap()).collect();
        check(&listed, &headers(origin, host)).is_ok()
    }

    #[test]
    fn origins_are_listed_without_a_path() {
        for text in [
            "*",
            "https://Chat.example",
            "http://[::1]:3000",
            "app-x://localhost",
        ] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in [
            "",
            "chat.example",
            "https://a/",
            "https://a/b",
            "://a",
            "null",
            "https://",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_of_the_server_itself_may_use_it() {
        for (origin, host) in [
            ("http://localhost:8000", "LOCALHOST:8000"),
            ("https://chat.example", "chat.example"),
            ("https://chat.example", "chat.example:443"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert!(allows(&[], origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("http://localhost:3000", "localhost:8000"),
            ("https://evil.example", "localhost:8000"),
            ("http://a", "a:443"),
            ("null", "localhost"),
            ("", ""),
        ] {
            assert!(!allows(&[], origin, host), "{origin} {host}");
        }
        assert!(check(&[], &HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_browser_vouches_for_a_page_behind_a_proxy_that_renames_the_host() {
        let mut headers = headers("https://chat.example", "127.0.0.1:8000");
        let refused = check(&[], &headers).unwrap_err();
        for mended_by in [
            "proxy_set_header Host $http_host;",
            "--allow-origin https://chat",
        ] {
            assert!(refused.message.contains(mended_by), "{}", refused.message);
        }
        for (site, own) in [("same-origin", true), ("same-site", false), ("none", false)] {
            headers.insert(SEC_FETCH_SITE, HeaderValue::from_static(site));
            assert_eq!(check(&[], &headers).is_ok(), own, "{site}");
            assert_eq!(is_foreign(&headers), !own, "{site}");
        }
    }

    #[test]
    fn other_pages_are_listed_or_refused() {
        let listed = ["https://chat.example", "http://localhost:3000"];
        assert!(allows(&listed, "https://Chat.Example", "127.0.0.1:8000"));
        for origin in [
            "http://chat.example",
            "https://chat.example:444",
            "https://chat.example.evil",
            "https://evil.chat.example",
            "null",
        ] {
            assert!(!allows(&listed, origin, "127.0.0.1:8000"), "{origin}");
        }
        assert!(allows(&["*"], "null", "127.0.0.1:8000"));
    }
}
