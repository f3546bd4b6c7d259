//! From a request to a permit: the order of the checks. What they need to know beside the request comes in as [`Facts`].
//!
//! ```text
//! profile known ─▶ caller may use it ─▶ declared (level 1) ─▶ words and paths ─▶ grant serves ─▶ overrides narrow
//!   ─▶ compose profile ∩ grant ∩ request ─▶ guard ─▶ consent ─▶ root has it (level 2) ─▶ Permit
//! ```
//!
//! The caller's mistakes come before the policy's no, and the host's fault comes last.

use super::compose::{Effective, Origin, Side, compose, deciding};
use super::consent::{Approval, digest};
use super::grant::{Claim, Grant};
use super::guard::{Call, ConsentReason, Denial};
use super::permit::{Metered, Permit, Program};
use super::read::{invalid, read};
use super::refusal::Refusal;
use super::risk::{Risk, RiskLevel};
use crate::model::{
    Capability, ExecRequest, Kind, Lacking, Limit, LimitError, Limits, PolicyOverrides, Principal, Role,
};
use crate::profile::{Profile, Profiles};
use crate::terms::allowset::AllowanceSet;
use crate::terms::lists::{AllowList, Pattern};
use crate::terms::tools;
use crate::terms::uses::Use;
use crate::terms::{AllowLists, CapKey, Caps, SecurityMode, Size, Terms};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What a judgement needs to know beside the request.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The profiles in force.
    pub profiles: &'a Profiles,
    /// What the root of each lacks, in their order.
    pub lacking: &'a [Lacking],
    /// The grant that the request names, if it names one.
    pub grant: Option<&'a Grant>,
    /// What the code looks like; a hint that can ask for consent and open nothing.
    pub risk: Option<&'a Risk>,
    /// What a person has agreed to, if one was asked.
    pub approval: Option<&'a Approval>,
    /// The time.
    pub now_ms: u64,
}

/// The capability that an exec of this kind is.
#[must_use]
pub fn capability_of(kind: Kind) -> Capability {
    match kind {
        Kind::Python => Capability::Python,
        Kind::Shell => Capability::Shell,
        Kind::Process => Capability::Process,
    }
}

/// A part of a judgement that has just ended, for whoever takes the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The sides are one.
    Composed,
    /// The guard has spoken.
    Guarded,
}

/// Judges one request of one caller.
pub fn judge(principal: &Principal, request: &ExecRequest, facts: &Facts<'_>) -> Result<Permit, Refusal> {
    judge_in_stages(principal, request, facts, |_| ())
}

/// The same, and tells when each stage has ended.
pub fn judge_in_stages(
    principal: &Principal,
    request: &ExecRequest,
    facts: &Facts<'_>,
    mut ended: impl FnMut(Stage),
) -> Result<Permit, Refusal> {
    let (index, profile) = facts.profiles.find(&request.profile).ok_or_else(|| Refusal::UnknownProfile {
        given: request.profile.clone(),
        known: facts.profiles.ids().into_iter().map(str::to_owned).collect(),
    })?;
    permit_caller(principal, profile)?;
    let capability = capability_of(request.exec.kind);
    declared(profile, capability, "exec")?;
    refuse_what_is_not_there_yet(request)?;
    let project = match &request.project_id {
        None => None,
        Some(id) => Some(id.parse().map_err(|error| invalid("project_id", error))?),
    };
    let program = read(profile, request)?;
    let grant = serving_grant(principal, profile, request, facts)?;

    let mut sides = vec![profile_side(profile)];
    sides.extend(grant.map(Grant::side));
    let (narrowed, limits) = narrow(profile, &sides, request)?;
    sides.push(narrowed);
    let effective = composed(&sides)?;
    let profile_hash = effective.profile_hash();
    ended(Stage::Composed);
    let guarded = guard(&effective, &sides, request, &program);
    ended(Stage::Guarded);
    guarded?;
    let terms = effective.terms();
    let risky = || {
        let high = facts.risk.is_some_and(|risk| risk.level == RiskLevel::High);
        (high && profile.security_mode == SecurityMode::Strict).then_some(ConsentReason::Risk)
    };
    if let Some(reason) = terms.consent_needed().or_else(risky) {
        let digest = digest(&program, &principal.owner, &profile_hash);
        if facts.approval.is_none_or(|approval| approval.digest != digest) {
            return Err(Refusal::ConsentNeeded { reason, digest });
        }
    }
    there(facts, index, capability)?;
    Ok(Permit {
        owner: principal.owner.clone(),
        profile: (index, profile.id.clone()),
        project,
        limits,
        program,
        grant: grant.map(|grant| grant.grant_id.clone()),
        safety: terms.safety,
        side_effects: terms.side_effects.clone(),
        concurrency: terms.sizes.get(Size::Concurrency),
        profile_hash,
        metered: Metered::default(),
        mode: request.mode,
        bytes_in_most: terms.sizes.get(Size::BytesIn),
    })
}

/// Whether the caller may use the profile at all.
pub(super) fn permit_caller(principal: &Principal, profile: &Profile) -> Result<(), Refusal> {
    if !principal.has(Role::User) {
        return Err(Refusal::RoleMissing { role: Role::User });
    }
    if !principal.may_use(&profile.id) {
        return Err(Refusal::ProfileNotAllowed { profile: profile.id.clone() });
    }
    Ok(())
}

/// Level 1: the profile declares the operation.
pub(super) fn declared(profile: &Profile, capability: Capability, operation: &'static str) -> Result<(), Refusal> {
    if profile.terms.allowances.has(capability, operation) {
        return Ok(());
    }
    let available = profile.capabilities().words();
    Err(Refusal::CapabilityNotSupported { capability, operation, available })
}

/// Level 2: the root has a program for it.
fn there(facts: &Facts<'_>, index: u16, capability: Capability) -> Result<(), Refusal> {
    match facts.lacking.get(usize::from(index)) {
        Some(lacking) if lacking.contains(capability) => Err(Refusal::RuntimeMissing { capability }),
        _ => Ok(()),
    }
}

/// Fields of the wire that later parts of the daemon will honour. Until then, ignoring one would be a lie.
fn refuse_what_is_not_there_yet(request: &ExecRequest) -> Result<(), Refusal> {
    if request.skill_id.is_some() {
        return Err(invalid("skill_id", "this build knows none; leave it out"));
    }
    Ok(())
}

/// The grant of the request, if it serves this call.
fn serving_grant<'a>(
    principal: &Principal,
    profile: &Profile,
    request: &ExecRequest,
    facts: &Facts<'a>,
) -> Result<Option<&'a Grant>, Refusal> {
    let Some(id) = &request.grant_id else {
        let missing = Refusal::GrantMissing { profile: profile.id.clone() };
        return if profile.grant_required { Err(missing) } else { Ok(None) };
    };
    let grant = facts.grant.filter(|grant| grant.grant_id.as_str() == id).ok_or(Refusal::NoSuchGrant)?;
    let tool = format!("{}.exec", capability_of(request.exec.kind).name());
    let claim = Claim {
        tenant: &principal.owner.tenant,
        subject: &principal.owner.subject,
        tool: Some(&tool),
        call_id: request.call_id.as_deref(),
    };
    grant.serves(&claim, facts.now_ms).map_err(Refusal::from)?;
    Ok(Some(grant))
}

/// What the profile says in a composition.
pub(super) fn profile_side(profile: &Profile) -> Side {
    Side { origin: Origin::Profile, version: Some(profile.hash().to_owned()), terms: profile.terms.clone() }
}

pub(super) fn composed(sides: &[Side]) -> Result<Effective, Refusal> {
    compose(&sides.iter().collect::<Vec<_>>()).map_err(|error| invalid("grant_id", error))
}

/// The request's own side, which is nowhere wider than the others, and the limits that hold.
fn narrow(profile: &Profile, sides: &[Side], request: &ExecRequest) -> Result<(Side, Limits), Refusal> {
    let base = composed(sides)?;
    let base = base.terms();
    let overrides = &request.policy_overrides;
    let limits = narrow_limits(base.limits.narrow(profile.limits), request)?;
    let terms = Terms {
        allowances: narrow_capabilities(&base.allowances, overrides)?,
        limits: Caps::from(&limits),
        sizes: narrow_sizes(&base.sizes, overrides)?,
        allow: narrow_lists(&base.allow, overrides)?,
        ..Terms::default()
    };
    Ok((Side { origin: Origin::Request, version: None, terms }, limits))
}

fn narrow_limits(mut limits: Limits, request: &ExecRequest) -> Result<Limits, Refusal> {
    let base = limits;
    let named = request.policy_overrides.limits.iter().map(|(name, &asked)| {
        let limit = Limit::from_name(name).ok_or_else(|| LimitError::Unknown(name.clone()));
        (format!("policy_overrides.limits.{name}"), limit, asked)
    });
    let timeout = request.timeout_ms.map(|asked| ("timeout_ms".to_owned(), Ok(Limit::WallMs), asked));
    for (field, limit, asked) in named.chain(timeout) {
        let limit = limit.map_err(|error| invalid(&field, error))?;
        // Below the floor or above what can be counted is a mistake; above what is permitted is a no.
        limit.check(asked).map_err(|error| invalid(&field, error))?;
        let permitted = base.get(limit);
        if asked > permitted {
            return Err(widens(field, asked, permitted));
        }
        let narrower = asked.min(limits.get(limit));
        limits.set(limit, narrower).map_err(|error| invalid(&field, error))?;
    }
    Ok(limits)
}

fn narrow_sizes(base: &Caps<Size>, overrides: &PolicyOverrides) -> Result<Caps<Size>, Refusal> {
    let mut sizes = Caps::default();
    for (name, &asked) in &overrides.sizes {
        let field = format!("policy_overrides.sizes.{name}");
        let known = Size::ALL.map(CapKey::key).join(", ");
        let size = Size::from_key(name).ok_or_else(|| invalid(&field, format!("not a size; known are {known}")))?;
        if let Some(permitted) = base.get(size).filter(|permitted| asked > *permitted) {
            return Err(widens(field, asked, permitted));
        }
        sizes = sizes.with(size, asked).map_err(|error| invalid(&field, error))?;
    }
    Ok(sizes)
}

fn narrow_capabilities(base: &AllowanceSet, overrides: &PolicyOverrides) -> Result<AllowanceSet, Refusal> {
    let Some(asked) = &overrides.capabilities else { return Ok(base.clone()) };
    let field = "policy_overrides.capabilities";
    let asked: AllowanceSet = parsed(field, asked)?;
    match asked.first_wider_than(base) {
        Some(wider) => Err(widens(field, wider, base)),
        None => Ok(asked),
    }
}

fn narrow_lists(base: &AllowLists, overrides: &PolicyOverrides) -> Result<AllowLists, Refusal> {
    let Some(asked) = &overrides.allow else { return Ok(AllowLists::default()) };
    let asked: AllowLists = parsed("policy_overrides.allow", asked)?;
    fn within<P: Pattern + Serialize>(name: &str, asked: &AllowList<P>, base: &AllowList<P>) -> Result<(), Refusal> {
        let wider = !asked.is_any() && !base.covers(asked);
        if wider { Err(widens(format!("policy_overrides.allow.{name}"), asked, base)) } else { Ok(()) }
    }
    within("hosts", &asked.hosts, &base.hosts)?;
    within("paths", &asked.paths, &base.paths)?;
    within("methods", &asked.methods, &base.methods)?;
    within("mime", &asked.mime, &base.mime)?;
    within("tools", &asked.tools, &base.tools)?;
    Ok(asked)
}

fn parsed<T: DeserializeOwned>(field: &str, value: &Value) -> Result<T, Refusal> {
    T::deserialize(value).map_err(|error| invalid(field, error))
}

fn widens(field: impl Into<String>, asked: impl Serialize, permitted: impl Serialize) -> Refusal {
    Refusal::Widens { field: field.into(), asked: json!(asked), permitted: json!(permitted) }
}

/// The guard's checks of one exec, on the effective terms; the no names the side that said it.
fn guard(effective: &Effective, sides: &[Side], request: &ExecRequest, program: &Program) -> Result<(), Refusal> {
    let bytes_in = program.stdin.len() + program.inputs.iter().map(|file| file.content.len()).sum::<usize>();
    let path = program.env.get("PATH").map(String::as_str);
    let args = &request.exec.args;
    let check = |terms: &Terms| -> Result<(), Denial> {
        terms.check_size(Size::BytesIn, bytes_in as u64)?;
        terms.check_size(Size::Files, program.inputs.len() as u64)?;
        match program.kind {
            Kind::Process => {
                let program = tools::Program::new(&program.command, path);
                terms.check_call(&Call { program, args, env: &request.exec.env })
            }
            kind => {
                terms.check_arguments(args)?;
                terms.check(&Use::plain(capability_of(kind), "exec"))
            }
        }
    };
    denied(check(effective.terms()), sides, check)
}

/// Turns a no of the effective terms into a refusal that names the side which said it.
pub(super) fn denied(
    checked: Result<(), Denial>,
    sides: &[Side],
    check: impl Fn(&Terms) -> Result<(), Denial>,
) -> Result<(), Refusal> {
    checked.map_err(|denial| {
        let sides: Vec<&Side> = sides.iter().collect();
        let (origin, denial) = deciding(&sides, check).unwrap_or((Origin::System, denial));
        Refusal::Denied { origin, denial: Box::new(denial) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Owner;

    fn judged(request: serde_json::Value) -> Result<Permit, Refusal> {
        judged_of(&caller(None), request)
    }

    fn judged_of(caller: &Principal, request: serde_json::Value) -> Result<Permit, Refusal> {
        let profiles = Profiles::load(None).expect("the shipped profiles");
        let facts = Facts { profiles: &profiles, lacking: &[], grant: None, risk: None, approval: None, now_ms: 0 };
        judge(caller, &serde_json::from_value(request).expect("a request"), &facts)
    }

    fn caller(profiles: Option<&[&str]>) -> Principal {
        Principal {
            owner: Owner { tenant: "local".into(), subject: "uid:0".into() },
            roles: [Role::User].into(),
            profiles: profiles.map(|profiles| profiles.iter().map(|id| (*id).to_owned()).collect()),
        }
    }

    #[test]
    fn a_caller_without_the_role_or_the_profile_is_refused() {
        let judged =
            |caller: &Principal| judged_of(caller, serde_json::json!({"exec": {"kind": "process", "command": "true"}}));
        assert!(judged(&caller(Some(&["python-default"]))).is_ok());
        let refused = judged(&caller(Some(&["strict"]))).expect_err("another profile");
        assert_eq!(refused, Refusal::ProfileNotAllowed { profile: "python-default".into() });
        // An empty list allows nothing.
        assert!(judged(&caller(Some(&[]))).is_err());
        let no_role = Principal { roles: [Role::Admin].into(), ..caller(None) };
        assert_eq!(judged(&no_role).expect_err("no role"), Refusal::RoleMissing { role: Role::User });
    }

    fn refused_field(request: serde_json::Value) -> String {
        match judged(request).expect_err("a refusal") {
            Refusal::InvalidField { field, .. }
            | Refusal::InvalidPath { field, .. }
            | Refusal::Widens { field, .. } => field,
            other => panic!("refused for another reason: {other:?}"),
        }
    }

    #[test]
    fn python_and_shell_code_become_arguments_of_their_interpreter() {
        let permit =
            judged(serde_json::json!({"exec": {"kind": "python", "code": "pass", "args": ["x"]}})).expect("permitted");
        assert_eq!(
            (permit.command(), permit.argv()),
            ("python3", &["python3", "-c", "pass", "x"].map(String::from)[..])
        );
        let permit = judged(serde_json::json!({"exec": {"kind": "shell", "code": "echo $1", "args": ["x"]}}))
            .expect("permitted");
        assert_eq!(permit.argv(), ["bash", "-c", "echo $1", "bash", "x"]);
    }

    #[test]
    fn each_refusal_names_its_field() {
        let ok = serde_json::json!({"kind": "process", "command": "true"});
        for (request, field) in [
            (serde_json::json!({"exec": {"kind": "process"}}), "exec.command"),
            (serde_json::json!({"exec": {"kind": "process", "command": ""}}), "exec.command"),
            (serde_json::json!({"exec": {"kind": "python"}}), "exec.code"),
            (serde_json::json!({"exec": {"kind": "process", "command": "true", "cwd": "../x"}}), "exec.cwd"),
            (serde_json::json!({"exec": {"kind": "process", "command": "true", "env": {"A=B": "c"}}}), "exec.env"),
            (serde_json::json!({"exec": ok, "timeout_ms": 0}), "timeout_ms"),
            (serde_json::json!({"exec": ok, "timeout_ms": 60001}), "timeout_ms"),
            (
                serde_json::json!({"exec": ok, "policy_overrides": {"limits": {"pids": 1u64 << 63}}}),
                "policy_overrides.limits.pids",
            ),
            (serde_json::json!({"exec": ok, "inputs": [{"path": "/etc/x", "text": ""}]}), "inputs[0].path"),
            (serde_json::json!({"exec": ok, "inputs": [{"path": "x"}]}), "inputs[0]"),
            (serde_json::json!({"exec": ok, "project_id": "../p"}), "project_id"),
            (serde_json::json!({"exec": ok, "stdin_open": true}), "stdin_open"),
            (serde_json::json!({"exec": ok, "tty": {}}), "tty"),
            (serde_json::json!({"exec": ok, "mode": "stream", "tty": {"cols": 0}}), "tty"),
            (serde_json::json!({"exec": ok, "mode": "stream", "tty": {}, "stdin": "x"}), "tty"),
            (serde_json::json!({"exec": ok, "mode": "stream", "tty": {}, "stdin_open": false}), "stdin_open"),
            (
                serde_json::json!({"exec": ok, "policy_overrides": {"capabilities": ["net"]}}),
                "policy_overrides.capabilities",
            ),
            (
                serde_json::json!({"exec": ok, "policy_overrides": {"capabilities": ["rocket"]}}),
                "policy_overrides.capabilities",
            ),
            (serde_json::json!({"exec": ok, "policy_overrides": {"allow": {"x": []}}}), "policy_overrides.allow"),
            (serde_json::json!({"exec": ok, "policy_overrides": {"sizes": {"x": 1}}}), "policy_overrides.sizes.x"),
        ] {
            assert_eq!(refused_field(request.clone()), field, "{request}");
        }
    }

    #[test]
    fn a_profile_without_the_capability_permits_nothing_of_it() {
        let refusal = judged(serde_json::json!({"profile": "strict", "exec": {"kind": "shell", "code": "true"}}));
        assert!(matches!(refusal, Err(Refusal::CapabilityNotSupported { capability: Capability::Shell, .. })));
    }

    #[test]
    fn overrides_narrow_and_the_narrower_of_two_wins() {
        let request = serde_json::json!({"timeout_ms": 500, "exec": {"kind": "process", "command": "true"},
            "policy_overrides": {"limits": {"wall_ms": 900, "pids": 3}}});
        let permit = judged(request).expect("permitted");
        assert_eq!((permit.limits().get(Limit::WallMs), permit.limits().get(Limit::Pids)), (500, 3));
    }

    #[test]
    fn an_override_of_capabilities_narrows_what_the_exec_may_be() {
        let request = |capabilities| {
            serde_json::json!({"exec": {"kind": "process", "command": "ls"},
                               "policy_overrides": {"capabilities": capabilities}})
        };
        assert!(judged(request(serde_json::json!([{"capability": "process", "tools": ["ls"]}]))).is_ok());
        let refused = judged(request(serde_json::json!([{"capability": "process", "tools": ["git"]}])));
        assert!(matches!(refused, Err(Refusal::Denied { origin: Origin::Request, .. })), "{refused:?}");
        // An empty list permits nothing.
        assert!(matches!(judged(request(serde_json::json!([]))), Err(Refusal::Denied { .. })));
    }

    #[test]
    fn what_the_root_lacks_is_the_last_no() {
        let profiles = Profiles::load(None).expect("the shipped profiles");
        let lacking = vec![Lacking::probe(|program| program != "python3"); profiles.ids().len()];
        let facts =
            Facts { profiles: &profiles, lacking: &lacking, grant: None, risk: None, approval: None, now_ms: 0 };
        let judged = |request: serde_json::Value| {
            judge(&caller(None), &serde_json::from_value(request).expect("a request"), &facts).err()
        };
        let missing = Refusal::RuntimeMissing { capability: Capability::Python };
        assert_eq!(judged(serde_json::json!({"exec": {"kind": "python", "code": "pass"}})), Some(missing));
        assert_eq!(judged(serde_json::json!({"exec": {"kind": "shell", "code": "true"}})), None);
        let bad = judged(serde_json::json!({"exec": {"kind": "python", "code": "pass", "cwd": "/x"}}));
        assert!(matches!(bad, Some(Refusal::InvalidPath { .. })), "{bad:?}");
    }

    #[test]
    fn the_hash_covers_profile_limits_and_overrides() {
        let hash = |request: serde_json::Value| judged(request).expect("permitted").profile_hash().to_owned();
        let ok = serde_json::json!({"kind": "process", "command": "true"});
        let plain = hash(serde_json::json!({"exec": ok}));
        assert_eq!(plain, hash(serde_json::json!({"exec": ok, "task_ref": "t"})), "what is no policy does not count");
        for other in [
            serde_json::json!({"exec": ok, "profile": "strict"}),
            serde_json::json!({"exec": ok, "timeout_ms": 1000}),
            serde_json::json!({"exec": ok, "policy_overrides": {"sizes": {"max_args": 3}}}),
            serde_json::json!({"exec": ok, "policy_overrides": {"allow": {"tools": ["true"]}}}),
        ] {
            assert_ne!(plain, hash(other.clone()), "{other}");
        }
    }
}
