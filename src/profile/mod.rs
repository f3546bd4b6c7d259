//! Profiles: what a host's operator permits. `profiles/*.toml` → checked [`Profile`].
//!
//! Parsing is strict: an unknown key, layer, limit or capability is an error that names file and line. The shipped
//! profiles are part of the binary; files in directories are added to them and replace those of the same id. Of two files
//! with the same name only the one in the later directory is read: an operator's file hides the package's.
//! It knows nothing of the kernel or of requests.
#![forbid(unsafe_code)]

mod file;
mod schema;

pub use file::ProfileError;
pub use schema::schema;

use file::Draft;

use crate::model::{CapabilitySet, Layer, Limits, NetNamespace, Rootfs, Tcp};
use crate::terms::{SecurityMode, Terms};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The profiles this build carries.
const SHIPPED: [(&str, &str); 7] = [
    ("analyst.toml", include_str!("../../profiles/analyst.toml")),
    ("browser.toml", include_str!("../../profiles/browser.toml")),
    ("net-http.toml", include_str!("../../profiles/net-http.toml")),
    ("python-default.toml", include_str!("../../profiles/python-default.toml")),
    ("python-readonly.toml", include_str!("../../profiles/python-readonly.toml")),
    ("shell.toml", include_str!("../../profiles/shell.toml")),
    ("strict.toml", include_str!("../../profiles/strict.toml")),
];

/// One checked profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Its name.
    pub id: String,
    /// For whom it is.
    pub description: String,
    /// What its sandboxes have as root.
    pub rootfs: Rootfs,
    /// What callers may do under it, on what, and when a person has to agree. Its limits are beside it.
    pub terms: Terms,
    /// Whether nothing runs without a grant.
    pub grant_required: bool,
    /// What a hint of risk leads to.
    pub security_mode: SecurityMode,
    /// Layers without which nothing runs.
    pub require: Vec<Layer>,
    /// Landlock ABI from which that layer counts as there.
    pub landlock_min_abi: u32,
    /// Name of its filter.
    pub filter: String,
    /// TCP inside.
    pub tcp: Tcp,
    /// Whether its network namespaces are used again.
    pub net_namespace: NetNamespace,
    /// The most any run may have.
    pub limits: Limits,
    /// Environment of every program.
    pub env: BTreeMap<String, String>,
    /// SHA-256 of all of the above.
    #[serde(skip)]
    hash: String,
}

/// All profiles of a daemon, in a fixed order that front and warden share.
#[derive(Debug, Clone)]
pub struct Profiles(Vec<Profile>);

impl Profile {
    /// SHA-256 of everything the profile says. The same for the same content, whatever the order of keys in the file.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    fn hashed(mut self) -> Self {
        let canonical = serde_json::to_vec(&self).expect("a profile holds nothing that JSON lacks");
        self.hash = hex(&Sha256::digest(canonical));
        self
    }

    /// The capabilities and operations that it declares, whatever the resources.
    #[must_use]
    pub fn capabilities(&self) -> CapabilitySet {
        CapabilitySet::from(&self.terms.allowances)
    }
}

/// Reads and checks one file by itself; it may extend a shipped profile.
pub fn parse(path: &Path, text: &str) -> Result<Profile, ProfileError> {
    let draft = file::parse(path, text)?;
    match draft.extends() {
        None => draft.finish(None),
        Some(base) => {
            let shipped = Profiles::load(None)?;
            let base = shipped.find(base).map(|(_, base)| base.clone());
            let base = base.ok_or_else(|| draft.bad_base("which is not a shipped profile"))?;
            draft.finish(Some(&base))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Profiles {
    /// The shipped profiles, and those in `directory`.
    pub fn load(directory: Option<&Path>) -> Result<Self, ProfileError> {
        Self::load_from(directory.into_iter())
    }

    /// The shipped profiles, and those in the directories, of which the later win.
    pub fn load_from<'a>(directories: impl Iterator<Item = &'a Path>) -> Result<Self, ProfileError> {
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        for directory in directories {
            let later = file::read_directory(directory)?;
            files.retain(|(path, _)| later.iter().all(|(other, _)| other.file_name() != path.file_name()));
            files.extend(later);
        }
        let mut drafts = BTreeMap::new();
        for (name, text) in SHIPPED {
            let draft = file::parse(Path::new(name), text)?;
            drafts.insert(draft.id().to_owned(), draft);
        }
        for (path, text) in files {
            let draft = file::parse(&path, &text)?;
            drafts.insert(draft.id().to_owned(), draft);
        }
        Self::join(drafts)
    }

    /// Joins each draft with the one it extends: one level, so that a reader has two files to look at and no more.
    fn join(drafts: BTreeMap<String, Draft>) -> Result<Self, ProfileError> {
        let (extending, plain): (Vec<Draft>, Vec<Draft>) =
            drafts.into_values().partition(|draft| draft.extends().is_some());
        let extended: Vec<String> = extending.iter().map(|draft| draft.id().to_owned()).collect();
        let mut by_id = BTreeMap::new();
        for draft in plain {
            let profile = draft.finish(None)?;
            by_id.insert(profile.id.clone(), profile);
        }
        let bases = by_id.clone();
        for draft in extending {
            let base = draft.extends().unwrap_or_default();
            let Some(base) = bases.get(base) else {
                let itself_extends = extended.iter().any(|id| id == base);
                return Err(draft.bad_base(if itself_extends {
                    "which extends another itself"
                } else {
                    "which is not there"
                }));
            };
            let profile = draft.finish(Some(base))?;
            by_id.insert(profile.id.clone(), profile);
        }
        Ok(Self(by_id.into_values().collect()))
    }

    /// SHA-256 over the hashes of all profiles: changes when any of them does.
    #[must_use]
    pub fn version_hash(&self) -> String {
        let mut hasher = Sha256::new();
        for profile in &self.0 {
            hasher.update(profile.hash());
        }
        hex(&hasher.finalize())
    }

    /// The profile of that name and its place in the order.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(u16, &Profile)> {
        let place = self.0.iter().position(|profile| profile.id == id)?;
        Some((u16::try_from(place).ok()?, &self.0[place]))
    }

    /// The profile of that name, to try a change on a copy of the set. Its hash stays that of the file.
    pub fn find_mut(&mut self, id: &str) -> Option<&mut Profile> {
        self.0.iter_mut().find(|profile| profile.id == id)
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
        let shipped = ["analyst", "browser", "net-http", "python-default", "python-readonly", "shell", "strict"];
        assert_eq!(profiles.ids(), shipped);
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
        let text = SHIPPED[6].1.replace("memory_bytes = ", "memory_bytes = 4194304 # ");
        std::fs::write(directory.path().join("mine.toml"), text).expect("a file");
        let profiles = Profiles::load(Some(directory.path())).expect("both sources");
        let (_, strict) = profiles.find("strict").expect("still there");
        assert_eq!(strict.limits.get(crate::model::Limit::MemoryBytes), 4 << 20);
    }

    fn joined(files: &[(&str, &str)]) -> Result<Profiles, ProfileError> {
        let drafts =
            files.iter().map(|(id, text)| (id.to_string(), file::parse(Path::new("p.toml"), text).expect("TOML")));
        Profiles::join(drafts.collect())
    }

    #[test]
    fn an_extension_takes_what_it_leaves_out_from_its_base() {
        let base = "id = \"a\"\ndescription = \"\"\ncapabilities = [\"python\"]\n[limits]\npids = 10\nnofile = 20\n[network]\ntcp = \"loopback\"\n";
        let extension = "id = \"b\"\ndescription = \"\"\nextends = \"a\"\n[limits]\npids = 5\n";
        let profiles = joined(&[("a", base), ("b", extension)]).expect("both");
        let (_, b) = profiles.find("b").expect("the extension");
        assert_eq!(b.limits.get(crate::model::Limit::Pids), 5);
        assert_eq!((b.limits.get(crate::model::Limit::Nofile), b.tcp), (20, Tcp::Loopback));
        assert_eq!(b.capabilities().words(), ["python"]);
        let two_levels = "id = \"c\"\ndescription = \"\"\nextends = \"b\"\n";
        let error = joined(&[("a", base), ("b", extension), ("c", two_levels)]).expect_err("two levels").to_string();
        assert!(error.contains("extends \"b\", which extends another itself"), "{error}");
        let error = joined(&[("c", two_levels)]).expect_err("no base").to_string();
        assert!(error.contains("which is not there"), "{error}");
    }

    #[test]
    fn a_hash_knows_the_content_and_not_the_order() {
        let one = "id = \"a\"\ndescription = \"\"\n[limits]\npids = 10\nnofile = 20\n[env]\nA = \"1\"\nB = \"2\"\n";
        let other = "description = \"\"\nid = \"a\"\n[env]\nB = \"2\"\nA = \"1\"\n[limits]\nnofile = 20\npids = 10\n";
        let hash = |text| joined(&[("a", text)]).expect("a profile").find("a").expect("it").1.hash().to_owned();
        assert_eq!(hash(one), hash(other));
        assert_ne!(hash(one), hash(&one.replace("pids = 10", "pids = 11")));
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mine.toml");
        std::fs::write(&path, SHIPPED[6].1).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("its mode");
        let error = Profiles::load(Some(directory.path())).expect_err("a loose file").to_string();
        assert!(error.contains("is not root's alone"), "{error}");
    }
}
