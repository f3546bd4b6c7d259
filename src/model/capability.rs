//! Capabilities: what a profile may let a caller do. Adding one is a line here.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, [$($operation:literal),*], needs [$($program:literal),*];)*) => {
        /// Something a caller can be permitted to do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Capability { $($(#[$doc])* $variant,)* }

        impl Capability {
            /// Every capability.
            pub const ALL: &'static [Capability] = &[$(Capability::$variant,)*];

            /// The name in profiles, requests and answers.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Capability::$variant => $name,)* }
            }

            /// What can be done with it.
            #[must_use]
            pub const fn operations(self) -> &'static [&'static str] {
                match self { $(Capability::$variant => &[$($operation),*],)* }
            }

            /// Programs of which the root must have one, or the capability can't be had whatever the profile says.
            #[must_use]
            pub const fn programs(self) -> &'static [&'static str] {
                match self { $(Capability::$variant => &[$($program),*],)* }
            }
        }
    };
}

capabilities! {
    /// Python code.
    Python = "python", ["exec"], needs ["python3"];
    /// Shell code.
    Shell = "shell", ["exec"], needs ["bash"];
    /// A program with arguments, no shell between.
    Process = "process", ["exec"], needs [];
    /// Files of the workspace.
    Filesystem = "filesystem", ["read", "list", "write", "delete", "upload", "download"], needs [];
    /// Requests that the daemon makes for the program.
    Net = "net", ["http"], needs [];
    /// A headless browser.
    Browser = "browser", ["open", "screenshot", "extract"], needs ["chromium", "chromium-browser", "google-chrome"];
    /// Scratch space beside the work area.
    Tmp = "tmp", ["alloc"], needs [];
}

/// Why a text names no capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// No such capability.
    #[error("{0:?} is not a capability; known are {known}", known = names(Capability::ALL.iter().map(|known| known.name())))]
    Unknown(String),
    /// No such operation of it.
    #[error("{} has no operation {operation:?}; known are {known}", .capability.name(), known = names(.capability.operations().iter().copied()))]
    Operation {
        /// The capability.
        capability: Capability,
        /// What was asked for.
        operation: String,
    },
}

fn names<'a>(known: impl Iterator<Item = &'a str>) -> String {
    known.collect::<Vec<_>>().join(", ")
}

impl Capability {
    /// The capability of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Capability::ALL.iter().copied().find(|capability| capability.name() == name)
    }
}

/// Capabilities that a root does not have the programs for: a bit for each, in the order of [`Capability::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lacking(pub u16);

impl Lacking {
    /// What is lacking where `has` says which programs are there.
    pub fn probe(mut has: impl FnMut(&str) -> bool) -> Self {
        let mut lacks = |capability: &Capability| {
            let programs = capability.programs();
            !programs.is_empty() && !programs.iter().any(|program| has(program))
        };
        Self(Capability::ALL.iter().filter(|capability| lacks(capability)).fold(0, |bits, one| bits | 1 << *one as u16))
    }

    /// Whether the programs of this one are missing.
    #[must_use]
    pub fn contains(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u16 != 0
    }
}

/// Capabilities with the operations that are permitted of each. In files a list of `"shell"` (all of it) and
/// `"filesystem:read"` (one operation).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapabilitySet(BTreeMap<Capability, BTreeSet<&'static str>>);

impl CapabilitySet {
    /// Whether an operation is permitted.
    #[must_use]
    pub fn permits(&self, capability: Capability, operation: &str) -> bool {
        self.0.get(&capability).is_some_and(|operations| operations.contains(operation))
    }

    /// The permitted operations of a capability, in the order of the table; none if it is not there.
    #[must_use]
    pub fn operations(&self, capability: Capability) -> Vec<&'static str> {
        let permitted = |operation: &&&'static str| self.permits(capability, operation);
        capability.operations().iter().filter(permitted).copied().collect()
    }

    /// What is there: a name alone where all of a capability is, else `name:operation` each.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (&capability, operations) in &self.0 {
            if operations.len() == capability.operations().len() {
                words.push(capability.name().to_owned());
            } else {
                words.extend(
                    self.operations(capability)
                        .into_iter()
                        .map(|operation| format!("{}:{operation}", capability.name())),
                );
            }
        }
        words
    }

    /// The set that these words name.
    pub fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Self, CapabilityError> {
        let mut set = Self::default();
        for word in words {
            let (name, operation) = match word.as_ref().split_once(':') {
                Some((name, operation)) => (name, Some(operation)),
                None => (word.as_ref(), None),
            };
            let capability = Capability::from_name(name).ok_or_else(|| CapabilityError::Unknown(name.to_owned()))?;
            let operations = set.0.entry(capability).or_default();
            match operation {
                None => operations.extend(capability.operations()),
                Some(asked) => {
                    let unknown = || CapabilityError::Operation { capability, operation: asked.to_owned() };
                    let known = capability.operations().iter().copied().find(|known| *known == asked);
                    operations.insert(known.ok_or_else(unknown)?);
                }
            }
        }
        Ok(set)
    }
}

impl Serialize for CapabilitySet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.words())
    }
}

impl<'de> Deserialize<'de> for CapabilitySet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = Vec::<String>::deserialize(deserializer)?;
        Self::from_words(words).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarse_word_is_all_of_it_and_a_fine_one_is_one_operation() {
        let set = CapabilitySet::from_words(["python", "filesystem:read", "filesystem:list"]).expect("known words");
        assert!(set.permits(Capability::Python, "exec") && set.permits(Capability::Filesystem, "list"));
        assert!(!set.permits(Capability::Filesystem, "write") && !set.permits(Capability::Shell, "exec"));
        assert_eq!(set.words(), ["python", "filesystem:read", "filesystem:list"]);
        assert_eq!(CapabilitySet::from_words(set.words()), Ok(set));
    }

    #[test]
    fn unknown_words_say_what_there_is() {
        let error = CapabilitySet::from_words(["rocket"]).expect_err("no such thing").to_string();
        assert!(error.contains("rocket") && error.contains("python, shell"), "{error}");
        let error = CapabilitySet::from_words(["filesystem:fly"]).expect_err("no such thing").to_string();
        assert!(error.contains("filesystem has no operation \"fly\"; known are read, list"), "{error}");
    }

    #[test]
    fn no_word_permits_nothing() {
        let set = CapabilitySet::default();
        for &capability in Capability::ALL {
            assert!(capability.operations().iter().all(|operation| !set.permits(capability, operation)));
        }
    }
}
