//! Files without a name, for what has to be on disk only as long as somebody holds it.

use super::Store;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io;

impl Store {
    /// A file on the disk of the workspaces that no path leads to; it goes with its last descriptor, also if we die.
    pub fn nameless_file(&self) -> io::Result<File> {
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_EXCL;
        Ok(openat(&self.projects, ".", flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }
}
