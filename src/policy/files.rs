//! File operations of callers: from an ask to a permit.
//!
//! ```text
//! caller may use the profile ─▶ declared (level 1) ─▶ paths ─▶ grant serves ─▶ compose profile ∩ grant ─▶ guard ─▶ FilePermit
//! ```
//!
//! Allowances and lists speak of paths below the work area. In the other areas only a side that permits all of the work
//! area permits anything. What an exec left is the answer to its caller: no profile takes that away.

use super::grant::{Claim, Grant};
use super::guard::Denial;
use super::judge::{composed, declared, denied, permit_caller, profile_side};
use super::refusal::Refusal;
use crate::model::{Capability, ExecId, GrantId, Limit, Owner, Principal, ProjectId};
use crate::profile::Profile;
use crate::terms::path::normalise;
use crate::terms::uses::Use;
use crate::terms::{Size, Terms};
use sha2::{Digest, Sha256};

/// What a caller may do to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileOperation {
    /// Read a part of a file.
    Read,
    /// Ask what a name stands for.
    Stat,
    /// List a directory.
    List,
    /// Write a file.
    Write,
    /// Make a directory.
    MakeDirectory,
    /// Give something another name.
    Move,
    /// Remove something.
    Remove,
    /// Write a file that comes in pieces.
    Upload,
    /// Read a file or a directory in pieces.
    Download,
}

impl FileOperation {
    /// The operation of the capability `filesystem` that it is.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Stat | Self::List => "list",
            Self::Write | Self::MakeDirectory | Self::Move => "write",
            Self::Remove => "delete",
            Self::Upload => "upload",
            Self::Download => "download",
        }
    }

    /// Whether it changes something.
    #[must_use]
    pub const fn changes(self) -> bool {
        match self {
            Self::Read | Self::Stat | Self::List | Self::Download => false,
            Self::Write | Self::MakeDirectory | Self::Move | Self::Remove | Self::Upload => true,
        }
    }
}

/// Where the paths of an operation begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FileArea {
    /// What programs work in.
    #[default]
    Work,
    /// What programs may read only.
    Inputs,
    /// What one exec left.
    Artifacts(ExecId),
}

/// One file operation that somebody asks for.
#[derive(Debug, Clone, Copy)]
pub struct FileAsk<'a> {
    /// What.
    pub operation: FileOperation,
    /// Where.
    pub area: &'a FileArea,
    /// On what; of a move: from where.
    pub path: &'a str,
    /// Of a move: to where.
    pub to: Option<&'a str>,
    /// Bytes that are known to be written.
    pub bytes: u64,
    /// The grant under which, by its id.
    pub grant_id: Option<&'a str>,
    /// The call that the grant is for, if the caller says so.
    pub call_id: Option<&'a str>,
}

/// By whose word files may be touched.
#[derive(Debug, Clone, Copy)]
pub enum FileRule<'a> {
    /// The profile of a sandbox, and the grant that the ask names.
    Sandbox {
        /// The profile.
        profile: &'a Profile,
        /// The grant of that id, if there is one.
        grant: Option<&'a Grant>,
    },
    /// Nobody's: what an exec left is its caller's to read.
    Outcome,
}

/// A judged file operation. Only [`judge_file`] makes one.
#[derive(Debug, Clone)]
pub struct FilePermit {
    owner: Owner,
    project: ProjectId,
    profile: Option<String>,
    profile_hash: Option<String>,
    operation: FileOperation,
    area: FileArea,
    path: String,
    to: Option<String>,
    grant: Option<GrantId>,
    write_bytes_max: u64,
    read_bytes_max: u64,
}

impl FilePermit {
    /// Who asked.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
    /// Whose workspace it is about.
    #[must_use]
    pub fn project(&self) -> &ProjectId {
        &self.project
    }
    /// The profile that permitted it; none for what an exec left.
    #[must_use]
    pub fn profile_id(&self) -> Option<&str> {
        self.profile.as_deref()
    }
    /// SHA-256 over everything that was decided by.
    #[must_use]
    pub fn profile_hash(&self) -> Option<&str> {
        self.profile_hash.as_deref()
    }
    /// What is done.
    #[must_use]
    pub fn operation(&self) -> FileOperation {
        self.operation
    }
    /// Where.
    #[must_use]
    pub fn area(&self) -> &FileArea {
        &self.area
    }
    /// On what, normalised.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
    /// Of a move: to where, normalised.
    #[must_use]
    pub fn to(&self) -> Option<&str> {
        self.to.as_deref()
    }
    /// The grant that pays, if there is one.
    #[must_use]
    pub fn grant(&self) -> Option<&GrantId> {
        self.grant.as_ref()
    }
    /// The most bytes that a file may have afterwards.
    #[must_use]
    pub fn write_bytes_max(&self) -> u64 {
        self.write_bytes_max
    }
    /// The most bytes that may be read.
    #[must_use]
    pub fn read_bytes_max(&self) -> u64 {
        self.read_bytes_max
    }
}

/// Judges one file operation of one caller in a project of its own.
pub fn judge_file(
    principal: &Principal,
    project: &ProjectId,
    rule: FileRule<'_>,
    ask: &FileAsk<'_>,
    now_ms: u64,
) -> Result<FilePermit, Refusal> {
    if let FileRule::Sandbox { profile, .. } = rule {
        permit_caller(principal, profile)?;
        declared(profile, Capability::Filesystem, ask.operation.name())?;
        if ask.operation == FileOperation::Move {
            declared(profile, Capability::Filesystem, FileOperation::Remove.name())?;
        }
    }
    let field = if ask.operation == FileOperation::Move { "from" } else { "path" };
    let path = checked(field, ask.path)?;
    let to = ask.to.map(|to| checked("to", to)).transpose()?;
    if ask.operation.changes() && matches!(ask.area, FileArea::Artifacts(_)) {
        let problem = "what an exec left can be read, listed and downloaded, not changed".to_owned();
        return Err(Refusal::InvalidField { field: "area".to_owned(), problem });
    }
    let mut permit = FilePermit {
        owner: principal.owner.clone(),
        project: project.clone(),
        profile: None,
        profile_hash: None,
        operation: ask.operation,
        area: ask.area.clone(),
        path,
        to,
        grant: None,
        write_bytes_max: 0,
        read_bytes_max: u64::MAX,
    };
    match rule {
        FileRule::Outcome if ask.operation.changes() => unreachable!("artifacts are never changed"),
        FileRule::Outcome => {}
        FileRule::Sandbox { profile, grant } => guard(principal, profile, grant, ask, now_ms, &mut permit)?,
    }
    Ok(permit)
}

fn checked(field: &str, path: &str) -> Result<String, Refusal> {
    normalise(path).map_err(|reason| Refusal::InvalidPath { field: field.to_owned(), reason })
}

/// Profile and grant together; what they permit goes into the permit.
fn guard(
    principal: &Principal,
    profile: &Profile,
    grant: Option<&Grant>,
    ask: &FileAsk<'_>,
    now_ms: u64,
    permit: &mut FilePermit,
) -> Result<(), Refusal> {
    let grant = serving_grant(principal, profile, grant, ask, now_ms)?;
    let mut sides = vec![profile_side(profile)];
    sides.extend(grant.map(Grant::side));
    let effective = composed(&sides)?;
    let work = *ask.area == FileArea::Work;
    let shown = |path: &str| if work { path.to_owned() } else { ".".to_owned() };
    let (path, to) = (shown(&permit.path), permit.to.as_deref().map(shown));
    let check = |terms: &Terms| -> Result<(), Denial> {
        terms.check(&Use::file(ask.operation.name(), &path))?;
        if let Some(to) = &to {
            terms.check(&Use::file(FileOperation::Remove.name(), &path))?;
            terms.check(&Use::file(ask.operation.name(), to))?;
        }
        terms.check_size(Size::BytesOut, ask.bytes)
    };
    denied(check(effective.terms()), &sides, check)?;
    let (terms, profile_hash) = (effective.terms(), effective.profile_hash());
    if ask.operation.changes()
        && let Some(reason) = terms.consent_needed()
    {
        let words = format!("{:?} {:?} {path} {to:?} {profile_hash}", ask.operation, ask.area);
        let digest = Sha256::digest(words).iter().map(|byte| format!("{byte:02x}")).collect();
        return Err(Refusal::ConsentNeeded { reason, digest });
    }
    let most = |size| terms.sizes.get(size).unwrap_or(u64::MAX);
    permit.write_bytes_max = terms.limits.narrow(profile.limits).get(Limit::FsizeBytes).min(most(Size::BytesOut));
    permit.read_bytes_max = most(Size::BytesIn);
    permit.profile = Some(profile.id.clone());
    permit.profile_hash = Some(profile_hash);
    permit.grant = grant.map(|grant| grant.grant_id.clone());
    Ok(())
}

fn serving_grant<'a>(
    principal: &Principal,
    profile: &Profile,
    grant: Option<&'a Grant>,
    ask: &FileAsk<'_>,
    now_ms: u64,
) -> Result<Option<&'a Grant>, Refusal> {
    let Some(id) = ask.grant_id else {
        let missing = Refusal::GrantMissing { profile: profile.id.clone() };
        return if profile.grant_required { Err(missing) } else { Ok(None) };
    };
    let grant = grant.filter(|grant| grant.grant_id.as_str() == id).ok_or(Refusal::NoSuchGrant)?;
    let tool = format!("filesystem.{}", ask.operation.name());
    let Owner { tenant, subject } = &principal.owner;
    let claim = Claim { tenant, subject, tool: Some(&tool), call_id: ask.call_id };
    grant.serves(&claim, now_ms).map_err(Refusal::from)?;
    Ok(Some(grant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;
    use crate::policy::shipped_profiles;
    use crate::terms::path::PathReason;
    use serde_json::json;
    use std::collections::BTreeSet;

    const ASK: FileAsk<'static> = FileAsk {
        operation: FileOperation::Read,
        area: &FileArea::Work,
        path: "a/../b.txt",
        to: None,
        bytes: 0,
        grant_id: None,
        call_id: None,
    };

    fn me() -> Principal {
        let owner = Owner { tenant: "local".to_owned(), subject: "uid:7".to_owned() };
        Principal { owner, roles: BTreeSet::from([Role::User]), profiles: None }
    }

    fn judged(profile: &str, grant: Option<&Grant>, ask: &FileAsk<'_>) -> Result<FilePermit, Refusal> {
        let profiles = shipped_profiles();
        let (_, profile) = profiles.find(profile).expect("a shipped profile");
        judge_file(&me(), &"p".parse().expect("an id"), FileRule::Sandbox { profile, grant }, ask, 1000)
    }

    #[test]
    fn the_profile_declares_each_operation() {
        use FileOperation::*;
        let all = [Read, Stat, List, Write, MakeDirectory, Move, Remove, Upload, Download];
        for operation in all {
            let to = (operation == Move).then_some("x");
            let ask = FileAsk { operation, to, ..ASK };
            assert!(judged("python-default", None, &ask).is_ok(), "{operation:?}");
            let reads = matches!(operation, Read | Stat | List);
            assert_eq!(judged("analyst", None, &ask).is_ok(), reads, "{operation:?}");
            let refused = judged("strict", None, &ask);
            assert!(matches!(refused, Err(Refusal::CapabilityNotSupported { .. })), "{operation:?} {refused:?}");
        }
    }

    #[test]
    fn a_permit_holds_the_normalised_path_and_the_size() {
        let permit = judged("python-default", None, &ASK).expect("permitted");
        assert_eq!((permit.path(), permit.write_bytes_max()), ("b.txt", 1 << 30));
        for (operation, path, to, field) in [
            (FileOperation::Read, "../x", None, "path"),
            (FileOperation::Move, "../x", Some("y"), "from"),
            (FileOperation::Move, "y", Some("../x"), "to"),
        ] {
            let refused = judged("python-default", None, &FileAsk { operation, path, to, ..ASK });
            let expected = Refusal::InvalidPath { field: field.to_owned(), reason: PathReason::PathTraversal };
            assert_eq!(refused.err(), Some(expected));
        }
    }

    #[test]
    fn a_grant_narrows_paths_and_other_areas_need_all_of_it() {
        let grant = |capabilities: serde_json::Value| -> Grant {
            serde_json::from_value(json!({
                "grant_id": "gr_1", "tenant": "local", "subject": "uid:7", "tool": "*", "call_id": "c",
                "capabilities": capabilities, "expires_at": "1970-01-01T00:00:10Z", "budget": {},
                "decision_key_fingerprint": "sha256:00", "issued_by": "uid:0", "created_at": "1970-01-01T00:00:00Z",
            }))
            .expect("a grant")
        };
        let narrow = grant(json!([{"capability": "filesystem", "operations": ["read", "write"], "path": "data"}]));
        let ask = |operation, path| FileAsk { operation, path, grant_id: Some("gr_1"), ..ASK };
        assert!(judged("python-default", Some(&narrow), &ask(FileOperation::Read, "data/x")).is_ok());
        for (operation, path) in
            [(FileOperation::Read, "datax"), (FileOperation::Read, "."), (FileOperation::Remove, "data/x")]
        {
            let refused = judged("python-default", Some(&narrow), &ask(operation, path));
            assert!(matches!(refused, Err(Refusal::Denied { .. })), "{operation:?} {path}: {refused:?}");
        }
        let inputs = FileAsk { area: &FileArea::Inputs, ..ask(FileOperation::Read, "data/x") };
        assert!(matches!(judged("python-default", Some(&narrow), &inputs), Err(Refusal::Denied { .. })));
        let all = grant(json!(["filesystem"]));
        assert!(judged("python-default", Some(&all), &inputs).is_ok());
        assert!(judged("analyst", Some(&all), &ask(FileOperation::Write, "x")).is_err(), "a grant opens nothing");
        assert!(matches!(judged("python-default", None, &inputs), Err(Refusal::NoSuchGrant)));
    }

    #[test]
    fn what_an_exec_left_is_its_callers_to_read_and_nobodys_to_change() {
        let area = FileArea::Artifacts(ExecId::generate());
        let project = "p".parse().expect("an id");
        let ask = FileAsk { area: &area, operation: FileOperation::Download, ..ASK };
        assert!(judge_file(&me(), &project, FileRule::Outcome, &ask, 0).is_ok());
        let ask = FileAsk { operation: FileOperation::Remove, ..ask };
        for refused in [judge_file(&me(), &project, FileRule::Outcome, &ask, 0), judged("python-default", None, &ask)] {
            assert!(matches!(&refused, Err(Refusal::InvalidField { field, .. }) if field == "area"), "{refused:?}");
        }
    }
}
