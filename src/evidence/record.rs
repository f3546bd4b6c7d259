//! What is recorded: begins, ends and refusals as their makers give them, and as one line of JSON each.
//!
//! Nothing here can hold contents: what was read, written or passed is there as digests and amounts. Words that come
//! from callers are bounded.

use super::keys::Names;
use crate::model::{Ending, Enforcement, ExecId, Usage};
use serde::ser::{Serialize, SerializeSeq, Serializer};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Longest word of a record in bytes; a longer one is cut and its digest put behind it.
const WORD_MAX: usize = 256;
/// What is kept of a word that is longer: leaves room for the digest's mark.
const WORD_KEPT: usize = 200;
/// Side effects of one record; more are counted in its last one.
const SIDE_EFFECTS_MAX: usize = 64;

/// Id of one record: `ev_` and 26 digits. That of a begin is the id of the whole operation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EvidenceId(String);

/// Not `ev_` and 26 digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of a record (ev_ and 26 characters)")]
pub struct NotAnId;

impl EvidenceId {
    /// A new id that can't be guessed and sorts by time of creation.
    #[must_use]
    pub fn generate() -> Self {
        // The same digits as an exec's; only the kind in front differs.
        Self(ExecId::generate().as_str().replacen("ex_", "ev_", 1))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EvidenceId {
    type Err = NotAnId;
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let digits = text.strip_prefix("ev_").ok_or(NotAnId)?;
        format!("ex_{digits}").parse::<ExecId>().map_err(|_| NotAnId)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for EvidenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EvidenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for EvidenceId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

/// A SHA-256, 64 digits in records and answers. Also a link of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// Not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest (64 hexadecimal digits)")]
pub struct NotADigest;

impl Digest {
    /// The digest of some bytes.
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl FromStr for Digest {
    type Err = NotADigest;
    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let mut bytes = [0; 32];
        unhex(text.as_bytes(), &mut bytes).then_some(Self(bytes)).ok_or(NotADigest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        f.write_str(hex(&self.0, &mut text))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; 64];
        s.serialize_str(hex(&self.0, &mut text))
    }
}

/// `bytes` in hexadecimal, written to `text`, which has twice as many places.
pub(super) fn hex<'t>(bytes: &[u8], text: &'t mut [u8]) -> &'t str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(text).expect("hexadecimal digits are text")
}

/// Reads lower-case hexadecimal; whether it is that and fills `bytes`.
pub(super) fn unhex(text: &[u8], bytes: &mut [u8]) -> bool {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    text.len() == bytes.len() * 2
        && text.chunks_exact(2).zip(bytes).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The word in records, filters and answers.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// The one of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(self.name()) }
        }
    };
}

words! {
    /// What kind of operation it was.
    Operation {
        /// A program, python or shell code.
        Exec = "exec",
        /// A file of a workspace.
        File = "file",
        /// A sandbox made or removed.
        Sandbox = "sandbox",
        /// A grant issued or revoked.
        Grant = "grant",
        /// A confirmation asked for, given or denied.
        Confirmation = "confirmation",
        /// A skill invoked.
        Skill = "skill",
        /// A request that the daemon made for a program.
        Net = "net",
        /// A page of the browser.
        Browser = "browser",
    }
}

words! {
    /// How it ended, in one word.
    Status {
        /// As it should.
        Ok = "ok",
        /// With another exit code than 0.
        NonzeroExit = "nonzero_exit",
        /// By a signal.
        Signaled = "signaled",
        /// Its wall clock ran out.
        TimedOut = "timed_out",
        /// Its memory ran out.
        OomKilled = "oom_killed",
        /// Its processor time ran out.
        CpuExceeded = "cpu_exceeded",
        /// By its caller.
        Cancelled = "cancelled",
        /// By whoever took its grant back.
        Revoked = "revoked",
        /// Nobody knows: the daemon died, or let go of it.
        Lost = "lost",
        /// It never started.
        FailedToStart = "failed_to_start",
        /// The daemon or the host failed.
        Failed = "failed",
        /// Policy said no; nothing was begun.
        Refused = "refused",
    }
}

impl From<Ending> for Status {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Ok => Self::Ok,
            Ending::NonzeroExit => Self::NonzeroExit,
            Ending::Signaled => Self::Signaled,
            Ending::TimedOut => Self::TimedOut,
            Ending::OomKilled => Self::OomKilled,
            Ending::CpuExceeded => Self::CpuExceeded,
            Ending::Cancelled => Self::Cancelled,
            Ending::Revoked => Self::Revoked,
            Ending::Lost => Self::Lost,
            Ending::FailedToStart => Self::FailedToStart,
        }
    }
}

/// An operation that is about to start, or that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Id of the record and of the whole operation (the envelope).
    pub id: EvidenceId,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What kind.
    pub operation: Operation,
    /// The account.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// What was asked for: `process.exec:python`.
    pub capability: String,
    /// The tool that was named.
    pub tool: Option<String>,
    /// The caller's id of its call.
    pub call_id: Option<String>,
    /// Id of the profile.
    pub profile: Option<String>,
    /// Hash of the effective policy.
    pub profile_hash: Option<Digest>,
    /// Hash of all policy that was in force.
    pub policy_version_hash: Option<Digest>,
    /// Digest of what went in.
    pub inputs_digest: Option<Digest>,
    /// The exec.
    pub exec_id: Option<String>,
    /// The sandbox.
    pub sandbox_id: Option<String>,
    /// The grant that was used.
    pub grant_id: Option<String>,
    /// The caller's task.
    pub task_ref: Option<String>,
    /// The HTTP request.
    pub request_id: Option<String>,
    /// The trace it belongs to.
    pub trace_id: Option<String>,
}

impl Begin {
    /// A begin with a new id and nothing that may be left out.
    #[must_use]
    pub fn new(operation: Operation, tenant: &str, subject: &str, capability: &str, at_ms: u64) -> Self {
        Self {
            id: EvidenceId::generate(),
            at_ms,
            operation,
            tenant: tenant.to_owned(),
            subject: subject.to_owned(),
            capability: capability.to_owned(),
            tool: None,
            call_id: None,
            profile: None,
            profile_hash: None,
            policy_version_hash: None,
            inputs_digest: None,
            exec_id: None,
            sandbox_id: None,
            grant_id: None,
            task_ref: None,
            request_id: None,
            trace_id: None,
        }
    }

    /// Whose it is and what it is about: what its end repeats.
    pub(super) fn subject_matter(&self) -> Matter {
        let owned = |text: &str| bounded(text).into_owned();
        Matter {
            begin: self.id.clone(),
            tenant: owned(&self.tenant),
            subject: owned(&self.subject),
            exec_id: self.exec_id.as_deref().map(owned),
            sandbox_id: self.sandbox_id.as_deref().map(owned),
            grant_id: self.grant_id.as_deref().map(owned),
        }
    }
}

/// What an end has in common with its begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matter {
    pub begin: EvidenceId,
    pub tenant: String,
    pub subject: String,
    pub exec_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub grant_id: Option<String>,
}

/// Something that stayed behind, as digest and amounts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SideEffect {
    /// What kind: `files_written`, `http_post`.
    pub what: Cow<'static, str>,
    /// Digest of what it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// How many.
    pub count: u64,
    /// How much.
    pub bytes: u64,
}

/// What was taken from a grant's budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct BudgetUsed {
    /// Calls.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// Bytes that went in.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_in: u64,
    /// Bytes that came out.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_out: u64,
    /// Processor time.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_ms: u64,
    /// Graphics processor time.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpu_ms: u64,
    /// Files.
    #[serde(skip_serializing_if = "is_zero")]
    pub file_count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(amount: &u64) -> bool {
    *amount == 0
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When, in milliseconds since 1970. 0: nobody knows, the record takes the time of the one before it.
    pub at_ms: u64,
    /// In one word.
    pub status: Status,
    /// Family of the error (`QUOTA.BUDGET_EXCEEDED`).
    pub class: Option<String>,
    /// The precise error.
    pub code: Option<String>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Digest of what came out.
    pub outputs_digest: Option<Digest>,
    /// What stayed behind.
    pub side_effects: Vec<SideEffect>,
    /// What was taken from the grant's budget.
    pub budget_used: Option<BudgetUsed>,
    /// What the kernel counted.
    pub usage: Option<Usage>,
    /// What stood around it.
    pub enforcement: Option<Enforcement>,
    /// In words, for people.
    pub reason: Option<String>,
}

impl End {
    /// An end with nothing that may be left out.
    #[must_use]
    pub fn new(status: Status, at_ms: u64) -> Self {
        Self {
            at_ms,
            status,
            class: None,
            code: None,
            exit_code: None,
            outputs_digest: None,
            side_effects: Vec::new(),
            budget_used: None,
            usage: None,
            enforcement: None,
            reason: None,
        }
    }

    pub(super) fn lost(reason: &str, at_ms: u64) -> Self {
        Self { reason: Some(reason.to_owned()), ..Self::new(Status::Lost, at_ms) }
    }
}

/// Why policy said no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The precise error (`capability_not_supported`).
    pub code: String,
    /// Its family (`SCHEMA.VALIDATION_FAILED`).
    pub class: String,
    /// The rule that said no, or the field it is about; never a value.
    pub reason: Option<String>,
}

/// A record before it has a place: its JSON but for the first fields, and what it is found by.
#[derive(Debug)]
pub(super) struct Draft {
    pub id: EvidenceId,
    pub at_ms: u64,
    /// An object; the writer puts the record's place before its first field.
    pub body: Vec<u8>,
    pub keys: Vec<i64>,
    /// What its `enforcement` refers to.
    pub enforcement: Option<Definition>,
}

/// An enforcement report under its digest: recorded once, referred to by every end under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub digest: Short,
    pub text: String,
}

/// The first half of a digest: enough to tell what this daemon wrote apart, and it stands in every end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Short(pub [u8; 16]);

impl Short {
    pub(super) fn of(text: &str) -> Self {
        let digest = Digest::of(text).0;
        Self(digest[..16].try_into().expect("16 of 32 bytes"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        unhex(text.as_bytes(), &mut bytes).then_some(Self(bytes))
    }
}

impl Serialize for Short {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; 32];
        s.serialize_str(hex(&self.0, &mut text))
    }
}

/// A word of a caller as it is recorded.
fn bounded(text: &str) -> Cow<'_, str> {
    if text.len() <= WORD_MAX {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(WORD_KEPT)];
    let mut mark = [0; 32];
    Cow::Owned(format!("{kept}… sha256 {}", hex(&Digest::of(text).0[..16], &mut mark)))
}

#[expect(clippy::ref_option, reason = "serde calls it so")]
fn word<S: Serializer>(text: &Option<&str>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&bounded(text.unwrap_or_default()))
}

fn needed<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&bounded(text))
}

fn effects<S: Serializer>(effects: &[SideEffect], s: S) -> Result<S::Ok, S::Error> {
    let kept = effects.len().min(SIDE_EFFECTS_MAX);
    let (kept, rest) = effects.split_at(if kept < effects.len() { kept - 1 } else { kept });
    let mut list = s.serialize_seq(None)?;
    kept.iter().try_for_each(|effect| list.serialize_element(effect))?;
    if !rest.is_empty() {
        let sum = |amount: fn(&SideEffect) -> u64| rest.iter().map(amount).fold(0, u64::saturating_add);
        let (count, bytes) = (sum(|effect| effect.count), sum(|effect| effect.bytes));
        list.serialize_element(&SideEffect { what: Cow::Borrowed("others"), digest: None, count, bytes })?;
    }
    list.end()
}

/// A begin, an end or a refusal: the order of its fields on the line.
#[derive(serde::Serialize)]
struct Body<'a> {
    id: &'a EvidenceId,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<&'a EvidenceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    #[serde(serialize_with = "needed")]
    tenant: &'a str,
    #[serde(serialize_with = "needed")]
    subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    capability: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    profile: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_hash: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_version_hash: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs_digest: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    exec_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    sandbox_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    grant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    task_ref: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs_digest: Option<Digest>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "effects")]
    side_effects: &'a [SideEffect],
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_used: Option<BudgetUsed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enforcement: Option<Short>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    reason: Option<&'a str>,
}

impl<'a> Body<'a> {
    fn of_begin(kind: &'static str, begin: &'a Begin) -> Self {
        Self {
            id: &begin.id,
            kind,
            begin: None,
            operation: Some(begin.operation),
            tenant: &begin.tenant,
            subject: &begin.subject,
            capability: Some(&begin.capability),
            tool: begin.tool.as_deref(),
            call_id: begin.call_id.as_deref(),
            profile: begin.profile.as_deref(),
            profile_hash: begin.profile_hash,
            policy_version_hash: begin.policy_version_hash,
            inputs_digest: begin.inputs_digest,
            exec_id: begin.exec_id.as_deref(),
            sandbox_id: begin.sandbox_id.as_deref(),
            grant_id: begin.grant_id.as_deref(),
            task_ref: begin.task_ref.as_deref(),
            request_id: begin.request_id.as_deref(),
            trace_id: begin.trace_id.as_deref(),
            status: None,
            class: None,
            code: None,
            exit_code: None,
            outputs_digest: None,
            side_effects: &[],
            budget_used: None,
            usage: None,
            enforcement: None,
            reason: None,
        }
    }

    fn of_end(id: &'a EvidenceId, matter: &'a Matter, end: &'a End, enforcement: Option<Short>) -> Self {
        Self {
            id,
            kind: "end",
            begin: Some(&matter.begin),
            operation: None,
            tenant: &matter.tenant,
            subject: &matter.subject,
            capability: None,
            tool: None,
            call_id: None,
            profile: None,
            profile_hash: None,
            policy_version_hash: None,
            inputs_digest: None,
            exec_id: matter.exec_id.as_deref(),
            sandbox_id: matter.sandbox_id.as_deref(),
            grant_id: matter.grant_id.as_deref(),
            task_ref: None,
            request_id: None,
            trace_id: None,
            status: Some(end.status),
            class: end.class.as_deref(),
            code: end.code.as_deref(),
            exit_code: end.exit_code,
            outputs_digest: end.outputs_digest,
            side_effects: &end.side_effects,
            budget_used: end.budget_used,
            usage: end.usage,
            enforcement,
            reason: end.reason.as_deref(),
        }
    }

    fn draft(&self, at_ms: u64, enforcement: Option<Definition>) -> Draft {
        let mut body = Vec::with_capacity(768);
        serde_json::to_writer(&mut body, self).expect("a record holds nothing that JSON lacks");
        let cut = |text: Option<&'a str>| text.map(bounded);
        let names = Names {
            id: Some(self.id.as_str()),
            begin: self.begin.map(EvidenceId::as_str),
            tenant: cut(Some(self.tenant)),
            subject: cut(Some(self.subject)),
            exec_id: cut(self.exec_id),
            sandbox_id: cut(self.sandbox_id),
            grant_id: cut(self.grant_id),
            status: self.status.map(Status::name),
            code: cut(self.code),
        };
        let mut keys = Vec::with_capacity(9);
        names.keys(&mut keys);
        Draft { id: self.id.clone(), at_ms, body, keys, enforcement }
    }
}

impl Draft {
    pub(super) fn begin(begin: &Begin) -> Self {
        Body::of_begin("begin", begin).draft(begin.at_ms, None)
    }

    pub(super) fn refusal(begin: &Begin, refused: &Refused) -> Self {
        let body = Body {
            status: Some(Status::Refused),
            class: Some(&refused.class),
            code: Some(&refused.code),
            reason: refused.reason.as_deref(),
            ..Body::of_begin("refusal", begin)
        };
        body.draft(begin.at_ms, None)
    }

    pub(super) fn end(matter: &Matter, end: &End) -> Self {
        let definition = end.enforcement.as_ref().map(|enforcement| {
            let text = serde_json::to_string(enforcement).expect("an enforcement holds nothing that JSON lacks");
            Definition { digest: Short::of(&text), text }
        });
        let id = EvidenceId::generate();
        let short = definition.as_ref().map(|definition| definition.digest);
        Body::of_end(&id, matter, end, short).draft(end.at_ms, definition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_and_ids_read_back_and_nothing_else_does() {
        let digest = Digest::of("x");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "00", &"g".repeat(64), &"A".repeat(64), &"0".repeat(63)] {
            assert_eq!(bad.parse::<Digest>(), Err(NotADigest), "{bad}");
        }
        let id = EvidenceId::generate();
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_eq!(id.as_str().replace("ev_", "ex_").parse::<EvidenceId>(), Err(NotAnId));
    }

    #[test]
    fn a_word_that_is_too_long_is_cut_and_still_told_apart() {
        let (a, b) = ("ä".repeat(200), format!("{}b", "ä".repeat(199)));
        assert!(bounded(&a).len() <= WORD_MAX && bounded(&a) != bounded(&b), "{}", bounded(&a));
        assert_eq!(bounded("short"), "short");
    }

    #[test]
    fn many_side_effects_end_in_a_sum() {
        let effect = SideEffect { what: Cow::Borrowed("files_written"), digest: None, count: 1, bytes: 10 };
        let end = End { side_effects: vec![effect; 100], ..End::new(Status::Ok, 1) };
        let matter = Begin::new(Operation::Exec, "acme", "uid:7", "python.exec", 1).subject_matter();
        let body: serde_json::Value = serde_json::from_slice(&Draft::end(&matter, &end).body).expect("JSON");
        let effects = body["side_effects"].as_array().expect("a list");
        assert_eq!(effects.len(), SIDE_EFFECTS_MAX);
        assert_eq!(effects[63], serde_json::json!({"what": "others", "count": 37, "bytes": 370}));
    }

    #[test]
    fn every_word_of_a_status_and_an_operation_reads_back() {
        for &status in Status::ALL {
            assert_eq!(Status::from_name(status.name()), Some(status));
        }
        for &operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
    }
}
