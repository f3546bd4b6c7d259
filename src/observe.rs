//! Metrics: what `/metrics` shows, by the names of SPEC §8. Counted where things happen, rendered when asked.
//!
//! Labels are words of ours or bounded: of tenants the first 64 have their own, the rest are `other`, so no
//! caller can make the daemon's memory grow by naming itself anew.
#![forbid(unsafe_code)]

use crate::model::{Class, Kind, Outcome};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Tenants with a label of their own.
const TENANTS_MAX: usize = 64;
/// Buckets of an exec's time.
const EXEC_MS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0, 5000.0, 30_000.0, 120_000.0];
/// Buckets of a judgement's time.
const JUDGE_MS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 25.0];

/// Buckets of a wait for the journal.
const EVIDENCE_MS: &[f64] = &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0, 25.0, 100.0];

/// How often times are sorted into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

static TENANTS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The way to the text of `/metrics`.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Starts counting. Once per process.
    pub fn start() -> Result<Self, BuildError> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full("sandbox_latency_ms".to_owned()), EXEC_MS)?
            .set_buckets_for_metric(Matcher::Full("sandbox_evidence_wait_ms".to_owned()), EVIDENCE_MS)?
            .set_buckets_for_metric(Matcher::Full("sandbox_profile_build_ms".to_owned()), JUDGE_MS)?
            .set_buckets_for_metric(Matcher::Full("sandbox_guard_validate_ms".to_owned()), JUDGE_MS)?;
        let handle = builder.install_recorder()?;
        describe_counter!("sandbox_exec_total", "Execs that ran, whatever their programs did");
        describe_counter!("sandbox_denied_total", "Requests that policy refused, by code");
        describe_counter!("sandbox_errors_total", "Requests that failed by the daemon's or the host's fault, by code");
        describe_counter!("sandbox_budget_used_bytes", "Bytes that went into and came out of execs");
        describe_counter!("sandbox_cpu_ms", "Processor time of execs");
        describe_counter!("sandbox_gpu_ms", "Graphics processor time of execs");
        describe_histogram!("sandbox_latency_ms", "Time from request to end of an exec");
        describe_histogram!("sandbox_profile_build_ms", "Time to compose profile, grant and request");
        describe_histogram!("sandbox_guard_validate_ms", "Time of the guard's checks");
        describe_histogram!(
            "sandbox_evidence_wait_ms",
            "Time that an exec waited for the journal, at its begin and its end"
        );
        describe_gauge!("sandbox_running", "Execs that run");
        describe_gauge!("sandbox_queued", "Execs that wait for a place");
        describe_gauge!("sandbox_warm_python", "Interpreters that wait ahead");
        describe_counter!("sandbox_warm_python_total", "Python execs by whether an interpreter waited, and why not");
        describe_gauge!("sandbox_held_back", "Whether execs are held back because the host is short of something");
        describe_counter!("sandbox_held_back_total", "Execs that had to wait for it although a place was free");
        describe_gauge!("sandbox_sessions", "Sessions whose interpreter lives");
        // A metric that nothing has counted yet is 0, not absent.
        counter!("sandbox_cpu_ms").absolute(0);
        counter!("sandbox_gpu_ms").absolute(0);
        Ok(Self(handle))
    }

    /// Sorts what was measured into its buckets, again and again: until then each time is kept as it is, about a hundred bytes
    /// of an exec, and a daemon whose metrics nobody reads would grow for ever.
    pub async fn keep_up(self) {
        let mut tick = tokio::time::interval(UPKEEP);
        loop {
            tick.tick().await;
            self.0.run_upkeep();
        }
    }

    /// The text of `/metrics`.
    #[must_use]
    pub fn render(&self, running: usize, queued: usize, sessions: usize, ahead: usize, held_back: bool) -> String {
        gauge!("sandbox_running").set(running as f64);
        gauge!("sandbox_queued").set(queued as f64);
        gauge!("sandbox_sessions").set(sessions as f64);
        gauge!("sandbox_warm_python").set(ahead as f64);
        gauge!("sandbox_held_back").set(f64::from(u8::from(held_back)));
        self.0.run_upkeep();
        self.0.render()
    }
}

fn tenant_label(tenant: &str) -> String {
    let mut known = TENANTS.lock().unwrap_or_else(PoisonError::into_inner);
    if known.contains(tenant) || known.len() < TENANTS_MAX {
        known.insert(tenant.to_owned());
        tenant.to_owned()
    } else {
        "other".to_owned()
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// What an exec is counted under.
pub struct ExecLabels<'a> {
    /// What kind of code.
    pub kind: Kind,
    /// How much harm was seen in it.
    pub safety: &'static str,
    /// What it was said to touch.
    pub side_effect: String,
    /// Whose it was.
    pub tenant: &'a str,
}

/// An exec ended.
pub fn exec_ended(labels: ExecLabels<'_>, outcome: &Outcome, took: Duration) {
    let (domain, tool) = match labels.kind {
        Kind::Python => ("python", "python.exec"),
        Kind::Shell => ("shell", "shell.exec"),
        Kind::Process => ("process", "process.exec"),
    };
    counter!("sandbox_exec_total", "domain" => domain, "tool" => tool, "safety" => labels.safety,
        "side_effect" => labels.side_effect, "tenant" => tenant_label(labels.tenant))
    .increment(1);
    counter!("sandbox_budget_used_bytes", "direction" => "in").increment(outcome.usage.bytes_in);
    counter!("sandbox_budget_used_bytes", "direction" => "out").increment(outcome.usage.bytes_out);
    counter!("sandbox_cpu_ms").increment(outcome.usage.cpu_ms);
    histogram!("sandbox_latency_ms", "domain" => domain).record(millis(took));
}

/// A request was not carried out: the caller's or the policy's no, or a fault.
pub fn not_done(code: &'static str, class: Class) {
    match class {
        Class::Unavailable | Class::ExecutionFailed | Class::Internal => {
            counter!("sandbox_errors_total", "code" => code).increment(1);
        }
        _ => counter!("sandbox_denied_total", "code" => code).increment(1),
    }
}

/// An exec waited for the journal: at its `begin` with a sandbox that was ready, or at its `end`.
pub fn evidence_waited(at: &'static str, waited: Duration) {
    histogram!("sandbox_evidence_wait_ms", "at" => at).record(millis(waited));
}

/// An exec has to wait although a place is free: the host is short of this.
pub fn held_back(reason: &'static str) {
    counter!("sandbox_held_back_total", "reason" => reason).increment(1);
}

/// A Python exec got an interpreter that had waited (`warm`), or started its own (`cold`) for this reason.
pub fn warm_python(start: &'static str, reason: &'static str) {
    counter!("sandbox_warm_python_total", "start" => start, "reason" => reason).increment(1);
}

/// How the pool of a profile stands: idle, busy and wanted sandboxes; runs that found one and runs that did not.
pub fn pool(profile: String, [idle, busy, target]: [u64; 3], hits: u64, misses: u64) {
    for (name, amount) in [("sandbox_pool_idle", idle), ("sandbox_pool_busy", busy), ("sandbox_pool_target", target)] {
        gauge!(name, "profile" => profile.clone()).set(amount as f64);
    }
    counter!("sandbox_pool_hits_total", "profile" => profile.clone()).absolute(hits);
    counter!("sandbox_pool_misses_total", "profile" => profile).absolute(misses);
}

/// A judgement composed its policy.
pub fn composed(took: Duration) {
    histogram!("sandbox_profile_build_ms").record(millis(took));
}

/// A judgement's guard was heard.
pub fn guarded(took: Duration) {
    histogram!("sandbox_guard_validate_ms").record(millis(took));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_bounded_labels() {
        for n in 0..TENANTS_MAX * 2 {
            tenant_label(&format!("t{n}"));
        }
        assert_eq!(tenant_label("t0"), "t0");
        assert_eq!(tenant_label("one more"), "other");
    }
}
