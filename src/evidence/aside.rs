//! What lies beside the database: the last signature, and journals that could not be used.

use super::EvidenceError;
use super::db::FILE_NAME;
use super::line::Previous;
use super::owner::Place;
use super::signing::PublicKey;
use crate::sqlite::file::beside;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The last signature, outside the database: tells if the database's end was cut off with its own.
const CHECKPOINT_NAME: &str = "checkpoint.json";

/// A journal that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// What is left of it; none if nothing is.
    pub path: Option<PathBuf>,
    /// What is wrong with it.
    pub why: String,
}

/// The last signature as it lies beside the database.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Noted {
    pub chain: String,
    pub seq: u64,
    pub head: String,
    pub signature: String,
}

pub(super) fn host(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EvidenceError + use<> {
    let path = path.to_owned();
    move |source| EvidenceError::Host { what, path, source }
}

/// Notes the last signature beside the database.
pub(super) fn note_checkpoint(directory: &Path, chain: &str, covered: Place, signature: &str) {
    let noted = Noted {
        chain: chain.to_owned(),
        seq: covered.seq,
        head: covered.hash.to_string(),
        signature: signature.to_owned(),
    };
    let text = serde_json::to_vec(&noted).expect("texts and a number");
    if let Err(error) = write_whole(&directory.join(CHECKPOINT_NAME), &text) {
        // The signature is in the chain; only the second trace of it is missing.
        tracing::warn!(%error, "evidence: the last checkpoint could not be noted beside the database");
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = beside(path, ".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&draft, path)
}

/// The last signature, if it is there and ours.
pub(super) fn noted(directory: &Path, key: PublicKey, warnings: &mut Vec<String>) -> Option<Noted> {
    let text = match fs::read(directory.join(CHECKPOINT_NAME)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            warnings.push(format!("{CHECKPOINT_NAME} cannot be read ({error})"));
            return None;
        }
    };
    let noted: Option<Noted> = serde_json::from_slice(&text).ok();
    let ours = noted.filter(|noted| {
        let head = noted.head.parse();
        head.is_ok_and(|head| key.has_signed(&noted.chain, noted.seq, &head, &noted.signature))
    });
    if ours.is_none() {
        let warning = format!("{CHECKPOINT_NAME} is damaged or not signed with this key; it is not looked at");
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    ours
}

/// Moves what can't be used out of the way. What is wrong with it is written down first: a crash in between forgets
/// nothing.
pub(super) fn set_aside(
    directory: &Path,
    path: &Path,
    why: String,
    now_ms: u64,
    key: PublicKey,
) -> Result<SetAside, EvidenceError> {
    let noted = noted(directory, key, &mut Vec::new());
    let free = |n: &u32| {
        let mark = mark(now_ms, *n);
        !beside(path, &mark).exists() && !beside(path, &format!("{mark}.why")).exists()
    };
    let mark = mark(now_ms, (0..).find(free).expect("some name is free"));
    let target = beside(path, &mark);
    let name = target.file_name().map(|name| name.to_string_lossy().into_owned());
    let left = path.symlink_metadata().is_ok() || beside(path, "-wal").exists();
    let previous = Previous {
        file: name.filter(|_| left),
        why: why.clone(),
        checkpoint_seq: noted.as_ref().map(|noted| noted.seq),
        checkpoint_head: noted.map(|noted| noted.head),
    };
    let note = beside(&target, ".why");
    write_whole(&note, &serde_json::to_vec(&previous).expect("texts and numbers")).map_err(host("write", &note))?;
    // The log first: a database without it is still whole, the other way round SQLite would not find it.
    for suffix in ["-wal", "-shm", ""] {
        move_away(&beside(path, suffix), &beside(&target, suffix))?;
    }
    move_away(&directory.join(super::slate::NAME), &beside(&target, ".slate"))?;
    move_away(&directory.join(CHECKPOINT_NAME), &beside(&target, ".checkpoint.json"))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(host("sync", directory))?;
    Ok(SetAside { path: left.then_some(target), why })
}

fn mark(now_ms: u64, n: u32) -> String {
    if n == 0 { format!(".set-aside-{now_ms:015}") } else { format!(".set-aside-{now_ms:015}-{n}") }
}

fn move_away(from: &Path, to: &Path) -> Result<(), EvidenceError> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => other.map_err(|errno| host("set aside", from)(errno.into())),
    }
}

/// What was set aside last, if anything.
pub(super) fn last_set_aside(directory: &Path) -> Result<Option<Previous>, EvidenceError> {
    let failed = |source| host("list", directory)(source);
    let mut notes = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.starts_with(FILE_NAME) && name.ends_with(".why") {
            notes.push(name);
        }
    }
    notes.sort();
    let Some(name) = notes.pop() else { return Ok(None) };
    let text = fs::read(directory.join(&name)).map_err(failed)?;
    let unreadable = |_| Previous {
        file: Some(name.trim_end_matches(".why").to_owned()),
        why: "its note cannot be read".to_owned(),
        checkpoint_seq: None,
        checkpoint_head: None,
    };
    Ok(Some(serde_json::from_slice(&text).unwrap_or_else(unreadable)))
}
