//! Many sandboxes that live: made one after the other over one connection, listed, and the last of them used.

use super::daemons::{self, Served};
use super::goals::{Goal, Unit};
use sandboxd::ctl::figures::{percentile, sorted};
use serde_json::json;
use std::time::Instant;

const CREATE_MOST_MS: f64 = 1.0;

/// Makes so many and says how long each took.
pub fn measure(count: usize) -> Vec<Goal> {
    let config = format!("{}[sandboxes]\nmax_per_owner = {count}\n", daemons::config(8, "process"));
    let served = Served::start("live", &config);
    let mut client = served.daemon.client();
    let (mut took, mut last) = (Vec::new(), String::new());
    for _ in 0..count {
        let begun = Instant::now();
        let answer = client.request("POST", "/v1/sandboxes", Some(&json!({}))).expect("an answer");
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(answer.status, 201, "{}", answer.text);
        last = answer.body["sandbox_id"].as_str().expect("an id").to_owned();
    }
    let live = count_listed(&mut client);
    let used = client.request("POST", &format!("/v1/sandboxes/{last}/process/exec"), Some(&json!({"argv": ["true"]})));
    assert_eq!(used.expect("an answer").body["status"], "ok", "the last one can be used");
    served.stop();
    let took = sorted(took);
    let note = format!("p99 {:.2} ms, {count} of them", percentile(&took, 0.99));
    vec![
        Goal::least("live sandboxes", count as f64, Unit::Count, live as f64),
        Goal::most("create a sandbox, p50", CREATE_MOST_MS, Unit::Millis, percentile(&took, 0.5)).noted(note),
    ]
}

fn count_listed(client: &mut super::harness::Client) -> usize {
    let (mut listed, mut path) = (0, "/v1/sandboxes?limit=100".to_owned());
    loop {
        let page = client.request("GET", &path, None).expect("an answer");
        assert_eq!(page.status, 200, "{}", page.text);
        listed += page.body["items"].as_array().map_or(0, Vec::len);
        match page.body["next_cursor"].as_str() {
            Some(next) => path = format!("/v1/sandboxes?limit=100&cursor={next}"),
            None => return listed,
        }
    }
}
