//! From a request to a permit: every check that needs neither the kernel nor a file.

use super::refusal::Refusal;
use crate::model::{
    Capability, ExecRequest, ExecSpec, Input, Kind, Limit, LimitError, Limits, Mode, Owner, Principal, ProjectId, Role,
};
use crate::profile::{Profile, Profiles};
use crate::terms::path;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;

/// Most input files of one request.
const INPUTS_MAX: usize = 1024;
/// Longest code: it travels as one argument, of which the kernel takes 128 KiB with its NUL.
const CODE_MAX: usize = 128 * 1024 - 1;
/// Longest name of a variable.
const ENV_NAME_MAX: usize = 256;

/// One input with its path normalised and its content decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Path below the inputs area.
    pub path: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// A judged exec. Only [`judge`] makes one.
#[derive(Debug, Clone)]
pub struct Permit {
    owner: Owner,
    profile: (u16, String),
    project: Option<ProjectId>,
    limits: Limits,
    command: String,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    stdin: Vec<u8>,
    inputs: Vec<InputFile>,
}

impl Permit {
    /// Who asked.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
    /// Index of the profile, for the warden.
    #[must_use]
    pub fn profile_index(&self) -> u16 {
        self.profile.0
    }
    /// Name of the profile.
    #[must_use]
    pub fn profile_id(&self) -> &str {
        &self.profile.1
    }
    /// The project, if one was named.
    #[must_use]
    pub fn project(&self) -> Option<&ProjectId> {
        self.project.as_ref()
    }
    /// Effective limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
    /// What is executed.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }
    /// The arguments, the program's own name first.
    #[must_use]
    pub fn argv(&self) -> &[String] {
        &self.argv
    }
    /// The environment.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }
    /// Directory below the work area; empty for the area itself.
    #[must_use]
    pub fn cwd(&self) -> &str {
        &self.cwd
    }
    /// Standard input.
    #[must_use]
    pub fn stdin(&self) -> &[u8] {
        &self.stdin
    }
    /// Files to lay down.
    #[must_use]
    pub fn inputs(&self) -> &[InputFile] {
        &self.inputs
    }
}

/// Judges one request of one caller.
pub fn judge(principal: &Principal, profiles: &Profiles, request: &ExecRequest) -> Result<Permit, Refusal> {
    let (index, profile) = profiles.find(&request.profile).ok_or_else(|| Refusal::UnknownProfile {
        given: request.profile.clone(),
        known: profiles.ids().into_iter().map(str::to_owned).collect(),
    })?;
    permit_caller(principal, profile)?;
    permit_capability(profile, request.exec.kind)?;
    refuse_what_is_not_there_yet(request)?;
    let project = match &request.project_id {
        None => None,
        Some(id) => Some(id.parse().map_err(|error| invalid("project_id", error))?),
    };
    let (command, argv) = program(&request.exec)?;
    Ok(Permit {
        owner: principal.owner.clone(),
        profile: (index, profile.id.clone()),
        project,
        limits: narrow(profile, request)?,
        command,
        argv,
        env: environment(profile, &request.exec.env)?,
        cwd: working_directory(request.exec.cwd.as_deref())?,
        stdin: standard_input(request)?,
        inputs: inputs(&request.inputs)?,
    })
}

fn invalid(field: impl Into<String>, problem: impl ToString) -> Refusal {
    Refusal::InvalidField { field: field.into(), problem: problem.to_string() }
}

fn permit_caller(principal: &Principal, profile: &Profile) -> Result<(), Refusal> {
    if !principal.has(Role::User) {
        return Err(Refusal::RoleMissing { role: Role::User });
    }
    if !principal.may_use(&profile.id) {
        return Err(Refusal::ProfileNotAllowed { profile: profile.id.clone() });
    }
    Ok(())
}

fn permit_capability(profile: &Profile, kind: Kind) -> Result<(), Refusal> {
    let capability = match kind {
        Kind::Python => Capability::Python,
        Kind::Shell => Capability::Shell,
        Kind::Process => Capability::Process,
    };
    if profile.capabilities.permits(capability, "exec") {
        return Ok(());
    }
    let available = profile.capabilities.words();
    Err(Refusal::CapabilityNotSupported { capability, operation: "exec", available })
}

/// Fields of the wire that later parts of the daemon will honour. Until then, ignoring one would be a lie.
fn refuse_what_is_not_there_yet(request: &ExecRequest) -> Result<(), Refusal> {
    if request.mode != Mode::Wait {
        return Err(invalid("mode", "this build answers when the exec has ended; use \"wait\""));
    }
    for (field, given) in [("skill_id", &request.skill_id), ("grant_id", &request.grant_id)] {
        if given.is_some() {
            return Err(invalid(field, "this build knows none; leave it out"));
        }
    }
    Ok(())
}

fn program(exec: &ExecSpec) -> Result<(String, Vec<String>), Refusal> {
    let (interpreter, flag) = match exec.kind {
        Kind::Python => ("python3", "-c"),
        Kind::Shell => ("bash", "-c"),
        Kind::Process => {
            if exec.code.is_some() {
                return Err(invalid("exec.code", "kind \"process\" takes command and args"));
            }
            let command = exec.command.clone().ok_or_else(|| invalid("exec.command", "missing: what to execute"))?;
            if command.is_empty() {
                return Err(invalid("exec.command", "empty: name a program"));
            }
            let argv = std::iter::once(command.clone()).chain(exec.args.iter().cloned()).collect();
            return Ok((command, argv));
        }
    };
    if exec.command.is_some() {
        return Err(invalid(
            "exec.command",
            "kind \"python\" and \"shell\" bring their own interpreter; use code or args",
        ));
    }
    let mut argv = vec![interpreter.to_owned()];
    match &exec.code {
        Some(code) if code.contains('\0') => return Err(invalid("exec.code", "contains a NUL byte")),
        Some(code) if code.len() > CODE_MAX => {
            let problem = "longer than 128 KiB; send it in inputs and run it with args";
            return Err(invalid("exec.code", problem));
        }
        Some(code) => {
            argv.extend([flag.to_owned(), code.clone()]);
            if exec.kind == Kind::Shell && !exec.args.is_empty() {
                argv.push(interpreter.to_owned()); // bash -c takes $0 before its arguments
            }
        }
        None if exec.args.is_empty() => {
            return Err(invalid("exec.code", "missing: the code, or args for the interpreter"));
        }
        None => {}
    }
    argv.extend(exec.args.iter().cloned());
    Ok((interpreter.to_owned(), argv))
}

fn narrow(profile: &Profile, request: &ExecRequest) -> Result<Limits, Refusal> {
    let mut limits = profile.limits;
    let named = request.policy_overrides.limits.iter().map(|(name, &asked)| {
        let limit = Limit::from_name(name).ok_or_else(|| LimitError::Unknown(name.clone()));
        (format!("policy_overrides.limits.{name}"), limit, asked)
    });
    let timeout = request.timeout_ms.map(|asked| ("timeout_ms".to_owned(), Ok(Limit::WallMs), asked));
    for (field, limit, asked) in named.chain(timeout) {
        let limit = limit.map_err(|error| invalid(&field, error))?;
        let permitted = profile.limits.get(limit);
        // Below the floor or above what can be counted is a mistake; above the profile is a no.
        limit.check(asked).map_err(|error| invalid(&field, error))?;
        if asked > permitted {
            return Err(Refusal::Widens { field, asked, permitted });
        }
        let narrower = asked.min(limits.get(limit));
        limits.set(limit, narrower).map_err(|error| invalid(&field, error))?;
    }
    Ok(limits)
}

fn environment(profile: &Profile, asked: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refusal> {
    let mut env = profile.env.clone();
    for (name, value) in asked {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let named = !name.is_empty() && name.len() <= ENV_NAME_MAX && name.bytes().all(plain);
        if !named || name.as_bytes()[0].is_ascii_digit() {
            return Err(invalid("exec.env", "a name has letters, digits and _ and does not begin with a digit"));
        }
        if value.contains('\0') {
            return Err(invalid(format!("exec.env.{name}"), "contains a NUL byte"));
        }
        env.insert(name.clone(), value.clone());
    }
    Ok(env)
}

fn working_directory(cwd: Option<&str>) -> Result<String, Refusal> {
    let Some(cwd) = cwd else { return Ok(String::new()) };
    let field = "exec.cwd".to_owned();
    let normal = path::normalise(cwd).map_err(|reason| Refusal::InvalidPath { field, reason })?;
    Ok(if normal == "." { String::new() } else { normal })
}

/// Content given as text or as base64, under the two names it has on the wire.
fn decoded(names: [String; 2], text: Option<&String>, base64: Option<&String>) -> Result<Option<Vec<u8>>, Refusal> {
    let [text_field, base64_field] = names;
    match (text, base64) {
        (Some(_), Some(_)) => Err(invalid(base64_field, format!("given beside {text_field}; choose one"))),
        (Some(text), None) => Ok(Some(text.clone().into_bytes())),
        (None, Some(encoded)) => BASE64.decode(encoded).map(Some).map_err(|error| invalid(base64_field, error)),
        (None, None) => Ok(None),
    }
}

fn standard_input(request: &ExecRequest) -> Result<Vec<u8>, Refusal> {
    let names = ["stdin", "stdin_base64"].map(str::to_owned);
    decoded(names, request.stdin.as_ref(), request.stdin_base64.as_ref()).map(Option::unwrap_or_default)
}

fn inputs(asked: &[Input]) -> Result<Vec<InputFile>, Refusal> {
    if asked.len() > INPUTS_MAX {
        return Err(invalid("inputs", format!("more than {INPUTS_MAX} files")));
    }
    let mut files: Vec<InputFile> = Vec::with_capacity(asked.len());
    for (place, input) in asked.iter().enumerate() {
        let field = format!("inputs[{place}].path");
        let path = match path::normalise(&input.path) {
            Ok(path) if path == "." => return Err(invalid(field, "names the area, not a file in it")),
            Ok(path) => path,
            Err(reason) => return Err(Refusal::InvalidPath { field, reason }),
        };
        if files.iter().any(|file| file.path == path) {
            return Err(invalid(field, "the same file twice"));
        }
        let names = ["text", "base64"].map(|name| format!("inputs[{place}].{name}"));
        let content = decoded(names, input.text.as_ref(), input.base64.as_ref())?
            .ok_or_else(|| invalid(format!("inputs[{place}]"), "has neither text nor base64"))?;
        files.push(InputFile { path, content });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(request: serde_json::Value) -> Result<Permit, Refusal> {
        let profiles = Profiles::load(None).expect("the shipped profiles");
        judge(&caller(None), &profiles, &serde_json::from_value(request).expect("a request"))
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
        let profiles = Profiles::load(None).expect("the shipped profiles");
        let request: ExecRequest =
            serde_json::from_value(serde_json::json!({"exec": {"kind": "process", "command": "true"}}))
                .expect("a request");
        let judged = |caller: &Principal| judge(caller, &profiles, &request);
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
            (serde_json::json!({"exec": ok, "mode": "stream"}), "mode"),
            (serde_json::json!({"exec": ok, "grant_id": "g"}), "grant_id"),
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
}
