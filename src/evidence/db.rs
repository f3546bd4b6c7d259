//! The journal's file: its schema, and the few statements that several parts share.

use super::id::Digest;
use crate::sqlite::file::{Kind, Sharing};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension};

/// Name of the file below the journal's directory.
pub const FILE_NAME: &str = "evidence.db";

/// The journal among the daemon's files.
pub(super) const KIND: Kind = Kind {
    what: "journal of evidence",
    application_id: 0x7362_7865, // "sbxe"
    migrations: MIGRATIONS,
    sharing: Sharing::Readers,
    page_bytes: 8192, // ten records to a page: little is wasted at its end
};

const MIGRATIONS: &[&str] = &["
    CREATE TABLE records (
        seq INTEGER PRIMARY KEY,
        hash BLOB NOT NULL CHECK (length(hash) = 32), -- the chain's head once this is added
        line BLOB NOT NULL                            -- the canonical bytes
    ) STRICT;
    -- What records are found by, up to state.indexed_seq; made from the lines, and checked against them.
    CREATE TABLE keys (key INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (key, seq)) STRICT, WITHOUT ROWID;
    -- What ends refer to; made from the lines too.
    CREATE TABLE enforcements (digest BLOB PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
    -- Begins at or before state.indexed_seq that have no end yet.
    CREATE TABLE open (seq INTEGER PRIMARY KEY, line BLOB NOT NULL) STRICT;
    CREATE TABLE state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        chain TEXT NOT NULL,          -- id of the chain's first record
        public_key TEXT NOT NULL,
        indexed_seq INTEGER NOT NULL,
        sealed_seq INTEGER NOT NULL,  -- records up to here lie in segments
        sealed_hash BLOB NOT NULL
    ) STRICT;
"];

/// The one row of `state`.
#[derive(Debug, Clone)]
pub(super) struct StateRow {
    pub chain: String,
    pub public_key: String,
    pub indexed_seq: u64,
    pub sealed_seq: u64,
    pub sealed_hash: Digest,
}

/// The row, if a chain was begun.
pub(super) fn state(connection: &Connection) -> rusqlite::Result<Option<StateRow>> {
    let sql = "SELECT chain, public_key, indexed_seq, sealed_seq, sealed_hash FROM state WHERE one = 1";
    let mut statement = connection.prepare_cached(sql)?;
    statement
        .query_row([], |row| {
            Ok(StateRow {
                chain: row.get(0)?,
                public_key: row.get(1)?,
                indexed_seq: row.get(2)?,
                sealed_seq: row.get(3)?,
                sealed_hash: row.get(4)?,
            })
        })
        .optional()
}

/// Place of the last record; that of the last sealed one if there is none.
pub(super) fn last_seq(connection: &Connection, state: &StateRow) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(max(seq), ?1) FROM records";
    connection.prepare_cached(sql)?.query_row([state.sealed_seq], |row| row.get(0))
}

/// The hash of a record that is not sealed, or of the last sealed one.
pub(super) fn hash_at(connection: &Connection, state: &StateRow, seq: u64) -> rusqlite::Result<Option<Digest>> {
    if seq == state.sealed_seq {
        return Ok(Some(state.sealed_hash));
    }
    let mut statement = connection.prepare_cached("SELECT hash FROM records WHERE seq = ?1")?;
    statement.query_row([seq], |row| row.get(0)).optional()
}

/// Bytes of the file that are in use.
pub(super) fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT (page_count - freelist_count) * page_size \
               FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    connection.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

impl FromSql for Digest {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        let wrong = || FromSqlError::InvalidBlobSize { expected_size: 32, blob_size: bytes.len() };
        bytes.try_into().map(Digest).map_err(|_| wrong())
    }
}

impl ToSql for Digest {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(&self.0)))
    }
}
