//! The chat page, one file inside the binary, and headers that isolate it from other pages.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// The style of the page.
const STYLE: &str = include_str!("page.css");

/// Script of the page. Each file is about one idea and uses only files before it.
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

/// The page: markup that contains the style and the script.
pub static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page.html")
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script>{SCRIPT}</script>"))
});

/// Content security policy: only the page's own script and style run, and requests go only to the
/// page's own server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(SCRIPT),
        digest(STYLE)
    )
});

/// SHA-256 of `text` in the form of a content security policy.
fn digest(text: &str) -> String {
    base64::encode(Sha256::digest(text))
}

/// Headers of the page, which isolate it from other pages.
pub fn headers() -> [(&'static str, &'static str); 6] {
    [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", &POLICY),
        ("cache-control", "no-cache"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ]
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
        assert!(POLICY.starts_with("default-src 'none'; script-src 'sha256-"));
        assert!(!POLICY.contains("unsafe"));
    }
}
