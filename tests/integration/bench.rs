//! `sandboxctl bench`: both sides do as many calls as were asked for, and a program that fails is no figure.

use super::cli::said;
use crate::harness::Daemon;
use serde_json::Value;

/// The answer of a bench that must succeed.
#[track_caller]
fn measured(daemon: &Daemon, words: &[&str]) -> Value {
    let output = said(daemon, &[&["bench", "--json"], words].concat());
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn execs_started(daemon: &Daemon) -> u64 {
    daemon.request("GET", "/v1/health", None).body["execs_started"].as_u64().expect("a number")
}

#[test]
fn the_daemon_runs_as_many_as_are_counted() {
    let daemon = Daemon::start();
    for (words, clients, calls) in [
        (&["--count", "7"][..], 1, 7),
        (&["--count", "24", "--clients", "4", "--profile", "strict", "--", "/usr/bin/env"], 4, 24),
        (&["--count", "3", "--paced=20ms"], 1, 3),
    ] {
        let before = execs_started(&daemon);
        let answer = measured(&daemon, words);
        assert_eq!(answer["clients"], clients, "{answer}");
        for side in ["raw", "sandboxd"] {
            assert_eq!(answer[side]["calls"], calls, "{words:?}, {side}: {answer}");
            let figure = |key: &str| answer[side][key].as_f64().expect("a number");
            assert!(0.0 < figure("p50_ms") && figure("p50_ms") <= figure("p99_ms"), "{answer}");
        }
        // One call of each client warms up.
        assert_eq!(execs_started(&daemon) - before, calls + clients, "{words:?}");
        let ratio = answer["sandboxd"]["p50_ms"].as_f64().unwrap() / answer["raw"]["p50_ms"].as_f64().unwrap();
        assert!((answer["ratio"]["p50"].as_f64().unwrap() - ratio).abs() < 1e-6, "{answer}");
    }
    let paced = measured(&daemon, &["--count", "2", "--paced"]);
    assert_eq!(paced["paced_ms"], 50, "agents' beat is the default");
}

#[test]
fn people_get_a_table_with_the_noise() {
    let daemon = Daemon::start();
    let output = said(&daemon, &["bench", "--count", "5"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for word in
        ["/bin/true: 1 client", "p50", "p95", "p99", "execs/s", "raw ", "sandboxd ", "ratio ", "noise: raw's own"]
    {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
}

#[test]
fn a_program_that_fails_on_either_side_is_no_figure() {
    let daemon = Daemon::start();
    let directory = tempfile::tempdir().unwrap();
    let only_here = directory.path().join("only-here");
    std::fs::copy("/usr/bin/true", &only_here).unwrap();
    for (words, expected) in [
        (&["--count", "1", "--", "/bin/false"][..], "ended badly without a sandbox"),
        (&["--count", "1", "--", "/no/such/program"], "can't start /no/such/program on this host"),
        (&["--count", "1", "--", only_here.to_str().unwrap()], "ended badly in the sandbox: failed_to_start"),
        (&["--count", "1", "--profile", "rocket"], "rocket"),
        (&["--count", "0"], "--count"),
        (&["--clients", "65"], "--clients"),
        (&["--count", "1", "--seconds", "1"], "--seconds"),
    ] {
        let output = said(&daemon, &[&["bench"], words].concat());
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {err}");
        assert!(err.contains(expected), "{words:?}: {err}");
    }
}
