//! The chain: how records hang together, and the walk along them that finds the first bad one.
//!
//! ```text
//! hash(n) = SHA-256( hash(n-1) ‖ SHA-256(line n) )        hash(0) = 32 zero bytes
//! ```
//!
//! A line can be withheld and its digest given instead: the chain is still checked to its end. Every so often a
//! checkpoint among the records holds the daemon's signature for the head before it.

use super::id::Digest;
use super::line::{Fields, kind};
use super::signing::PublicKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// What the first record of a chain follows.
pub(super) const NOTHING: Digest = Digest([0; 32]);

/// The head once a line with this digest is added.
pub(super) fn link(head: &Digest, line: &Digest) -> Digest {
    let mut hash = Sha256::new();
    hash.update(head.0);
    hash.update(line.0);
    Digest(hash.finalize().into())
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// There is another in its place.
    Missing,
    /// Its bytes or its hash are not what was written, or it stands in a wrong place.
    Altered,
    /// It is no line of a record.
    Unreadable,
    /// It is earlier than the one before it.
    Time,
    /// The first record names another key, or stands elsewhere.
    Genesis,
    /// The signature is not this key's for the records before it: one since the last checkpoint was replaced.
    Signature,
    /// An end without an open begin.
    Unpaired,
    /// It is found by other names than it holds, so lists may hide it.
    Index,
    /// What it says was enforced is not there.
    Enforcement,
    /// The end is missing: nothing after this was signed.
    Tail,
    /// The head that was expected is nowhere in the chain: records at its end are missing, or all was replaced.
    Head,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing",
            Self::Altered => "was changed or moved",
            Self::Unreadable => "is no record",
            Self::Time => "is earlier than the one before it",
            Self::Genesis => "does not begin a chain of this key",
            Self::Signature => "is not signed with this key for what is before it",
            Self::Unpaired => "ends nothing that was begun",
            Self::Index => "is listed under other names than it holds",
            Self::Enforcement => "refers to an enforcement that is not there",
            Self::Tail => "is not followed by a signed checkpoint: the end is missing",
            Self::Head => "is the last, and the expected head is nowhere: the end is missing or all was replaced",
        })
    }
}

/// The first bad record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Bad {
    /// Its place.
    pub seq: u64,
    /// Its id, if that can still be read.
    pub id: Option<String>,
    /// What is wrong.
    pub fault: Fault,
    /// The file it is in, if it is not the live database.
    pub file: Option<String>,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}", self.seq)?;
        if let Some(id) = &self.id {
            write!(f, " ({id})")?;
        }
        if let Some(file) = &self.file {
            write!(f, " in {file}")?;
        }
        write!(f, " {}", self.fault)
    }
}

/// What a walk saw, up to the first bad record or the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Verdict {
    /// Whether all of it is what was written.
    pub ok: bool,
    /// The first bad record, if there is one.
    pub bad: Option<Bad>,
    /// Records that were walked.
    pub records: u64,
    /// Place of the first of them; more than 1 if earlier segments are not here.
    pub first_seq: u64,
    /// Place of the last good one.
    pub last_seq: u64,
    /// The head there: keep it, and `--expect-head` tells later whether the end was cut off.
    #[schema(value_type = String)]
    pub head: Digest,
    /// Signatures that held.
    pub checkpoints: u64,
    /// Records after the last of them.
    pub unsigned: u64,
    /// Records of which only the digest was given.
    pub withheld: u64,
    /// Begins without an end.
    pub open: u64,
    /// Sealed segments among them.
    pub segments: u64,
}

/// One record as a walk is shown it.
pub(super) enum Shown<'a> {
    Line(&'a [u8]),
    Withheld(Digest),
}

/// A walk along a chain, in bounded memory: it remembers the head and the begins that are open.
pub(super) struct Walk {
    key: PublicKey,
    expected: Option<Digest>,
    chain: Option<String>,
    seq: u64,
    head: Digest,
    at_ms: u64,
    /// Something before or between was not shown, so an end's begin may be unknown.
    partial: bool,
    open: HashSet<u64>,
    hasher: RandomState,
    seen: Verdict,
}

impl Walk {
    pub(super) fn new(key: PublicKey, expected: Option<Digest>) -> Self {
        let seen = Verdict {
            ok: true,
            bad: None,
            records: 0,
            first_seq: 1,
            last_seq: 0,
            head: NOTHING,
            checkpoints: 0,
            unsigned: 0,
            withheld: 0,
            open: 0,
            segments: 0,
        };
        Self {
            key,
            expected,
            chain: None,
            seq: 0,
            head: NOTHING,
            at_ms: 0,
            partial: false,
            open: HashSet::new(),
            hasher: RandomState::new(),
            seen,
        }
    }

    /// Puts the walk behind record `seq` of `chain`, whose hash is `head`. What was walked before stays counted.
    pub(super) fn enter(&mut self, chain: &str, seq: u64, head: Digest) {
        let first = self.seen.records == 0;
        if self.chain.as_deref() != Some(chain) {
            // What another chain left open can't be ended any more.
            self.open.clear();
            self.at_ms = 0;
            self.partial = seq > 0;
            self.chain = Some(chain.to_owned());
        }
        if first {
            self.seen.first_seq = seq + 1;
        }
        (self.seq, self.head) = (seq, head);
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    pub(super) fn head(&self) -> Digest {
        self.head
    }

    pub(super) fn chain(&self) -> Option<&str> {
        self.chain.as_deref()
    }

    pub(super) fn segment_done(&mut self) {
        self.seen.segments += 1;
    }

    /// The next record. Its fields come back if it was shown and is good.
    pub(super) fn step<'a>(&mut self, seq: u64, shown: &Shown<'a>, hash: &Digest) -> Result<Option<Fields<'a>>, Bad> {
        let expected = self.seq + 1;
        if seq != expected {
            return Err(Bad { seq: expected, id: None, fault: Fault::Missing, file: None });
        }
        let bad = |id: Option<&str>, fault| Bad { seq, id: id.map(str::to_owned), fault, file: None };
        let (line, digest) = match shown {
            Shown::Line(line) => (Some(*line), Digest::of(line)),
            Shown::Withheld(digest) => (None, *digest),
        };
        let fields = line.map(Fields::parse);
        if link(&self.head, &digest) != *hash {
            let id = fields.and_then(Result::ok).map(|fields| fields.id.to_string());
            return Err(bad(id.as_deref(), Fault::Altered));
        }
        let fields = fields.transpose().map_err(|_| bad(None, Fault::Unreadable))?;
        match &fields {
            Some(fields) => {
                let refused = |fault| bad(Some(&fields.id), fault);
                if fields.seq != seq {
                    return Err(refused(Fault::Altered));
                }
                if fields.at_ms < self.at_ms {
                    return Err(refused(Fault::Time));
                }
                self.judge(fields).map_err(refused)?;
                self.at_ms = fields.at_ms;
            }
            None => {
                self.partial = true;
                self.seen.withheld += 1;
            }
        }
        self.seq = seq;
        self.head = *hash;
        self.seen.records += 1;
        if fields.as_ref().is_none_or(|fields| &*fields.kind != kind::CHECKPOINT) {
            self.seen.unsigned += 1;
        }
        if self.expected == Some(*hash) {
            self.expected = None;
        }
        Ok(fields)
    }

    /// What a record's kind asks of it.
    fn judge(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        match &*fields.kind {
            kind::GENESIS => {
                let ours = fields.public_key.as_deref() == Some(&*self.key.to_hex());
                let first = self.seq == 0 && self.chain.as_deref().is_none_or(|chain| *chain == *fields.id);
                if !(ours && first) {
                    return Err(Fault::Genesis);
                }
                self.chain = Some(fields.id.to_string());
            }
            _ if self.seq == 0 => return Err(Fault::Genesis),
            kind::CHECKPOINT => {
                let chain = fields.chain.as_deref().unwrap_or_default();
                let signature = fields.signature.as_deref().unwrap_or_default();
                let here = self.chain.as_deref().is_none_or(|known| known == chain)
                    && fields.head.as_deref() == Some(&*self.head.to_string());
                if !(here && self.key.has_signed(chain, self.seq, &self.head, signature)) {
                    return Err(Fault::Signature);
                }
                self.seen.checkpoints += 1;
                self.seen.unsigned = 0;
            }
            kind::BEGIN => {
                self.open.insert(self.hasher.hash_one(&*fields.id));
            }
            kind::END => {
                let begin = self.hasher.hash_one(fields.begin.as_deref().unwrap_or_default());
                if !self.open.remove(&begin) && !self.partial {
                    return Err(Fault::Unpaired);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The verdict, now that `bad` came or the end was reached.
    pub(super) fn finish(mut self, bad: Option<Bad>) -> Verdict {
        let missing = self.expected.map(|_| Bad { seq: self.seq, id: None, fault: Fault::Head, file: None });
        self.seen.bad = bad.or(missing);
        self.seen.ok = self.seen.bad.is_none();
        self.seen.last_seq = self.seq;
        self.seen.head = self.head;
        self.seen.open = self.open.len() as u64;
        self.seen
    }

    /// Whether the last record was a checkpoint.
    pub(super) fn is_signed(&self) -> bool {
        self.seen.unsigned == 0 && self.seen.checkpoints > 0
    }
}
