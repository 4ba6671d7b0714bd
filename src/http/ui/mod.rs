//! `GET /`: a chat on one page that is part of the binary, and headers that keep it alone.

use std::sync::LazyLock;

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use sha2::{Digest, Sha256};

/// The style of the page.
const STYLE: &str = include_str!("page.css");

/// The script of the page: each file is one idea and uses those ahead of it, and `main` all.
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("dom.js"),
    include_str!("formula.js"),
    include_str!("inline.js"),
    include_str!("colours.js"),
    include_str!("blocks.js"),
    include_str!("server.js"),
    include_str!("store.js"),
    include_str!("files.js"),
    include_str!("conversation.js"),
    include_str!("settings.js"),
    include_str!("reply.js"),
    include_str!("view.js"),
    include_str!("gauge.js"),
    include_str!("chats.js"),
    include_str!("main.js"),
);

/// The page: markup, and in it the one style and the one script.
pub static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page.html")
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"))
});

/// Nothing may run or load but what the page itself holds; it speaks to its own server only.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(SCRIPT),
        digest(STYLE)
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
        for (tag, inside) in [("script", SCRIPT), ("style", STYLE)] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert!(PAGE.contains(&format!("<{tag}>{inside}</{tag}>")), "{tag}");
        }
        // Neither runs under the policy.
        assert!(!PAGE.contains(" style=") && !PAGE.contains(" onclick="));
        let policy = POLICY.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"));
        assert!(!policy.contains("unsafe"));
    }
}
