//! Error bodies for heads that the HTTP library refuses.
//!
//! The library answers an invalid head with a bare status before any route sees the request. This
//! server's own errors always have a body, so a 4xx without content is the library's.

use serde_json::json;

/// Start of the library's refusals, up to the class of the status.
const START: &[u8] = b"HTTP/1.1 4";
const NO_CONTENT: &str = "content-length: 0\r\n";
const END: &str = "\r\n\r\n";

/// Status instead of 400 for a client that speaks HTTP/2 without negotiation.
const HTTP_2_STATUS: &str = "505 HTTP Version Not Supported";

/// The library's refusal with an error object as its body; None if `bytes` are another answer. A
/// client that speaks HTTP/2 gets `HTTP_2_STATUS`.
pub fn with_body(bytes: &[u8], is_http_2: bool) -> Option<Vec<u8>> {
    let head = bytes.starts_with(START).then(|| str::from_utf8(bytes))?;
    let (line, headers) = head.ok()?.strip_suffix("\r\n")?.split_once("\r\n")?;
    let is_whole = headers.ends_with("\r\n") && !headers.contains(END);
    if !is_whole || !headers.contains(NO_CONTENT) {
        return None;
    }
    let (version, own) = line.split_once(' ')?;
    let status = if is_http_2 { HTTP_2_STATUS } else { own };
    let error = json!({"error": {
        "message": message(status.split(' ').next()?),
        "type": "invalid_request_error",
        "param": null,
        "code": null,
    }});
    let body = error.to_string();
    let bytes = body.len();
    let content = format!("content-type: application/json\r\ncontent-length: {bytes}\r\n");
    let headers = headers.replacen(NO_CONTENT, &content, 1);
    Some(format!("{version} {status}\r\n{headers}\r\n{body}").into_bytes())
}

fn message(status: &str) -> &'static str {
    match status {
        "414" => "the URI is too long",
        "505" => {
            "HTTP/2 is not served: speak HTTP/1.1 (curl: --http1.1; in a proxy: HTTP/1.1 to the \
             upstream)"
        }
        "431" => "the head has too many headers, or more bytes than are read",
        _ => {
            "the head is not valid HTTP, or two readers could understand it differently: check \
             line ends, header names, Content-Length and Transfer-Encoding"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
        date: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n";

    #[test]
    fn a_bare_refusal_gets_an_error_of_its_length() {
        let text = String::from_utf8(with_body(BARE.as_bytes(), false).unwrap()).unwrap();
        let (head, body) = text.split_once(END).unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
        assert!(head.contains("connection: close") && head.ends_with("GMT"));
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("head"));
    }

    #[test]
    fn http_2_is_refused_by_its_version() {
        let text = String::from_utf8(with_body(BARE.as_bytes(), true).unwrap()).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 505 HTTP Version Not Supported\r\n"),
            "{text}"
        );
        assert!(
            text.contains("connection: close") && text.contains("--http1.1"),
            "{text}"
        );
    }

    #[test]
    fn other_answers_pass_as_they_are() {
        let sized = BARE.replace("content-length: 0", "content-length: 2") + "{}";
        let good = BARE.replace("400 Bad Request", "200 OK");
        let half = BARE.trim_end();
        for bytes in [sized.as_str(), &good, half, "", "data: HTTP/1.1 400"] {
            assert!(with_body(bytes.as_bytes(), false).is_none(), "{bytes}");
        }
    }
}
