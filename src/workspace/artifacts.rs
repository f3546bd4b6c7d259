//! What an exec leaves: its output, what is known about it, and the list of every file with its digest.
//!
//! The program could write into the same directory while it ran, and may have left a link, a FIFO or a directory under
//! our names. Ours win: theirs is renamed to `<name>.program` (and `.program.1` …), where the list shows it.

use super::area::{AreaDir, Existing};
use super::beneath::open_directory;
use super::error::{WorkspaceError, at, errno_of};
use super::meta::{FileKind, hex, size};
use super::read::{CHUNK, open_file};
use super::remove::Contents;
use super::walk::{Met, walk};
use super::write::Staged;
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, renameat2};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// How many names of a program's we keep under ours before we begin to remove them.
const KEPT: usize = 16;
/// How often a program that still runs may put something in our way.
const TRIES: usize = 16;

/// How much of an artifacts directory is listed.
#[derive(Debug, Clone, Copy)]
pub struct ManifestBounds {
    /// The most entries looked at.
    pub entries: u64,
    /// The most bytes read for digests.
    pub bytes: u64,
}

/// A file of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Artifact {
    /// Its path in the artifacts directory; what is no text in it is replaced.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// Its digest; none if it could not be read or the bound was reached.
    pub sha256: Option<String>,
}

/// Every regular file of an artifacts directory, in the order of names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// The files; `manifest.json` itself is not among them.
    pub files: Vec<Artifact>,
    /// False if there is more than the list shows, or a digest is missing.
    pub complete: bool,
}

fn lossy<S: Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl AreaDir {
    /// Writes `stdout.txt`, `stderr.txt` and `meta.json`, then lists the directory into `manifest.json`.
    pub fn record(
        &self,
        stdout: &[u8],
        stderr: &[u8],
        meta: &impl Serialize,
        bounds: ManifestBounds,
    ) -> Result<Manifest, WorkspaceError> {
        self.place_own("stdout.txt", stdout)?;
        self.place_own("stderr.txt", stderr)?;
        self.place_own("meta.json", &json(meta)?)?;
        // Before the list is made, so that the list shows under which name the program's own is kept.
        self.set_aside("manifest.json")?;
        let manifest = self.manifest(bounds)?;
        self.place_own("manifest.json", &json(&manifest)?)?;
        Ok(manifest)
    }

    /// Lists every regular file with its digest.
    pub fn manifest(&self, bounds: ManifestBounds) -> Result<Manifest, WorkspaceError> {
        let root = open_directory(self.root(), ".").map_err(at(".", "list the artifacts"))?;
        let mut manifest = Manifest { files: Vec::new(), complete: true };
        let mut bytes_left = bounds.bytes;
        let whole = walk(&root, bounds.entries, &mut |met| {
            match met {
                Met::Shut { .. } => manifest.complete = false,
                Met::Entry { path, .. } if path.as_os_str().as_bytes() == b"manifest.json" => {}
                Met::Entry { directory, name, path, stat } if FileKind::of(stat) == FileKind::File => {
                    let listed = match open_file(directory, name, OFlag::O_RDONLY) {
                        Ok((file, stat)) => Some(digest(&file, size(&stat), &mut bytes_left)),
                        Err(Errno::EACCES | Errno::EAGAIN) => Some((size(stat), None)),
                        Err(_) => None, // no file any more
                    };
                    if let Some((size, sha256)) = listed {
                        manifest.complete &= sha256.is_some();
                        manifest.files.push(Artifact { path: path.to_owned(), size, sha256 });
                    }
                }
                Met::Entry { .. } => {}
            }
            Ok(())
        })?;
        manifest.complete &= whole;
        Ok(manifest)
    }

    /// Puts a file of ours under a name of ours, whatever is there.
    fn place_own(&self, name: &str, content: &[u8]) -> Result<(), WorkspaceError> {
        let mut staged = Staged::new(self)?;
        staged.write(content)?;
        staged.settle(0o644)?;
        for _ in 0..TRIES {
            match staged.place(self.root(), name, Existing::Refuse) {
                Ok(_) => return Ok(()),
                Err(Errno::EEXIST) => self.set_aside(name)?,
                Err(errno) => return Err(at(name, "write an artifact")(errno)),
            }
        }
        Err(WorkspaceError::Busy { path: name.to_owned() })
    }

    /// Renames what a program left under a name of ours; nothing there is as good.
    fn set_aside(&self, name: &str) -> Result<(), WorkspaceError> {
        for number in 0..KEPT {
            let aside = if number == 0 { format!("{name}.program") } else { format!("{name}.program.{number}") };
            let flags = RenameFlags::RENAME_NOREPLACE;
            match renameat2(self.root(), name, self.root(), aside.as_str(), flags) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(at(name, "set a program's file aside")(errno)),
            }
        }
        match self.remove(name, Contents::Remove) {
            Ok(_) | Err(WorkspaceError::NoSuchFile { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, WorkspaceError> {
    let failed = |error: serde_json::Error| WorkspaceError::Host { what: "write JSON", source: error.into() };
    let mut text = serde_json::to_vec_pretty(value).map_err(failed)?;
    text.push(b'\n');
    Ok(text)
}

/// Length and digest of a file; no digest if that would read more than is left, or if it can't be read as long as it
/// was.
fn digest(mut file: &File, length: u64, bytes_left: &mut u64) -> (u64, Option<String>) {
    let Some(left) = bytes_left.checked_sub(length) else { return (length, None) };
    *bytes_left = left;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut read = 0;
    while read < length {
        let most = usize::try_from(length - read).unwrap_or(usize::MAX).min(CHUNK);
        match file.read(&mut buffer[..most]) {
            Ok(0) => return (length, None),
            Ok(count) => {
                digest.update(&buffer[..count]);
                read += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(errno = %errno_of(&error), "an artifact can't be read");
                return (length, None);
            }
        }
    }
    (length, Some(hex(digest)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody, owner, project};
    use super::super::{AreaKind, Store};
    use super::*;
    use crate::model::ExecId;
    use serde_json::{Value, json};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    const BOUNDS: ManifestBounds = ManifestBounds { entries: 1000, bytes: 1 << 20 };
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn artifacts(store: &Store, fixture: &Fixture) -> (AreaDir, PathBuf) {
        let exec = ExecId::generate();
        let none: Vec<(&str, &[u8])> = vec![];
        store.lay(&exec, &owner("a"), Some(&project()), "", none.into_iter()).expect("laid down");
        let area = store.area(&owner("a"), &project(), &AreaKind::Artifacts(exec.clone())).expect("its artifacts");
        (area, fixture.path(&format!("artifacts/{exec}")))
    }

    fn text(path: &Path) -> String {
        assert!(fs::symlink_metadata(path).expect("a file").is_file(), "{path:?}");
        fs::read_to_string(path).expect("text")
    }

    #[test]
    fn an_exec_leaves_its_output_and_a_list_of_its_files() {
        let fixture = Fixture::new();
        let (area, path) = artifacts(&fixture.store, &fixture);
        fs::create_dir(path.join("d")).expect("a directory");
        fs::write(path.join("d/hello"), "hello").expect("a file");
        symlink("/etc/passwd", path.join("d/link")).expect("a link");
        let manifest = area.record(b"out", b"err", &json!({"exit_code": 0}), BOUNDS).expect("recorded");
        let names: Vec<_> = manifest.files.iter().map(|file| file.path.to_str().expect("text")).collect();
        assert_eq!(names, ["d/hello", "meta.json", "stderr.txt", "stdout.txt"]);
        assert_eq!((manifest.files[0].size, manifest.files[0].sha256.as_deref()), (5, Some(HELLO)));
        assert!(manifest.complete);
        assert_eq!((text(&path.join("stdout.txt")), text(&path.join("stderr.txt"))), ("out".into(), "err".into()));
        let written: Value = serde_json::from_str(&text(&path.join("manifest.json"))).expect("JSON");
        assert_eq!(written["files"][0], json!({"path": "d/hello", "size": 5, "sha256": HELLO}));
        assert_eq!(written["complete"], true);
        let meta: Value = serde_json::from_str(&text(&path.join("meta.json"))).expect("JSON");
        assert_eq!(meta["exit_code"], 0);
        assert_eq!(fixture.staged(), 0);
    }

    #[test]
    fn what_a_program_planted_under_our_names_fools_nobody() {
        let fixture = Fixture::new();
        let (area, path) = artifacts(&fixture.store, &fixture);
        let outside = tempfile::tempdir().expect("a directory");
        let victim = outside.path().join("victim");
        fs::write(&victim, "untouched").expect("a file");
        symlink(&victim, path.join("stdout.txt")).expect("a link");
        fs::create_dir_all(path.join("stderr.txt/deep")).expect("a directory");
        fs::write(path.join("stderr.txt/deep/f"), "hello").expect("a file");
        fs::hard_link(&victim, path.join("meta.json")).expect("a hard link");
        fs::write(path.join("manifest.json"), "hello").expect("a file");
        let manifest = area.record(b"out", b"err", &json!({}), BOUNDS).expect("recorded");
        assert_eq!(fs::read(&victim).expect("the victim"), b"untouched");
        assert_eq!(text(&path.join("stdout.txt")), "out");
        assert_eq!(text(&path.join("stderr.txt")), "err");
        assert_eq!(text(&path.join("meta.json")), "{}\n");
        assert!(path.join("stdout.txt.program").is_symlink(), "the link is kept as the link it is");
        let names: Vec<_> = manifest.files.iter().map(|file| file.path.to_str().expect("text")).collect();
        let kept = ["manifest.json.program", "meta.json", "meta.json.program", "stderr.txt"];
        assert_eq!(names[..4], kept);
        assert_eq!(names[4..], ["stderr.txt.program/deep/f", "stdout.txt"]);
        assert!(text(&path.join("manifest.json")).contains("manifest.json.program"));
    }

    #[test]
    fn a_program_that_takes_every_name_loses_one() {
        let fixture = Fixture::new();
        let (area, path) = artifacts(&fixture.store, &fixture);
        fs::write(path.join("stdout.txt"), "theirs").expect("a file");
        fs::write(path.join("stdout.txt.program"), "theirs").expect("a file");
        (1..KEPT).for_each(|n| fs::write(path.join(format!("stdout.txt.program.{n}")), "theirs").expect("a file"));
        area.record(b"out", b"", &json!({}), BOUNDS).expect("recorded");
        assert_eq!(text(&path.join("stdout.txt")), "out");
    }

    #[test]
    fn a_list_has_bounds_and_says_so() {
        let fixture = Fixture::new();
        let (area, path) = artifacts(&fixture.store, &fixture);
        File::create(path.join("a")).expect("a file").set_len(1 << 40).expect("a terabyte of nothing");
        fs::write(path.join("b"), "hello").expect("a file");
        let manifest = area.manifest(BOUNDS).expect("a list");
        assert_eq!((manifest.files[0].size, &manifest.files[0].sha256), (1 << 40, &None));
        assert_eq!(manifest.files[1].sha256.as_deref(), Some(HELLO), "a small file after it is read");
        assert!(!manifest.complete);
        let short = area.manifest(ManifestBounds { entries: 1, ..BOUNDS }).expect("a list");
        assert_eq!((short.files.len(), short.complete), (1, false));
    }

    #[test]
    fn locks_of_the_program_do_not_keep_us_from_recording() {
        as_nobody(|fixture| {
            let (_, path) = artifacts(&fixture.store, fixture);
            fs::write(path.join("f"), "x").expect("a file");
            fs::create_dir(path.join("stdout.txt")).expect("a directory");
            for (name, mode) in [("f", 0), ("stdout.txt", 0), ("", 0o500)] {
                fs::set_permissions(path.join(name), PermissionsExt::from_mode(mode)).expect("locked");
            }
            let exec = path.file_name().and_then(|name| name.to_str()).expect("an id").parse().expect("an id");
            let area = fixture.store.area(&owner("a"), &project(), &AreaKind::Artifacts(exec)).expect("opened up");
            let manifest = area.record(b"out", b"", &json!({}), BOUNDS).expect("recorded");
            assert_eq!(text(&path.join("stdout.txt")), "out");
            assert_eq!(manifest.files[0], Artifact { path: "f".into(), size: 1, sha256: None });
            assert!(!manifest.complete);
        });
    }
}
