//! The ledger's file: its schema. How it is made and checked is [`crate::sqlite::file`]'s.

use super::FILE_NAME;
use crate::sqlite::file::{Check, FileError, Kind, Sharing};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// The ledger among the daemon's files.
pub(super) const KIND: Kind = Kind {
    what: "ledger",
    application_id: 0x7362_786c, // "sbxl"
    migrations: MIGRATIONS,
    sharing: Sharing::Sole,
    page_bytes: 4096,
};

/// Schema changes in order; the version of a file is how many of them it has. Never edit one, append.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE tokens (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256 of the secret
        name TEXT NOT NULL,
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        roles TEXT NOT NULL,     -- JSON list of names
        profiles TEXT,           -- JSON list of names; NULL = all
        created_at_ms INTEGER NOT NULL,
        expires_at_ms INTEGER,
        revoked_at_ms INTEGER
    ) STRICT;
    CREATE TABLE grants (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of lists
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        tool TEXT NOT NULL,
        call_id TEXT NOT NULL,
        capabilities TEXT NOT NULL,
        decision_key_fingerprint TEXT NOT NULL UNIQUE, -- single use, for ever
        issued_by TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL,
        expires_at_ms INTEGER NOT NULL,
        revoked_at_ms INTEGER,
        revoke_reason TEXT,
        -- NULL = unlimited
        budget_calls INTEGER, budget_bytes_in INTEGER, budget_bytes_out INTEGER,
        budget_cpu_ms INTEGER, budget_gpu_ms INTEGER, budget_file_count INTEGER,
        -- open reservations included
        spent_calls INTEGER NOT NULL DEFAULT 0 CHECK (spent_calls >= 0),
        spent_bytes_in INTEGER NOT NULL DEFAULT 0 CHECK (spent_bytes_in >= 0),
        spent_bytes_out INTEGER NOT NULL DEFAULT 0 CHECK (spent_bytes_out >= 0),
        spent_cpu_ms INTEGER NOT NULL DEFAULT 0 CHECK (spent_cpu_ms >= 0),
        spent_gpu_ms INTEGER NOT NULL DEFAULT 0 CHECK (spent_gpu_ms >= 0),
        spent_file_count INTEGER NOT NULL DEFAULT 0 CHECK (spent_file_count >= 0)
    ) STRICT;
    CREATE INDEX grants_by_owner ON grants (tenant, subject, seq);
    CREATE TABLE reservations (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice, so that a stale handle hits nothing
        grant_seq INTEGER NOT NULL REFERENCES grants (seq),
        calls INTEGER NOT NULL, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
        cpu_ms INTEGER NOT NULL, gpu_ms INTEGER NOT NULL, file_count INTEGER NOT NULL,
        created_at_ms INTEGER NOT NULL
    ) STRICT;
",
    "
    CREATE TABLE sandboxes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of lists
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        profile TEXT NOT NULL,
        project_id TEXT NOT NULL,
        labels TEXT NOT NULL,    -- JSON object of texts
        created_at_ms INTEGER NOT NULL,
        expires_at_ms INTEGER NOT NULL,
        idle_ms INTEGER,         -- NULL = however long
        last_used_ms INTEGER NOT NULL,
        deleted_at_ms INTEGER
    ) STRICT;
    CREATE INDEX sandboxes_by_owner ON sandboxes (tenant, subject, seq);
    CREATE INDEX sandboxes_live ON sandboxes (expires_at_ms) WHERE deleted_at_ms IS NULL;
    CREATE TABLE execs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of lists
        exec_id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        sandbox_id TEXT,
        project_id TEXT,
        task_ref TEXT,
        skill_id TEXT,
        grant_id TEXT,
        profile TEXT NOT NULL,
        kind TEXT NOT NULL,
        command TEXT NOT NULL,
        args TEXT NOT NULL,      -- JSON list, cut
        cwd TEXT,
        env_keys TEXT NOT NULL,  -- JSON list; values are not kept
        policy TEXT NOT NULL,    -- JSON
        status TEXT NOT NULL,
        exit_code INTEGER,
        signal TEXT,
        error_reason TEXT,
        queued_at_ms INTEGER NOT NULL,
        started_at_ms INTEGER,
        ended_at_ms INTEGER,
        duration_ms INTEGER,
        artifacts_path TEXT,
        stdout_truncated INTEGER NOT NULL DEFAULT 0,
        stderr_truncated INTEGER NOT NULL DEFAULT 0,
        usage TEXT,              -- JSON
        evidence_begin TEXT,
        evidence_end TEXT
    ) STRICT;
    CREATE INDEX execs_by_owner ON execs (tenant, subject, seq);
    CREATE INDEX execs_by_task ON execs (tenant, subject, task_ref, seq) WHERE task_ref IS NOT NULL;
    CREATE INDEX execs_by_sandbox ON execs (sandbox_id, seq) WHERE sandbox_id IS NOT NULL;
    CREATE INDEX execs_open ON execs (seq) WHERE ended_at_ms IS NULL;
    CREATE TABLE idempotency (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice, so that a stale claim hits nothing
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        route TEXT NOT NULL,     -- method and path
        key TEXT NOT NULL,
        digest BLOB NOT NULL CHECK (length(digest) = 32), -- SHA-256 of the body that was sent
        expires_at_ms INTEGER NOT NULL,
        status INTEGER,          -- NULL = in flight
        body BLOB,               -- NULL = in flight, or not kept
        UNIQUE (tenant, subject, route, key)
    ) STRICT;
    CREATE INDEX idempotency_by_owner ON idempotency (tenant, subject, seq);
    CREATE INDEX idempotency_by_end ON idempotency (expires_at_ms) WHERE status IS NOT NULL;
    CREATE INDEX idempotency_in_flight ON idempotency (tenant, subject) WHERE status IS NULL;
",
    "
    ALTER TABLE sandboxes ADD COLUMN cleared_at_ms INTEGER; -- when its workspace was seen to
    CREATE INDEX sandboxes_uncleared ON sandboxes (seq) WHERE deleted_at_ms IS NOT NULL AND cleared_at_ms IS NULL;
    CREATE INDEX sandboxes_by_project ON sandboxes (project_id) WHERE deleted_at_ms IS NULL;
",
    "
    CREATE TABLE snapshots (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of lists
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        subject TEXT NOT NULL,
        sandbox_id TEXT NOT NULL,
        project_id TEXT NOT NULL, -- where it lies
        name TEXT,
        state TEXT NOT NULL,      -- making, kept, restoring, removing
        created_at_ms INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox_id, seq);
",
];

/// Opens the ledger below `state_dir`, or makes it; checked, migrated, locked against every other process.
pub(super) fn open(state_dir: &Path) -> Result<(Connection, PathBuf), FileError> {
    KIND.open(state_dir, FILE_NAME, Check::Whole)
}

#[cfg(test)]
mod tests {
    use super::super::{Ledger, LedgerError};
    use super::*;
    use crate::sqlite::file::beside;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn file_of(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().canonicalize().expect("it exists").join(FILE_NAME)
    }

    fn new_and_closed() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (connection, _) = open(directory.path()).expect("a new ledger");
        connection.close().expect("closed");
        directory
    }

    #[test]
    fn the_file_is_its_owners_alone() {
        let directory = new_and_closed();
        let mode = || fs::metadata(file_of(&directory)).expect("the file").permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(file_of(&directory), Permissions::from_mode(0o644)).expect("our own file");
        let (connection, _) = open(directory.path()).expect("the same ledger");
        assert_eq!(mode(), 0o600);
        connection.execute_batch("CREATE TABLE t (x)").expect("something in the log");
        let log = fs::metadata(beside(&file_of(&directory), "-wal")).expect("the log");
        assert_eq!(log.permissions().mode() & 0o777, 0o600);
        assert!(!beside(&file_of(&directory), ".new").exists() && !beside(&file_of(&directory), "-shm").exists());
    }

    #[test]
    fn a_second_opener_is_told_that_it_is_in_use() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let _first = Ledger::open(directory.path()).expect("a new ledger");
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::File(FileError::InUse { .. }))));
    }

    #[test]
    fn a_damaged_file_is_named_and_left_as_it_is() {
        let zeroed_page = |mut bytes: Vec<u8>| {
            bytes[4096..8192].fill(0);
            bytes
        };
        let cut = |mut bytes: Vec<u8>| {
            bytes.truncate(6000);
            bytes
        };
        type Damage = fn(Vec<u8>) -> Vec<u8>;
        let damages: [(&str, Damage); 5] = [
            ("empty", |_| Vec::new()),
            ("text", |_| b"this is not a database, but it is long enough to be read as one".repeat(100)),
            ("zeroed page", zeroed_page),
            ("cut", cut),
            ("zeroes", |bytes| vec![0; bytes.len()]),
        ];
        for (name, damage) in damages {
            let directory = new_and_closed();
            let file = file_of(&directory);
            let bytes = damage(fs::read(&file).expect("the file"));
            fs::write(&file, &bytes).expect("our own file");
            let error = Ledger::open(directory.path()).expect_err(name);
            let about_the_file = matches!(&error, LedgerError::File(error) if error.is_damage());
            assert!(about_the_file, "{name}: {error:?}");
            assert!(error.to_string().contains(&*file.to_string_lossy()), "{name}: {error}");
            assert_eq!(fs::read(&file).expect("the file"), bytes, "{name}: it was changed");
        }
    }

    #[test]
    fn a_log_without_its_database_is_not_taken_for_a_new_start() {
        let directory = new_and_closed();
        fs::rename(file_of(&directory), beside(&file_of(&directory), "-wal")).expect("our own files");
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::File(FileError::Truncated { .. }))));
    }

    #[test]
    fn other_databases_and_later_schemas_are_refused() {
        let directory = new_and_closed();
        let change = |sql: &str| Connection::open(file_of(&directory)).expect("ours").execute_batch(sql).expect("fine");
        change("INSERT INTO schema_version (version) VALUES (99)");
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::File(FileError::Newer { found: 99, .. }))));
        change("DELETE FROM schema_version WHERE version = 99; PRAGMA application_id = 7");
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::File(FileError::Foreign { found: 7, .. }))));
    }

    #[test]
    fn a_ledger_of_the_first_schema_keeps_what_it_has() {
        let directory = new_and_closed();
        let first = Connection::open(file_of(&directory)).expect("ours");
        first
            .execute_batch(
                "DROP TABLE sandboxes; DROP TABLE execs; DROP TABLE idempotency; DROP TABLE snapshots;
                 DELETE FROM schema_version WHERE version > 1;
                 INSERT INTO tokens (id, hash, name, tenant, subject, roles, created_at_ms)
                 VALUES ('tk_1', zeroblob(32), 'n', 't', 's', '[]', 1)",
            )
            .expect("as it was");
        first.close().expect("closed");
        let (connection, _) = open(directory.path()).expect("brought up to date");
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a count");
        assert_eq!(count("SELECT max(version) FROM schema_version"), i64::try_from(MIGRATIONS.len()).expect("a few"));
        assert_eq!(count("SELECT count(*) FROM tokens"), 1);
        for table in ["sandboxes", "execs", "idempotency", "snapshots"] {
            assert_eq!(count(&format!("SELECT count(*) FROM {table}")), 0);
        }
    }

    #[test]
    fn a_link_in_place_of_the_file_is_not_followed() {
        let (target, directory) = (new_and_closed(), tempfile::tempdir().expect("a temporary directory"));
        std::os::unix::fs::symlink(file_of(&target), file_of(&directory)).expect("a link");
        fs::set_permissions(file_of(&target), Permissions::from_mode(0o640)).expect("our own file");
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::File(FileError::Open { .. }))));
        let mode = fs::metadata(file_of(&target)).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "nor changed what it points to");
    }

    #[test]
    fn a_start_that_was_cut_short_is_begun_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::write(beside(&file_of(&directory), ".new"), b"half a led").expect("our own file");
        assert!(Ledger::open(directory.path()).is_ok());
    }
}
