//! Explain: what would be said to a request, by which rule, and what would have to change.
//!
//! It decides nothing by itself: [`judge`] does, and each change is tried by judging again with it, until the request
//! passes or needs something that no change of a rule can give. So a verdict can't disagree with the real decision, and
//! a list of changes that calls itself sufficient was tried.

use super::compose::Origin;
use super::consent::Approval;
use super::grant::{ANY_TOOL, Fingerprint, Grant};
use super::guard::{Denial, List};
use super::judge::{Facts, capability_of, judge};
use super::refusal::Refusal;
use super::risk::Risk;
use crate::model::{Budget, ExecRequest, GrantId, Lacking, Limit, Principal, Timestamp};
use crate::profile::{Profile, Profiles};
use crate::terms::CapKey;
use crate::terms::allow::Allowance;
use crate::terms::allowset::AllowanceSet;
use crate::terms::lists::{AllowList, Pattern};
use serde::Serialize;
use serde_json::{Value, json};
use std::str::FromStr;

/// Changes that are tried at most: more than rules there are.
const CHANGES_MAX: usize = 24;
/// How long a grant that we propose would hold.
const PROPOSED_GRANT_MS: u64 = 3_600_000;

/// Whose rule it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// `[access]` in the config, or the caller's token.
    Access,
    /// The profile.
    Profile,
    /// The grant.
    Grant,
    /// The request itself.
    Request,
    /// A person who has to agree.
    Approver,
    /// The host.
    Host,
    /// The daemon as it is just now.
    Daemon,
}

/// One change that would help.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Where.
    pub layer: Layer,
    /// Of which profile or grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Which key.
    pub field: String,
    /// `add` to it or `set` it.
    pub how: &'static str,
    /// What.
    pub value: Value,
}

/// What would be said.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The no, if it is one.
    pub refusal: Option<Refusal>,
    /// The rule that decides, by name.
    pub rule: String,
    /// Whose rule it is.
    pub layer: Layer,
    /// The hash that evidence would carry.
    pub profile_hash: Option<String>,
    /// The smallest changes, in the order in which they are needed.
    pub changes: Vec<Change>,
    /// Whether the request passes with them: it was tried.
    pub sufficient: bool,
    /// Other profiles under which the same request passes as it is.
    pub alternatives: Vec<String>,
}

/// A copy of everything a judgement rests on, to be changed and tried.
struct Trial {
    principal: Principal,
    request: ExecRequest,
    profiles: Profiles,
    lacking: Vec<Lacking>,
    grant: Option<Grant>,
    risk: Option<Risk>,
    approval: Option<Approval>,
    now_ms: u64,
}

/// Judges without consequences.
#[must_use]
pub fn explain(principal: &Principal, request: &ExecRequest, facts: &Facts<'_>) -> Verdict {
    let refusal = match judge(principal, request, facts) {
        Ok(permit) => {
            return Verdict {
                refusal: None,
                rule: "capabilities".to_owned(),
                layer: Layer::Profile,
                profile_hash: Some(permit.profile_hash().to_owned()),
                changes: vec![],
                sufficient: true,
                alternatives: vec![],
            };
        }
        Err(refusal) => refusal,
    };
    let (layer, rule) = rule_of(&refusal);
    let mut trial = Trial {
        principal: principal.clone(),
        request: request.clone(),
        profiles: facts.profiles.clone(),
        lacking: facts.lacking.to_vec(),
        grant: facts.grant.cloned(),
        risk: facts.risk.cloned(),
        approval: facts.approval.cloned(),
        now_ms: facts.now_ms,
    };
    let alternatives = trial.alternatives();
    let (changes, sufficient) = trial.mend(&refusal);
    Verdict { refusal: Some(refusal), rule, layer, profile_hash: None, changes, sufficient, alternatives }
}

fn origin_layer(origin: Origin) -> Layer {
    match origin {
        Origin::System | Origin::Settings => Layer::Daemon,
        Origin::Profile | Origin::Manifest => Layer::Profile,
        Origin::Grant => Layer::Grant,
        Origin::Request => Layer::Request,
    }
}

/// Whose rule said no, and its name.
#[must_use]
pub fn rule_of(refusal: &Refusal) -> (Layer, String) {
    let (layer, rule) = match refusal {
        Refusal::UnknownProfile { .. } => (Layer::Request, "profile"),
        Refusal::ProfileNotAllowed { .. } => (Layer::Access, "profiles"),
        Refusal::RoleMissing { .. } => (Layer::Access, "roles"),
        Refusal::CapabilityNotSupported { .. } => (Layer::Profile, "capabilities"),
        Refusal::InvalidPath { field, .. }
        | Refusal::InvalidField { field, .. }
        | Refusal::NoSuchDirectory { field }
        | Refusal::Boundary { field } => (Layer::Request, field.as_str()),
        Refusal::RuntimeMissing { .. } => (Layer::Host, "rootfs"),
        Refusal::Widens { field, .. } => return (Layer::Profile, limit_key(field)),
        Refusal::GrantMissing { .. } => (Layer::Profile, "grant_required"),
        Refusal::NoSuchGrant => (Layer::Request, "grant_id"),
        Refusal::GrantRevoked { .. } => (Layer::Grant, "revoked_at"),
        Refusal::GrantExpired { .. } => (Layer::Grant, "expires_at"),
        Refusal::GrantForOther { field, .. } => (Layer::Grant, *field),
        Refusal::Denied { origin, denial } => return (origin_layer(*origin), denial.rule()),
        Refusal::ConsentNeeded { .. }
        | Refusal::ConsentDenied { .. }
        | Refusal::ConsentTimedOut { .. }
        | Refusal::NoSuchConfirmation
        | Refusal::OwnConfirmation
        | Refusal::OtherDigest { .. } => (Layer::Approver, "consent"),
        Refusal::BudgetExceeded { .. } => (Layer::Grant, "budget"),
        Refusal::Concurrency { .. } => (Layer::Profile, "sizes.max_concurrency"),
        Refusal::NoSuchProject => (Layer::Request, "project_id"),
        Refusal::NoSuchExec
        | Refusal::CancelledInQueue
        | Refusal::ExecEnded
        | Refusal::NotStarted
        | Refusal::OutputGone => (Layer::Request, "exec_id"),
        Refusal::NoSuchService | Refusal::ServiceRuns => (Layer::Request, "name"),
        Refusal::StdinClosed => (Layer::Request, "stdin"),
        Refusal::StdinTooMuch { .. } => (Layer::Profile, "sizes.max_bytes_in"),
        Refusal::NoSuchSession | Refusal::SessionDead { .. } | Refusal::SessionBusy { .. } => {
            (Layer::Request, "session")
        }
        Refusal::TooManySessions { .. } => (Layer::Daemon, "sessions"),
        Refusal::QueueFull { .. } => (Layer::Daemon, "max_queued_execs"),
        Refusal::SnapshotsUnsupported => (Layer::Host, "store.driver"),
        Refusal::WorkspaceBusy => (Layer::Daemon, "workspace"),
        Refusal::Draining => (Layer::Daemon, "draining"),
    };
    (layer, rule.to_owned())
}

/// `policy_overrides.limits.pids` and `timeout_ms` as the profile's keys.
fn limit_key(field: &str) -> String {
    match field {
        "timeout_ms" => format!("limits.{}", Limit::WallMs.name()),
        other => other.trim_start_matches("policy_overrides.").to_owned(),
    }
}

impl Trial {
    fn facts(&self) -> Facts<'_> {
        Facts {
            profiles: &self.profiles,
            lacking: &self.lacking,
            grant: self.grant.as_ref(),
            risk: self.risk.as_ref(),
            approval: self.approval.as_ref(),
            now_ms: self.now_ms,
        }
    }

    /// Profiles under which the request passes unchanged.
    fn alternatives(&self) -> Vec<String> {
        let passes = |id: &&str| {
            let request = ExecRequest { profile: (*id).to_owned(), ..self.request.clone() };
            judge(&self.principal, &request, &self.facts()).is_ok()
        };
        self.profiles.ids().into_iter().filter(passes).map(str::to_owned).collect()
    }

    /// Changes one thing after the other until the request passes.
    fn mend(&mut self, refusal: &Refusal) -> (Vec<Change>, bool) {
        let mut changes: Vec<Change> = Vec::new();
        let mut refusal = refusal.clone();
        for _ in 0..CHANGES_MAX {
            let Some(change) = self.change(&refusal) else { return (changes, false) };
            if changes.contains(&change) {
                return (changes, false); // it did not help
            }
            changes.push(change);
            match judge(&self.principal, &self.request, &self.facts()) {
                Ok(_) => return (changes, true),
                Err(next) => refusal = next,
            }
        }
        (changes, false)
    }

    /// Makes the change that answers this no. None: no rule can.
    fn change(&mut self, refusal: &Refusal) -> Option<Change> {
        let change = |layer, of: Option<&str>, field: &str, how, value| {
            Some(Change { layer, of: of.map(str::to_owned), field: field.to_owned(), how, value })
        };
        let profile = self.request.profile.clone();
        match refusal {
            Refusal::UnknownProfile { .. } => {
                let other = self.alternatives().into_iter().next()?;
                self.request.profile.clone_from(&other);
                change(Layer::Request, None, "profile", "set", json!(other))
            }
            Refusal::RoleMissing { role } => {
                self.principal.roles.insert(*role);
                change(Layer::Access, None, "roles", "add", json!(role))
            }
            Refusal::ProfileNotAllowed { profile } => {
                self.principal.profiles.get_or_insert_default().insert(profile.clone());
                change(Layer::Access, None, "profiles", "add", json!(profile))
            }
            Refusal::CapabilityNotSupported { capability, operation, .. } => {
                let word = format!("{}:{operation}", capability.name());
                self.profile(|profile| allow(&mut profile.terms.allowances, word.parse().ok()));
                change(Layer::Profile, Some(&profile), "capabilities", "add", json!(word))
            }
            Refusal::RuntimeMissing { capability } => {
                self.lacking.clear();
                change(Layer::Host, Some(&profile), "rootfs", "add", json!(capability.programs()))
            }
            Refusal::Widens { field, asked, .. } => {
                let key = limit_key(field);
                if let Some(limit) = key.strip_prefix("limits.").and_then(Limit::from_name) {
                    let amount = asked.as_u64()?;
                    self.profile(|profile| profile.limits.set(limit, amount).ok());
                    return change(Layer::Profile, Some(&profile), &key, "set", json!(amount));
                }
                // Sizes, capabilities and lists: the request simply asks for less.
                match key.split('.').next()? {
                    "sizes" => self.request.policy_overrides.sizes.clear(),
                    "capabilities" => self.request.policy_overrides.capabilities = None,
                    _ => self.request.policy_overrides.allow = None,
                }
                change(Layer::Request, None, field, "set", Value::Null)
            }
            Refusal::GrantMissing { .. }
            | Refusal::NoSuchGrant
            | Refusal::GrantRevoked { .. }
            | Refusal::GrantExpired { .. }
            | Refusal::GrantForOther { .. } => self.propose_grant(),
            Refusal::Denied { origin, denial } => self.change_side(*origin, denial),
            Refusal::ConsentNeeded { digest, .. } => {
                self.approval = Some(Approval { digest: digest.clone() });
                change(Layer::Approver, None, "approve", "set", json!(digest))
            }
            Refusal::InvalidPath { .. }
            | Refusal::InvalidField { .. }
            | Refusal::NoSuchProject
            | Refusal::NoSuchExec
            | Refusal::NoSuchService
            | Refusal::ServiceRuns
            | Refusal::ExecEnded
            | Refusal::NotStarted
            | Refusal::StdinClosed
            | Refusal::StdinTooMuch { .. }
            | Refusal::OutputGone
            | Refusal::CancelledInQueue
            | Refusal::NoSuchSession
            | Refusal::SessionDead { .. }
            | Refusal::SessionBusy { .. }
            | Refusal::TooManySessions { .. }
            | Refusal::NoSuchDirectory { .. }
            | Refusal::Boundary { .. }
            | Refusal::ConsentDenied { .. }
            | Refusal::ConsentTimedOut { .. }
            | Refusal::NoSuchConfirmation
            | Refusal::OwnConfirmation
            | Refusal::OtherDigest { .. }
            | Refusal::BudgetExceeded { .. }
            | Refusal::Concurrency { .. }
            | Refusal::QueueFull { .. }
            | Refusal::SnapshotsUnsupported
            | Refusal::WorkspaceBusy
            | Refusal::Draining => None,
        }
    }

    fn profile<T>(&mut self, act: impl FnOnce(&mut Profile) -> T) -> Option<T> {
        self.profiles.find_mut(&self.request.profile).map(act)
    }

    /// A grant for just this call.
    fn propose_grant(&mut self) -> Option<Change> {
        let capability = capability_of(self.request.exec.kind);
        let owner = &self.principal.owner;
        let grant = Grant {
            grant_id: GrantId::from("gr_proposed"),
            tenant: owner.tenant.clone(),
            subject: owner.subject.clone(),
            tool: format!("{}.exec", capability.name()),
            call_id: self.request.call_id.clone().unwrap_or_else(|| ANY_TOOL.to_owned()),
            capabilities: AllowanceSet::new([format!("{}:exec", capability.name()).parse().ok()?]),
            expires_at: Timestamp::from_ms(self.now_ms.saturating_add(PROPOSED_GRANT_MS)),
            budget: Budget::default(),
            decision_key_fingerprint: Fingerprint::of(b"proposed"),
            issued_by: String::new(),
            created_at: Timestamp::from_ms(self.now_ms),
            revoked_at: None,
        };
        let value = json!({"tenant": grant.tenant, "subject": grant.subject, "tool": grant.tool,
            "call_id": grant.call_id, "capabilities": grant.capabilities, "expires_at": grant.expires_at});
        self.request.grant_id = Some(grant.grant_id.to_string());
        self.grant = Some(grant);
        Some(Change { layer: Layer::Grant, of: None, field: "issue".to_owned(), how: "set", value })
    }

    /// Changes the side that said no.
    fn change_side(&mut self, origin: Origin, denial: &Denial) -> Option<Change> {
        let layer = origin_layer(origin);
        let (field, how, value) = match denial {
            Denial::Variable { name } => {
                self.request.exec.env.remove(name);
                let field = format!("exec.env.{name}");
                return Some(Change { layer: Layer::Request, of: None, field, how: "set", value: Value::Null });
            }
            // What an argument must look like is the template's author's to say.
            Denial::Argument { .. } => return None,
            Denial::Capability { .. } | Denial::Resource { .. } | Denial::ShellNeeded { .. } => {
                let allowance = needed(denial)?;
                let value = json!(allowance);
                self.allowances(origin, |set| allow(set, Some(allowance)))?;
                ("capabilities".to_owned(), "add", value)
            }
            Denial::NotListed { list, given } => {
                self.list_it(origin, *list, given)?;
                (format!("allow.{}", list.name()), "add", json!(given))
            }
            Denial::TooLarge { size, given, .. } => {
                match origin {
                    Origin::Profile => {
                        let raised = |profile: &mut Profile| {
                            profile.terms.sizes = profile.terms.sizes.clone().with(*size, *given).ok()?;
                            Some(())
                        };
                        self.profile(raised)??;
                    }
                    Origin::Request => drop(self.request.policy_overrides.sizes.insert(size.key().to_owned(), *given)),
                    _ => return None,
                }
                (format!("sizes.{}", size.key()), "set", json!(given))
            }
        };
        let of = match layer {
            Layer::Profile => Some(self.request.profile.clone()),
            Layer::Grant => self.grant.as_ref().map(|grant| grant.grant_id.to_string()),
            _ => None,
        };
        Some(Change { layer, of, field, how, value })
    }

    fn allowances<T>(&mut self, origin: Origin, act: impl FnOnce(&mut AllowanceSet) -> T) -> Option<T> {
        match origin {
            Origin::Profile => self.profile(|profile| act(&mut profile.terms.allowances)),
            Origin::Grant => self.grant.as_mut().map(|grant| act(&mut grant.capabilities)),
            Origin::Request => {
                let mut asked: AllowanceSet =
                    serde_json::from_value(self.request.policy_overrides.capabilities.clone()?).ok()?;
                let done = act(&mut asked);
                self.request.policy_overrides.capabilities = Some(json!(asked));
                Some(done)
            }
            Origin::System | Origin::Settings | Origin::Manifest => None,
        }
    }

    fn list_it(&mut self, origin: Origin, list: List, given: &str) -> Option<()> {
        match origin {
            Origin::Profile => self.profile(|profile| {
                let allow = &mut profile.terms.allow;
                match list {
                    List::Hosts => add(&mut allow.hosts, given),
                    List::Paths => add(&mut allow.paths, given),
                    List::Methods => add(&mut allow.methods, given),
                    List::Mime => add(&mut allow.mime, given),
                    List::Tools => add(&mut allow.tools, given),
                }
            })?,
            Origin::Request => {
                let asked = self.request.policy_overrides.allow.as_mut()?.get_mut(list.name())?.as_array_mut()?;
                asked.push(json!(given));
                Some(())
            }
            _ => None,
        }
    }
}

fn allow(set: &mut AllowanceSet, allowance: Option<Allowance>) {
    *set = AllowanceSet::new(set.iter().cloned().chain(allowance));
}

fn add<P: Pattern + FromStr>(list: &mut AllowList<P>, given: &str) -> Option<()> {
    *list = list.union(&AllowList::only([given.parse().ok()?]));
    Some(())
}

/// The smallest allowance that answers the no.
fn needed(denial: &Denial) -> Option<Allowance> {
    match denial {
        Denial::Capability { capability, operation } => format!("{}:{operation}", capability.name()).parse().ok(),
        Denial::ShellNeeded { .. } => "shell:exec".parse().ok(),
        Denial::Resource { capability, operation, resource } => {
            let key = match capability.name() {
                "process" => json!({"tools": [resource]}),
                "filesystem" => json!({"path": resource}),
                _ => json!({"host": resource}),
            };
            let mut whole = json!({"capability": capability.name(), "operations": [operation]});
            whole.as_object_mut()?.extend(key.as_object()?.clone());
            serde_json::from_value(whole)
                .ok()
                // A program that no list can name (`./x`): only every program at all covers it.
                .or_else(|| format!("{}:{operation}", capability.name()).parse().ok())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Owner, Role};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    /// Profiles with something to say no by, beside the shipped ones.
    fn profiles() -> Profiles {
        let directory = tempfile::tempdir().expect("a directory");
        let narrow = r#"id = "narrow"
description = ""
extends = "python-default"
safety = "high"
capabilities = ["python", { capability = "process", tools = ["ls", "git"] }]
allow = { tools = ["ls", "cat"] }
sizes = { max_args = 1, max_bytes_in = 4 }
consent = { from_safety = "high" }
"#;
        let granted = "id = \"granted\"\ndescription = \"\"\nextends = \"shell\"\ngrant_required = true\n";
        for (name, text) in [("narrow.toml", narrow), ("granted.toml", granted)] {
            std::fs::write(directory.path().join(name), text).expect("a file");
        }
        Profiles::load(Some(directory.path())).expect("all of them")
    }

    fn requests() -> impl Strategy<Value = ExecRequest> {
        let profile = prop::sample::select(vec!["narrow", "granted", "strict", "python-default", "analyst", "none"]);
        let exec = prop_oneof![
            Just(json!({"kind": "shell", "code": "true"})),
            Just(json!({"kind": "python", "code": "pass"})),
            ("ls|cat|git|\\./x|bash|/usr/bin/ls", prop::collection::vec("a|bb|-x", 0..3), any::<bool>()).prop_map(
                |(command, args, preload)| {
                    let env = if preload { json!({"LD_PRELOAD": "x"}) } else { json!({}) };
                    json!({"kind": "process", "command": command, "args": args, "env": env})
                }
            ),
            Just(json!({"kind": "process", "command": "ls", "cwd": "/x"})),
        ];
        let grant = prop::sample::select(vec![None, Some("gr_mine"), Some("gr_other")]);
        let overrides = prop_oneof![
            3 => Just(json!({})),
            1 => Just(json!({"limits": {"pids": 100_000}})),
            1 => Just(json!({"limits": {"pids": 300}})),
            1 => Just(json!({"allow": {"tools": ["git"]}})),
            1 => Just(json!({"capabilities": ["python"]})),
            1 => Just(json!({"capabilities": ["net"]})),
            1 => Just(json!({"sizes": {"max_args": 9}})),
        ];
        let stdin = prop::sample::select(vec![None, Some("12"), Some("123456")]);
        (profile, exec, grant, overrides, stdin).prop_map(|(profile, exec, grant, overrides, stdin)| {
            serde_json::from_value(json!({"profile": profile, "exec": exec, "grant_id": grant, "stdin": stdin,
                                          "policy_overrides": overrides}))
            .expect("a request")
        })
    }

    fn grant(capabilities: Value, expires_ms: u64) -> Grant {
        serde_json::from_value(json!({
            "grant_id": "gr_mine", "tenant": "local", "subject": "uid:7", "tool": "*", "call_id": "c1",
            "capabilities": capabilities, "expires_at": Timestamp::from_ms(expires_ms), "issued_by": "",
            "decision_key_fingerprint": "sha256:00", "created_at": Timestamp::from_ms(0),
        }))
        .expect("a grant")
    }

    fn caller(roles: &[Role]) -> Principal {
        let owner = Owner { tenant: "local".into(), subject: "uid:7".into() };
        Principal { owner, roles: roles.iter().copied().collect(), profiles: None }
    }

    #[test]
    fn thousands_of_requests_hear_the_same_from_both() {
        let profiles = profiles();
        let grants = [
            grant(json!(["shell", "python", "process"]), 10_000),
            grant(json!([{"capability": "process", "tools": ["git"]}]), 10_000),
            grant(json!([]), 10_000),
            grant(json!(["shell"]), 5),
        ];
        let lacking = vec![Lacking::probe(|program| program != "bash"); profiles.ids().len()];
        let (mut allowed, mut mended, mut hopeless) = (0, 0, 0);
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = (requests(), 0..grants.len(), any::<bool>(), prop::bool::weighted(0.9));
        for _ in 0..4_000 {
            let (request, which, lacks, user) =
                proptest::strategy::Strategy::new_tree(&strategy, &mut runner).expect("a tree").current();
            let facts = Facts {
                profiles: &profiles,
                lacking: if lacks { &lacking } else { &[] },
                grant: Some(&grants[which]),
                risk: None,
                approval: None,
                now_ms: 100,
            };
            let principal = caller(if user { &[Role::User] } else { &[Role::Admin] });
            let verdict = explain(&principal, &request, &facts);
            let judged = judge(&principal, &request, &facts);
            assert_eq!(verdict.refusal, judged.as_ref().err().cloned(), "{request:?}");
            assert_eq!(verdict.profile_hash.as_deref(), judged.as_ref().ok().map(|permit| permit.profile_hash()));
            for other in &verdict.alternatives {
                let request = ExecRequest { profile: other.clone(), ..request.clone() };
                assert!(judge(&principal, &request, &facts).is_ok(), "{other} is no alternative for {request:?}");
            }
            match (&verdict.refusal, verdict.sufficient) {
                (None, _) => allowed += 1,
                (Some(_), true) => mended += 1,
                (Some(refusal), false) => {
                    hopeless += 1;
                    let by_hand = matches!(refusal, Refusal::InvalidPath { .. } | Refusal::InvalidField { .. });
                    assert!(by_hand || !verdict.changes.is_empty() || request.profile == "none", "{refusal:?}");
                }
            }
        }
        assert!(allowed > 100 && mended > 1000 && hopeless > 100, "{allowed} {mended} {hopeless}");
    }
}
