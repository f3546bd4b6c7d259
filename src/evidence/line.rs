//! A record as it stands in the chain: one line of JSON whose bytes are what is hashed, and its fields.

use super::id::{Digest, EvidenceId};
use super::keys::Names;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Kinds of records that are about the chain itself and not about an operation.
pub(super) mod kind {
    pub const GENESIS: &str = "genesis";
    pub const CHECKPOINT: &str = "checkpoint";
    pub const ENFORCEMENT: &str = "enforcement";
    pub const BEGIN: &str = "begin";
    pub const END: &str = "end";
    pub const REFUSAL: &str = "refusal";
}

/// A record of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the chain, from 1.
    pub seq: u64,
    /// The chain's head once it was added.
    pub hash: Digest,
    /// Its canonical bytes: a JSON object without spaces.
    pub line: String,
}

impl Record {
    /// What it says.
    pub fn fields(&self) -> Result<Fields<'_>, serde_json::Error> {
        Fields::parse(self.line.as_bytes())
    }

    /// The record as one JSON object, its hash among its fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        let open = self.line.strip_suffix('}').unwrap_or(&self.line);
        format!("{open},\"hash\":\"{}\"}}", self.hash)
    }
}

/// A text of a line, copied only if it has escapes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The fields of a line. What a kind does not have is absent.
#[derive(Debug, Clone, serde::Deserialize)]
#[expect(missing_docs, reason = "the fields of Begin, End and Refused, where they are described")]
pub struct Fields<'a> {
    /// Its place in the chain.
    pub seq: u64,
    /// When; never earlier than the record before it.
    pub at_ms: u64,
    /// What the clock said, if that was another time.
    pub clock_ms: Option<u64>,
    #[serde(borrow)]
    pub id: Text<'a>,
    /// `begin`, `end`, `refusal`; `genesis`, `checkpoint` and `enforcement` are the chain's own.
    #[serde(borrow)]
    pub kind: Text<'a>,
    #[serde(borrow)]
    pub begin: Option<Text<'a>>,
    #[serde(borrow)]
    pub operation: Option<Text<'a>>,
    #[serde(borrow)]
    pub tenant: Option<Text<'a>>,
    #[serde(borrow)]
    pub subject: Option<Text<'a>>,
    #[serde(borrow)]
    pub capability: Option<Text<'a>>,
    #[serde(borrow)]
    pub profile: Option<Text<'a>>,
    #[serde(borrow)]
    pub exec_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub sandbox_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub grant_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub status: Option<Text<'a>>,
    #[serde(borrow)]
    pub code: Option<Text<'a>>,
    pub exit_code: Option<i32>,
    #[serde(borrow)]
    pub reason: Option<Text<'a>>,
    /// Of an end its reference; of a record of that kind the report itself.
    #[serde(borrow)]
    pub enforcement: Option<&'a RawValue>,
    /// Of a genesis: hexadecimal.
    #[serde(borrow)]
    pub public_key: Option<Text<'a>>,
    /// Of a checkpoint: the genesis of its chain.
    #[serde(borrow)]
    pub chain: Option<Text<'a>>,
    /// Of a checkpoint: the chain's head before it.
    #[serde(borrow)]
    pub head: Option<Text<'a>>,
    /// Of a checkpoint: hexadecimal.
    #[serde(borrow)]
    pub signature: Option<Text<'a>>,
}

impl<'a> Fields<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, serde_json::Error> {
        // Once for the whole line is quicker than once for every text in it.
        let line = std::str::from_utf8(line).map_err(serde::de::Error::custom)?;
        serde_json::from_str(line)
    }

    /// What it is found by.
    pub(super) fn names(&self) -> Names<'_> {
        fn cow<'b>(text: &'b Option<Text<'_>>) -> Option<Cow<'b, str>> {
            text.as_deref().map(Cow::Borrowed)
        }
        Names {
            id: Some(&self.id),
            begin: self.begin.as_deref(),
            tenant: cow(&self.tenant),
            subject: cow(&self.subject),
            exec_id: cow(&self.exec_id),
            sandbox_id: cow(&self.sandbox_id),
            grant_id: cow(&self.grant_id),
            status: self.status.as_deref(),
            code: cow(&self.code),
        }
    }

    /// The reference of an end to what stood around it.
    pub(super) fn enforcement_reference(&self) -> Option<&'a str> {
        (&*self.kind == kind::END).then_some(self.enforcement)?.map(|raw| raw.get().trim_matches('"'))
    }

    /// Whether it is about an operation, and not about the chain.
    #[must_use]
    pub fn is_operation(&self) -> bool {
        matches!(&*self.kind, kind::BEGIN | kind::END | kind::REFUSAL)
    }
}

/// The bytes before a record's own fields.
pub(super) fn place(seq: u64, at_ms: u64, clock_ms: Option<u64>, line: &mut Vec<u8>) {
    use std::io::Write;
    let written = match clock_ms {
        None => write!(line, "{{\"seq\":{seq},\"at_ms\":{at_ms},"),
        Some(clock_ms) => write!(line, "{{\"seq\":{seq},\"at_ms\":{at_ms},\"clock_ms\":{clock_ms},"),
    };
    written.expect("memory does not fail to be written");
}

/// The time of a line, from its first bytes.
pub(super) fn at_ms(start: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"\"at_ms\":";
    let from = start.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let digits = start[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&start[from..from + digits]).ok()?.parse().ok()
}

/// The first record of a chain.
#[derive(serde::Serialize)]
pub(super) struct Genesis<'a> {
    pub id: &'a EvidenceId,
    pub kind: &'static str,
    pub public_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<&'a Previous>,
}

/// What lay in the chain's place before it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Previous {
    /// Name of the file that was set aside, in the journal's directory; none if nothing was left of it.
    pub file: Option<String>,
    /// What was wrong with it.
    pub why: String,
    /// The last place that was signed for, as far as is known.
    pub checkpoint_seq: Option<u64>,
    /// The head at that place.
    pub checkpoint_head: Option<String>,
}

/// A signed head.
#[derive(serde::Serialize)]
pub(super) struct Checkpoint<'a> {
    pub id: &'a EvidenceId,
    pub kind: &'static str,
    pub chain: &'a str,
    pub head: Digest,
    pub signature: String,
}

/// An enforcement report, once for all ends under it.
#[derive(serde::Serialize)]
pub(super) struct Defined<'a> {
    pub id: &'a EvidenceId,
    pub kind: &'static str,
    pub enforcement: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use super::super::draft::Draft;
    use super::super::record::{Begin, End, Operation, Status};
    use super::*;

    fn line(body: &[u8], clock_ms: Option<u64>) -> Vec<u8> {
        let mut line = Vec::new();
        place(7, 1234, clock_ms, &mut line);
        line.extend_from_slice(&body[1..]);
        line
    }

    #[test]
    fn what_was_recorded_reads_back_and_is_found_by_the_same_keys() {
        let mut begin = Begin::new(Operation::Exec, "ac\"me", "uid:7 ä\n", "process.exec:python", 5);
        begin.exec_id = Some("ex_01m70000010000000000000000".to_owned());
        begin.grant_id = Some("gr_short".to_owned());
        begin.tool = Some("x".repeat(5000));
        for clock_ms in [None, Some(9)] {
            let draft = Draft::begin(&begin);
            let bytes = line(&draft.body, clock_ms);
            let fields = Fields::parse(&bytes).expect("JSON");
            assert_eq!((fields.seq, fields.at_ms, fields.clock_ms), (7, 1234, clock_ms));
            assert_eq!(fields.tenant.as_deref(), Some("ac\"me"));
            let mut keys = Vec::new();
            fields.names().keys(&mut keys);
            assert_eq!(keys, draft.keys);
            assert_eq!(at_ms(&bytes), Some(1234));
        }
        let end = Draft::end(&begin.subject_matter(), &End::new(Status::TimedOut, 6));
        let bytes = line(&end.body, None);
        let fields = Fields::parse(&bytes).expect("JSON");
        assert_eq!((fields.begin.as_deref(), fields.status.as_deref()), (Some(begin.id.as_str()), Some("timed_out")));
        let mut keys = Vec::new();
        fields.names().keys(&mut keys);
        assert_eq!(keys, end.keys);
        assert!(keys.contains(&Draft::begin(&begin).keys[0]), "an end is found by its begin's id too");
    }
}
