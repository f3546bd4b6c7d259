//! Every type of the wire comes back from JSON as it went in, whatever it holds.

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use sandboxd::api::wire::{
    ApproveRequest, ArtifactAnswer, Check, CheckState, DenyRequest, DoctorAnswer, EditRequest, ErrorAnswer, ErrorBody,
    ExecAnswer, ExplainAnswer, GrantAnswer, GrantsAnswer, MoveRequest, NewGrantRequest, NewSandboxRequest,
    NewTokenRequest, RevokeGrantRequest, SandboxExecRequest, TokenAnswer, TokensAnswer, WriteRequest,
};
use sandboxd::model::{
    Budget, CgroupMode, CgroupReport, Ending, Enforcement, ExecRequest, ExecSpec, Hold, Input, Kind, LandlockReport,
    LimitHit, Meter, Mode, PolicyOverrides, Role, SeccompReport, StoreReport, Timestamp, Tty, Usage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn round<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let text = serde_json::to_string(value).expect("JSON");
    let back: T = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
    prop_assert_eq!(&back, value);
    prop_assert_eq!(serde_json::to_string(&back).expect("JSON"), text);
    Ok(())
}

/// Any text: control characters, quotes, other scripts.
fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("(?s).{0,12}").expect("a regex")
}

fn spec() -> impl Strategy<Value = ExecSpec> {
    let kind = prop_oneof![Just(Kind::Python), Just(Kind::Shell), Just(Kind::Process)];
    (kind, of(text()), vec(text(), 0..3), of(text()), of(text()), btree_map(text(), text(), 0..3))
        .prop_map(|(kind, command, args, code, cwd, env)| ExecSpec { kind, command, args, code, cwd, env })
}

fn overrides() -> impl Strategy<Value = PolicyOverrides> {
    let allowances = of(vec(prop_oneof![Just("shell"), Just("filesystem:read")], 0..3));
    (btree_map(text(), any::<u64>(), 0..3), btree_map(text(), any::<u64>(), 0..3), allowances).prop_map(
        |(limits, sizes, capabilities)| PolicyOverrides {
            limits,
            sizes,
            capabilities: capabilities.map(|words| serde_json::json!(words)),
            allow: None,
        },
    )
}

fn request() -> impl Strategy<Value = ExecRequest> {
    let mode = prop_oneof![Just(Mode::Wait), Just(Mode::Background), Just(Mode::Stream)];
    let input = (text(), of(text()), of(text())).prop_map(|(path, text, base64)| Input { path, text, base64 });
    let names = (text(), of(text()), of(text()), of(text()), of(text()), of(text()));
    (names, mode, of(any::<u64>()), (of(text()), of(text())), spec(), vec(input, 0..3), overrides()).prop_map(
        |(names, mode, timeout_ms, (stdin, stdin_base64), exec, inputs, policy_overrides)| {
            let (profile, project_id, skill_id, task_ref, grant_id, call_id) = names;
            ExecRequest {
                profile,
                project_id,
                skill_id,
                task_ref,
                grant_id,
                call_id,
                mode,
                timeout_ms,
                stdin,
                stdin_base64,
                stdin_open: None,
                tty: (mode != Mode::Wait).then_some(Tty { cols: 80, rows: 24 }),
                exec,
                inputs,
                policy_overrides,
                report: None,
            }
        },
    )
}

fn budget() -> impl Strategy<Value = Budget> {
    proptest::array::uniform6(of(any::<u64>())).prop_map(Budget::from)
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0..=253_402_300_799_999u64).prop_map(Timestamp::from_ms)
}

fn new_grant() -> impl Strategy<Value = NewGrantRequest> {
    (vec(text(), 4), of(time()), of(any::<u64>()), budget(), of(text()), of(text())).prop_map(
        |(words, expires_at, expires_in_ms, budget, decision_key_fingerprint, decision_key)| NewGrantRequest {
            tenant: Some(words[0].clone()),
            subject: words[1].clone(),
            tool: words[2].clone(),
            call_id: words[3].clone(),
            capabilities: serde_json::json!(["shell"]),
            expires_at,
            expires_in_ms,
            budget,
            decision_key_fingerprint,
            decision_key,
        },
    )
}

fn grant() -> impl Strategy<Value = GrantAnswer> {
    (vec(text(), 8), time(), budget(), of(time()), of(text())).prop_map(|(w, at, budget, revoked_at, revoke_reason)| {
        GrantAnswer {
            grant_id: w[0].clone(),
            state: w[1].clone(),
            tenant: w[2].clone(),
            subject: w[3].clone(),
            tool: w[4].clone(),
            call_id: w[5].clone(),
            capabilities: serde_json::json!([]),
            expires_at: at,
            budget,
            spent: sandboxd::model::Amounts::each(|meter: Meter| budget.get(meter).unwrap_or(0)),
            remaining: budget,
            decision_key_fingerprint: w[6].clone(),
            issued_by: w[7].clone(),
            created_at: at,
            revoked_at,
            revoke_reason,
        }
    })
}

fn exec_answer() -> impl Strategy<Value = ExecAnswer> {
    let endings = [
        Ending::Ok,
        Ending::NonzeroExit,
        Ending::Signaled,
        Ending::TimedOut,
        Ending::OomKilled,
        Ending::CpuExceeded,
        Ending::Cancelled,
        Ending::Revoked,
        Ending::Lost,
        Ending::FailedToStart,
    ];
    let ending = proptest::sample::select(endings.to_vec());
    (ending, of(any::<i32>()), vec(text(), 4), vec(any::<u64>(), 6), any::<bool>()).prop_map(
        |(status, exit_code, w, n, cut)| ExecAnswer {
            exec_id: w[0].clone(),
            profile: w[1].clone(),
            status,
            exit_code,
            signal: Some(w[2].clone()),
            start_error: None,
            stdout: Some(w[3].clone()),
            stdout_base64: None,
            stderr: None,
            stderr_base64: Some(w[0].clone()),
            stdout_truncated: cut,
            stderr_truncated: !cut,
            artifacts_dir: Some(w[1].clone()),
            stdout_path: None,
            stderr_path: Some(w[2].clone()),
            artifacts: Some(vec![ArtifactAnswer { path: w[3].clone(), size: n[0], sha256: None }]),
            files: None,
            usage: Usage {
                wall_ms: n[0],
                cpu_ms: n[1],
                memory_peak_bytes: Some(n[2]),
                pids_peak: None,
                bytes_in: n[3],
                bytes_out: n[4],
            },
            limits_hit: vec![LimitHit { limit: w[1].clone(), amount: n[5], hint: w[2].clone() }],
            enforcement: Enforcement {
                namespaces: w.clone(),
                landlock: LandlockReport { abi: 7, status: Hold::Partial },
                seccomp: SeccompReport { filter: w[0].clone(), hash: w[1].clone() },
                cgroup: CgroupReport { mode: CgroupMode::V2, controllers: w.clone() },
                privileges: Hold::Full,
                workspace: w[3].clone(),
                store: Some(StoreReport { driver: w[2].clone(), bytes: n[5], inodes: None, enforced: cut }),
                degraded: w,
            },
            risk: serde_json::json!({"level": "safe"}),
            session: None,
            evidence: None,
        },
    )
}

fn token() -> impl Strategy<Value = TokenAnswer> {
    (vec(text(), 4), of(vec(text(), 0..3)), of(any::<u64>()), of(text())).prop_map(|(w, profiles, at, secret)| {
        TokenAnswer {
            token_id: w[0].clone(),
            name: w[1].clone(),
            tenant: w[2].clone(),
            subject: w[3].clone(),
            roles: w,
            profiles,
            created_at_ms: 7,
            expires_at_ms: at,
            revoked_at_ms: at,
            secret,
        }
    })
}

proptest! {
    #[test]
    fn requests(request in request(), new_grant in new_grant(), spec in of(spec()), overrides in of(overrides()), words in vec(text(), 4), at in of(any::<u64>())) {
        round(&request)?;
        round(&new_grant)?;
        round(&EditRequest { exec: spec, policy_overrides: overrides, timeout_ms: at })?;
        round(&ApproveRequest { digest: words[0].clone() })?;
        round(&DenyRequest { reason: words[1].clone() })?;
        round(&RevokeGrantRequest { reason: words[2].clone() })?;
        let labels = std::collections::BTreeMap::from([(words[0].clone(), words[1].clone())]);
        round(&NewSandboxRequest { profile: Some(words[2].clone()), project_id: None, ttl_s: at, idle_s: at, labels, from_snapshot: None })?;
        round(&SandboxExecRequest { argv: Some(words.clone()), cwd: Some(words[0].clone()), timeout_ms: at, ..SandboxExecRequest::default() })?;
        round(&WriteRequest { path: words[0].clone(), content: Some(words[1].clone()), append: true, ..WriteRequest::default() })?;
        round(&MoveRequest { from: words[0].clone(), to: words[1].clone(), ..MoveRequest::default() })?;
        let roles = vec![Role::User, Role::Admin];
        round(&NewTokenRequest { name: words[0].clone(), tenant: words[1].clone(), subject: words[2].clone(), roles, profiles: Some(words), expires_at_ms: at })?;
    }

    #[test]
    fn answers(exec in exec_answer(), grants in vec(grant(), 0..3), tokens in vec(token(), 0..3), words in vec(text(), 4), flag in any::<bool>()) {
        round(&exec)?;
        round(&GrantsAnswer { items: grants, next_cursor: Some(words[0].clone()) })?;
        round(&TokensAnswer { items: tokens, next_cursor: None })?;
        let error = ErrorBody {
            code: words[0].clone(), class: words[1].clone(), message: words[2].clone(),
            details: serde_json::json!({"field": words[3]}), retryable: flag, request_id: words[0].clone(),
        };
        round(&ErrorAnswer { error: error.clone() })?;
        let check = Check { name: words[0].clone(), state: CheckState::Degraded, found: words[1].clone(), cure: flag.then(|| words[2].clone()) };
        round(&DoctorAnswer { ok: flag, checks: vec![check] })?;
        round(&ExplainAnswer {
            allowed: flag, layer: serde_json::json!("profile"), rule: words[0].clone(), profile_hash: Some(words[1].clone()),
            refusal: (!flag).then_some(error), changes: serde_json::json!([]), sufficient: flag, alternatives: words,
        })?;
    }
}
