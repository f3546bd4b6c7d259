//! A store of its own for every test, and a thread that is nobody: root walks through every mode.

use super::{AreaDir, AreaKind, Store};
use crate::model::{Owner, ProjectId};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, chown, setfsgid, setfsuid};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The project of every test.
pub(super) const PROJECT: &str = "p1";

pub(super) struct Fixture {
    directory: PathBuf,
    _removed_last: Option<TempDir>,
    pub(super) store: Store,
}

pub(super) fn owner(subject: &str) -> Owner {
    Owner { tenant: "t".into(), subject: subject.into() }
}

pub(super) fn project() -> ProjectId {
    PROJECT.parse().expect("a name")
}

impl Fixture {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let fixture = Self::within(directory.path());
        Self { _removed_last: Some(directory), ..fixture }
    }

    fn within(directory: &Path) -> Self {
        let store = Store::open(directory).expect("a store");
        store.claim(&owner("a"), &project()).expect("a project");
        Self { directory: directory.to_owned(), _removed_last: None, store }
    }

    /// The work area, as its owner has it.
    pub(super) fn area(&self) -> AreaDir {
        self.store.area(&owner("a"), &project(), &AreaKind::Work).expect("the work area")
    }

    /// Where a file of the work area is on disk.
    pub(super) fn work(&self, path: &str) -> PathBuf {
        self.directory.join(PROJECT).join("work").join(path)
    }

    /// Where a file of the project is on disk.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(PROJECT).join(path)
    }

    /// How many files are being written.
    pub(super) fn staged(&self) -> usize {
        std::fs::read_dir(self.path(".new")).expect("the staging directory").count()
    }
}

/// Runs a test as a user without any right but its own, in a thread: the filesystem's ids are a thread's.
pub(super) fn as_nobody(test: impl FnOnce(&Fixture) + Send) {
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().expect("a directory");
    if Uid::effective().is_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        chown(directory.path(), Some(uid), Some(gid)).expect("root may give it away");
    }
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            if Uid::effective().is_root() {
                setfsgid(Gid::from_raw(NOBODY));
                setfsuid(Uid::from_raw(NOBODY)); // takes the rights of root over files away, too
            }
            test(&Fixture::within(directory.path()));
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a test on a disk of `bytes`.
pub(super) fn on_a_small_disk(bytes: u64, test: impl FnOnce(&Fixture) + Send) {
    let directory = tempfile::tempdir().expect("a directory");
    with_mounts(|| {
        small_disk(directory.path(), bytes);
        test(&Fixture::within(directory.path()));
    });
}

/// Runs a test with the work area on a disk of `bytes`, and the rest elsewhere.
pub(super) fn with_work_on_a_disk_of_its_own(bytes: u64, test: impl FnOnce(&Fixture) + Send) {
    let directory = tempfile::tempdir().expect("a directory");
    with_mounts(|| {
        let fixture = Fixture::within(directory.path());
        small_disk(&fixture.work(""), bytes);
        test(&fixture);
    });
}

fn small_disk(place: &Path, bytes: u64) {
    let (options, flags) = (format!("size={bytes}"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
    mount(Some("small"), place, Some("tmpfs"), flags, Some(options.as_str())).expect("a small disk");
}

/// A thread with a mount namespace of its own: what it mounts nobody else sees, and it is gone with the thread.
fn with_mounts(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("missing: root, to mount a small disk");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("nothing leaves the namespace");
            test();
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
