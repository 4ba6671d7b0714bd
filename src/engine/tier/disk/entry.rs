//! Entries of the disk cache. An entry has consecutive pages of a prompt prefix, and the recurrent
//! state after the last page; earlier pages of the prefix are in other entries.
//!
//! The header of an entry has the names of its blocks and an authentication tag for each piece.
//! Names and pieces are sealed with a secret that is derived from the API key: clients with another
//! key can neither find, read nor forge entries. Truncated, swapped or corrupted pieces fail to
//! open, wherever the change is, since tags also cover the rest of the header.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

use crate::prefix::{Owner, SnapshotKind};
use step::PAGE;
use step::executor::TokenId;
use step::transfer::{PIECE_ALIGN, PieceBytes};

/// Name of a block: a keyed digest of its tokens and of all earlier ones.
pub type Name = [u8; NAME_BYTES];
/// Authentication tag of a sealed piece.
pub type Tag = [u8; TAG_BYTES];
/// Digest of everything that the bits of an entry depend on: binary, manifest and weights.
pub type Identity = [u8; 32];

const MAGIC: &[u8; 8] = b"ATLASKV1";
/// Label that separates digests of this module from digests for all other purposes.
const PURPOSE: &[u8] = b"atlas prefix cache on disk";
const NAME_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
/// Bytes of a header before the blocks' names.
const FIXED_BYTES: usize = 96;
/// Largest number of pages of an entry.
pub const PAGES_MAX: usize = 1 << 20;

/// Key material of a domain, from which names and ciphers of its entries are derived.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn of(domain: u128) -> Secret {
        let digest = Sha256::new().chain_update(PURPOSE);
        Secret(digest.chain_update(domain.to_le_bytes()).finalize().into())
    }

    /// Names of the blocks of `tokens`, whole pages alone.
    pub fn names(&self, tokens: &[TokenId]) -> Vec<Name> {
        let mut name = [0; NAME_BYTES];
        let blocks = tokens.chunks_exact(PAGE).map(|tokens| {
            let mut digest = Sha256::new().chain_update(self.0).chain_update(name);
            tokens.iter().for_each(|id| digest.update(id.to_le_bytes()));
            name.copy_from_slice(&digest.finalize()[..NAME_BYTES]);
            name
        });
        blocks.collect()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.0.into())
    }
}

/// Binding of an entry's pieces to their positions in the entry.
#[derive(Clone, Copy, Debug)]
pub struct Bond {
    salt: [u8; SALT_BYTES],
    head: [u8; 32],
}

impl Bond {
    fn nonce(&self, index: usize) -> XNonce {
        let mut nonce = [0; SALT_BYTES + 8];
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..].copy_from_slice(&(index as u64).to_le_bytes());
        nonce.into()
    }

    /// Seals a piece in place.
    pub fn seal(&self, secret: &Secret, index: usize, piece: &mut [u8]) -> Tag {
        let cipher = secret.cipher();
        let sealed = cipher.encrypt_inout_detached(&self.nonce(index), &self.head, piece.into());
        let tag = sealed.expect("a piece is shorter than the cipher allows");
        tag.into()
    }

    /// Opens a piece in place; false if the bytes are not those that were sealed at this position.
    pub fn open(&self, secret: &Secret, index: usize, piece: &mut [u8], tag: &Tag) -> bool {
        let (nonce, tag) = (self.nonce(index), (*tag).into());
        let cipher = secret.cipher();
        let opened = cipher.decrypt_inout_detached(&nonce, &self.head, piece.into(), &tag);
        opened.is_ok()
    }
}

/// Header of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub salt: [u8; SALT_BYTES],
    pub owner: Owner,
    /// Time of writing, seconds since 1970.
    pub created: u64,
    /// Names of the blocks whose pages the entry has.
    pub names: Vec<Name>,
    /// Name of the last block.
    pub end: Name,
    /// Kind of the state after the last block, if the entry has one.
    pub state: Option<SnapshotKind>,
    /// Authentication tags of the pages, then of the state.
    pub tags: Vec<Tag>,
}

impl Header {
    pub fn pieces(&self) -> usize {
        self.names.len() + usize::from(self.state.is_some())
    }

    /// Bytes of the header of an entry with so many pages and pieces.
    fn length(pages: usize, pieces: usize) -> usize {
        let bytes = FIXED_BYTES + pages * NAME_BYTES + pieces * TAG_BYTES;
        bytes.next_multiple_of(PIECE_ALIGN)
    }

    /// Offset of a piece in the file; the offset after the last piece is the end of the entry.
    pub fn at(&self, index: usize, bytes: PieceBytes) -> u64 {
        let pages = index.min(self.names.len());
        let state = (index - pages) * bytes.state;
        (Header::length(self.names.len(), self.pieces()) + pages * bytes.page + state) as u64
    }

    /// Bytes of the whole entry.
    pub fn entry_bytes(&self, bytes: PieceBytes) -> u64 {
        self.at(self.pieces(), bytes)
    }

    /// Encoded header without the authentication tags.
    fn head(&self, identity: &Identity) -> Vec<u8> {
        let kind: u32 = match self.state {
            None => 0,
            Some(SnapshotKind::Parting) => 1,
            Some(SnapshotKind::End | SnapshotKind::Spaced) => 2,
        };
        let pages = self.names.len() as u32;
        let mut head = [&MAGIC[..], identity, &self.salt].concat();
        head.extend(self.owner.to_le_bytes());
        head.extend(self.created.to_le_bytes());
        head.extend(self.end);
        head.extend(kind.to_le_bytes());
        head.extend(pages.to_le_bytes());
        head.extend(self.names.as_flattened());
        head
    }

    pub fn bond(&self, identity: &Identity) -> Bond {
        Bond {
            salt: self.salt,
            head: Sha256::digest(self.head(identity)).into(),
        }
    }

    pub fn encode(&self, identity: &Identity) -> Vec<u8> {
        let mut bytes = self.head(identity);
        bytes.extend(self.tags.as_flattened());
        bytes.resize(Header::length(self.names.len(), self.pieces()), 0);
        bytes
    }

    /// Length of the header that starts with these bytes; none if they are no header of `identity`.
    pub fn measure(first: &[u8; PIECE_ALIGN], identity: &Identity) -> Option<usize> {
        let mut fields = Fields(first);
        let is_own = fields.take::<8>()? == *MAGIC && fields.take::<32>()? == *identity;
        let [kind, pages] = [FIXED_BYTES - 8, FIXED_BYTES - 4].map(|at| {
            let bytes = first[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        });
        let fits = is_own && pages <= PAGES_MAX && kind <= 2;
        fits.then(|| Header::length(pages, pages + usize::from(kind > 0)))
    }

    /// Decodes a header that `encode` made, of as many bytes as `measure` returns.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let mut fields = Fields(bytes);
        fields.take::<40>()?;
        let salt = fields.take()?;
        let [owner, created] = [fields.take()?, fields.take()?].map(u64::from_le_bytes);
        let end = fields.take()?;
        let [kind, pages] = [fields.take()?, fields.take()?].map(u32::from_le_bytes);
        let state = match kind {
            0 => None,
            1 => Some(SnapshotKind::Parting),
            _ => Some(SnapshotKind::End),
        };
        let pieces = pages as usize + usize::from(state.is_some());
        Some(Header {
            salt,
            owner,
            created,
            names: (0..pages).map(|_| fields.take()).collect::<Option<_>>()?,
            end,
            state,
            tags: (0..pieces).map(|_| fields.take()).collect::<Option<_>>()?,
        })
    }
}

/// Bytes of a header that are still to be decoded.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(pages: usize, state: Option<SnapshotKind>) -> Header {
        let secret = Secret::of(7);
        let tokens: Vec<TokenId> = (0..(pages * PAGE) as TokenId).collect();
        let names = secret.names(&tokens);
        Header {
            salt: [5; SALT_BYTES],
            owner: 3,
            created: 1_700_000_000,
            end: names.last().copied().unwrap_or([1; NAME_BYTES]),
            names,
            state,
            tags: vec![[9; TAG_BYTES]; pages + usize::from(state.is_some())],
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_by_its_own_binary_alone() {
        for (pages, state) in [
            (0, Some(SnapshotKind::End)),
            (3, Some(SnapshotKind::Parting)),
            (300, None),
        ] {
            let header = header(pages, state);
            let bytes = header.encode(&[1; 32]);
            let first = bytes.first_chunk().unwrap();
            assert_eq!(Header::measure(first, &[1; 32]), Some(bytes.len()));
            assert_eq!(Header::measure(first, &[2; 32]), None);
            assert_eq!(Header::decode(&bytes), Some(header));
        }
    }

    #[test]
    fn names_are_of_all_tokens_before_and_of_a_domain() {
        let names = |domain, first: TokenId| {
            let tokens: Vec<TokenId> = (first..first + 3 * PAGE as TokenId).collect();
            Secret::of(domain).names(&tokens)
        };
        assert_eq!(names(1, 0), names(1, 0));
        for (a, b) in names(1, 0).iter().zip(names(2, 0)) {
            assert_ne!(*a, b);
        }
        assert_ne!(names(1, 0)[2], names(1, 1)[2]);
    }

    #[test]
    fn a_piece_opens_with_its_key_at_its_position_alone() {
        let (secret, header) = (Secret::of(1), header(2, None));
        let bond = header.bond(&[1; 32]);
        let mut sealed = vec![3; 4096];
        let tag = bond.seal(&secret, 1, &mut sealed);
        let opens = |bond: Bond, secret: &Secret, index, tag: &Tag| {
            let mut piece = sealed.clone();
            bond.open(secret, index, &mut piece, tag) && piece == [3; 4096]
        };
        assert!(opens(bond, &secret, 1, &tag));
        assert!(!opens(bond, &Secret::of(2), 1, &tag), "another key's");
        assert!(!opens(bond, &secret, 0, &tag), "another position");
        assert!(
            !opens(header.bond(&[2; 32]), &secret, 1, &tag),
            "another binary"
        );
        assert!(!opens(bond, &secret, 1, &[0; TAG_BYTES]));
        let owned = Header { owner: 4, ..header };
        assert!(
            !opens(owned.bond(&[1; 32]), &secret, 1, &tag),
            "another header"
        );
    }
}
