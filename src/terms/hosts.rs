//! Hosts and host patterns, by label.
//!
//! `*.github.com` is `api.github.com` and `a.b.github.com`, but neither `github.com` nor `evilgithub.com`. Names are
//! ASCII labels in any case, with or without the dot at the end (a name in another script comes as `xn--…`). An IP
//! address matches only itself; what merely looks like one (`127.1`, `0x7f.0.0.1`, `2130706433`) is refused, because
//! resolvers would take it for one.

use super::lists::{Pattern, PatternError, text_pattern};
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name, RFC 1035 §2.3.4 as text without the last dot.
const NAME_MAX: usize = 253;
/// Longest label, RFC 1035 §2.3.4.
const LABEL_MAX: usize = 63;

/// One host: a name in lower case without a dot at the end, or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Host {
    /// A DNS name.
    Name(HostName),
    /// An address; an IPv4 one mapped into IPv6 is that IPv4 one.
    Ip(IpAddr),
}

/// A checked DNS name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

impl HostName {
    fn parse(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() > NAME_MAX || !name.split('.').all(is_label) {
            return None;
        }
        let last = name.rsplit('.').next()?;
        // The WHATWG's "ends in a number": such a host is an address to most parsers, and we would not know which.
        let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
        let number = last.bytes().all(|b| b.is_ascii_digit())
            || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        (!number).then(|| Self(name.to_ascii_lowercase().into()))
    }

    fn is_below(&self, suffix: &HostName) -> bool {
        // The byte before the suffix first: it tells most names apart without comparing labels.
        let dot = self.0.len().checked_sub(suffix.0.len() + 1).and_then(|place| self.0.as_bytes().get(place));
        dot == Some(&b'.') && self.0.ends_with(&*suffix.0)
    }
}

fn is_label(label: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=LABEL_MAX).contains(&label.len())
        && label.bytes().all(plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl FromStr for Host {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address = match bracketed {
            Some(inner) => inner.parse().ok().filter(IpAddr::is_ipv6),
            None => text.parse::<IpAddr>().ok(),
        };
        match address {
            Some(address) => Ok(Self::Ip(address.to_canonical())),
            None => HostName::parse(text).map(Self::Name).ok_or_else(|| PatternError::Host(text.to_owned())),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(&name.0),
            Self::Ip(address) => write!(f, "{address}"),
        }
    }
}

/// Which hosts: `*`, one, or all below a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum HostPattern {
    /// Any name or address.
    #[default]
    Any,
    /// Exactly this one.
    Exact(Host),
    /// One or more labels below this name; not the name itself.
    Below(HostName),
}

text_pattern!(Host, HostPattern);

impl HostPattern {
    /// Whether the host is one of them.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Exact(own), _) => own == host,
            (Self::Below(suffix), Host::Name(name)) => name.is_below(suffix),
            (Self::Below(_), Host::Ip(_)) => false,
        }
    }
}

impl Pattern for HostPattern {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Exact(host)) => self.matches(host),
            (Self::Below(suffix), Self::Below(name)) => name == suffix || name.is_below(suffix),
            (Self::Exact(_) | Self::Below(_), Self::Any) | (Self::Exact(_), Self::Below(_)) => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let wrong = || PatternError::HostPattern(text.to_owned());
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.strip_prefix("*.") {
            Some(suffix) => HostName::parse(suffix).map(Self::Below).ok_or_else(wrong),
            None => text.parse().map(Self::Exact).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(host) => write!(f, "{host}"),
            Self::Below(suffix) => write!(f, "*.{}", suffix.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(text: &str) -> Host {
        text.parse().expect("a host")
    }

    fn pattern(text: &str) -> HostPattern {
        text.parse().expect("a pattern")
    }

    #[test]
    fn hosts_match_by_label() {
        for (given, asked, matches) in [
            ("*.github.com", "api.github.com", true),
            ("*.github.com", "a.b.github.com", true),
            ("*.github.com", "API.GitHub.COM", true),
            ("*.github.com", "api.github.com.", true),
            ("*.GitHub.com.", "api.github.com", true),
            ("*.github.com", "github.com", false),
            ("*.github.com", "evilgithub.com", false),
            ("*.github.com", "github.com.evil.org", false),
            ("*.github.com", "api.github.com.evil.org", false),
            ("github.com", "github.com.", true),
            ("github.com", "GITHUB.com", true),
            ("github.com", "api.github.com", false),
            ("github.com", "github.co", false),
            ("*", "anything.example", true),
            ("*", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "[::ffff:10.0.0.1]", true),
            ("10.0.0.1", "10.0.0.10", false),
            ("::1", "[::1]", true),
            ("[::1]", "0:0:0:0:0:0:0:1", true),
            ("::1", "::2", false),
            ("localhost", "localhost", true),
        ] {
            assert_eq!(pattern(given).matches(&host(asked)), matches, "{given} {asked}");
        }
    }

    #[test]
    fn what_only_looks_like_a_host_is_refused() {
        let long_label = "a".repeat(64);
        let long_name = ["a".repeat(63).as_str(); 4].join(".");
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "-a.com",
            "a-.com",
            "a b.com",
            "ä.com",
            "a/b",
            "a:80",
            "u@a.com",
            "*.a",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0x7f000001",
            "a.0x1",
            "127.0.0.01",
            "1.2.3.4.",
            "1.2.3.4.5",
            "[127.0.0.1]",
            "[::1",
            "::1]",
            "fe80::1%eth0",
            "a\0.com",
            &long_label,
            &long_name,
        ] {
            assert!(bad.parse::<Host>().is_err(), "{bad:?}");
        }
        for bad in ["", "**", "*.", "*", "*.*.com", "*a.com", "a.*", "*.10.0.0.1", "*.1", "*.com/x"] {
            assert!(bad == "*" || bad.parse::<HostPattern>().is_err(), "{bad:?}");
        }
    }

    fn names() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "com"]), 1..5)
            .prop_map(|labels| labels.join("."))
    }

    fn patterns() -> impl Strategy<Value = HostPattern> {
        prop_oneof![
            1 => Just(HostPattern::Any),
            4 => names().prop_map(|name| pattern(&name)),
            4 => names().prop_map(|name| pattern(&format!("*.{name}"))),
            1 => Just(pattern("10.0.0.1")),
        ]
    }

    proptest! {
        #[test]
        fn below_is_what_comparing_labels_says(name in names(), suffix in names()) {
            let labels: Vec<&str> = name.split('.').collect();
            let wanted: Vec<&str> = suffix.split('.').collect();
            let expected = labels.len() > wanted.len() && labels.ends_with(&wanted);
            prop_assert_eq!(pattern(&format!("*.{suffix}")).matches(&host(&name)), expected);
        }

        #[test]
        fn meeting_is_exact_and_commutes(a in patterns(), b in patterns(), name in names()) {
            let asked = host(&name);
            let both = a.meet(&b);
            prop_assert_eq!(both.as_ref().is_some_and(|p| p.matches(&asked)), a.matches(&asked) && b.matches(&asked));
            prop_assert_eq!(both, b.meet(&a));
        }

        #[test]
        fn a_pattern_survives_the_wire(a in patterns()) {
            let text = serde_json::to_string(&a).expect("a string");
            prop_assert_eq!(serde_json::from_str::<HostPattern>(&text).expect("the same"), a);
        }

        #[test]
        fn a_host_reads_back_as_itself(text in "[a-zA-Z0-9.:\\[\\]_-]{0,20}") {
            if let Ok(read) = text.parse::<Host>() {
                prop_assert_eq!(host(&read.to_string()), read);
            }
        }
    }
}
