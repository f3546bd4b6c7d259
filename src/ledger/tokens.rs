//! Tokens: a secret that stands in for a caller's uid. Shown once, kept as its SHA-256.

use super::{Ledger, LedgerError, TokenId, read_back, stored, writer::Lasting};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rusqlite::{Connection, OptionalExtension, Row, params};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

/// What every secret begins with, so that scanners and people know one when they see it.
const PREFIX: &str = "sbx_";
/// Random bytes in a secret.
const SECRET_BYTES: usize = 32;
/// Characters of a secret: the prefix and 32 bytes in base64url.
const SECRET_CHARS: usize = PREFIX.len() + 43;

const COLUMNS: &str = "id, name, tenant, subject, roles, profiles, created_at_ms, expires_at_ms, revoked_at_ms, hash";

/// SHA-256 of a secret. It has 256 random bits, so a plain hash can't be searched; how long a lookup by it takes says
/// nothing about the secret.
type Hash = [u8; 32];
pub(super) type TokenMap = HashMap<Hash, Arc<TokenRow>>;

/// A token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// What its owner calls it.
    pub name: String,
    /// The account it acts for.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// Names of the roles it has.
    pub roles: Vec<String>,
    /// Names of the profiles it may use; `None` is all.
    pub profiles: Option<Vec<String>>,
    /// When it ends; `None` is never.
    pub expires_at_ms: Option<u64>,
}

/// A token as it stands, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its id.
    pub id: TokenId,
    /// What its owner calls it.
    pub name: String,
    /// The account it acts for.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// Names of the roles it has.
    pub roles: Vec<String>,
    /// Names of the profiles it may use; `None` is all.
    pub profiles: Option<Vec<String>>,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it ends; `None` is never.
    pub expires_at_ms: Option<u64>,
    /// When it was revoked, if it was.
    pub revoked_at_ms: Option<u64>,
}

/// The secret of a token: given to its owner once, known to nobody afterwards. Does not show itself in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// The text to hand over.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn generate() -> Self {
        let mut bytes = [0u8; SECRET_BYTES];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        assert_eq!(filled, Ok(SECRET_BYTES), "getrandom(2) of 32 bytes does not fail once the pool is up");
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sbx_…")
    }
}

impl Ledger {
    /// Makes a token. The secret is in the answer and nowhere else.
    pub async fn create_token(&self, new: NewToken, now_ms: u64) -> Result<(TokenId, TokenSecret), LedgerError> {
        let secret = TokenSecret::generate();
        let hash = digest(secret.reveal());
        let row = TokenRow {
            id: TokenId::generate(),
            name: new.name,
            tenant: new.tenant,
            subject: new.subject,
            roles: new.roles,
            profiles: new.profiles,
            created_at_ms: now_ms,
            expires_at_ms: new.expires_at_ms,
            revoked_at_ms: None,
        };
        let ledger = self.clone();
        let work = move |connection: &Connection| insert(connection, &hash, &row).map(|()| row);
        let after = move |row: TokenRow| {
            let id = row.id.clone();
            ledger.shared.tokens.write().unwrap_or_else(PoisonError::into_inner).insert(hash, Arc::new(row));
            id
        };
        let id = self.call(Lasting::PowerLoss, work, after).await?;
        Ok((id, secret))
    }

    /// The live token with this secret. Looks into memory only, so it neither waits nor fails.
    #[must_use]
    pub fn find_token(&self, secret: &str, now_ms: u64) -> Option<Arc<TokenRow>> {
        // Anything else can't be one; nobody makes us hash a megabyte.
        if secret.len() != SECRET_CHARS || !secret.starts_with(PREFIX) {
            return None;
        }
        let tokens = self.shared.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&digest(secret)).filter(|row| row.expires_at_ms.is_none_or(|end| now_ms < end)).cloned()
    }

    /// Every token, oldest first, expired and revoked ones too.
    pub async fn list_tokens(&self) -> Result<Vec<TokenRow>, LedgerError> {
        let work = |connection: &Connection| Ok(all(connection)?.into_iter().map(|(_, row)| row).collect());
        self.call(Lasting::Kill, work, |rows| rows).await
    }

    /// Revokes a token: once this returns, its secret opens nothing. Done again it changes nothing.
    pub async fn revoke_token(&self, id: &TokenId, now_ms: u64) -> Result<TokenRow, LedgerError> {
        let (id, ledger) = (id.clone(), self.clone());
        self.call(
            Lasting::PowerLoss,
            move |connection| take_back(connection, &id, now_ms),
            move |(hash, row)| {
                ledger.shared.tokens.write().unwrap_or_else(PoisonError::into_inner).remove(&hash);
                row
            },
        )
        .await
    }
}

/// Every token that is not revoked.
pub(super) fn load(connection: &Connection) -> Result<TokenMap, LedgerError> {
    let live = all(connection)?.into_iter().filter(|(_, row)| row.revoked_at_ms.is_none());
    Ok(live.map(|(hash, row)| (hash, Arc::new(row))).collect())
}

fn digest(secret: &str) -> Hash {
    Sha256::digest(secret.as_bytes()).into()
}

fn insert(connection: &Connection, hash: &Hash, row: &TokenRow) -> Result<(), LedgerError> {
    let roles = serde_json::to_string(&row.roles).map_err(LedgerError::Names)?;
    let profiles = row.profiles.as_ref().map(serde_json::to_string).transpose().map_err(LedgerError::Names)?;
    connection.execute(
        "INSERT INTO tokens (id, hash, name, tenant, subject, roles, profiles, created_at_ms, expires_at_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            row.id.as_str(),
            hash,
            row.name,
            row.tenant,
            row.subject,
            roles,
            profiles,
            stored(row.created_at_ms),
            row.expires_at_ms.map(stored),
        ],
    )?;
    Ok(())
}

fn all(connection: &Connection) -> Result<Vec<(Hash, TokenRow)>, LedgerError> {
    let mut statement = connection.prepare(&format!("SELECT {COLUMNS} FROM tokens ORDER BY seq"))?;
    let mut rows = statement.query([])?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next()? {
        tokens.push(read(row)?);
    }
    Ok(tokens)
}

fn take_back(connection: &Connection, id: &TokenId, now_ms: u64) -> Result<(Hash, TokenRow), LedgerError> {
    connection.execute(
        "UPDATE tokens SET revoked_at_ms = ?2 WHERE id = ?1 AND revoked_at_ms IS NULL",
        params![id.as_str(), stored(now_ms)],
    )?;
    let mut statement = connection.prepare(&format!("SELECT {COLUMNS} FROM tokens WHERE id = ?1"))?;
    let found = statement.query_row([id.as_str()], |row| Ok(read(row))).optional()?;
    found.ok_or_else(|| LedgerError::TokenNotFound(id.clone()))?
}

fn read(row: &Row<'_>) -> Result<(Hash, TokenRow), LedgerError> {
    let names = |text: String| serde_json::from_str(&text).map_err(LedgerError::Names);
    let token = TokenRow {
        id: TokenId::from(row.get::<_, String>(0)?),
        name: row.get(1)?,
        tenant: row.get(2)?,
        subject: row.get(3)?,
        roles: names(row.get(4)?)?,
        profiles: row.get::<_, Option<String>>(5)?.map(names).transpose()?,
        created_at_ms: read_back(row.get(6)?),
        expires_at_ms: row.get::<_, Option<i64>>(7)?.map(read_back),
        revoked_at_ms: row.get::<_, Option<i64>>(8)?.map(read_back),
    };
    Ok((row.get(9)?, token))
}

#[cfg(test)]
mod tests {
    use super::super::tests::fresh;
    use super::*;

    fn agent(expires_at_ms: Option<u64>) -> NewToken {
        NewToken {
            name: "ci".to_owned(),
            tenant: "acme".to_owned(),
            subject: "agent-7".to_owned(),
            roles: vec!["user".to_owned(), "issuer".to_owned()],
            profiles: Some(vec!["strict".to_owned()]),
            expires_at_ms,
        }
    }

    #[tokio::test]
    async fn a_secret_finds_its_token_and_nothing_else_does() {
        let (_directory, ledger) = fresh();
        let (id, secret) = ledger.create_token(agent(None), 5).await.expect("a token");
        assert_eq!(secret.reveal().len(), 47);
        assert_eq!(format!("{secret:?}"), "sbx_…");
        let row = ledger.find_token(secret.reveal(), 6).expect("the token");
        assert_eq!((&row.id, row.created_at_ms, row.roles.len()), (&id, 5, 2));
        assert_eq!(row.profiles, Some(vec!["strict".to_owned()]));
        let mut wrong = secret.reveal().to_owned();
        let last = if wrong.pop() == Some('A') { 'E' } else { 'A' };
        wrong.push(last);
        for wrong in [&wrong, "", "sbx_", id.as_str(), &secret.reveal()[1..], &format!("{} ", secret.reveal())] {
            assert_eq!(ledger.find_token(wrong, 6), None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn expiry_and_revocation_end_a_token_also_after_a_restart() {
        let (directory, ledger) = fresh();
        let (_, short) = ledger.create_token(agent(Some(100)), 0).await.expect("a token");
        let (id, revoked) = ledger.create_token(agent(None), 0).await.expect("a token");
        let (_, kept) = ledger.create_token(agent(None), 0).await.expect("a token");
        assert!(ledger.find_token(short.reveal(), 99).is_some());
        assert!(ledger.find_token(short.reveal(), 100).is_none());
        assert!(ledger.find_token(revoked.reveal(), 0).is_some());
        assert_eq!(ledger.revoke_token(&id, 7).await.expect("revoked").revoked_at_ms, Some(7));
        assert_eq!(ledger.revoke_token(&id, 9).await.expect("still revoked").revoked_at_ms, Some(7));
        assert!(ledger.find_token(revoked.reveal(), 8).is_none());
        ledger.close().await;

        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        assert!(ledger.find_token(revoked.reveal(), 8).is_none());
        assert!(ledger.find_token(kept.reveal(), 8).is_some());
        assert_eq!(ledger.list_tokens().await.expect("a list").len(), 3);
        let nobody = ledger.revoke_token(&TokenId::generate(), 0).await;
        assert!(matches!(nobody, Err(LedgerError::TokenNotFound(_))), "{nobody:?}");
    }
}
