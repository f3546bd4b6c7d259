//! A file that holds nothing but disk space: let go of when the disk is full, so that what runs can still be recorded
//! to its end.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// Name below the journal's directory.
const NAME: &str = "ballast";
/// How much it holds: the ends of some thousand operations, each in a commit of its own.
pub(super) const BYTES: u64 = 8 << 20;

/// The file, and whether it holds its space now.
#[derive(Debug)]
pub(super) struct Ballast {
    path: PathBuf,
    held: bool,
}

impl Ballast {
    pub(super) fn below(directory: &std::path::Path) -> Self {
        Self { path: directory.join(NAME), held: false }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Takes the space; an error leaves none of it taken.
    pub(super) fn take(&mut self) -> io::Result<()> {
        let file = self.open()?;
        let taken = hold(&file, BYTES);
        if taken.is_err() {
            // Part of it may have been taken. If even that can't be undone, the disk stays as full as it is.
            let _ = file.set_len(0);
        }
        self.held = taken.is_ok();
        taken
    }

    /// Gives the space back to whoever writes next.
    pub(super) fn let_go(&mut self) -> io::Result<()> {
        self.held = false;
        self.open()?.set_len(0)
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)
    }
}

/// Has a file hold so many bytes of the disk, some mebibytes; what stands in it stays.
pub(super) fn hold(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Some file systems can only be written to.
        Err(Errno::OPNOTSUPP) => zeroes(file, bytes),
        other => other.map_err(io::Error::from),
    }
}

/// Writes what is missing of so many bytes.
fn zeroes(file: &File, bytes: u64) -> io::Result<()> {
    let block = vec![0; 1 << 20];
    let mut at = file.metadata()?.len();
    while at < bytes {
        let some = (bytes - at).min(block.len() as u64);
        file.write_all_at(&block[..some as usize], at)?;
        at += some;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn it_holds_real_blocks_and_lets_go_of_them() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut ballast = Ballast::below(directory.path());
        ballast.take().expect("space");
        let blocks = || std::fs::metadata(directory.path().join(NAME)).expect("the file").blocks() * 512;
        assert!(ballast.is_held() && blocks() >= BYTES);
        ballast.let_go().expect("our own file");
        assert!(!ballast.is_held() && blocks() == 0);
    }
}
