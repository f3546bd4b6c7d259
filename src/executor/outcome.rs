//! From what came back to an outcome: who ended it, what it used, which limits it met.

use super::stop::StopCause;
use crate::isolation::fault::{Fault, Step};
use crate::isolation::warden::protocol::{Cause, Counted, Status};
use crate::model::{Ending, Limit, LimitHit, Meter, Output};
use crate::policy::Permit;
use nix::errno::Errno;
use nix::sys::signal::Signal;

/// Our init counts as a task of the group.
const INIT_TASKS: u64 = 1;

/// The end of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    pub ending: Ending,
    pub exit_code: Option<i32>,
    pub signal: Option<String>,
    pub start_error: Option<String>,
}

impl End {
    /// The word for an end that we made, by why we made it.
    pub(super) fn stopped_by(mut self, cause: Option<&StopCause>) -> Self {
        if let (Ending::Cancelled, Some(StopCause::Revoked(_))) = (self.ending, cause) {
            self.ending = Ending::Revoked;
        }
        self
    }
}

/// Reads the end out of the warden's cause and init's last word.
pub(super) fn end(cause: Cause, status: Option<Status>) -> End {
    let (exit_code, signal) = match status {
        Some(Status::Exited(code)) => (Some(code), None),
        Some(Status::Signaled(number)) => (None, Some(signal_name(number))),
        Some(Status::Fault(_) | Status::Terminal) | None => (None, None),
    };
    let start_error = match status {
        Some(Status::Fault(fault)) => Some(start_error(fault)),
        _ => None,
    };
    let ending = match (cause, status) {
        // A program that had ended before we could kill it ended by itself.
        (Cause::Itself | Cause::Killed | Cause::Wall, Some(Status::Exited(0))) => Ending::Ok,
        (Cause::Itself | Cause::Killed | Cause::Wall, Some(Status::Exited(_))) => Ending::NonzeroExit,
        (Cause::Wall, _) => Ending::TimedOut,
        (Cause::Cpu, _) => Ending::CpuExceeded,
        (Cause::Killed, _) => Ending::Cancelled,
        (Cause::Oom, _) => Ending::OomKilled,
        (Cause::Itself, Some(Status::Fault(_))) => Ending::FailedToStart,
        (Cause::Itself, Some(Status::Signaled(libc::SIGXCPU))) => Ending::CpuExceeded,
        (Cause::Itself, Some(Status::Signaled(_))) => Ending::Signaled,
        (Cause::Itself, Some(Status::Terminal) | None) => Ending::Lost,
    };
    // What we ended with SIGKILL has no signal of its own to report.
    let ours = matches!(ending, Ending::TimedOut | Ending::Cancelled | Ending::OomKilled | Ending::CpuExceeded);
    End { ending, exit_code: exit_code.filter(|_| !ours), signal: signal.filter(|_| !ours), start_error }
}

fn start_error(fault: Fault) -> String {
    match (fault.step, Errno::from_raw(fault.errno)) {
        (Step::Exec, Errno::ENOENT) => {
            "ENOENT: no such program in the sandbox (or its interpreter is missing)".to_owned()
        }
        (Step::Exec, Errno::EACCES) => "EACCES: the file is not executable or may not be read".to_owned(),
        (Step::Exec, Errno::ENOEXEC) => "ENOEXEC: the file is not a program (a script needs a #! line)".to_owned(),
        (Step::Exec, errno) => format!("{errno:?}: {}", errno.desc()),
        _ => fault.to_string(),
    }
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("SIG{number}"), |signal| signal.as_str().to_owned())
}

/// Most tasks of the program at once.
pub(super) fn pids_peak(counted: &Counted) -> Option<u64> {
    counted.pids_peak.map(|peak| peak.saturating_sub(INIT_TASKS))
}

/// The limits that were met, each with the cure.
pub(super) fn limits_hit(
    ending: Ending,
    permit: &Permit,
    stopped: Option<&StopCause>,
    counted: &Counted,
    stdout: &Output,
    stderr: &Output,
) -> Vec<LimitHit> {
    let limits = permit.limits();
    let mut hits = budget_hit(ending, permit, stopped);
    let mut hit = |name: &str, limit: Limit, happened: String| {
        let amount = limits.get(limit);
        let hint = format!("{happened}; the limit {} is {amount}, set by the profile or the request", limit.name());
        hits.push(LimitHit { limit: name.to_owned(), amount, hint });
    };
    match ending {
        Ending::TimedOut => hit("wall", Limit::WallMs, "the time ran out and the program was ended".to_owned()),
        Ending::CpuExceeded if permit.metered().cpu_ms.is_none() => {
            hit("cpu", Limit::CpuMs, "the processor time ran out and the program was ended".to_owned())
        }
        Ending::OomKilled => {
            let peak = counted.memory_peak_bytes.map_or_else(String::new, |peak| format!(" at {peak} bytes"));
            hit("memory", Limit::MemoryBytes, format!("memory ran out{peak} and the kernel killed the whole sandbox"));
        }
        _ => {}
    }
    if counted.pids_refused > 0 {
        let times = counted.pids_refused;
        hit("pids", Limit::Pids, format!("a new process or thread was refused {times} times"));
    }
    for (name, limit, output) in [("stdout", Limit::StdoutBytes, stdout), ("stderr", Limit::StderrBytes, stderr)] {
        if output.truncated() {
            hit(name, limit, format!("{} of {} bytes were kept", output.kept.len(), output.total));
        }
    }
    hits
}

/// A limit that the grant's budget set, if it was the one that ended the program.
fn budget_hit(ending: Ending, permit: &Permit, stopped: Option<&StopCause>) -> Vec<LimitHit> {
    let (meter, amount) = match (ending, stopped) {
        (Ending::Cancelled, Some(StopCause::Budget(meter))) => (*meter, permit.metered().bytes_out),
        (Ending::CpuExceeded, _) => (Meter::CpuMs, permit.metered().cpu_ms),
        _ => return vec![],
    };
    let hit = |amount| LimitHit {
        limit: format!("budget.{}", meter.name()),
        amount,
        hint: format!("the grant had {amount} {} left for this exec; issue a new grant with more", meter.name()),
    };
    amount.map(hit).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_end_has_its_word() {
        let fault = Status::Fault(Fault { step: Step::Exec, index: 0, errno: libc::ENOENT });
        for (cause, status, expected) in [
            (Cause::Itself, Some(Status::Exited(0)), Ending::Ok),
            (Cause::Itself, Some(Status::Exited(3)), Ending::NonzeroExit),
            (Cause::Itself, Some(Status::Signaled(libc::SIGSEGV)), Ending::Signaled),
            (Cause::Itself, Some(Status::Signaled(libc::SIGXCPU)), Ending::CpuExceeded),
            (Cause::Itself, Some(fault), Ending::FailedToStart),
            (Cause::Itself, None, Ending::Lost),
            (Cause::Wall, None, Ending::TimedOut),
            (Cause::Cpu, None, Ending::CpuExceeded),
            (Cause::Killed, None, Ending::Cancelled),
            (Cause::Oom, Some(Status::Signaled(libc::SIGKILL)), Ending::OomKilled),
        ] {
            assert_eq!(end(cause, status).ending, expected, "{cause:?} {status:?}");
        }
    }

    #[test]
    fn a_missing_program_is_said_with_its_errno() {
        let fault = Status::Fault(Fault { step: Step::Exec, index: 0, errno: libc::ENOENT });
        assert!(end(Cause::Itself, Some(fault)).start_error.is_some_and(|text| text.starts_with("ENOENT")));
    }

    fn caller() -> crate::model::Principal {
        use crate::model::{Owner, Principal, Role};
        let owner = Owner { tenant: "local".into(), subject: "uid:0".into() };
        Principal { owner, roles: [Role::User].into(), profiles: None }
    }

    fn permit() -> Permit {
        use crate::policy::{Facts, judge};
        let profiles = crate::policy::shipped_profiles();
        let request = serde_json::from_str(r#"{"exec":{"kind":"process","command":"true"}}"#).expect("a request");
        let facts = Facts { profiles: &profiles, lacking: &[], grant: None, risk: None, approval: None, now_ms: 0 };
        judge(&caller(), &request, &facts).expect("permitted")
    }

    #[test]
    fn a_full_pids_limit_is_told_with_its_amount() {
        let counted = Counted { pids_refused: 2, ..Counted::default() };
        let hits = limits_hit(Ending::Ok, &permit(), None, &counted, &Output::default(), &Output::default());
        assert_eq!(hits.len(), 1);
        assert_eq!((hits[0].limit.as_str(), hits[0].amount), ("pids", 256));
    }

    #[test]
    fn an_end_by_the_budget_names_the_budget() {
        let permit = permit().within(&crate::model::Amounts::default().with(Meter::CpuMs, 7).with(Meter::BytesOut, 5));
        let hits = |ending, stopped| {
            let none = Output::default();
            limits_hit(ending, &permit, stopped, &Counted::default(), &none, &none)
        };
        let cpu = hits(Ending::CpuExceeded, None);
        assert_eq!((cpu.len(), cpu[0].limit.as_str(), cpu[0].amount), (1, "budget.cpu_ms", 7));
        let bytes = hits(Ending::Cancelled, Some(&StopCause::Budget(Meter::BytesOut)));
        assert_eq!((bytes.len(), bytes[0].limit.as_str(), bytes[0].amount), (1, "budget.bytes_out", 5));
        let revoked = StopCause::Revoked("leaked".into());
        assert_eq!(end(Cause::Killed, None).stopped_by(Some(&revoked)).ending, Ending::Revoked);
        assert_eq!(end(Cause::Killed, None).stopped_by(Some(&StopCause::Cancelled)).ending, Ending::Cancelled);
    }
}
