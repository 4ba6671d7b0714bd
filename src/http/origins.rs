//! Which web pages may use the server: cross-origin resource sharing, as the Fetch standard has it.
//!
//! A browser names the origin of the page that asks. Pages of this server always may; others only
//! where the operator lists them, or else any page that somebody looks at could use the model.

use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use super::error::ApiError;
use super::host;

/// Stands for all origins.
const ANY: &str = "*";
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
/// Headers of answers that pages may read beside the usual ones.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, request-id, retry-after");
/// How long a browser may remember an answer to a preflight, in seconds.
const PREFLIGHT_AGE_S: u64 = 600;

/// An origin that the operator lists: `scheme://host[:port]` in lower case, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl FromStr for Origin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Origin, Self::Err> {
        let parts = text.split_once("://");
        let fits = parts.is_some_and(|(scheme, authority)| {
            let letters = scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            !scheme.is_empty() && letters && host::is_host(authority)
        });
        match fits || text == ANY {
            true => Ok(Origin(text.to_ascii_lowercase())),
            false => Err("must be scheme://host[:port] without a path, or *"),
        }
    }
}

/// Whether `request` is a browser's question if it may send another.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Refuses what comes from a page that is neither listed nor of this server.
///
/// # Errors
/// 403 with the flag that would allow it.
pub fn check(listed: &[Origin], headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    if is_listed(listed, origin) || is_own(origin, headers.get(HOST)) {
        return Ok(());
    }
    let shown: String = String::from_utf8_lossy(origin.as_bytes())
        .chars()
        .take(64)
        .collect();
    let message = format!(
        "pages of the origin {shown:?} may not use this server; it can be started with \
         --allow-origin {shown}"
    );
    Err(ApiError {
        code: Some("origin_not_allowed"),
        ..ApiError::new(StatusCode::FORBIDDEN, message)
    })
}

/// Whether a page of another server asks, listed or not.
pub fn is_foreign(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN);
    origin.is_some_and(|origin| !is_own(origin, headers.get(HOST)))
}

fn is_listed(listed: &[Origin], origin: &HeaderValue) -> bool {
    let named = |allowed: &Origin| {
        allowed.0 == ANY || origin.as_bytes().eq_ignore_ascii_case(allowed.0.as_bytes())
    };
    listed.iter().any(named)
}

/// Whether the page came from the host that it asks now. The scheme does not count: another server
/// may speak TLS in front of this one.
fn is_own(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
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

/// Tells the browser that the page may read the answer, where the origin is listed.
pub fn grant(listed: &[Origin], origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
    if listed.is_empty() {
        return;
    }
    // A cache must not give one page the answer that another got.
    answer.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin.filter(|origin| is_listed(listed, origin)) {
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

/// What the answer to a preflight adds: any header may be sent, for none of them is trusted.
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
