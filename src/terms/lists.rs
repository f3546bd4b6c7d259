//! Allow-lists: absent is any, empty is nothing, and the stricter of two is what both name.
//!
//! The entries of a list are patterns that nest or lie apart: of `git` and `/usr/bin/git` the second is inside the
//! first, of `text/*` and `image/png` neither is. That is all an exact intersection needs, so one type serves hosts,
//! paths, ports, schemes, methods, tools and MIME types. A list is always in its normal form: sorted, and without
//! entries that another one covers; equal lists are equal values.

use super::path::PathReason;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

/// Most entries of one list: enough for people, little enough that no list makes a judgement slow.
pub const ENTRIES_MAX: usize = 256;

/// Why a text is not a pattern; each says what would be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not a host.
    #[error("{0:?} is not a host: a name of ASCII labels or an IP address")]
    Host(String),
    /// Not a host pattern.
    #[error("{0:?} is not a host pattern: an exact host, *.suffix, or * for any")]
    HostPattern(String),
    /// Not an HTTP method.
    #[error("{0:?} is not a method: letters and dashes, as GET")]
    Method(String),
    /// Not a scheme.
    #[error("{0:?} is not a scheme: letters, digits, + - . and a letter first, as https")]
    Scheme(String),
    /// Port 0.
    #[error("{0} is not a port: 1 to 65535")]
    Port(u16),
    /// Not a MIME type.
    #[error("{0:?} is not a MIME type: type/subtype or type/*")]
    Mime(String),
    /// Not a path below the work area.
    #[error("{given:?} is not a path below the work area: {reason:?}")]
    Path {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: PathReason,
    },
    /// Not a tool.
    #[error("{0:?} is not a tool: a bare name, or an absolute path without . and ..")]
    Tool(String),
    /// More than a list holds.
    #[error("{given} entries; a list holds {ENTRIES_MAX}")]
    TooMany {
        /// How many.
        given: usize,
    },
}

/// An entry of a list. Two patterns nest or have nothing in common; they never overlap in part.
pub trait Pattern: Clone + Ord {
    /// Whether all that `other` names is named by `self`.
    fn covers(&self, other: &Self) -> bool;

    /// What both name: the inner one, or nothing.
    fn meet(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }
}

/// What is allowed: anything, or only what the entries name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllowList<P>(Option<Arc<[P]>>); // shared: composing copies many lists and changes few

impl<P> Default for AllowList<P> {
    /// As an absent field: anything.
    fn default() -> Self {
        Self(None)
    }
}

impl<P> AllowList<P> {
    /// Anything.
    #[must_use]
    pub const fn any() -> Self {
        Self(None)
    }

    /// Nothing at all.
    #[must_use]
    pub fn nothing() -> Self {
        Self(Some(Arc::new([])))
    }

    /// Whether it holds nobody back.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it lets nothing through.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.as_ref().is_some_and(|entries| entries.is_empty())
    }

    /// Its entries; none when it allows anything.
    #[must_use]
    pub fn entries(&self) -> Option<&[P]> {
        self.0.as_deref()
    }

    /// Whether an entry fulfils `matches`, or anything is allowed.
    pub fn allows(&self, matches: impl FnMut(&P) -> bool) -> bool {
        self.0.as_ref().is_none_or(|entries| entries.iter().any(matches))
    }
}

impl<P: Pattern> AllowList<P> {
    /// Only these.
    #[must_use]
    pub fn only(entries: impl IntoIterator<Item = P>) -> Self {
        let mut entries: Vec<P> = entries.into_iter().collect();
        entries.sort();
        entries.dedup();
        let inner: Vec<bool> = entries.iter().map(|e| entries.iter().any(|o| o != e && o.covers(e))).collect();
        let mut inner = inner.into_iter();
        entries.retain(|_| !inner.next().unwrap_or(false));
        Self(Some(entries.into()))
    }

    /// What both allow.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        if self.covers(other) {
            return other.clone();
        }
        if other.covers(self) {
            return self.clone();
        }
        let (Some(ours), Some(theirs)) = (&self.0, &other.0) else { return Self::nothing() }; // any covers, so never
        let mut both: Vec<P> = ours.iter().filter(|e| theirs.iter().any(|t| t.covers(e))).cloned().collect();
        both.extend(theirs.iter().filter(|t| ours.iter().any(|e| e.covers(t))).cloned());
        both.sort();
        both.dedup(); // of two normal forms no entry of the result covers another
        Self(Some(both.into()))
    }

    /// What either allows.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => Self::only(ours.iter().chain(theirs.iter()).cloned()),
            _ => Self::any(),
        }
    }

    /// Whether all that `other` allows is allowed here.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(theirs)) if Arc::ptr_eq(ours, theirs) => true,
            (Some(ours), Some(theirs)) => theirs.iter().all(|t| ours.iter().any(|e| e.covers(t))),
        }
    }
}

impl<P: Serialize> Serialize for AllowList<P> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_deref().serialize(serializer)
    }
}

impl<'de, P: Pattern + Deserialize<'de>> Deserialize<'de> for AllowList<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(entries) = Option::<Vec<P>>::deserialize(deserializer)? else { return Ok(Self::any()) };
        if entries.len() > ENTRIES_MAX {
            return Err(serde::de::Error::custom(PatternError::TooMany { given: entries.len() }));
        }
        Ok(Self::only(entries))
    }
}

/// Gives a pattern that is a checked text its way from and to the wire.
macro_rules! text_pattern {
    ($($pattern:ident),*) => {$(
        impl TryFrom<String> for $pattern {
            type Error = $crate::terms::lists::PatternError;
            fn try_from(text: String) -> Result<Self, Self::Error> { text.parse() }
        }
        impl serde::Serialize for $pattern {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
pub(super) use text_pattern;

#[cfg(test)]
mod tests {
    use super::super::words::{PathPrefix, Port};
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> PathPrefix {
        text.parse().expect("a path")
    }

    #[test]
    fn absent_is_any_and_empty_is_nothing() {
        let any: AllowList<Port> = serde_json::from_str("null").expect("absent");
        let nothing: AllowList<Port> = serde_json::from_str("[]").expect("empty");
        assert!(any.is_any() && any.allows(|_| false));
        assert!(nothing.is_nothing() && !nothing.allows(|_| true));
        assert_eq!(any.intersect(&nothing), nothing);
        let long = format!("[{}1]", "1,".repeat(ENTRIES_MAX));
        assert!(serde_json::from_str::<AllowList<Port>>(&long).is_err());
    }

    fn lists() -> impl Strategy<Value = AllowList<PathPrefix>> {
        let path = prop::sample::select(vec![".", "a", "a/b", "a/b/c", "ab", "b", "b/a"]).prop_map(prefix);
        prop_oneof![
            1 => Just(AllowList::any()),
            6 => prop::collection::vec(path, 0..5).prop_map(AllowList::only),
        ]
    }

    proptest! {
        #[test]
        fn intersection_is_a_meet(a in lists(), b in lists(), c in lists(), path in "[ab](/[abc]){0,3}") {
            let holds = |list: &AllowList<PathPrefix>| list.allows(|prefix| prefix.holds(&path));
            prop_assert_eq!(holds(&a.intersect(&b)), holds(&a) && holds(&b));
            prop_assert_eq!(holds(&a.union(&b)), holds(&a) || holds(&b));
            prop_assert_eq!(a.intersect(&b), b.intersect(&a));
            prop_assert_eq!(a.intersect(&b).intersect(&c), a.intersect(&b.intersect(&c)));
            prop_assert_eq!(a.intersect(&a), a.clone());
            prop_assert!(a.covers(&a.intersect(&b)));
            prop_assert_eq!(a.covers(&b), a.intersect(&b) == b);
            let text = serde_json::to_string(&a).expect("json");
            prop_assert_eq!(serde_json::from_str::<AllowList<PathPrefix>>(&text).expect("the same"), a);
        }
    }
}
