//! Which profiles are in force: read at start, read again when a file changes or on SIGHUP.
//!
//! Front and warden each read root's files for themselves; a digest shows that both have read the same. A set that can't
//! be read, compiled or put in force leaves the last good one where it is, and health and doctor say why.

use crate::executor::Warden;
use crate::isolation::seccomp::{self, Filter};
use crate::isolation::warden::setup::{ProfileSheet, Sheets};
use crate::isolation::warden::{Ready, set_number};
use crate::model::SeccompReport;
use crate::pipeline::{InForce, Source};
use crate::profile::{Profile, Profiles};
use anyhow::Context;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

/// Readings until front and warden have read the same: a file may change between the two.
const READINGS_MAX: usize = 3;

/// Where the package's files and the operator's are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    /// The package's: `profiles/` and `seccomp/` below it.
    pub shared: PathBuf,
    pub profiles: Option<PathBuf>,
    pub seccomp: Option<PathBuf>,
}

/// One reading of all files.
pub(super) struct Reading {
    pub profiles: Profiles,
    pub filters: Vec<Filter>,
    pub digest: [u8; 32],
}

impl Files {
    /// Reads and checks everything: what the binary carries, the package's files and the operator's; later ones win.
    pub(super) fn read(&self) -> anyhow::Result<Reading> {
        let shared = self.shared.join("profiles");
        let directories = std::iter::once(shared.as_path()).chain(self.profiles.as_deref());
        let profiles = Profiles::load_from(directories).context("the profiles")?;
        let mut compiled: BTreeMap<&str, Filter> = BTreeMap::new(); // most profiles share one
        let mut filters = Vec::new();
        for profile in profiles.iter() {
            if !compiled.contains_key(profile.filter.as_str()) {
                compiled.insert(&profile.filter, self.filter_of(profile)?);
            }
            filters.push(compiled[profile.filter.as_str()].clone());
        }
        let mut digest = Sha256::new_with_prefix(profiles.version_hash());
        for filter in &filters {
            digest.update(&filter.hash);
        }
        Ok(Reading { profiles, filters, digest: digest.finalize().into() })
    }

    fn filter_text(&self, name: &str) -> Option<String> {
        let shared = self.shared.join("seccomp");
        let mut directories = self.seccomp.iter().chain([&shared]);
        directories
            .find_map(|directory| std::fs::read_to_string(directory.join(format!("{name}.toml"))).ok())
            .or_else(|| seccomp::shipped(name))
    }

    fn filter_of(&self, profile: &Profile) -> anyhow::Result<Filter> {
        let (id, name) = (&profile.id, &profile.filter);
        let text =
            self.filter_text(name).with_context(|| format!("profile {id}: there is no seccomp filter {name:?}"))?;
        let spec =
            seccomp::parse(name, &text, &|name| self.filter_text(name)).with_context(|| format!("profile {id}"))?;
        spec.compile().with_context(|| format!("profile {id}: filter {name}"))
    }

    /// Directories to watch and to be allowed to read.
    pub(super) fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let shared = ["profiles", "seccomp"].map(|name| Some(self.shared.join(name)));
        shared.into_iter().chain([self.profiles.clone(), self.seccomp.clone()]).flatten()
    }
}

impl Reading {
    /// What the warden needs of it.
    pub(super) fn into_sheets(self) -> Sheets {
        let sheet = |(profile, filter): (&Profile, Filter)| ProfileSheet {
            id: profile.id.clone(),
            rootfs: profile.rootfs.clone(),
            limits: profile.limits,
            tcp: profile.tcp,
            net: profile.net_namespace,
            filter,
            require: profile.require.clone(),
            landlock_min_abi: profile.landlock_min_abi,
        };
        Sheets { profiles: self.profiles.iter().zip(self.filters).map(sheet).collect(), digest: self.digest }
    }

    /// What the front judges by, once the warden has put the same in force.
    pub(super) fn in_force(self, ready: Ready) -> InForce {
        let report = |filter: &Filter| SeccompReport { filter: filter.name.clone(), hash: filter.hash.clone() };
        InForce {
            version_hash: self.profiles.version_hash(),
            set: set_number(&self.digest),
            filters: self.filters.iter().map(report).collect(),
            states: ready.profiles,
            lacking: ready.lacking,
            profiles: self.profiles,
            error: None,
        }
    }
}

/// The source that the pipeline asks.
pub(super) struct Rules {
    files: Files,
    current: RwLock<Arc<InForce>>,
    warden: Warden,
    /// Says without waiting whether a file has changed.
    watch: Option<Inotify>,
    asked: AtomicBool,
    /// One reload at a time; whoever comes meanwhile waits for it.
    reloading: Mutex<()>,
}

impl Rules {
    pub(super) fn new(files: Files, in_force: InForce, warden: Warden) -> Self {
        let watch =
            watch(&files).inspect_err(|error| tracing::warn!(%error, "can't watch the profiles; use SIGHUP")).ok();
        let (current, asked) = (RwLock::new(Arc::new(in_force)), AtomicBool::new(false));
        Self { files, current, warden, watch, asked, reloading: Mutex::new(()) }
    }

    /// SIGHUP: the next look reads the files again.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> Arc<InForce> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, in_force: InForce) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    /// Whether a file has changed since the last look, or somebody asked.
    fn stale(&self) -> bool {
        let changed =
            self.watch.as_ref().is_some_and(|watch| watch.read_events().is_ok_and(|events| !events.is_empty()));
        self.asked.swap(false, Ordering::Relaxed) || changed
    }

    async fn reload(&self) {
        match self.try_reload().await {
            Ok(in_force) => {
                tracing::info!(policy_version_hash = in_force.version_hash, "new profiles are in force");
                self.set(in_force);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the profiles can't be put in force; the last good set stays");
                let last = self.get();
                let (profiles, filters) = (last.profiles.clone(), last.filters.clone());
                let (states, lacking) = (last.states.clone(), last.lacking.clone());
                let (set, version_hash) = (last.set, last.version_hash.clone());
                self.set(InForce { profiles, filters, states, lacking, set, version_hash, error: Some(error) });
            }
        }
    }

    async fn try_reload(&self) -> anyhow::Result<InForce> {
        for _ in 0..READINGS_MAX {
            let files = self.files.clone();
            // Compiling filters takes milliseconds: not on a thread that serves others.
            let reading = tokio::task::spawn_blocking(move || files.read()).await.context("reading the profiles")??;
            let ready =
                self.warden.reload().await?.context("the warden could not put them in force; see its log lines")?;
            if ready.digest == reading.digest {
                return Ok(reading.in_force(ready));
            }
        }
        anyhow::bail!("the files changed each time they were read")
    }
}

impl Source for Rules {
    fn current(&self) -> Pin<Box<dyn Future<Output = Arc<InForce>> + Send + '_>> {
        Box::pin(async {
            if self.stale() {
                let _one_at_a_time = self.reloading.lock().await;
                self.reload().await;
            } else if self.reloading.try_lock().is_err() {
                // Somebody saw the change before us: the next request after a change must see it too.
                let _wait_for_it = self.reloading.lock().await;
            }
            self.get()
        })
    }
}

/// Watches the directories that are there.
fn watch(files: &Files) -> nix::Result<Inotify> {
    let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_ATTRIB;
    for directory in files.directories().filter(|directory| directory.is_dir()) {
        watch.add_watch(&directory, changes)?;
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(pids: u32) -> String {
        format!("id = \"mine\"\ndescription = \"d\"\nextends = \"python-default\"\n[limits]\npids = {pids}\n")
    }

    #[test]
    fn an_operators_file_hides_the_packages_of_the_same_name() {
        let root = tempfile::tempdir().expect("a directory");
        let (shared, etc) = (root.path().join("share"), root.path().join("etc"));
        let files = Files { shared: shared.clone(), profiles: Some(etc.clone()), seccomp: Some(etc.join("seccomp")) };
        let pids = || {
            let reading = files.read().expect("good files");
            reading.profiles.find("mine").map(|(_, mine)| mine.limits.get(crate::model::Limit::Pids))
        };
        assert_eq!(pids(), None, "directories that are not there are empty");
        for directory in [&shared.join("profiles"), &etc] {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        std::fs::write(shared.join("profiles/mine.toml"), profile(5)).expect("a file");
        assert_eq!(pids(), Some(5), "the package's");
        std::fs::write(etc.join("other.toml"), profile(6)).expect("a file");
        assert_eq!(pids(), Some(6), "the same id under another name: the operator's");
        std::fs::remove_file(etc.join("other.toml")).expect("it is there");
        // Hidden, whatever is in it: the package's file is not even read.
        std::fs::write(shared.join("profiles/mine.toml"), "no profile at all").expect("a file");
        assert!(files.read().is_err());
        std::fs::write(etc.join("mine.toml"), profile(7)).expect("a file");
        assert_eq!(pids(), Some(7));
    }

    #[test]
    fn a_filter_is_the_operators_then_the_packages_then_the_binarys() {
        let root = tempfile::tempdir().expect("a directory");
        let (shared, etc) = (root.path().join("share"), root.path().join("etc"));
        let files = Files { shared: shared.clone(), profiles: None, seccomp: Some(etc.clone()) };
        assert_eq!(files.filter_text("default"), seccomp::shipped("default"));
        for (directory, text) in [(shared.join("seccomp"), "the package's"), (etc, "the operator's")] {
            std::fs::create_dir_all(&directory).expect("a directory");
            std::fs::write(directory.join("default.toml"), text).expect("a file");
            assert_eq!(files.filter_text("default").as_deref(), Some(text));
        }
        assert_eq!(files.filter_text("none"), None);
    }
}
