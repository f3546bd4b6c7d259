//! A file of ours: create, check, protect, migrate.

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a start waits for a daemon that is just going down.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// Statements kept compiled; more than any of the files has.
const STATEMENTS: usize = 64;
/// Only the owner: the files say who may do what, and who did.
pub const MODE: u32 = 0o600;

/// What can be wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be made.
    #[error("cannot create the {what} {path}")]
    Create {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its owner or mode could not be set.
    #[error("cannot close the {what} {path} to other users (mode 0600)")]
    Protect {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// SQLite could not open it.
    #[error("cannot open the {what} {path}")]
    Open {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// Somebody else has it open.
    #[error("the {what} {path} is open in another process; is a second daemon running?")]
    InUse {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// SQLite says it is not a sound database. It is left as it is.
    #[error(
        "the {what} {path} is damaged and was left as it is; restore it from a backup, or move it away to start anew"
    )]
    Corrupt {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// The integrity check found something. It is left as it is.
    #[error(
        "the {what} {path} is damaged ({finding}) and was left as it is; restore it from a backup, or move it away"
    )]
    Unsound {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// The first finding of the check.
        finding: String,
    },
    /// A database, but not this one.
    #[error("{path} is not a {what} of sandboxd (application id {found:#x}) and was left as it is")]
    Foreign {
        /// What it should be.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// The id it carries.
        found: i64,
    },
    /// Empty file, or a write-ahead log whose database is gone.
    #[error(
        "the {what} {path} has lost its content and was left as it is; restore it from a backup, or move {path}* away"
    )]
    Truncated {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// Written by a later version of this program.
    #[error("the {what} {path} has schema {found}, this program knows up to {known}; use the newer program")]
    Newer {
        /// What it is.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// The schema in the file.
        found: i64,
        /// The latest we know.
        known: i64,
    },
}

impl FileError {
    /// Whether the content of the file is the fault: what lies there can't be used, by this program or another.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Unsound { .. } | Self::Foreign { .. } | Self::Truncated { .. } => true,
            Self::Create { .. }
            | Self::Protect { .. }
            | Self::Open { .. }
            | Self::InUse { .. }
            | Self::Newer { .. } => false,
        }
    }
}

/// Who opens a file besides its writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: SQLite's lock is held for as long as it is open, and there is no -shm file.
    Sole,
    /// Readers of this process. Whoever opens it keeps other processes out by other means.
    Readers,
}

/// Whether the whole file is read at its opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// SQLite's quick check of every page.
    Whole,
    /// Only what is touched anyway.
    Touched,
}

/// A kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// What it is called in errors.
    pub what: &'static str,
    /// `PRAGMA application_id`: tells our file from another database that lies in its place.
    pub application_id: i64,
    /// Schema changes in order; the version of a file is how many of them it has. Never edit one, append.
    pub migrations: &'static [&'static str],
    /// Who opens it.
    pub sharing: Sharing,
    /// Size of a page of a new file.
    pub page_bytes: u32,
}

impl Kind {
    /// Opens the file `name` below `directory`, or makes it; checked, migrated, ready for its one writer.
    pub fn open(&self, directory: &Path, name: &str, check: Check) -> Result<(Connection, PathBuf), FileError> {
        let what = self.what;
        let create = |source| FileError::Create { what, path: directory.join(name), source };
        // NOFOLLOW speaks of the whole path; the directory itself is the operator's and may be reached by a link.
        let path = fs::canonicalize(directory).map_err(create)?.join(name);
        match fs::symlink_metadata(&path) {
            // A file appears under its name only when it is complete, so an empty one has lost something.
            Ok(found) if found.is_file() && found.len() == 0 => return Err(FileError::Truncated { what, path }),
            // Not for a link, which chmod would follow; SQLite refuses it below.
            Ok(found) if found.is_file() && found.permissions().mode() & 0o777 != MODE => {
                fs::set_permissions(&path, Permissions::from_mode(MODE)).map_err(|source| FileError::Protect {
                    what,
                    path: path.clone(),
                    source,
                })?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // SQLite would lay the old log over a new file.
                if beside(&path, "-wal").exists() {
                    return Err(FileError::Truncated { what, path });
                }
                self.make(&path)?;
            }
            Err(error) => return Err(create(error)),
        }
        let mut connection = self.connect(&path)?;
        let named = |source| self.blame(source, &path);
        let found: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(named)?;
        if found != self.application_id {
            return Err(FileError::Foreign { what, path, found });
        }
        if check == Check::Whole {
            let finding: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(named)?;
            if finding != "ok" {
                return Err(FileError::Unsound { what, path, finding });
            }
        }
        self.migrate(&mut connection, &path)?;
        // Exclusive and WAL: the index of the log lives in our memory, there is no -shm file.
        connection.pragma_update(None, "journal_mode", "WAL").map_err(named)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok((connection, path))
    }

    /// `source` as a word about the file.
    #[must_use]
    pub fn blame(&self, source: rusqlite::Error, path: &Path) -> FileError {
        let (what, path) = (self.what, path.to_owned());
        if is_damage(&source) {
            FileError::Corrupt { what, path, source }
        } else if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) {
            FileError::InUse { what, path }
        } else {
            FileError::Open { what, path, source }
        }
    }

    /// Makes a whole file under another name, then moves it to `path` unless something has come to lie there.
    fn make(&self, path: &Path) -> Result<(), FileError> {
        let what = self.what;
        let create = |source| FileError::Create { what, path: path.to_owned(), source };
        let draft = beside(path, ".new");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(create(error)),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).mode(MODE).open(&draft).map_err(create)?;
        let mut connection = self.connect(&draft)?;
        let named = |source| FileError::Open { what, path: draft.clone(), source };
        connection.pragma_update(None, "application_id", self.application_id).map_err(named)?;
        self.migrate(&mut connection, &draft)?;
        connection.close().map_err(|(_, source)| named(source))?;
        renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE).map_err(|errno| create(errno.into()))?;
        let directory = path.parent().expect("a file below a directory");
        fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(create)
    }

    fn connect(&self, path: &Path) -> Result<Connection, FileError> {
        let named = |source| self.blame(source, path);
        // No CREATE: SQLite would make a missing file with everybody's mode.
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(path, flags).map_err(named)?;
        connection.busy_timeout(LOCK_PATIENCE).map_err(named)?;
        connection.pragma_update(None, "page_size", self.page_bytes).map_err(named)?;
        if self.sharing == Sharing::Sole {
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(named)?;
        }
        for (pragma, value) in [
            ("synchronous", "NORMAL"),
            ("foreign_keys", "ON"),
            ("trusted_schema", "OFF"),
            ("cell_size_check", "ON"),
            ("temp_store", "MEMORY"), // the front may write nowhere but in its own directories
        ] {
            connection.pragma_update(None, pragma, value).map_err(named)?;
        }
        // Takes the lock now, which EXCLUSIVE then keeps.
        connection.execute_batch("BEGIN EXCLUSIVE; COMMIT").map_err(named)?;
        Ok(connection)
    }

    fn migrate(&self, connection: &mut Connection, path: &Path) -> Result<(), FileError> {
        let named = |source| self.blame(source, path);
        let change = connection.transaction().map_err(named)?;
        change
            .execute_batch("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY) STRICT")
            .map_err(named)?;
        let found: i64 = change
            .query_row("SELECT coalesce(max(version), 0) FROM schema_version", [], |row| row.get(0))
            .map_err(named)?;
        let known = i64::try_from(self.migrations.len()).expect("a handful of migrations");
        if found > known {
            return Err(FileError::Newer { what: self.what, path: path.to_owned(), found, known });
        }
        for (version, sql) in (1..=known).zip(self.migrations).filter(|(version, _)| *version > found) {
            change.execute_batch(sql).map_err(named)?;
            change.execute("INSERT INTO schema_version (version) VALUES (?1)", [version]).map_err(named)?;
        }
        change.commit().map_err(named)
    }
}

/// The file beside another whose name only ends differently.
#[must_use]
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether SQLite says that the file itself is broken.
#[must_use]
pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}
