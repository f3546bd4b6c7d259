//! `GET /v1/doctor`: each thing a sandbox needs, its state and, where it is less than it should be, the cure.

use super::wire::{Check, CheckState, DoctorAnswer};
use crate::doctor::{Finding, State};
use crate::evidence::{EvidenceError, Journal, Stats};
use crate::executor::{HostReport, ProfileState, StoreState};
use crate::isolation::probe::Kernel;
use crate::model::{CgroupMode, Layer};
use crate::pipeline::{InForce, PressureView};
use nix::errno::Errno;
use std::sync::Arc;

/// What start-up found, ready to be told.
#[derive(Debug)]
pub struct Doctor {
    host: Arc<HostReport>,
    /// What was found of the host itself, before anything was given up.
    findings: Vec<Finding>,
    /// A journal that start-up found damaged and set aside.
    set_aside: Option<String>,
}

fn check(name: &str, state: CheckState, found: impl Into<String>, cure: impl Into<String>) -> Check {
    let cure = (state != CheckState::Ok).then(|| cure.into());
    Check { name: name.to_owned(), state, found: found.into(), cure }
}

impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        let Finding { name, state, found, cure } = finding;
        let state = match state {
            State::Ok => CheckState::Ok,
            State::Degraded => CheckState::Degraded,
            State::Failed => CheckState::Failed,
        };
        Self { name: name.to_owned(), state, found, cure }
    }
}

/// Execs that are held back are the host's trouble, not the daemon's; and a kernel without PSI is a good kernel.
fn admission(pressure: PressureView) -> Check {
    let PressureView { pressure_known, memory_known, held_back } = pressure;
    let knows = match (pressure_known, memory_known) {
        (true, true) => "pressure (PSI) and available memory are known",
        (true, false) => "pressure (PSI) is known, available memory is not",
        (false, true) => "available memory is known, pressure is not (the kernel has no PSI, or needs psi=1)",
        (false, false) => "neither pressure nor available memory is known: execs are never held back",
    };
    let cure = "give the host more of it, or lower max_concurrent_execs or the profiles' memory_bytes";
    match held_back {
        None => check("admission", CheckState::Ok, knows, ""),
        Some(short) => {
            let found = format!("{knows}; execs are held back now: {}", short.name());
            check("admission", CheckState::Degraded, found, cure)
        }
    }
}

fn whether(holds: bool) -> CheckState {
    if holds { CheckState::Ok } else { CheckState::Failed }
}

impl Doctor {
    /// A doctor over what start-up found.
    #[must_use]
    pub fn new(host: Arc<HostReport>, findings: Vec<Finding>, set_aside: Option<String>) -> Self {
        Self { host, findings, set_aside }
    }

    /// All checks, and how the journal stands now.
    pub async fn examine(&self, in_force: &InForce, journal: &Journal, pressure: PressureView) -> DoctorAnswer {
        let mut answer = self.answer(in_force);
        answer.checks.push(admission(pressure));
        answer.checks.push(self.evidence(journal.stats().await));
        answer.ok = answer.checks.iter().all(|check| check.state != CheckState::Failed);
        answer
    }

    fn evidence(&self, stats: Result<Stats, EvidenceError>) -> Check {
        let stats = match stats {
            Ok(stats) => stats,
            Err(error) => {
                return check(
                    "evidence",
                    CheckState::Failed,
                    error.to_string(),
                    "see the daemon's log; nothing runs unrecorded",
                );
            }
        };
        let Stats { records, sealed, open, durability, .. } = stats;
        let found = format!("{records} records, {sealed} of them sealed, {open} open; durability {durability:?}");
        match &self.set_aside {
            _ if stats.full => check(
                "evidence",
                CheckState::Failed,
                "the disk is full: nothing is started",
                "make room on the disk of state_dir",
            ),
            Some(aside) => {
                let cure = "keep the file for whoever looks into it; `sandboxctl evidence verify` checks the new chain";
                check(
                    "evidence",
                    CheckState::Degraded,
                    format!("{found}; a damaged journal was set aside: {aside}"),
                    cure,
                )
            }
            None => check("evidence", CheckState::Ok, found, ""),
        }
    }

    /// What start-up found of the host.
    #[must_use]
    pub fn host(&self) -> &HostReport {
        &self.host
    }

    /// All checks.
    #[must_use]
    pub fn answer(&self, in_force: &InForce) -> DoctorAnswer {
        let mut checks: Vec<Check> = self.findings_named(&["kernel", "container"]).collect();
        checks.extend(self.namespaces());
        // Why none can be had: the sysctls; that all is well is said above.
        checks.extend(self.findings_named(&["user namespaces"]).filter(|check| check.cure.is_some()));
        checks.extend(self.findings_named(&["proc"]));
        checks.extend(self.findings_named(&["landlock"]));
        let seccomp = self.host.kernel.seccomp;
        let found = if seccomp { "filters can be loaded" } else { "no filters" };
        checks.push(check("seccomp", whether(seccomp), found, Kernel::cure(Layer::Seccomp)));
        checks.push(privileges(in_force));
        checks.extend(self.cgroups());
        checks.extend(self.lacking_cgroups());
        checks.extend(self.findings_named(&["state_dir"]));
        checks.push(self.workspace());
        checks.push(self.store());
        checks.push(profiles_check(in_force));
        // A sandbox that was built outweighs a file that speaks against it.
        if in_force.states.contains(&ProfileState::Usable) {
            let said = ["kernel", "container", "user namespaces", "proc", "state_dir"];
            let of_files = |check: &&mut Check| said.contains(&check.name.as_str());
            let failed = checks.iter_mut().filter(of_files).filter(|check| check.state == CheckState::Failed);
            failed.for_each(|check| check.state = CheckState::Degraded);
        }
        let profiles = in_force.profiles.iter().zip(&in_force.states);
        checks.extend(profiles.map(|(profile, state)| profile_check(&profile.id, state)));
        DoctorAnswer { ok: checks.iter().all(|check| check.state != CheckState::Failed), checks }
    }

    /// Of the findings those that the trial sandbox does not say better.
    fn findings_named(&self, names: &'static [&'static str]) -> impl Iterator<Item = Check> {
        self.findings.iter().filter(|finding| names.contains(&finding.name)).cloned().map(Check::from)
    }

    fn namespaces(&self) -> impl Iterator<Item = Check> {
        let wanted = [Layer::User, Layer::Mount, Layer::Pid, Layer::Ipc, Layer::Uts, Layer::CgroupNs, Layer::Net];
        wanted.into_iter().map(|layer| {
            let there = self.host.kernel.namespaces.contains(&layer);
            let found = if there { "can be made" } else { "can't be made" };
            check(&format!("namespace {}", layer.name()), whether(there), found, Kernel::cure(layer))
        })
    }

    fn cgroups(&self) -> impl Iterator<Item = Check> {
        let mode = match self.host.cgroup_mode {
            CgroupMode::V1 => "v1 below the daemon's own group",
            CgroupMode::V2 if self.host.cgroup_degraded.is_empty() => "v2, delegated",
            CgroupMode::V2 => "v2",
        };
        [Layer::Memory, Layer::Pids, Layer::Cpu].into_iter().map(move |layer| {
            let there = self.host.cgroup_layers.contains(&layer);
            let found = if there { mode } else { "no controller" };
            check(&format!("cgroup {}", layer.name()), whether(there), found, Kernel::cure(layer))
        })
    }

    /// What start-up had to say beyond the controllers themselves: each is `what; cure`.
    fn lacking_cgroups(&self) -> impl Iterator<Item = Check> {
        self.host.cgroup_degraded.iter().map(|words| {
            let (found, cure) = words.split_once("; ").unwrap_or((words, Kernel::cure(Layer::Memory)));
            check("cgroups", CheckState::Degraded, found, cure)
        })
    }

    fn workspace(&self) -> Check {
        match self.host.idmap_errno {
            0 => check("workspace", CheckState::Ok, "id-mapped mounts work", ""),
            raw => {
                let found = format!("id-mapped mounts fail: {}", Errno::from_raw(raw).desc());
                check("workspace", CheckState::Failed, found, Kernel::cure(Layer::Workspace))
            }
        }
    }

    fn store(&self) -> Check {
        let StoreState { driver, place, lacking } = &self.host.store;
        match lacking {
            None => check(
                "store",
                CheckState::Ok,
                format!("{driver} at {place}: limits in bytes, snapshots; no limit in inodes"),
                "",
            ),
            Some(why) => check(
                "store",
                CheckState::Degraded,
                format!("{driver} at {place}: projects have no limit and no snapshots; {why}"),
                "stop the daemon, `sandboxctl store init --size 10G`, start it; or leave project_id out (sized tmpfs)",
            ),
        }
    }
}

fn privileges(in_force: &InForce) -> Check {
    let missing = in_force.states.contains(&ProfileState::Missing(Layer::Privileges));
    let found = if missing { "a trial sandbox kept some" } else { "a trial sandbox gave all of them up" };
    check("privileges", whether(!missing), found, Kernel::cure(Layer::Privileges))
}

/// The files as a whole: a bad one keeps the last good set in force.
fn profiles_check(in_force: &InForce) -> Check {
    match &in_force.error {
        None => check("profiles", CheckState::Ok, format!("{} in force", in_force.profiles.ids().len()), ""),
        Some(error) => {
            let found = format!("the last good set is in force: {error}");
            check("profiles", CheckState::Failed, found, "mend the file; it is read again when it changes or on SIGHUP")
        }
    }
}

fn profile_check(id: &str, state: &ProfileState) -> Check {
    let name = format!("profile {id}");
    match state {
        ProfileState::Usable => check(&name, CheckState::Ok, "every layer it requires is there", ""),
        ProfileState::Missing(layer) => {
            let found = format!("requires the layer {}, which is missing", layer.name());
            check(&name, CheckState::Failed, found, Kernel::cure(*layer))
        }
        ProfileState::NoRoot => check(
            &name,
            CheckState::Failed,
            "its root tree could not be built",
            "see the daemon's log; check rootfs in the profile",
        ),
    }
}
