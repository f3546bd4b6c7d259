//! The key that signs checkpoints: made at the first start, never replaced, its public half beside it.

use super::id::{Digest, hex, unhex};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the secret half below the journal's directory.
pub const SECRET_NAME: &str = "signing.key";
/// Name of the public half.
pub const PUBLIC_NAME: &str = "signing.pub";
/// What a signature is made over, before the checkpoint's own bytes.
const PURPOSE: &[u8] = b"sandboxd evidence checkpoint v1\0";
/// The fixed bytes before an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file of the key could not be read or written.
    #[error("cannot {what} {path}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is there and holds no key.
    #[error("{path} holds no signing key; restore it from a backup")]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// There are records that were signed with a key that is gone.
    #[error("{path} is gone, and the journal beside it was signed with it; restore it, or move the journal away")]
    Gone {
        /// Which file.
        path: PathBuf,
    },
    /// The journal belongs to another key.
    #[error(
        "{path} is not the key that the journal beside it was signed with; restore that one, or move the journal away"
    )]
    Another {
        /// Which file.
        path: PathBuf,
    },
}

/// The public half: all that verifying needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// Neither a PEM public key of Ed25519 nor 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 public key (PEM, or 64 hexadecimal digits)")]
pub struct NotAKey;

impl PublicKey {
    /// As a PEM file, which other tools read.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let der = [&SPKI[..], self.0.as_bytes()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    /// As 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(self.0.as_bytes(), &mut [0; 64]).to_owned()
    }

    /// Whether `signature` (hexadecimal) is this key's for the head of a chain at a place.
    pub(super) fn has_signed(&self, chain: &str, seq: u64, head: &Digest, signature: &str) -> bool {
        let mut bytes = [0; 64];
        unhex(signature.as_bytes(), &mut bytes)
            && self.0.verify_strict(&message(chain, seq, head), &Signature::from_bytes(&bytes)).is_ok()
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;
    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let text = text.trim();
        let mut bytes = [0; 32];
        if !unhex(text.as_bytes(), &mut bytes) {
            let base64: String = text.lines().filter(|line| !line.starts_with('-')).map(str::trim).collect();
            let der = STANDARD.decode(base64).map_err(|_| NotAKey)?;
            let key = der.strip_prefix(&SPKI).ok_or(NotAKey)?;
            bytes = key.try_into().map_err(|_| NotAKey)?;
        }
        VerifyingKey::from_bytes(&bytes).map(Self).map_err(|_| NotAKey)
    }
}

/// The secret half. Does not show itself in logs.
pub(super) struct Key(SigningKey);

impl Key {
    /// Reads the key below `directory`; makes it if there is none and nothing was signed yet.
    pub(super) fn open(directory: &Path, signed_before: bool) -> Result<Self, KeyError> {
        let path = directory.join(SECRET_NAME);
        let key = match fs::read(&path) {
            Ok(text) => Self::parse(&text).ok_or_else(|| KeyError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && signed_before => {
                return Err(KeyError::Gone { path });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(directory, &path)?,
            Err(source) => return Err(KeyError::File { what: "read", path, source }),
        };
        let protect = |source| KeyError::File { what: "close to other users", path: path.clone(), source };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(protect)?;
        let public = directory.join(PUBLIC_NAME);
        let pem = key.public().to_pem();
        if fs::read_to_string(&public).ok().as_deref() != Some(&*pem) {
            let failed = |source| KeyError::File { what: "write", path: public.clone(), source };
            fs::write(&public, pem).map_err(failed)?;
            fs::set_permissions(&public, fs::Permissions::from_mode(0o644)).map_err(failed)?;
        }
        Ok(key)
    }

    fn make(directory: &Path, path: &Path) -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        assert_eq!(filled, Ok(seed.len()), "getrandom(2) of 32 bytes does not fail once the pool is up");
        let failed = |source| KeyError::File { what: "make", path: path.to_owned(), source };
        let draft = directory.join("signing.key.new");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        writeln!(file, "{}", hex(&seed, &mut [0; 64])).and_then(|()| file.sync_all()).map_err(failed)?;
        renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE).map_err(|errno| failed(errno.into()))?;
        fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut seed = [0; 32];
        unhex(text.trim_ascii(), &mut seed).then(|| Self(SigningKey::from_bytes(&seed)))
    }

    pub(super) fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The signature (hexadecimal) for the head of a chain at a place.
    pub(super) fn sign(&self, chain: &str, seq: u64, head: &Digest) -> String {
        hex(&self.0.sign(&message(chain, seq, head)).to_bytes(), &mut [0; 128]).to_owned()
    }
}

/// What is signed: purpose, chain, place of the last record that is covered, head there.
fn message(chain: &str, seq: u64, head: &Digest) -> Vec<u8> {
    [PURPOSE, chain.as_bytes(), b"\0", &seq.to_be_bytes(), &head.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_its_owners_alone_and_read_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let made = Key::open(directory.path(), false).expect("a new key").public();
        let mode = fs::metadata(directory.path().join(SECRET_NAME)).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(Key::open(directory.path(), true).expect("the same key").public(), made);
        let pem = fs::read_to_string(directory.path().join(PUBLIC_NAME)).expect("the public half");
        assert_eq!(pem.parse(), Ok(made));
        assert_eq!(made.to_hex().parse(), Ok(made));
        fs::remove_file(directory.path().join(SECRET_NAME)).expect("our own file");
        assert!(matches!(Key::open(directory.path(), true), Err(KeyError::Gone { .. })));
        fs::write(directory.path().join(SECRET_NAME), "no key").expect("our own file");
        assert!(matches!(Key::open(directory.path(), false), Err(KeyError::Damaged { .. })));
    }

    #[test]
    fn a_signature_holds_for_its_chain_place_and_head_only() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let key = Key::open(directory.path(), false).expect("a new key");
        let (head, public) = (Digest::of("head"), key.public());
        let signature = key.sign("ev_a", 7, &head);
        assert!(public.has_signed("ev_a", 7, &head, &signature));
        assert!(!public.has_signed("ev_b", 7, &head, &signature));
        assert!(!public.has_signed("ev_a", 8, &head, &signature));
        assert!(!public.has_signed("ev_a", 7, &Digest::of("other"), &signature));
        assert!(!public.has_signed("ev_a", 7, &head, "00"));
    }
}
