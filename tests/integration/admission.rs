//! Execs wait in the queue when the host is short of memory or processors; one always runs.

use super::{Answer, Daemon, assert_ended, run, wait_for, with};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const CALM: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
const SHORT: &str = "some avg10=95.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

fn sleep(seconds: &str) -> Value {
    json!({"exec": {"kind": "process", "command": "sleep", "args": [seconds]}})
}

/// Starts an exec that nobody waits for. Its id.
fn start(daemon: &Daemon, request: Value) -> String {
    let answer = daemon.exec(&with(request, json!({"mode": "background"})));
    assert_eq!(answer.status, 202, "{}", answer.text);
    answer.body["exec_id"].as_str().unwrap().to_owned()
}

fn admission(daemon: &Daemon) -> Value {
    daemon.request("GET", "/v1/health", None).body["admission"].clone()
}

fn wait_until_held_back(daemon: &Daemon, why: &Value) {
    wait_for(&format!("held back: {why}"), LONG, || (admission(daemon)["held_back"] == *why).then_some(()));
}

fn status(daemon: &Daemon, exec: &str) -> Value {
    daemon.request("GET", &format!("/v1/execs/{exec}"), None).body["status"].clone()
}

fn wait_until(daemon: &Daemon, exec: &str, is: &str) {
    wait_for(&format!("{exec} is {is}"), LONG, || (status(daemon, exec) == is).then_some(()));
}

fn cancel(daemon: &Daemon, exec: &str) -> Answer {
    daemon.request("DELETE", &format!("/v1/execs/{exec}"), None)
}

#[test]
fn without_enough_memory_one_runs_and_the_rest_waits_in_the_bounded_queue() {
    // More than any host has: whatever is available is too little.
    let config =
        "max_concurrent_execs = 4\nmax_queued_execs = 2\n[admission]\nmemory_reserve_bytes = 1152921504606846976\n";
    let daemon = Daemon::start_with(config, &[]);
    let before = admission(&daemon);
    assert_eq!((&before["memory_known"], &before["held_back"]), (&json!(true), &json!(null)), "{before}");
    for _ in 0..3 {
        assert_ended(&run(&daemon, &sleep("0")), "ok", Some(0)); // alone, one always runs
    }
    let first = start(&daemon, sleep("600"));
    wait_until_held_back(&daemon, &json!("available"));
    let (second, third) = (start(&daemon, sleep("0")), start(&daemon, sleep("600")));
    let health = daemon.request("GET", "/v1/health", None).body;
    assert_eq!((&health["running"], &health["queued"]), (&json!(1), &json!(2)), "three places are free: {health}");
    let full = daemon.exec(&sleep("0"));
    assert_eq!((full.status, &full.body["error"]["code"]), (429, &json!("queue_full")), "{}", full.text);
    assert!(full.body["error"]["details"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{}", full.text);
    let metrics = daemon.request("GET", "/metrics", None).text;
    assert!(metrics.contains("sandbox_held_back 1\n"), "{metrics}");
    assert!(metrics.contains("sandbox_held_back_total{reason=\"available\"} 3\n"), "{metrics}");
    let doctor = daemon.request("GET", "/v1/doctor", None);
    let checks = doctor.body["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "admission").unwrap_or_else(|| panic!("{}", doctor.text));
    assert!(check["found"].as_str().unwrap().contains("held back now: available"), "{check}");
    // Cancelled in the queue; and when the first is gone the second is alone.
    assert_eq!(cancel(&daemon, &third).status, 202);
    wait_until(&daemon, &third, "cancelled");
    assert_eq!(status(&daemon, &second), "queued");
    assert_eq!(cancel(&daemon, &first).status, 202);
    wait_until(&daemon, &second, "ok");
    wait_until_held_back(&daemon, &json!(null)); // nothing runs, nothing waits
}

#[test]
fn pressure_that_the_kernel_tells_holds_back_until_it_is_over() {
    let pressure = tempfile::tempdir().unwrap();
    let tell = |cpu: &str, memory: &str| {
        fs::write(pressure.path().join("cpu"), cpu).unwrap();
        fs::write(pressure.path().join("memory"), memory).unwrap();
    };
    tell(CALM, CALM);
    let config = format!(
        "max_concurrent_execs = 64\n[admission]\npressure_dir = {:?}\nmemory_reserve_bytes = 0\nmemory_share_percent = 0\n",
        pressure.path()
    );
    let daemon = Daemon::start_with(&config, &[]);
    assert_eq!(admission(&daemon), json!({"pressure_known": true, "memory_known": true, "held_back": null}));
    let first = start(&daemon, sleep("600"));
    assert_ended(&run(&daemon, &sleep("0")), "ok", Some(0)); // beside the first
    tell(CALM, SHORT);
    wait_until_held_back(&daemon, &json!("memory"));
    let waits = start(&daemon, sleep("0"));
    assert_eq!(status(&daemon, &waits), "queued");
    tell(CALM, CALM);
    wait_until(&daemon, &waits, "ok");
    assert_eq!(status(&daemon, &first), "running");
    // Short of processors: one for each of them runs, and no more.
    tell(SHORT, CALM);
    wait_until_held_back(&daemon, &json!("cpu"));
    let processors = std::thread::available_parallelism().unwrap().get();
    let more: Vec<String> = (0..processors).map(|_| start(&daemon, sleep("600"))).collect();
    let health = daemon.request("GET", "/v1/health", None).body;
    assert_eq!((&health["running"], &health["queued"]), (&json!(processors), &json!(1)), "{health}");
    for exec in more.iter().chain([&first]) {
        assert_eq!(cancel(&daemon, exec).status, 202);
    }
    wait_until_held_back(&daemon, &json!(null));
}
