//! Seals for reasoning that a client keeps without reading it: closed on the way out, opened when
//! the reasoning comes back in a later turn. Sealed text opens for its owner alone, on servers that
//! were started with the same API keys, or without keys on this server until it ends.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use super::keys::{KeyId, Keys};
use super::limits::SEALED_BYTES_MAX;

/// Prefix of text that this server sealed.
const MARK: &str = "atlas:";
/// Prefix of hashed data, for digests that differ from other modules' digests of the same inputs.
const PURPOSE: &[u8] = b"atlas sealed reasoning";
const NONCE_BYTES: usize = 24;

/// The seal of a server for one owner's requests.
#[derive(Clone)]
pub struct Seal {
    secret: Arc<[u8; 32]>,
    owner: Option<KeyId>,
}

impl Seal {
    /// Seal of a server that was started with `keys`; a random secret without keys.
    pub fn new(keys: Option<&Keys>) -> Seal {
        let secret = match keys {
            Some(keys) => keys.secret(PURPOSE),
            None => host::random(),
        };
        Seal {
            secret: Arc::new(secret),
            owner: None,
        }
    }

    /// The seal for requests of `owner`.
    pub fn of(&self, owner: Option<KeyId>) -> Seal {
        Seal {
            secret: self.secret.clone(),
            owner,
        }
    }

    /// Sealed form of `text`, the same each time; empty beyond [`SEALED_BYTES_MAX`] of text.
    pub fn close(&self, text: &str) -> String {
        if text.len() > SEALED_BYTES_MAX {
            return String::new();
        }
        let nonce = self.nonce(text);
        let sealed = self.cipher().encrypt(&nonce, self.payload(text.as_bytes()));
        // The cipher fails only on texts far longer than the limit.
        let sealed = sealed.map(|sealed| [&nonce[..], &sealed].concat());
        sealed.map_or(String::new(), |sealed| {
            MARK.to_string() + &base64::encode(sealed)
        })
    }

    /// Text that this seal closed; None for other texts.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let bytes = base64::decode(sealed.strip_prefix(MARK)?).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let nonce = XNonce::from(*nonce);
        let text = self.cipher().decrypt(&nonce, self.payload(sealed));
        String::from_utf8(text.ok()?).ok()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(self.secret.as_ref().into())
    }

    /// Nonce derived from the text, so that no two texts share one.
    fn nonce(&self, text: &str) -> XNonce {
        let digest = Sha256::new()
            .chain_update(PURPOSE)
            .chain_update(self.secret.as_ref())
            .chain_update(self.owner())
            .chain_update(text)
            .finalize();
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&digest[..NONCE_BYTES]);
        nonce.into()
    }

    fn payload<'p>(&'p self, msg: &'p [u8]) -> Payload<'p, 'p> {
        let aad = self.owner();
        Payload { msg, aad }
    }

    fn owner(&self) -> &[u8] {
        self.owner.as_ref().map_or(&[], KeyId::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(key: &str) -> Option<KeyId> {
        Some(KeyId::of(key.as_bytes()))
    }

    #[test]
    fn what_was_sealed_opens_again() {
        let seal = Seal::new(None);
        for text in ["", "why\n", "é🦀"] {
            let sealed = seal.close(text);
            assert!(text.is_empty() || !sealed.contains(text));
            assert_eq!(seal.open(&sealed).as_deref(), Some(text));
            assert_eq!(seal.close(text), sealed);
        }
    }

    #[test]
    fn what_another_sealed_or_someone_changed_stays_closed() {
        let seal = Seal::new(None).of(owner("a"));
        let sealed = seal.close("why");
        assert_eq!(Seal::new(None).of(owner("a")).open(&sealed), None);
        for other in [None, owner("b")] {
            assert_eq!(seal.of(other).open(&sealed), None);
        }
        let bytes = base64::decode(&sealed[MARK.len()..]).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = MARK.to_string() + &base64::encode(changed);
            assert_eq!(seal.open(&changed), None, "byte {at}");
        }
        for odd in ["", "atlas", "atlas:", "atlas:AAAA", "atlas:*", "ErUB"] {
            assert_eq!(seal.open(odd), None);
        }
    }

    #[test]
    fn the_length_is_bounded() {
        let seal = Seal::new(None);
        let longest = "a".repeat(SEALED_BYTES_MAX);
        assert_eq!(seal.open(&seal.close(&longest)), Some(longest.clone()));
        assert_eq!(seal.close(&(longest + "a")), "");
    }
}
