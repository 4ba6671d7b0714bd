//! API keys: who may use the server.
//!
//! Keys come from a file, one a line. Only their SHA-256 digests are kept, and a presented key is
//! compared with all of them in the same time whether one matches or not.
//!
//! Programs send a key in a header of their own; a browser, which opens the chat page, asks its
//! user for a password, and sends that with all requests of the page.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::origins;
use host::operator_file;

/// Bytes of the largest key file.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Most keys in a file.
pub const KEYS_MAX: usize = 4096;
/// Shortest key: shorter ones could be guessed.
pub const KEY_BYTES_MIN: usize = 16;
/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 512;
/// Permission bits of the key file for users other than its owner and group.
const OTHERS_MODE: u32 = 0o007;
/// Scheme of `Authorization` by which programs send a key.
const BEARER: &str = "bearer";
/// Scheme of `Authorization` by which browsers send a key, as a password.
const BASIC: &str = "basic";
/// The header that Anthropic's clients send.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

type Sha256Digest = [u8; 32];

/// Identity of an API key, which owns requests and stored responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(Sha256Digest);

/// Domain of the prefix cache for this key and this salt; 0 if there is neither.
pub fn domain(key: Option<KeyId>, salt: &str) -> u128 {
    if key.is_none() && salt.is_empty() {
        return 0;
    }
    let of_key = key.map_or(Sha256Digest::default(), |key| key.0);
    let digest = Sha256::new().chain_update(of_key).chain_update(salt);
    let digest: Sha256Digest = digest.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("a digest is longer");
    u128::from_le_bytes(*first)
}

impl KeyId {
    /// Identity of `key`.
    pub fn of(key: &[u8]) -> KeyId {
        KeyId(Sha256::digest(key).into())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The keys of a file as it was when it was last read.
pub struct Keys {
    path: PathBuf,
    digests: RwLock<Arc<[Sha256Digest]>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.path.display())
    }
}

impl Keys {
    /// Reads the keys of `path`. Empty lines and lines that start with `#` are no keys.
    ///
    /// # Errors
    /// Names the file, the line and what is wrong with it; never the key.
    pub fn load(path: &Path) -> Result<Keys, String> {
        let digests = RwLock::new(read(path)?);
        let path = path.to_path_buf();
        Ok(Keys { path, digests })
    }

    /// Reads the file again and returns the number of keys; requests in flight go on.
    ///
    /// # Errors
    /// Errors of `load`; the keys then stay as they were.
    pub fn reload(&self) -> Result<usize, String> {
        let digests = read(&self.path)?;
        let count = digests.len();
        // The lock guards one assignment, which cannot leave the keys half changed.
        let known = self.digests.write();
        *known.unwrap_or_else(|poisoned| poisoned.into_inner()) = digests;
        Ok(count)
    }

    /// Secret for `purpose`, the same on all servers with these keys.
    pub fn secret(&self, purpose: &[u8]) -> [u8; 32] {
        let digest = Sha256::new().chain_update(purpose);
        let keys = self.current();
        let keys = keys.iter();
        let digest = keys.fold(digest, |digest, key| digest.chain_update(key));
        digest.finalize().into()
    }

    /// Number of keys that the server accepts.
    pub fn count(&self) -> usize {
        self.current().len()
    }

    /// Warning to the operator if the key file's permissions are too wide.
    pub fn warning(&self) -> Option<String> {
        let mode = fs::metadata(&self.path).ok()?.permissions().mode();
        (mode & OTHERS_MODE != 0).then(|| {
            format!(
                "{}: everyone on this machine may read or change the keys (mode {:03o}); `chmod \
                 o= {0}` closes it",
                self.path.display(),
                mode & 0o777
            )
        })
    }

    fn current(&self) -> Arc<[Sha256Digest]> {
        let digests = self.digests.read();
        let digests = digests.unwrap_or_else(|poisoned| poisoned.into_inner());
        digests.clone()
    }

    /// Finds a known key in a request's headers. Passwords do not count in requests of other
    /// servers' pages, with which browsers send them too. Of several known keys the first counts.
    ///
    /// # Errors
    /// States how a key is sent, or that the key is not known.
    pub fn check(&self, headers: &HeaderMap) -> Result<KeyId, ApiError> {
        let authorization = || headers.get_all(AUTHORIZATION).iter();
        let bearer = authorization().filter_map(|value| credentials(value, BEARER));
        let plain = headers.get_all(API_KEY).iter().map(HeaderValue::as_bytes);
        let is_own = !origins::is_foreign(headers);
        let passwords = authorization().filter(|_| is_own).filter_map(password);
        let digests = self.current();
        let (mut sent, mut known) = (false, None);
        let keys = bearer.chain(plain).map(KeyId::of);
        for key in keys.chain(passwords.map(|password| KeyId::of(&password))) {
            sent = true;
            // All digests are compared, so that the time does not show which digest matched.
            let is_known = is_known(digests.iter(), &key.0);
            known = known.or(is_known.then_some(key));
        }
        match (known, sent) {
            (Some(key), _) => Ok(key),
            (None, true) => Err(ApiError::unauthorized("the API key is not known")),
            (None, false) => Err(ApiError::unauthorized(
                "send an API key, as `Authorization: Bearer KEY` or as `x-api-key: KEY`",
            )),
        }
    }
}

/// Compares every digest, so that the time does not show which digest matches.
fn is_known<'d>(digests: impl Iterator<Item = &'d Sha256Digest>, presented: &Sha256Digest) -> bool {
    digests.fold(false, |known, digest| {
        known | are_equal(digest.iter().zip(presented))
    })
}

/// Compares every byte, so that the time does not show where the first difference is.
fn are_equal<'d>(pairs: impl Iterator<Item = (&'d u8, &'d u8)>) -> bool {
    let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
    // `black_box` keeps the compiler from ending the loop at the first difference.
    std::hint::black_box(differs) == 0
}

/// Credentials of an `Authorization` header whose scheme is `wanted`.
fn credentials<'v>(value: &'v HeaderValue, wanted: &str) -> Option<&'v [u8]> {
    let value = value.as_bytes();
    let (scheme, key) = value.split_at_checked(wanted.len())?;
    let spaces = key.iter().take_while(|byte| **byte == b' ').count();
    (scheme.eq_ignore_ascii_case(wanted.as_bytes()) && spaces > 0).then(|| &key[spaces..])
}

/// The password of `Authorization: Basic`, base64 of `name:password`, whatever the name.
fn password(value: &HeaderValue) -> Option<Vec<u8>> {
    let decoded = base64::decode(credentials(value, BASIC)?).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

fn read(path: &Path) -> Result<Arc<[Sha256Digest]>, String> {
    let fail = |problem: &dyn fmt::Display| format!("{}: {problem}", path.display());
    let text = operator_file::text(path, FILE_BYTES_MAX).map_err(|error| fail(&error))?;
    parse(&text).map_err(|problem| fail(&problem))
}

fn parse(text: &str) -> Result<Arc<[Sha256Digest]>, String> {
    let mut digests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let key = line.trim();
        if key.is_empty() || key.starts_with('#') {
            continue;
        }
        let lengths = KEY_BYTES_MIN..=KEY_BYTES_MAX;
        if !lengths.contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "line {}: a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} visible ASCII characters \
                 and no space",
                index + 1
            ));
        }
        if digests.len() == KEYS_MAX {
            return Err(format!("has more than {KEYS_MAX} keys"));
        }
        digests.push(Sha256::digest(key).into());
    }
    if digests.is_empty() {
        return Err("has no key; write one a line".to_string());
    }
    Ok(digests.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "key-0123456789abcdef";

    fn keys(text: &str) -> Keys {
        Keys {
            path: PathBuf::from("keys"),
            digests: RwLock::new(parse(text).unwrap()),
        }
    }

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn both_headers_carry_a_key() {
        let keys = keys(&format!("# mine\n\n  {KEY}  \nanother-0123456789\n"));
        assert_eq!(keys.count(), 2);
        for value in [format!("Bearer {KEY}"), format!("bearer   {KEY}")] {
            assert!(
                keys.check(&with("authorization", &value)).is_ok(),
                "{value}"
            );
        }
        assert!(keys.check(&with("x-api-key", KEY)).is_ok());
    }

    #[test]
    fn a_browser_sends_a_key_as_a_password_to_pages_of_this_server_alone() {
        let basic = |text: &str| with("authorization", &format!("Basic {}", base64::encode(text)));
        let from = |origin: &'static str| {
            let mut headers = basic(&format!("anyone:{KEY}"));
            headers.insert("host", HeaderValue::from_static("atlas:8000"));
            headers.insert("origin", HeaderValue::from_static(origin));
            headers
        };
        let keys = keys(KEY);
        for known in [format!(":{KEY}"), format!("anyone:{KEY}")] {
            assert!(keys.check(&basic(&known)).is_ok(), "{known}");
        }
        for unknown in [KEY.to_string(), format!("{KEY}:"), format!("a:b:{KEY}")] {
            assert!(keys.check(&basic(&unknown)).is_err(), "{unknown}");
        }
        assert!(keys.check(&from("http://atlas:8000")).is_ok());
        assert!(keys.check(&from("http://evil.example")).is_err());
    }

    #[test]
    fn anything_else_is_answered_with_how_to_send_one() {
        let keys = keys(KEY);
        let cases = [
            with("authorization", KEY),
            with("authorization", &format!("Basic {KEY}")),
            with("authorization", &format!("Bearer{KEY}")),
            with("authorization", "Bearer "),
            with("x-api-key", &KEY[1..]),
            with("x-api-key", &KEY.to_uppercase()),
            HeaderMap::new(),
        ];
        for headers in cases {
            let error = keys.check(&headers).unwrap_err();
            assert_eq!(error.status, hyper::StatusCode::UNAUTHORIZED, "{headers:?}");
            assert!(!error.message.contains(KEY));
        }
    }

    #[test]
    fn a_known_key_passes_beside_an_unknown_one() {
        let mut headers = with("authorization", "Bearer placeholder");
        headers.insert("x-api-key", HeaderValue::from_static(KEY));
        assert!(keys(KEY).check(&headers).is_ok());
    }

    /// Steps are counted, for time is too noisy to test.
    #[test]
    fn a_key_takes_as_many_steps_wherever_it_differs() {
        let known: Sha256Digest = Sha256::digest(KEY).into();
        for at in 0..=known.len() {
            let mut presented = known;
            if let Some(byte) = presented.get_mut(at) {
                *byte ^= 1;
            }
            let mut steps = 0;
            let pairs = known.iter().zip(&presented).inspect(|_| steps += 1);
            assert_eq!(are_equal(pairs), at == known.len(), "{at}");
            assert_eq!(steps, known.len(), "a difference at byte {at}");
        }
        let digests = [[1; 32], known, [2; 32], [3; 32]];
        for presented in digests.iter().chain(&[[4; 32]]) {
            let mut steps = 0;
            let all = digests.iter().inspect(|_| steps += 1);
            assert_eq!(is_known(all, presented), digests.contains(presented));
            assert_eq!(steps, digests.len());
        }
    }

    #[test]
    fn a_file_is_refused_by_its_line_and_never_by_its_key() {
        for (text, part) in [
            ("", "no key"),
            ("# only words\n", "no key"),
            ("ok-0123456789abcdef\nshort", "line 2"),
            ("has a space 0123456789", "line 1"),
            ("schlüssel-0123456789", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
            assert!(
                !error.contains("short") && !error.contains("0123"),
                "{error}"
            );
        }
        let long = "x".repeat(KEY_BYTES_MAX);
        assert!(parse(&long).is_ok());
        assert!(parse(&(long + "x")).is_err());
        let many = format!("{KEY}\n").repeat(KEYS_MAX);
        assert!(parse(&many).is_ok());
        assert!(parse(&(many + KEY)).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_read_again_changes_nothing() {
        let keys = keys(KEY);
        assert!(keys.reload().unwrap_err().starts_with("keys: "));
        assert!(keys.check(&with("x-api-key", KEY)).is_ok());
    }
}
