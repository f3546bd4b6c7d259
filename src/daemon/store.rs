//! Which store the daemon has: the strongest that the config and the host give.
//!
//! ```text
//! driver      <state_dir>/store.img is there   state_dir is on btrfs           neither
//! auto        the image                        if its quotas are on already    directory, or a new image (image_bytes)
//! btrfs       the image                        quotas are turned on            a new image (image_bytes), or no start
//! directory   directory                        directory                       directory
//! ```
//!
//! An image that can't be mounted is no start: the projects in it would be gone from sight. Projects that lie in a plain
//! directory are never hidden behind a new image.

use super::Places;
use super::host::Service;
use crate::executor::StoreState;
use crate::isolation::store::{self, Image};
use crate::workspace::{IMAGE, has_projects, make_image};
use anyhow::{Context, bail};
use nix::fcntl::{Flock, OFlag, open};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::fchown;
use serde::Deserialize;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// `[store]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreRules {
    /// Which driver.
    pub driver: Driver,
    /// How large an image the daemon makes if there is none; none: it makes none.
    pub image_bytes: Option<u64>,
    /// Snapshots that one sandbox may have.
    pub max_snapshots: u64,
}

impl Default for StoreRules {
    fn default() -> Self {
        Self { driver: Driver::Auto, image_bytes: None, max_snapshots: 32 }
    }
}

/// `store.driver`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// The strongest that is there.
    Auto,
    /// Subvolumes with limits, or no start.
    Btrfs,
    /// Plain directories.
    Directory,
}

/// The store as start-up found or made it.
pub(super) struct Ground {
    /// The directory of all projects: the front's view of it.
    pub projects: OwnedFd,
    /// The same for the warden: a directory, or a device to mount.
    pub workspaces: PathBuf,
    /// Held until the last process of the daemon is gone.
    pub lock: Option<Flock<File>>,
    /// What is said of it.
    pub state: StoreState,
}

/// Opens the store. What it holds (a lock, a loop device) is held until the last process of the daemon is gone.
pub(super) fn lay(rules: StoreRules, places: &Places, service: Service) -> anyhow::Result<Ground> {
    let image = places.state_dir.join(IMAGE);
    let there = image.symlink_metadata().is_ok();
    if rules.driver == Driver::Directory {
        let why =
            if there { format!("{} is not used: store.driver is directory", image.display()) } else { String::new() };
        return directory(places, why);
    }
    if there {
        return mounted(&image, service);
    }
    let projects = open_projects(&places.projects)?;
    if store::on_btrfs(&projects) {
        if rules.driver == Driver::Btrfs {
            store::count(&projects).context("store.driver is btrfs")?;
        }
        match store::try_limits(&projects) {
            Ok(()) => {
                let place = places.projects.display().to_string();
                let state = StoreState { driver: "btrfs", place, lacking: None };
                return Ok(Ground { projects, workspaces: places.projects.clone(), lock: None, state });
            }
            Err(error) if rules.driver == Driver::Btrfs => return Err(error).context("store.driver is btrfs"),
            // Turning quotas on slows a whole filesystem down: that is for its operator to say.
            Err(error) => {
                return directory(places, format!("{error:#}; set store.driver = \"btrfs\" to turn quotas on"));
            }
        }
    }
    match rules.image_bytes {
        Some(bytes) if !has_projects(&places.state_dir) => match make_image(&places.state_dir, bytes) {
            Ok(image) => mounted(&image, service),
            Err(error) if rules.driver == Driver::Btrfs => Err(error).context("store.driver is btrfs"),
            Err(error) => directory(places, error.to_string()),
        },
        _ if rules.driver == Driver::Btrfs => bail!(
            "store.driver is btrfs, but {} is not on btrfs and there is no {}; make one with `sandboxctl store init --size 10G`",
            places.projects.display(),
            image.display()
        ),
        _ => directory(places, String::new()),
    }
}

fn open_projects(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty()).with_context(|| format!("could not open {}", path.display()))
}

fn directory(places: &Places, why: String) -> anyhow::Result<Ground> {
    let lacking = if why.is_empty() { "there is no image with subvolumes".to_owned() } else { why };
    let state =
        StoreState { driver: "directory", place: places.projects.display().to_string(), lacking: Some(lacking) };
    Ok(Ground { projects: open_projects(&places.projects)?, workspaces: places.projects.clone(), lock: None, state })
}

fn mounted(path: &Path, service: Service) -> anyhow::Result<Ground> {
    let Image { device, root, lock } = Image::mount(path).context("the store")?;
    store::count(&root).context("the store")?;
    store::try_limits(&root).context("the store")?;
    fchown(&root, Some(service.uid), Some(service.gid)).context("the store's owner")?;
    fchmod(&root, Mode::from_bits_truncate(0o700)).context("the store's mode")?;
    let state = StoreState { driver: "btrfs", place: path.display().to_string(), lacking: None };
    Ok(Ground { projects: root, workspaces: device, lock: Some(lock), state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_one_of_three_words() {
        let read = |text: &str| toml::from_str::<StoreRules>(text);
        assert_eq!(read("").expect("the defaults"), StoreRules::default());
        assert_eq!(read("driver = \"btrfs\"").expect("known").driver, Driver::Btrfs);
        assert!(read("driver = \"zfs\"").is_err());
        assert!(read("size = 1").is_err());
    }
}
