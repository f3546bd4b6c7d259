//! The front gives everything up before it hears its first byte.

use super::Places;
use super::host::Service;
use super::rules::Files;
use crate::isolation::landlock::{Rules, kernel_abi};
use crate::isolation::sys;
use crate::model::Tcp;
use anyhow::{Context, bail};
use nix::unistd::{setgroups, setresgid, setresuid};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What the front may read: users and groups for the access rules, libraries, its own /proc.
const READABLE: &[&str] = &["/etc", "/usr", "/lib", "/lib64", "/proc", "/dev"];

/// Becomes the service user for good: no capability in any set, no_new_privs, Landlocked to its own directories.
pub(super) fn give_up(service: Service, places: &Places, projects: &OwnedFd, files: &Files) -> anyhow::Result<()> {
    sys::drop_bounding_set().context("the bounding set")?;
    sys::clear_ambient().context("the ambient set")?;
    setgroups(&[]).context("the groups")?;
    setresgid(service.gid, service.gid, service.gid).context("the gid")?;
    setresuid(service.uid, service.uid, service.uid).context("the uid")?;
    sys::clear_capabilities().context("the capability sets")?;
    sys::set_no_new_privs().context("no_new_privs")?;
    sys::set_not_dumpable().context("dumpable")?;
    landlock_self(places, projects, files)?;
    if setresuid(nix::unistd::Uid::from_raw(0), nix::unistd::Uid::from_raw(0), nix::unistd::Uid::from_raw(0)).is_ok() {
        bail!("root could be had back");
    }
    Ok(())
}

fn landlock_self(places: &Places, projects: &OwnedFd, files: &Files) -> anyhow::Result<()> {
    let abi = kernel_abi();
    if abi == 0 {
        tracing::warn!("no Landlock in this kernel: the front is confined by its uid alone");
        return Ok(());
    }
    let mut rules = Rules::new(abi, Tcp::None).context("Landlock")?;
    let readable = READABLE.iter().map(PathBuf::from).chain(files.directories());
    for path in readable.filter(|path| path.exists()) {
        let path = path.to_str().context("directories have names in UTF-8")?;
        rules = rules.allow_read(path).with_context(|| format!("Landlock rule for {path}"))?;
    }
    for path in [&places.run_dir, &places.state_dir] {
        let path = path.to_str().context("directories have names in UTF-8")?;
        rules = rules.allow_write(path).with_context(|| format!("Landlock rule for {path}"))?;
    }
    // The one socket of others that it speaks to. An abstract one (`@…`) has no path and no rule.
    let manager = std::env::var("NOTIFY_SOCKET").ok().filter(|path| path.starts_with('/'));
    if let Some(path) = manager.filter(|path| Path::new(path).exists()) {
        rules = rules.allow_connect(&path).with_context(|| format!("Landlock rule for {path}"))?;
    }
    // A store in an image has no path.
    let projects = format!("/proc/self/fd/{}", projects.as_raw_fd());
    rules = rules.allow_write(&projects).context("Landlock rule for the store")?;
    rules.restrict_self().context("Landlock")
}
