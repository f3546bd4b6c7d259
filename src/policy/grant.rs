//! Grants: what one call was given, by whom and until when. Time comes in as an argument.

use super::compose::{Origin, Side, hex};
use crate::model::{Budget, GrantId, Timestamp};
use crate::terms::Terms;
use crate::terms::allowset::AllowanceSet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The tool of a grant that is for all of them; its capabilities still say for what.
pub const ANY_TOOL: &str = "*";
/// Longest fingerprint.
const FINGERPRINT_MAX: usize = 128;

/// Why a text is no part of a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Not a fingerprint.
    #[error("a decision key's fingerprint has 1 to {FINGERPRINT_MAX} characters of A-Z a-z 0-9 . _ : + / = -")]
    Fingerprint,
}

/// A text that was checked when it was read.
macro_rules! checked_text {
    ($($(#[$doc:meta])* $name:ident: $error:expr, $good:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl FromStr for $name {
            type Err = GrantError;
            fn from_str(text: &str) -> Result<Self, GrantError> {
                let good: fn(&str) -> bool = $good;
                if good(text) { Ok(Self(text.to_owned())) } else { Err($error) }
            }
        }
        impl TryFrom<String> for $name {
            type Error = GrantError;
            fn try_from(text: String) -> Result<Self, GrantError> { text.parse() }
        }
        impl From<$name> for String {
            fn from(checked: $name) -> String { checked.0 }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
    )*};
}

checked_text! {
    /// What tells one decision of the issuer from every other. One decision gives one grant, ever.
    Fingerprint: GrantError::Fingerprint, |text| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:+/=-".contains(&b);
        (1..=FINGERPRINT_MAX).contains(&text.len()) && text.bytes().all(plain)
    };
}

impl Fingerprint {
    /// The fingerprint of a decision key: `sha256:` and 64 hex digits.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(format!("sha256:{}", hex(Sha256::new_with_prefix(key))))
    }
}

/// What one call was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Its id.
    pub grant_id: GrantId,
    /// The account that is charged.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// The tool it is for: `python.exec`, `filesystem.read`, a skill's id, or `*`.
    pub tool: String,
    /// The call it is for.
    pub call_id: String,
    /// What it permits.
    pub capabilities: AllowanceSet,
    /// The first moment at which it no longer holds.
    pub expires_at: Timestamp,
    /// What may be used up under it.
    #[serde(default)]
    pub budget: Budget,
    /// The decision it comes from.
    pub decision_key_fingerprint: Fingerprint,
    /// Who issued it.
    pub issued_by: String,
    /// When.
    pub created_at: Timestamp,
    /// When it was taken back, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// Why a grant does not serve a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantDenial {
    /// It is somebody else's. The answer is that there is none.
    NotYours,
    /// It was taken back.
    Revoked {
        /// When.
        at: Timestamp,
    },
    /// Its time is over.
    Expired {
        /// Since when.
        at: Timestamp,
    },
    /// It is for another tool.
    OtherTool {
        /// Which.
        granted: String,
    },
    /// It is for another call.
    OtherCall {
        /// Which.
        granted: String,
    },
}

impl fmt::Display for GrantDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYours => f.write_str("there is no such grant"),
            Self::Revoked { at } => write!(f, "the grant was revoked at {at}"),
            Self::Expired { at } => write!(f, "the grant expired at {at}"),
            Self::OtherTool { granted } => write!(f, "the grant is for {granted}"),
            Self::OtherCall { granted } => write!(f, "the grant is for the call {granted}"),
        }
    }
}

/// Who wants to use a grant, and for what. What is not said is not compared.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The caller's account.
    pub tenant: &'a str,
    /// The caller.
    pub subject: &'a str,
    /// The tool, if one is named.
    pub tool: Option<&'a str>,
    /// The call, if one is named.
    pub call_id: Option<&'a str>,
}

impl Grant {
    /// Whether it still holds. A revoked grant stays revoked whatever the clock does.
    pub fn holds_at(&self, now_ms: u64) -> Result<(), GrantDenial> {
        match self.revoked_at {
            Some(at) => Err(GrantDenial::Revoked { at }),
            None if now_ms >= self.expires_at.ms() => Err(GrantDenial::Expired { at: self.expires_at }),
            None => Ok(()),
        }
    }

    /// Whether it serves the claim now. Whose it is comes first, so that a stranger learns nothing about it.
    pub fn serves(&self, claim: &Claim<'_>, now_ms: u64) -> Result<(), GrantDenial> {
        if (self.tenant.as_str(), self.subject.as_str()) != (claim.tenant, claim.subject) {
            return Err(GrantDenial::NotYours);
        }
        self.holds_at(now_ms)?;
        if claim.tool.is_some_and(|tool| self.tool != ANY_TOOL && tool != self.tool) {
            return Err(GrantDenial::OtherTool { granted: self.tool.clone() });
        }
        if claim.call_id.is_some_and(|call_id| call_id != self.call_id) {
            return Err(GrantDenial::OtherCall { granted: self.call_id.clone() });
        }
        Ok(())
    }

    /// What it says in a composition: its capabilities, and nothing about the rest.
    #[must_use]
    pub fn side(&self) -> Side {
        let terms = Terms { allowances: self.capabilities.clone(), ..Terms::default() };
        Side { origin: Origin::Grant, version: None, terms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grant() -> Grant {
        serde_json::from_value(json!({
            "grant_id": "gr_01", "tenant": "local", "subject": "uid:7", "tool": "git", "call_id": "c1",
            "capabilities": ["python", {"capability": "process", "tools": ["git"]}], "expires_at": "1970-01-01T00:00:10Z",
            "budget": {"calls": 1}, "decision_key_fingerprint": "sha256:00", "issued_by": "uid:0",
            "created_at": "1970-01-01T00:00:00Z",
        }))
        .expect("a grant")
    }

    const CLAIM: Claim<'static> = Claim { tenant: "local", subject: "uid:7", tool: Some("git"), call_id: Some("c1") };

    #[test]
    fn a_grant_holds_until_its_end_and_not_a_moment_longer() {
        let grant = grant();
        assert_eq!(grant.holds_at(0), Ok(()));
        assert_eq!(grant.holds_at(9_999), Ok(()));
        assert_eq!(grant.holds_at(10_000), Err(GrantDenial::Expired { at: Timestamp::from_ms(10_000) }));
        assert_eq!(grant.holds_at(u64::MAX), Err(GrantDenial::Expired { at: Timestamp::from_ms(10_000) }));
    }

    #[test]
    fn a_revoked_grant_stays_revoked_even_if_the_clock_turns_back() {
        let at = Timestamp::from_ms(5_000);
        let revoked = Grant { revoked_at: Some(at), ..grant() };
        for now in [0, 4_999, 5_000, 20_000] {
            assert_eq!(revoked.holds_at(now), Err(GrantDenial::Revoked { at }));
        }
    }

    #[test]
    fn a_grant_serves_whom_and_what_it_was_given_for() {
        for (claim, now, expected) in [
            (CLAIM, 0, Ok(())),
            (Claim { tool: None, call_id: None, ..CLAIM }, 0, Ok(())),
            (Claim { tenant: "other", ..CLAIM }, 0, Err(GrantDenial::NotYours)),
            (Claim { subject: "uid:8", ..CLAIM }, 10_000, Err(GrantDenial::NotYours)),
            (Claim { tool: Some("ls"), ..CLAIM }, 0, Err(GrantDenial::OtherTool { granted: "git".to_owned() })),
            (Claim { call_id: Some("c2"), ..CLAIM }, 0, Err(GrantDenial::OtherCall { granted: "c1".to_owned() })),
        ] {
            assert_eq!(grant().serves(&claim, now), expected, "{claim:?}");
        }
    }

    #[test]
    fn a_grant_survives_the_wire_and_refuses_what_it_does_not_know() {
        for grant in [grant(), Grant { revoked_at: Some(Timestamp::from_ms(1)), ..grant() }] {
            let text = serde_json::to_string(&grant).expect("json");
            assert_eq!(serde_json::from_str::<Grant>(&text).expect("the same"), grant);
        }
        let value = serde_json::to_value(grant()).expect("json");
        for (field, bad) in [
            ("expires_at", json!(10)),
            ("expires_at", json!("tomorrow")),
            ("decision_key_fingerprint", json!("")),
            ("decision_key_fingerprint", json!("a b")),
            ("budget", json!({"wishes": 3})),
            ("colour", json!("red")),
        ] {
            let mut changed = value.clone();
            changed[field] = bad;
            assert!(serde_json::from_value::<Grant>(changed.clone()).is_err(), "{changed}");
        }
    }

    #[test]
    fn a_fingerprint_tells_keys_apart() {
        assert_eq!(
            Fingerprint::of(b"").as_str(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_ne!(Fingerprint::of(b"a"), Fingerprint::of(b"b"));
        assert_eq!(Fingerprint::of(b"a").to_string().parse(), Ok(Fingerprint::of(b"a")));
    }

    #[test]
    fn in_a_composition_a_grant_speaks_of_its_capabilities_only() {
        let side = grant().side();
        assert_eq!(side.terms.allowances, grant().capabilities);
        assert!(side.terms.allow.tools.is_any() && side.terms.consent_needed().is_none());
    }
}
