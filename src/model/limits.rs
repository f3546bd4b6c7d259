//! Limits: one table of amounts, each with a name, a unit in the name, a floor and a ceiling.
//!
//! A profile spells out all of them; a request may narrow some. The warden compares every one with the
//! profile's, so the set is an array indexed by [`Limit`] and not a struct with a field forgotten somewhere.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

macro_rules! limits {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $floor:expr, $ceiling:expr, $default:expr;)*) => {
        /// One amount that is limited.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Limit { $($(#[$doc])* $variant,)* }

        impl Limit {
            /// Every limit, in the order of the table and of the warden's record.
            pub const ALL: &'static [Limit] = &[$(Limit::$variant,)*];

            /// The key in profiles, requests and answers; the unit is its last word.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Limit::$variant => $name,)* }
            }

            /// The smallest amount that still lets a program start.
            #[must_use]
            pub const fn floor(self) -> u64 {
                match self { $(Limit::$variant => $floor,)* }
            }

            /// The largest amount that can be given: far below where sums could overflow.
            #[must_use]
            pub const fn ceiling(self) -> u64 {
                match self { $(Limit::$variant => $ceiling,)* }
            }

            /// The system default (SPEC §7), which a profile's own amount replaces.
            #[must_use]
            pub const fn default_amount(self) -> u64 {
                match self { $(Limit::$variant => $default,)* }
            }
        }
    };
}

limits! {
    /// Time from start to end.
    WallMs = "wall_ms", 1, 24 * 3600 * 1000, 60_000;
    /// Processor time of all processes together.
    CpuMs = "cpu_ms", 1, 24 * 3600 * 1000, 60_000;
    /// Memory of all processes together, page cache and tmpfs included; no swap.
    MemoryBytes = "memory_bytes", 4 * MIB, 1024 * GIB, GIB;
    /// Processes and threads together.
    Pids = "pids", 1, 32_768, 256;
    /// Processor share in thousandths of one core.
    CpuMillis = "cpu_millis", 10, 1_024_000, 1000;
    /// Open descriptors of one process.
    Nofile = "nofile", 8, 1 << 20, 1024;
    /// Size of one file.
    FsizeBytes = "fsize_bytes", 4096, 1024 * GIB, GIB;
    /// Stack of the first thread.
    StackBytes = "stack_bytes", 128 * 1024, GIB, 8 * MIB;
    /// Bytes in /tmp; home and /run each have a quarter of it.
    TmpBytes = "tmp_bytes", 64 * 1024, 256 * GIB, 256 * MIB;
    /// Files and directories in /tmp; home and /run each have a quarter of it.
    TmpInodes = "tmp_inodes", 16, 1 << 24, 32_768;
    /// Bytes in /dev/shm.
    ShmBytes = "shm_bytes", 64 * 1024, 256 * GIB, 64 * MIB;
    /// Bytes in a throw-away work area.
    WorkBytes = "work_bytes", 64 * 1024, 256 * GIB, 256 * MIB;
    /// Files and directories in a throw-away work area.
    WorkInodes = "work_inodes", 16, 1 << 24, 32_768;
    /// Bytes in a throw-away artifacts area.
    ArtifactsBytes = "artifacts_bytes", 64 * 1024, 256 * GIB, 50 * MIB;
    /// Bytes of standard output that are kept; the rest is counted and dropped.
    StdoutBytes = "stdout_bytes", 1, GIB, MIB;
    /// Bytes of standard error that are kept.
    StderrBytes = "stderr_bytes", 1, GIB, MIB;
}

/// Why a set of limits was refused; each names the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No such limit.
    #[error("limits.{0} is not a limit; known are {known}", known = Limit::names())]
    Unknown(String),
    /// Below what lets a program start.
    #[error("limits.{} is {given}; the least is {}", .limit.name(), .limit.floor())]
    TooSmall {
        /// Which one.
        limit: Limit,
        /// What was asked for.
        given: u64,
    },
    /// Above what this program can count.
    #[error("limits.{} is {given}; the most is {}", .limit.name(), .limit.ceiling())]
    TooLarge {
        /// Which one.
        limit: Limit,
        /// What was asked for.
        given: u64,
    },
}

impl Limit {
    /// The limit of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Limit> {
        Limit::ALL.iter().copied().find(|limit| limit.name() == name)
    }

    fn names() -> String {
        Limit::ALL.iter().map(|limit| limit.name()).collect::<Vec<_>>().join(", ")
    }

    /// `given`, if it lies between floor and ceiling.
    pub fn check(self, given: u64) -> Result<u64, LimitError> {
        if given < self.floor() {
            Err(LimitError::TooSmall { limit: self, given })
        } else if given > self.ceiling() {
            Err(LimitError::TooLarge { limit: self, given })
        } else {
            Ok(given)
        }
    }
}

/// A full set of checked amounts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Limits([u64; Limit::ALL.len()]);

impl Default for Limits {
    fn default() -> Self {
        let mut amounts = [0; Limit::ALL.len()];
        for &limit in Limit::ALL {
            amounts[limit as usize] = limit.default_amount();
        }
        Self(amounts)
    }
}

impl Limits {
    /// The amount of one limit.
    #[must_use]
    pub fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize]
    }

    /// Sets one limit to a checked amount.
    pub fn set(&mut self, limit: Limit, given: u64) -> Result<(), LimitError> {
        self.0[limit as usize] = limit.check(given)?;
        Ok(())
    }

    /// The amounts in the order of [`Limit::ALL`].
    #[must_use]
    pub fn amounts(&self) -> &[u64; Limit::ALL.len()] {
        &self.0
    }

    /// The set with these amounts in the order of [`Limit::ALL`], each checked.
    pub fn from_amounts(amounts: [u64; Limit::ALL.len()]) -> Result<Self, LimitError> {
        for &limit in Limit::ALL {
            limit.check(amounts[limit as usize])?;
        }
        Ok(Self(amounts))
    }

    /// The set that `named` amounts make on top of this one.
    pub fn with_named(mut self, named: &BTreeMap<String, u64>) -> Result<Self, LimitError> {
        for (name, &given) in named {
            let limit = Limit::from_name(name).ok_or_else(|| LimitError::Unknown(name.clone()))?;
            self.set(limit, given)?;
        }
        Ok(self)
    }

    /// The first limit in which `self` is above `other`, if any.
    #[must_use]
    pub fn first_wider_than(&self, other: &Limits) -> Option<Limit> {
        Limit::ALL.iter().copied().find(|&limit| self.get(limit) > other.get(limit))
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(Limit::ALL.iter().map(|&limit| (limit.name(), self.get(limit)))).finish()
    }
}

impl Serialize for Limits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Limit::ALL.iter().map(|&limit| (limit.name(), self.get(limit))))
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = BTreeMap::<String, u64>::deserialize(deserializer)?;
        Limits::default().with_named(&named).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_lies_between_floor_and_ceiling() {
        for &limit in Limit::ALL {
            assert_eq!(limit.check(limit.default_amount()), Ok(limit.default_amount()), "{}", limit.name());
            assert_eq!(Limit::from_name(limit.name()), Some(limit));
        }
    }

    #[test]
    fn amounts_at_the_edges_of_the_number_line_are_refused() {
        for given in [0, 1 << 63, u64::MAX] {
            for &limit in Limit::ALL {
                assert!(limit.check(given).is_err(), "{} {given}", limit.name());
            }
        }
    }

    #[test]
    fn wider_names_the_first_wider_limit() {
        let narrow = Limits::default();
        let mut wide = narrow;
        wide.set(Limit::Pids, 300).expect("300 pids lie within bounds");
        assert_eq!(wide.first_wider_than(&narrow), Some(Limit::Pids));
        assert_eq!(narrow.first_wider_than(&wide), None);
    }

    #[test]
    fn limits_survive_the_wire() {
        let limits = Limits::default();
        let text = serde_json::to_string(&limits).expect("a map of numbers");
        assert_eq!(serde_json::from_str::<Limits>(&text).expect("the same map"), limits);
        assert_eq!(Limits::from_amounts(*limits.amounts()), Ok(limits));
    }
}
