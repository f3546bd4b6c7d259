//! Profiles: what a host's operator permits. `profiles/*.toml` → checked [`Profile`].
//!
//! Parsing is strict: an unknown key, layer, limit or capability is an error that names file and line. The shipped
//! profiles are part of the binary; files in the operator's directory are added to them and replace those of the same id.
//! It knows nothing of the kernel or of requests.
#![forbid(unsafe_code)]

mod file;

pub use file::{ProfileError, parse};

use crate::model::{Capability, Layer, Limits, Rootfs, Tcp};
use std::collections::BTreeMap;
use std::path::Path;

/// The profiles this build carries.
const SHIPPED: [(&str, &str); 3] = [
    ("python-default.toml", include_str!("../../profiles/python-default.toml")),
    ("shell.toml", include_str!("../../profiles/shell.toml")),
    ("strict.toml", include_str!("../../profiles/strict.toml")),
];

/// One checked profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub id: String,
    /// For whom it is.
    pub description: String,
    /// What its sandboxes have as root.
    pub rootfs: Rootfs,
    /// What callers may do under it.
    pub capabilities: Vec<Capability>,
    /// Layers without which nothing runs.
    pub require: Vec<Layer>,
    /// Landlock ABI from which that layer counts as there.
    pub landlock_min_abi: u32,
    /// Name of its filter.
    pub filter: String,
    /// TCP inside.
    pub tcp: Tcp,
    /// The most any run may have.
    pub limits: Limits,
    /// Environment of every program.
    pub env: BTreeMap<String, String>,
}

/// All profiles of a daemon, in a fixed order that front and warden share.
#[derive(Debug, Clone)]
pub struct Profiles(Vec<Profile>);

impl Profiles {
    /// The shipped profiles, and those in `directory`.
    pub fn load(directory: Option<&Path>) -> Result<Self, ProfileError> {
        let mut by_id = BTreeMap::new();
        for (name, text) in SHIPPED {
            let profile = file::parse(Path::new(name), text)?;
            by_id.insert(profile.id.clone(), profile);
        }
        if let Some(directory) = directory {
            for (path, text) in file::read_directory(directory)? {
                let profile = file::parse(&path, &text)?;
                by_id.insert(profile.id.clone(), profile);
            }
        }
        Ok(Self(by_id.into_values().collect()))
    }

    /// The profile of that name and its place in the order.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(u16, &Profile)> {
        let place = self.0.iter().position(|profile| profile.id == id)?;
        Some((u16::try_from(place).ok()?, &self.0[place]))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Profile> {
        self.0.iter()
    }

    /// Their names.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        self.0.iter().map(|profile| profile.id.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_loads_and_requires_every_layer() {
        let profiles = Profiles::load(None).expect("the shipped files");
        assert_eq!(profiles.ids(), ["python-default", "shell", "strict"]);
        for profile in profiles.iter() {
            assert_eq!(profile.require, Layer::ALL, "{}", profile.id);
        }
    }

    #[test]
    fn strict_is_nowhere_wider_than_the_default() {
        let profiles = Profiles::load(None).expect("the shipped files");
        let (_, default) = profiles.find("python-default").expect("shipped");
        let (_, strict) = profiles.find("strict").expect("shipped");
        assert_eq!(strict.limits.first_wider_than(&default.limits), None);
        assert_eq!(strict.tcp, Tcp::None);
    }

    #[test]
    fn an_operators_file_replaces_a_shipped_profile() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = SHIPPED[2].1.replace("memory_bytes = ", "memory_bytes = 4194304 # ");
        std::fs::write(directory.path().join("mine.toml"), text).expect("a file");
        let profiles = Profiles::load(Some(directory.path())).expect("both sources");
        let (_, strict) = profiles.find("strict").expect("still there");
        assert_eq!(strict.limits.get(crate::model::Limit::MemoryBytes), 4 << 20);
    }
}
