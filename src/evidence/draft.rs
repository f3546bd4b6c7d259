//! A record before it has a place: one line of JSON, written by the caller's own thread, and what it is found by.
//!
//! Words that come from callers are bounded.

use super::id::{Digest, EvidenceId, Short, hex};
use super::keys::Names;
use super::record::{Begin, BudgetUsed, End, Matter, Operation, Refused, SideEffect, Status};
use crate::model::Usage;
use serde::ser::{SerializeSeq, Serializer};
use std::borrow::Cow;

/// Longest word of a record in bytes; a longer one is cut and its digest put behind it.
const WORD_MAX: usize = 256;
/// What is kept of a word that is longer: leaves room for the digest's mark.
const WORD_KEPT: usize = 200;
/// Side effects of one record; more are counted in its last one.
const SIDE_EFFECTS_MAX: usize = 64;

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

/// A word of a caller as it is recorded.
pub(super) fn bounded(text: &str) -> Cow<'_, str> {
    if text.len() <= WORD_MAX {
        return Cow::Borrowed(text);
    }
    let end = (0..=WORD_KEPT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let kept = &text[..end];
    let mut mark = [0; 32];
    Cow::Owned(format!("{kept}… sha256 {}", hex(&Digest::of(text).0[..16], &mut mark)))
}

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
}
