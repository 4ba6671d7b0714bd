//! `GET /`: a chat on one page that is part of the binary, and headers that keep it alone.

use std::sync::LazyLock;

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use sha2::{Digest, Sha256};

/// The page: markup, one style, one script.
pub const PAGE: &str = include_str!("page.html");

/// Nothing may run or load but what the page itself holds; it speaks to its own server only.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(inside("script")),
        digest(inside("style"))
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Headers of the page.
pub fn headers(headers: &mut HeaderMap) {
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(CONTENT_TYPE, html);
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
}

/// What stands between the page's one `<tag>` and its end.
fn inside(tag: &str) -> &'static str {
    let (opening, closing) = (format!("<{tag}>"), format!("</{tag}>"));
    let rest = PAGE.split_once(&opening).map_or("", |(_, rest)| rest);
    rest.split_once(&closing).map_or("", |(inside, _)| inside)
}

/// The SHA-256 of `text` as a policy names it: in base 64.
fn digest(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for bytes in Sha256::digest(text.as_bytes()).chunks(3) {
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            let padding = digit > bytes.len();
            encoded.push(if padding {
                '='
            } else {
                char::from(DIGITS[index as usize])
            });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_in_base_64() {
        let empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        assert_eq!(digest(""), empty);
    }

    #[test]
    fn the_page_names_no_outside_origin() {
        for scheme in ["http:", "https:", "ws:", "wss:", "//cdn", "@import", "url("] {
            assert!(!PAGE.contains(scheme), "{scheme}");
        }
        let sources = PAGE.matches("src=").count() + PAGE.matches("href=").count();
        assert_eq!(sources, PAGE.matches("href=\"data:,\"").count());
    }

    #[test]
    fn the_policy_covers_one_script_and_one_style() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert!(inside(tag).len() > 1000, "{tag}");
        }
        // Neither runs under the policy.
        assert!(!PAGE.contains(" style=") && !PAGE.contains(" onclick="));
        let policy = POLICY.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"));
        assert!(!policy.contains("unsafe"));
    }
}
