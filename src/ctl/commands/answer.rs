//! The answer to an exec: its output as bytes, its exit code, and what there is to say about it. Pure.
#![forbid(unsafe_code)]

use crate::api::wire::{ExecAnswer, ExitEvent};
use crate::ctl::EXIT_OURS;
use crate::ctl::output::{bytes, millis};
use crate::model::{CgroupMode, Ending, Hold, LimitHit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::sys::signal::Signal;

/// timeout(1): the time is up.
const EXIT_TIMED_OUT: u8 = 124;
/// env(1): found, but can't be executed.
const EXIT_CAN_NOT_EXECUTE: u8 = 126;
/// env(1): not found.
const EXIT_NOT_FOUND: u8 = 127;
/// What a shell adds to the number of a signal.
const EXIT_SIGNAL_BASE: u8 = 128;
/// 128 + SIGINT: whoever cancelled it, somebody did not want it any more.
const EXIT_CANCELLED: u8 = EXIT_SIGNAL_BASE + 2;
/// 128 + SIGKILL, which is how the kernel ends a group that is out of memory.
const EXIT_OOM_KILLED: u8 = EXIT_SIGNAL_BASE + 9;
/// 128 + SIGXCPU, which is how the kernel says the same for RLIMIT_CPU.
const EXIT_CPU_EXCEEDED: u8 = EXIT_SIGNAL_BASE + 24;
/// The first real-time signal that glibc gives to programs.
const SIGRTMIN: u8 = 34;
/// The last signal there is.
const SIGNAL_MAX: u8 = 64;
/// Enough of a hash to tell two filters apart at a glance.
const HASH_SHOWN: usize = 12;

/// The exit code that says the same as the answer.
pub fn exit_code(answer: &ExecAnswer) -> u8 {
    code(answer.status, answer.exit_code, answer.signal.as_deref(), answer.start_error.as_deref())
}

/// The same for an exec that was followed.
pub fn exit_code_of(exit: &ExitEvent) -> u8 {
    code(exit.status, exit.exit_code, exit.signal.as_deref(), exit.error_reason.as_deref())
}

fn code(status: Ending, exit_code: Option<i32>, signal: Option<&str>, start_error: Option<&str>) -> u8 {
    match status {
        Ending::Ok => 0,
        // wait(2) gives eight bits; one of nought would claim that all was well.
        Ending::NonzeroExit => exit_code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(EXIT_OURS),
        Ending::Signaled => EXIT_SIGNAL_BASE + signal.and_then(signal_number).unwrap_or(0),
        Ending::TimedOut => EXIT_TIMED_OUT,
        Ending::OomKilled => EXIT_OOM_KILLED,
        Ending::CpuExceeded => EXIT_CPU_EXCEEDED,
        Ending::Cancelled | Ending::Revoked => EXIT_CANCELLED,
        Ending::Lost => EXIT_OURS,
        Ending::FailedToStart => {
            let words = start_error.unwrap_or_default();
            let not_found = words.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "ENOENT");
            if not_found { EXIT_NOT_FOUND } else { EXIT_CAN_NOT_EXECUTE }
        }
    }
}

/// The number of a signal from its name: `SIGSEGV`, `SIGRTMIN+3`, or a bare number behind any word.
fn signal_number(name: &str) -> Option<u8> {
    let number = match name.parse::<Signal>() {
        Ok(signal) => u8::try_from(signal as i32).ok()?,
        Err(_) => match name.strip_prefix("SIGRTMIN") {
            Some("") => SIGRTMIN,
            Some(offset) => SIGRTMIN.checked_add(offset.strip_prefix('+')?.parse().ok()?)?,
            None => name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?,
        },
    };
    (1..=SIGNAL_MAX).contains(&number).then_some(number)
}

/// What the program wrote on its standard output.
pub fn stdout(answer: &ExecAnswer) -> Vec<u8> {
    written(answer.stdout.as_deref(), answer.stdout_base64.as_deref())
}

/// What the program wrote on its standard error.
pub fn stderr(answer: &ExecAnswer) -> Vec<u8> {
    written(answer.stderr.as_deref(), answer.stderr_base64.as_deref())
}

fn written(text: Option<&str>, base64: Option<&str>) -> Vec<u8> {
    match (text, base64) {
        (Some(text), _) => text.as_bytes().to_vec(),
        // The daemon encodes what it sends; text that is not base64 after all is better shown than lost.
        (None, Some(text)) => BASE64.decode(text).unwrap_or_else(|_| text.as_bytes().to_vec()),
        (None, None) => Vec::new(),
    }
}

/// What the reader has to know beside the output: one line each, none for a good end.
/// `program` is what was asked for, which the answer does not repeat.
pub fn notes(answer: &ExecAnswer, program: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let hit = |limit: &str| answer.limits_hit.iter().any(|hit| hit.limit == limit);
    match answer.status {
        Ending::Ok | Ending::NonzeroExit => {}
        Ending::Signaled => notes.push(format!("ended by {}", answer.signal.as_deref().unwrap_or("a signal"))),
        Ending::TimedOut if hit("wall") => {}
        Ending::TimedOut => notes.push(format!("timed out after {}", millis(answer.usage.wall_ms))),
        Ending::OomKilled if hit("memory") => {}
        Ending::OomKilled => notes.push("out of memory".to_owned()),
        Ending::CpuExceeded if hit("cpu") => {}
        Ending::CpuExceeded => notes.push(format!("out of processor time after {}", millis(answer.usage.cpu_ms))),
        Ending::Cancelled => notes.push("cancelled".to_owned()),
        Ending::Revoked => notes.push("ended: its grant was revoked or ran out".to_owned()),
        Ending::Lost => notes.push("lost: the sandbox died under the program, its output may be incomplete".to_owned()),
        Ending::FailedToStart => {
            let why = answer.start_error.as_deref().unwrap_or("the daemon does not say why");
            notes.push(format!("{program} could not be started: {why}"));
        }
    }
    if let Some(died) = answer.session.as_ref().and_then(|session| session.died.as_ref()) {
        notes.push(format!("the session is dead: {died}; sandboxctl session reset brings it back, empty"));
    }
    notes.extend(answer.limits_hit.iter().map(limit_line));
    for (name, cut) in [("stdout", answer.stdout_truncated), ("stderr", answer.stderr_truncated)] {
        if cut && !hit(name) {
            notes.push(format!("{name} was cut: more was written than is kept"));
        }
    }
    notes.extend(answer.enforcement.degraded.iter().map(|what| format!("degraded: {what}")));
    notes
}

fn limit_line(hit: &LimitHit) -> String {
    let amount = match hit.limit.as_str() {
        "wall" | "cpu" => millis(hit.amount),
        "memory" | "stdout" | "stderr" => bytes(hit.amount),
        _ => hit.amount.to_string(),
    };
    let hint = if hit.hint.is_empty() { String::new() } else { format!("; {}", hit.hint) };
    format!("{} limit reached: {amount}{hint}", hit.limit)
}

/// What was used and what stood around it, for those who ask.
pub fn summary(answer: &ExecAnswer) -> Vec<String> {
    let (usage, enforcement) = (&answer.usage, &answer.enforcement);
    let or_unknown = |amount: Option<String>| amount.unwrap_or_else(|| "not counted".to_owned());
    let cgroup = match enforcement.cgroup.mode {
        CgroupMode::V1 => "v1",
        CgroupMode::V2 => "v2",
    };
    let hash = enforcement.seccomp.hash.chars().take(HASH_SHOWN).collect::<String>();
    vec![
        format!("{} under {}: {}", answer.exec_id, answer.profile, ending(answer)),
        format!(
            "used: {} wall, {} cpu, memory peak {}, pids peak {}, {} in, {} out",
            millis(usage.wall_ms),
            millis(usage.cpu_ms),
            or_unknown(usage.memory_peak_bytes.map(bytes)),
            or_unknown(usage.pids_peak.map(|peak| peak.to_string())),
            bytes(usage.bytes_in),
            bytes(usage.bytes_out),
        ),
        format!(
            "enforced: namespaces {}; landlock abi {} {}; seccomp {} {hash}; cgroup {cgroup} {}; privileges {}; workspace {}",
            enforcement.namespaces.join(" "),
            enforcement.landlock.abi,
            hold(enforcement.landlock.status),
            enforcement.seccomp.filter,
            enforcement.cgroup.controllers.join(" "),
            hold(enforcement.privileges),
            enforcement.workspace,
        ),
    ]
}

fn ending(answer: &ExecAnswer) -> String {
    match (answer.status, answer.exit_code) {
        (Ending::Ok, _) => "ok".to_owned(),
        (Ending::NonzeroExit, Some(code)) => format!("exit code {code}"),
        (Ending::NonzeroExit, None) => "failed".to_owned(),
        (Ending::Signaled, _) => format!("ended by {}", answer.signal.as_deref().unwrap_or("a signal")),
        (Ending::TimedOut, _) => "timed out".to_owned(),
        (Ending::OomKilled, _) => "out of memory".to_owned(),
        (Ending::CpuExceeded, _) => "out of processor time".to_owned(),
        (Ending::Cancelled, _) => "cancelled".to_owned(),
        (Ending::Lost, _) => "lost".to_owned(),
        (Ending::Revoked, _) => "revoked".to_owned(),
        (Ending::FailedToStart, _) => "not started".to_owned(),
    }
}

const fn hold(hold: Hold) -> &'static str {
    match hold {
        Hold::None => "none",
        Hold::Partial => "partial",
        Hold::Full => "full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str) -> ExecAnswer {
        let text = format!(
            r#"{{"exec_id":"ex_1","profile":"strict","status":"{status}","exit_code":null,"signal":null,
            "stdout":"","stderr":"","stdout_truncated":false,"stderr_truncated":false,
            "usage":{{"wall_ms":3,"cpu_ms":1,"memory_peak_bytes":1400832,"pids_peak":null,"bytes_in":0,"bytes_out":812}},
            "limits_hit":[],"enforcement":{{"namespaces":["user","net"],"landlock":{{"abi":7,"status":"full"}},
            "seccomp":{{"filter":"default","hash":"0123456789abcdef"}},"cgroup":{{"mode":"v1","controllers":["memory","pids"]}},
            "privileges":"full","workspace":"tmpfs","degraded":[]}}}}"#
        );
        serde_json::from_str(&text).expect("an answer")
    }

    fn hit(limit: &str, amount: u64) -> LimitHit {
        LimitHit { limit: limit.to_owned(), amount, hint: "ask for more".to_owned() }
    }

    #[test]
    fn every_ending_has_its_exit_code() {
        for (status, code) in [
            ("ok", 0),
            ("timed_out", 124),
            ("oom_killed", 137),
            ("cpu_exceeded", 152),
            ("cancelled", 130),
            ("lost", 125),
            ("failed_to_start", 126),
            ("nonzero_exit", 125),
        ] {
            assert_eq!(exit_code(&answer(status)), code, "{status}");
        }
    }

    #[test]
    fn the_exit_code_is_the_programs() {
        for code in [1, 2, 42, 124, 255] {
            let answer = ExecAnswer { exit_code: Some(code), ..answer("nonzero_exit") };
            assert_eq!(i32::from(exit_code(&answer)), code);
        }
    }

    #[test]
    fn a_signal_is_added_to_128() {
        for (name, code) in [
            ("SIGSEGV", 139),
            ("SIGTERM", 143),
            ("SIGSYS", 159),
            ("SIGRTMIN", 162),
            ("SIGRTMIN+3", 165),
            ("SIG40", 168),
            ("SIG300", 128),
            ("SIGRTMIN+250", 128),
            ("nonsense", 128),
        ] {
            let answer = ExecAnswer { signal: Some(name.to_owned()), ..answer("signaled") };
            assert_eq!(exit_code(&answer), code, "{name}");
            assert_eq!(notes(&answer, "ls"), [format!("ended by {name}")]);
        }
    }

    #[test]
    fn not_found_and_not_executable_differ_as_for_env() {
        for (errno, code) in [("ENOENT", 127), ("EACCES", 126), ("ENOEXEC", 126), ("ENOENTRY", 126)] {
            let answer = ExecAnswer { start_error: Some(format!("{errno}: words")), ..answer("failed_to_start") };
            assert_eq!(exit_code(&answer), code, "{errno}");
            assert_eq!(notes(&answer, "ls"), [format!("ls could not be started: {errno}: words")]);
        }
    }

    #[test]
    fn output_is_the_same_bytes_either_way() {
        let answer = ExecAnswer { stdout: None, stdout_base64: Some("/wA=".to_owned()), ..answer("ok") };
        assert_eq!(stdout(&answer), [0xff, 0]);
        let answer = ExecAnswer { stderr: Some("ä\r\n".to_owned()), ..answer };
        assert_eq!(stderr(&answer), "ä\r\n".as_bytes());
    }

    #[test]
    fn limits_cuts_and_degradation_are_one_line_each() {
        let mut answer = answer("oom_killed");
        answer.limits_hit = vec![hit("memory", 256 << 20), hit("stdout", 1 << 20), hit("pids", 8)];
        (answer.stdout_truncated, answer.stderr_truncated) = (true, true);
        answer.enforcement.degraded = vec!["landlock: no scopes".to_owned()];
        assert_eq!(
            notes(&answer, "ls"),
            [
                "memory limit reached: 256 MiB; ask for more",
                "stdout limit reached: 1 MiB; ask for more",
                "pids limit reached: 8; ask for more",
                "stderr was cut: more was written than is kept",
                "degraded: landlock: no scopes",
            ]
        );
    }

    #[test]
    fn a_good_end_is_quiet() {
        assert!(notes(&answer("ok"), "ls").is_empty());
        assert!(notes(&ExecAnswer { exit_code: Some(3), ..answer("nonzero_exit") }, "ls").is_empty());
    }

    #[test]
    fn an_end_by_a_limit_is_never_silent() {
        for status in ["timed_out", "oom_killed", "cpu_exceeded", "cancelled", "lost", "failed_to_start"] {
            assert_eq!(notes(&answer(status), "ls").len(), 1, "{status}");
        }
        let answer = ExecAnswer { limits_hit: vec![hit("wall", 10_000)], ..answer("timed_out") };
        assert_eq!(notes(&answer, "ls"), ["wall limit reached: 10 s; ask for more"]);
    }

    #[test]
    fn the_summary_says_what_was_used_and_enforced() {
        assert_eq!(
            summary(&answer("ok")),
            [
                "ex_1 under strict: ok",
                "used: 3 ms wall, 1 ms cpu, memory peak 1.3 MiB, pids peak not counted, 0 B in, 812 B out",
                "enforced: namespaces user net; landlock abi 7 full; seccomp default 0123456789ab; cgroup v1 memory pids; \
                 privileges full; workspace tmpfs",
            ]
        );
    }
}
