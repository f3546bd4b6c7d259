//! The plain entries of allow-lists: methods, schemes, ports, paths, MIME types.

use super::lists::{Pattern, PatternError, text_pattern};
use super::path;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Longest method, scheme or half of a MIME type.
const WORD_MAX: usize = 64;

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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Method(String);

/// A URL scheme, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PathPrefix(Arc<str>);

impl PathPrefix {
    /// All of the work area.
    #[must_use]
    pub fn all() -> Self {
        Self(".".into())
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
    // The byte behind the prefix first: it tells most paths apart without comparing names.
    prefix == "." || (matches!(path.as_bytes().get(prefix.len()), None | Some(b'/')) && path.starts_with(prefix))
}

impl std::str::FromStr for PathPrefix {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let wrong = |reason| PatternError::Path { given: text.to_owned(), reason };
        path::normalise(text).map(|normal| Self(normal.into())).map_err(wrong)
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
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
}
