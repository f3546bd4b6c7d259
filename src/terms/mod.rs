//! Terms: the words in which profiles, grants, manifests and requests say what they permit, and the strictest of two.
//!
//! Pure words: nothing here decides about a call; `policy` does.
//!
//! | part | of two sides |
//! |---|---|
//! | allowances | what both permit, each resource narrowed |
//! | safety | the higher |
//! | side effects | all of both; what may really happen is still up to the allowances |
//! | limits, sizes | the smaller of each |
//! | allow-lists | what is on both |
//! | templates | both must hold |
//! | consent | asked for if either asks |
#![forbid(unsafe_code)]

pub mod allow;
pub mod allowset;
pub mod args;
pub mod hosts;
pub mod lists;
pub mod path;
pub mod tools;
pub mod uses;
pub mod words;

use crate::model::{Limit, Limits};
use allowset::{AllowanceSet, TooComplex};
use args::Templates;
use hosts::HostPattern;
use lists::AllowList;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use tools::ToolPattern;
use words::{Method, MimePattern, PathPrefix};

/// How much harm a use could do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Safety {
    /// Little.
    #[default]
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

impl Safety {
    /// The name in files and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// What a use leaves behind or touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideEffect {
    /// Nothing.
    None,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Talks to other hosts.
    Network,
    /// Touches files.
    Filesystem,
    /// Drives a browser.
    Browser,
    /// Starts programs.
    Process,
}

impl SideEffect {
    /// The name in files and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Write => "write",
            Self::Network => "network",
            Self::Filesystem => "filesystem",
            Self::Browser => "browser",
            Self::Process => "process",
        }
    }
}

/// A set of side effects. `none` is the empty set, and says nothing beside another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SideEffects(BTreeSet<SideEffect>);

impl SideEffects {
    /// Whether the effect is among them.
    #[must_use]
    pub fn contains(&self, effect: SideEffect) -> bool {
        self.0.contains(&effect) || (effect == SideEffect::None && self.0.is_empty())
    }

    /// All of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// Them, in order; `None` alone if there are none.
    pub fn iter(&self) -> impl Iterator<Item = SideEffect> {
        let nothing = self.0.is_empty().then_some(SideEffect::None);
        nothing.into_iter().chain(self.0.iter().copied())
    }
}

impl FromIterator<SideEffect> for SideEffects {
    fn from_iter<I: IntoIterator<Item = SideEffect>>(effects: I) -> Self {
        Self(effects.into_iter().filter(|effect| *effect != SideEffect::None).collect())
    }
}

impl Serialize for SideEffects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for SideEffects {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<SideEffect>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// A size of one call that the guard looks at before anything starts, or while data arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// Bytes that come in: inputs, downloads, answers.
    BytesIn,
    /// Bytes that go out: uploads, files written, output.
    BytesOut,
    /// Files.
    Files,
    /// Depth of navigation, redirects or directories.
    Depth,
    /// Execs at once.
    Concurrency,
    /// Arguments of a program.
    Args,
    /// Bytes of one argument.
    ArgBytes,
}

impl Size {
    /// Every size.
    pub const ALL: [Size; 7] =
        [Size::BytesIn, Size::BytesOut, Size::Files, Size::Depth, Size::Concurrency, Size::Args, Size::ArgBytes];
}

/// What a [`Caps`] is about.
pub trait CapKey: Copy + Ord {
    /// The key in files and on the wire.
    fn key(self) -> &'static str;
    /// The one of that key.
    fn from_key(key: &str) -> Option<Self>;
    /// Why the amount can't be, if it can't.
    fn check(self, amount: u64) -> Result<(), String>;
}

impl CapKey for Size {
    fn key(self) -> &'static str {
        match self {
            Self::BytesIn => "max_bytes_in",
            Self::BytesOut => "max_bytes_out",
            Self::Files => "max_files",
            Self::Depth => "max_depth",
            Self::Concurrency => "max_concurrency",
            Self::Args => "max_args",
            Self::ArgBytes => "max_arg_bytes",
        }
    }
    fn from_key(key: &str) -> Option<Self> {
        Size::ALL.into_iter().find(|size| size.key() == key)
    }
    fn check(self, _amount: u64) -> Result<(), String> {
        Ok(())
    }
}

impl CapKey for Limit {
    fn key(self) -> &'static str {
        self.name()
    }
    fn from_key(key: &str) -> Option<Self> {
        Limit::from_name(key)
    }
    fn check(self, amount: u64) -> Result<(), String> {
        Limit::check(self, amount).map(drop).map_err(|error| error.to_string())
    }
}

/// The most of some amounts. What is absent is left to the other sides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caps<K>(BTreeMap<K, u64>);

impl<K> Default for Caps<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: CapKey> Caps<K> {
    /// The most of one, if it is said.
    #[must_use]
    pub fn get(&self, key: K) -> Option<u64> {
        self.0.get(&key).copied()
    }

    /// The same with one amount; an amount that can't be is refused.
    pub fn with(mut self, key: K, amount: u64) -> Result<Self, String> {
        key.check(amount)?;
        self.0.insert(key, amount);
        Ok(self)
    }

    /// The smaller of each.
    #[must_use]
    pub fn strictest(&self, other: &Self) -> Self {
        let mut both = self.0.clone();
        for (&key, &amount) in &other.0 {
            both.entry(key).and_modify(|own| *own = amount.min(*own)).or_insert(amount);
        }
        Self(both)
    }
}

impl Caps<Limit> {
    /// `limits`, narrowed.
    #[must_use]
    pub fn narrow(&self, mut limits: Limits) -> Limits {
        for (&limit, &most) in &self.0 {
            let narrower = most.min(limits.get(limit));
            limits.set(limit, narrower).expect("both amounts were checked, and so is the smaller");
        }
        limits
    }
}

impl From<&Limits> for Caps<Limit> {
    fn from(limits: &Limits) -> Self {
        Self(Limit::ALL.iter().map(|&limit| (limit, limits.get(limit))).collect())
    }
}

impl<K: CapKey> Serialize for Caps<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, amount)| (key.key(), amount)))
    }
}

impl<'de, K: CapKey> Deserialize<'de> for Caps<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut caps = Self::default();
        for (name, amount) in named {
            let key = K::from_key(&name).ok_or_else(|| serde::de::Error::custom(format!("{name:?} is not limited")))?;
            caps = caps.with(key, amount).map_err(serde::de::Error::custom)?;
        }
        Ok(caps)
    }
}

/// Lists that hold for every use, beside the allowances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllowLists {
    /// Hosts of requests and pages.
    #[serde(skip_serializing_if = "AllowList::is_any")]
    pub hosts: AllowList<HostPattern>,
    /// Paths below the work area.
    #[serde(skip_serializing_if = "AllowList::is_any")]
    pub paths: AllowList<PathPrefix>,
    /// HTTP methods.
    #[serde(skip_serializing_if = "AllowList::is_any")]
    pub methods: AllowList<Method>,
    /// Types of answers.
    #[serde(skip_serializing_if = "AllowList::is_any")]
    pub mime: AllowList<MimePattern>,
    /// Programs.
    #[serde(skip_serializing_if = "AllowList::is_any")]
    pub tools: AllowList<ToolPattern>,
}

impl AllowLists {
    /// What is on both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self {
            hosts: self.hosts.intersect(&other.hosts),
            paths: self.paths.intersect(&other.paths),
            methods: self.methods.intersect(&other.methods),
            mime: self.mime.intersect(&other.mime),
            tools: self.tools.intersect(&other.tools),
        }
    }
}

/// When a person has to agree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsentRule {
    /// From this safety on; absent is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_safety: Option<Safety>,
    /// With any of these effects.
    pub side_effects: SideEffects,
}

impl ConsentRule {
    /// What the design recommends: high safety, writing, or starting programs.
    #[must_use]
    pub fn cautious() -> Self {
        let side_effects = [SideEffect::Write, SideEffect::Process].into_iter().collect();
        Self { from_safety: Some(Safety::High), side_effects }
    }

    /// Asks when either asks.
    #[must_use]
    pub fn strictest(&self, other: &Self) -> Self {
        let from_safety = match (self.from_safety, other.from_safety) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { from_safety, side_effects: self.side_effects.union(&other.side_effects) }
    }
}

/// What a hint of risk in the code leads to. It never opens anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecurityMode {
    /// It is told in the answer.
    #[default]
    Permissive,
    /// Code of high risk needs a person's consent.
    Strict,
}

/// All that one side says. The default permits nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// What it permits.
    #[serde(rename = "capabilities")]
    pub allowances: AllowanceSet,
    /// How much harm it sees.
    pub safety: Safety,
    /// What it says will be touched.
    pub side_effects: SideEffects,
    /// The most of the kernel's limits.
    pub limits: Caps<Limit>,
    /// The most of the guard's sizes.
    pub sizes: Caps<Size>,
    /// Lists for every use.
    pub allow: AllowLists,
    /// Arguments of tools.
    pub templates: Templates,
    /// When a person has to agree.
    pub consent: ConsentRule,
}

impl Terms {
    /// The strictest of both, as the table above says.
    pub fn meet(&self, other: &Self) -> Result<Self, TooComplex> {
        Ok(Self {
            allowances: self.allowances.intersect(&other.allowances)?,
            safety: self.safety.max(other.safety),
            side_effects: self.side_effects.union(&other.side_effects),
            limits: self.limits.strictest(&other.limits),
            sizes: self.sizes.strictest(&other.sizes),
            allow: self.allow.intersect(&other.allow),
            templates: self.templates.join(&other.templates),
            consent: self.consent.strictest(&other.consent),
        })
    }
}
