//! Allow-lists: absent is any, empty is nothing, and the stricter of two is what both name.
//!
//! The entries of a list are patterns that nest or lie apart: of `git` and `/usr/bin/git` the second is inside the
//! first, of `text/*` and `image/png` neither is. That is all an exact intersection needs, so one type serves hosts,
//! paths, ports, schemes, methods, tools and MIME types. A list is always in its normal form: sorted, and without
//! entries that another one covers; equal lists are equal values.

use super::path::{self, PathReason};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most entries of one list: enough for people, little enough that no list makes a judgement slow.
pub const ENTRIES_MAX: usize = 256;
/// Longest method, scheme or half of a MIME type.
const WORD_MAX: usize = 64;

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
pub struct AllowList<P>(Option<Vec<P>>);

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
    pub const fn nothing() -> Self {
        Self(Some(Vec::new()))
    }

    /// Whether it holds nobody back.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it lets nothing through.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
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
        Self(Some(entries))
    }

    /// What both allow.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let (ours, theirs) = match (&self.0, &other.0) {
            (None, _) => return other.clone(),
            (_, None) => return self.clone(),
            (Some(ours), Some(theirs)) => (ours, theirs),
        };
        let mut both: Vec<P> = ours.iter().filter(|e| theirs.iter().any(|t| t.covers(e))).cloned().collect();
        both.extend(theirs.iter().filter(|t| ours.iter().any(|e| e.covers(t))).cloned());
        both.sort();
        both.dedup(); // of two normal forms no entry of the result covers another
        Self(Some(both))
    }

    /// What either allows.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => Self::only(ours.iter().chain(theirs).cloned()),
            _ => Self::any(),
        }
    }

    /// Whether all that `other` allows is allowed here.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(theirs)) => theirs.iter().all(|t| ours.iter().any(|e| e.covers(t))),
        }
    }
}

impl<P: Serialize> Serialize for AllowList<P> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
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
            type Error = $crate::policy::lists::PatternError;
            fn try_from(text: String) -> Result<Self, Self::Error> { text.parse() }
        }
        impl From<$pattern> for String {
            fn from(pattern: $pattern) -> String { pattern.to_string() }
        }
    )*};
}
pub(super) use text_pattern;

/// Gives a word that only names itself the rest of a pattern.
macro_rules! word {
    ($($word:ident),*) => {$(
        impl $word {
            /// The word as text.
            #[must_use]
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl std::fmt::Display for $word {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(&self.0) }
        }
        impl Pattern for $word {
            fn covers(&self, other: &Self) -> bool { self == other }
        }
    )*};
}

/// An HTTP method, in upper case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Method(String);

/// A URL scheme, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scheme(String);

word!(Method, Scheme);
text_pattern!(Method, Scheme, PathPrefix, MimePattern);

impl std::str::FromStr for Method {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let good = (1..=WORD_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-');
        good.then(|| Self(text.to_ascii_uppercase())).ok_or_else(|| PatternError::Method(text.to_owned()))
    }
}

impl std::str::FromStr for Scheme {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let good = text.len() <= WORD_MAX
            && text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && text.bytes().all(plain);
        good.then(|| Self(text.to_ascii_lowercase())).ok_or_else(|| PatternError::Scheme(text.to_owned()))
    }
}

/// A TCP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Port(u16);

impl TryFrom<u16> for Port {
    type Error = PatternError;
    fn try_from(port: u16) -> Result<Self, PatternError> {
        if port == 0 { Err(PatternError::Port(port)) } else { Ok(Self(port)) }
    }
}

impl From<Port> for u16 {
    fn from(port: Port) -> u16 {
        port.0
    }
}

impl Pattern for Port {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}

/// A directory or file below the work area with all below it; `.` is the area itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPrefix(String);

impl PathPrefix {
    /// All of the work area.
    #[must_use]
    pub fn all() -> Self {
        Self(".".to_owned())
    }

    /// Whether a path lies at or below it, by component. The path must have come out of [`path::normalise`]; one that
    /// has not (`reports/../secret`) lies nowhere.
    #[must_use]
    pub fn holds(&self, normal: &str) -> bool {
        let normal_form = normal == "." || normal.split('/').all(|name| !matches!(name, "" | "." | ".."));
        normal_form && below(&self.0, normal)
    }
}

fn below(prefix: &str, path: &str) -> bool {
    prefix == "." || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl std::str::FromStr for PathPrefix {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let wrong = |reason| PatternError::Path { given: text.to_owned(), reason };
        path::normalise(text).map(Self).map_err(wrong)
    }
}

impl std::fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern for PathPrefix {
    fn covers(&self, other: &Self) -> bool {
        below(&self.0, &other.0)
    }
}

/// `type/subtype`, or `type/*` for every subtype; in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MimePattern {
    kind: String,
    subtype: Option<String>,
}

impl MimePattern {
    /// Whether a `Content-Type` is of it; parameters (`; charset=…`) do not count.
    #[must_use]
    pub fn matches(&self, content_type: &str) -> bool {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let Some((kind, subtype)) = essence.split_once('/') else { return false };
        let word = |given: &str, wanted: &str| given.eq_ignore_ascii_case(wanted);
        mime_word(subtype) && word(kind, &self.kind) && self.subtype.as_ref().is_none_or(|own| word(subtype, own))
    }
}

fn mime_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b); // RFC 6838 §4.2
    (1..=WORD_MAX).contains(&text.len()) && text.bytes().all(plain)
}

impl std::str::FromStr for MimePattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let (kind, subtype) = text.split_once('/').ok_or_else(|| PatternError::Mime(text.to_owned()))?;
        if !mime_word(kind) || !(subtype == "*" || mime_word(subtype)) {
            return Err(PatternError::Mime(text.to_owned()));
        }
        let subtype = (subtype != "*").then(|| subtype.to_ascii_lowercase());
        Ok(Self { kind: kind.to_ascii_lowercase(), subtype })
    }
}

impl std::fmt::Display for MimePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind, self.subtype.as_deref().unwrap_or("*"))
    }
}

impl Pattern for MimePattern {
    fn covers(&self, other: &Self) -> bool {
        self.kind == other.kind && (self.subtype.is_none() || self.subtype == other.subtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> PathPrefix {
        text.parse().expect("a path")
    }

    #[test]
    fn a_prefix_holds_by_component() {
        for (given, path, holds) in [
            (".", "anything/at/all", true),
            (".", ".", true),
            ("reports", "reports", true),
            ("reports", "reports/q1.csv", true),
            ("./reports/", "reports/q1.csv", true),
            ("reports", "reports2", false),
            ("reports", "report", false),
            ("reports", ".", false),
            ("reports/q1", "reports", false),
            ("reports", "reports/../secret", false),
            (".", "../secret", false),
            (".", "/etc/passwd", false),
            (".", "a//b", false),
        ] {
            assert_eq!(prefix(given).holds(path), holds, "{given} {path}");
        }
        assert!("../x".parse::<PathPrefix>().is_err());
        assert!("/x".parse::<PathPrefix>().is_err());
    }

    #[test]
    fn mime_types_match_without_parameters_and_case() {
        let text: MimePattern = "text/*".parse().expect("a pattern");
        let json: MimePattern = "Application/JSON".parse().expect("a pattern");
        assert!(text.matches("text/html; charset=utf-8") && text.matches("TEXT/Plain"));
        assert!(json.matches("application/json;v=1") && !json.matches("application/jsonp"));
        assert!(!text.matches("textual/html") && !text.matches("text") && !text.matches("text/") && !text.matches(""));
        for bad in ["", "text", "*/*", "te xt/html", "text/html/x", "text/"] {
            assert!(bad.parse::<MimePattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_normalised_and_checked() {
        assert_eq!("get".parse::<Method>().expect("a method").as_str(), "GET");
        assert_eq!("HTTPS".parse::<Scheme>().expect("a scheme").as_str(), "https");
        assert!("".parse::<Method>().is_err() && "GE T".parse::<Method>().is_err());
        assert!("1http".parse::<Scheme>().is_err() && "".parse::<Scheme>().is_err());
        assert!(Port::try_from(0).is_err());
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
