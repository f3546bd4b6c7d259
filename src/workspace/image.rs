//! Making a store's image: a sparse file with an empty btrfs in it. The one place where another program (mkfs.btrfs) is
//! run, once, by whoever sets the store up.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The image's name in the state directory.
pub const IMAGE: &str = "store.img";
/// Smaller, and btrfs has no room for its own.
pub const IMAGE_MIN_BYTES: u64 = 256 << 20;
/// Where mkfs.btrfs is looked for; an ordinary PATH often has no sbin.
const SBIN: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Too small.
    #[error("an image of {0} bytes is too small; the least is {IMAGE_MIN_BYTES}")]
    TooSmall(u64),
    /// One is there.
    #[error("{0} exists; it is never made anew, as projects may lie in it")]
    Exists(PathBuf),
    /// There are projects without limits.
    #[error("{0} holds projects, which a new store would hide; delete them, or choose another state directory")]
    HasProjects(PathBuf),
    /// mkfs.btrfs is missing.
    #[error("there is no mkfs.btrfs; install btrfs-progs")]
    NoMkfs,
    /// A file.
    #[error("could not write {path}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// mkfs.btrfs did not do it.
    #[error("mkfs.btrfs failed: {0}")]
    Mkfs(String),
}

/// Whether a state directory has projects outside an image.
#[must_use]
pub fn has_projects(state_dir: &Path) -> bool {
    let projects = std::fs::read_dir(state_dir.join("workspace/projects"));
    projects.is_ok_and(|mut entries| entries.any(|entry| entry.is_ok()))
}

/// Makes the image of a state directory, which has none and no projects either. All of it or nothing.
pub fn make_image(state_dir: &Path, bytes: u64) -> Result<PathBuf, ImageError> {
    let path = state_dir.join(IMAGE);
    if bytes < IMAGE_MIN_BYTES {
        return Err(ImageError::TooSmall(bytes));
    }
    if path.symlink_metadata().is_ok() {
        return Err(ImageError::Exists(path));
    }
    if has_projects(state_dir) {
        return Err(ImageError::HasProjects(state_dir.join("workspace/projects")));
    }
    let mkfs = SBIN.iter().map(|place| Path::new(place).join("mkfs.btrfs")).find(|path| path.exists());
    let mkfs = mkfs.ok_or(ImageError::NoMkfs)?;
    let aside = state_dir.join(format!(".{IMAGE}.new"));
    let failed = |source| ImageError::Write { path: aside.clone(), source };
    match std::fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {} // what a killed one left
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    // One copy of metadata: the disk below is the same for both.
    let arguments = ["--quiet", "--metadata", "single", "--data", "single", "--label", "sandboxd"];
    let made = Command::new(mkfs).args(arguments).arg(&aside).stdin(Stdio::null()).output().map_err(failed)?;
    if !made.status.success() {
        let _ = std::fs::remove_file(&aside); // the error counts
        return Err(ImageError::Mkfs(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
    }
    file.sync_all().and_then(|()| std::fs::rename(&aside, &path)).map_err(failed)?;
    Ok(path)
}
