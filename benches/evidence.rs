//! What the journal costs and how fast it answers.
//!
//! `cargo bench --bench evidence` fills a journal with 1,000,000 records (`SANDBOXD_BENCH_RECORDS` for another number), lists,
//! filters and shows, verifies, measures the hot path with one and with 16 callers, prints all of it and fails on a miss:
//! reads under 50 ms p95, verify at 200,000 records/s, under 1 KiB of database per record, begin + end under 100 µs of
//! processor time.
#![forbid(unsafe_code)]

use sandboxd::evidence::{
    Begin, BudgetUsed, Digest, Durability, End, EvidenceId, EvidenceSettings, Filter, Journal, Operation, Refused,
    Scope, SideEffect, Status, verify_export,
};
use sandboxd::model::{
    CgroupMode, CgroupReport, Enforcement, ExecId, Hold, LandlockReport, SeccompReport, StoreReport, Usage,
};
use std::borrow::Cow;
use std::io::{BufReader, BufWriter, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const READ_P95_MOST: Duration = Duration::from_millis(50);
const VERIFY_LEAST: f64 = 200_000.0;
const BYTES_MOST: f64 = 1024.0;
const HOT_CPU_MOST: Duration = Duration::from_micros(100);
const NOW: u64 = 1_790_000_000_000;
/// Operations in flight while the journal is filled.
const IN_FLIGHT: usize = 64;

fn enforcement(hash: &str) -> Enforcement {
    let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    Enforcement {
        namespaces: text(&["user", "mount", "pid", "ipc", "uts", "cgroup", "net"]),
        landlock: LandlockReport { abi: 7, status: Hold::Full },
        seccomp: SeccompReport { filter: "default".to_owned(), hash: hash.to_owned() },
        cgroup: CgroupReport { mode: CgroupMode::V1, controllers: text(&["memory", "pids", "cpu"]) },
        privileges: Hold::Full,
        workspace: "tmpfs".to_owned(),
        store: Some(StoreReport { driver: "tmpfs".to_owned(), bytes: 64 << 20, inodes: Some(16_384), enforced: true }),
        degraded: Vec::new(),
    }
}

/// A begin as the pipeline makes it, nothing left out.
fn begin(n: u64) -> Begin {
    let mut begin = Begin::new(
        Operation::Exec,
        &format!("tenant-{}", n % 20),
        &format!("uid:{}", 1000 + n % 200),
        "process.exec:python",
        NOW + n,
    );
    begin.tool = Some("python".to_owned());
    begin.call_id = Some(format!("call-{n}"));
    begin.profile = Some("python-default".to_owned());
    begin.profile_hash = Some(Digest::of((n % 50).to_le_bytes()));
    begin.policy_version_hash = Some(Digest::of("policy"));
    begin.inputs_digest = Some(Digest::of(n.to_le_bytes()));
    begin.exec_id = Some(ExecId::generate().to_string());
    // Execs in sandboxes and under grants beside one-shot ones.
    begin.sandbox_id = n.is_multiple_of(2).then(|| format!("sb_{:026}", n / 64));
    begin.grant_id = n.is_multiple_of(4).then(|| format!("gr_{:026}", n / 32));
    begin.task_ref = Some(format!("t-{}", n / 10));
    begin.request_id = Some(ExecId::generate().as_str().replacen("ex_", "rq_", 1));
    begin
}

fn end(n: u64) -> End {
    let usage = Usage {
        wall_ms: 21,
        cpu_ms: 19,
        memory_peak_bytes: Some(6_344_704),
        pids_peak: Some(1),
        bytes_in: 0,
        bytes_out: 315,
    };
    let status = if n.is_multiple_of(1000) { Status::OomKilled } else { Status::Ok };
    let written = SideEffect { what: Cow::Borrowed("files_written"), digest: None, count: 1, bytes: 812 };
    End {
        exit_code: Some(0),
        outputs_digest: Some(Digest::of((n + 1).to_le_bytes())),
        usage: Some(usage),
        side_effects: if n.is_multiple_of(4) { vec![written] } else { Vec::new() },
        budget_used: n.is_multiple_of(4).then_some(BudgetUsed {
            calls: 1,
            cpu_ms: 19,
            bytes_out: 315,
            ..BudgetUsed::default()
        }),
        enforcement: Some(enforcement(if n.is_multiple_of(3) { "611bc6050001" } else { "711bc6050001" })),
        ..End::new(status, NOW + n)
    }
}

fn open(directory: &std::path::Path, durability: Durability) -> Journal {
    // One live database for all of it: the figures are about its size, not about sealing.
    let settings = EvidenceSettings { durability, live_max_bytes: 1 << 40, ..EvidenceSettings::default() };
    Journal::open(directory, &settings, NOW).expect("a journal").0
}

async fn one(journal: &Journal, n: u64) {
    if n % 20 == 7 {
        let code = format!("code_{}", n % 9);
        let refused = Refused { code, class: "POLICY.DENY_TOOL".to_owned(), reason: Some("exec.args[0]".to_owned()) };
        journal.refuse(&begin(n), &refused).await.expect("recorded");
    } else {
        journal.begin(begin(n)).await.expect("begun").end(end(n)).await.expect("ended");
    }
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("our own figures");
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| Duration::from_micros(time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64))
        .sum()
}

struct Report {
    missed: bool,
}

impl Report {
    fn line(&mut self, what: &str, figure: String, good: bool) {
        println!("{what:<58} {figure}{}", if good { "" } else { "   MISSED" });
        self.missed |= !good;
    }
}

fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 95 / 100])
}

/// Begin and end of one operation, by so many callers at once.
async fn hot_path(report: &mut Report, durability: Durability, callers: u64, turns: u64) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let journal = open(directory.path(), durability);
    for n in 0..200 {
        one(&journal, n * 20).await; // statements compiled, reports known
    }
    let (cpu, begun) = (processor_time(), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let journal = journal.clone();
        tasks.spawn(async move {
            let mut times = Vec::new();
            for turn in 0..turns {
                let n = (caller * turns + turn) * 20;
                let (begin, end) = (begin(n), end(n));
                let begun = Instant::now();
                journal.begin(begin).await.expect("begun").end(end).await.expect("ended");
                times.push(begun.elapsed());
            }
            times
        });
    }
    let times: Vec<Duration> = tasks.join_all().await.concat();
    let all = u32::try_from(times.len()).expect("some thousand");
    let (each_cpu, rate) = ((processor_time() - cpu) / all, f64::from(all) / begun.elapsed().as_secs_f64());
    let (p50, p95) = percentiles(times);
    let what = format!("begin + end, {durability:?}, {callers} caller(s)");
    let figure = format!("p50 {p50:?}  p95 {p95:?}  {rate:.0}/s  cpu {each_cpu:?} each");
    report.line(&what, figure, durability == Durability::Fsync || each_cpu < HOT_CPU_MOST);
    journal.close().await;
}

async fn reads(report: &mut Report, journal: &Journal, ids: &[EvidenceId], execs: &[String]) {
    let some = |text: &str| Some(text.to_owned());
    let last = journal.head().seq;
    let filters: Vec<(&str, Filter)> = vec![
        ("list, newest", Filter::default()),
        ("list, tenant + subject", Filter { tenant: some("tenant-7"), subject: some("uid:1007"), ..Filter::default() }),
        (
            "list, tenant + rare status",
            Filter { tenant: some("tenant-0"), status: some("oom_killed"), ..Filter::default() },
        ),
        ("list, code", Filter { code: some("code_3"), ..Filter::default() }),
        ("list, sandbox", Filter { sandbox_id: Some(format!("sb_{:026}", last / 400)), ..Filter::default() }),
        (
            "list, grant + status",
            Filter { grant_id: Some(format!("gr_{:026}", 5)), status: some("ok"), ..Filter::default() },
        ),
        (
            "list, an hour of one tenant",
            Filter {
                tenant: some("tenant-3"),
                since_ms: Some(NOW + last / 8),
                until_ms: Some(NOW + last / 8 + 3_600_000),
                ..Filter::default()
            },
        ),
        (
            "list, two that never meet",
            Filter { tenant: some("tenant-1"), subject: some("uid:1000"), ..Filter::default() },
        ),
        ("list, no such subject", Filter { subject: some("uid:0"), ..Filter::default() }),
    ];
    for (what, filter) in filters {
        let mut times = Vec::new();
        let mut found = 0;
        for turn in 0..40_u64 {
            let cursor = (turn % 4 > 0).then(|| last - last / 5 * (turn % 4));
            let begun = Instant::now();
            found += journal.list(filter.clone(), cursor, 100).await.expect("a page").items.len();
            times.push(begun.elapsed());
        }
        let (p50, p95) = percentiles(times);
        report.line(what, format!("p50 {p50:?}  p95 {p95:?}  ({found} found)"), p95 < READ_P95_MOST);
    }
    let mut times = Vec::new();
    for exec in execs {
        let begun = Instant::now();
        let page = journal.list(Filter { exec_id: Some(exec.clone()), ..Filter::default() }, None, 100).await;
        assert_eq!(page.expect("a page").items.len(), 2, "{exec}");
        times.push(begun.elapsed());
    }
    let (p50, p95) = percentiles(times);
    report.line("list, exec", format!("p50 {p50:?}  p95 {p95:?}"), p95 < READ_P95_MOST);
    let mut times = Vec::new();
    for id in ids {
        let begun = Instant::now();
        assert!(journal.get(id.clone()).await.expect("readable").is_some_and(|shown| shown.counterpart.is_some()));
        times.push(begun.elapsed());
    }
    let (p50, p95) = percentiles(times);
    report.line("show", format!("p50 {p50:?}  p95 {p95:?}"), p95 < READ_P95_MOST);
}

async fn run(report: &mut Report) {
    let records: u64 =
        std::env::var("SANDBOXD_BENCH_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    for durability in [Durability::Process, Durability::Fsync] {
        for callers in [1, 16] {
            let turns = if durability == Durability::Process { 4000 } else { 200 };
            hot_path(report, durability, callers, turns / callers.min(4)).await;
        }
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let journal = open(directory.path(), Durability::Process);
    let (begun, cpu) = (Instant::now(), processor_time());
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..IN_FLIGHT as u64 {
        let journal = journal.clone();
        tasks.spawn(async move {
            let mut n = lane;
            while journal.head().seq < records {
                one(&journal, n).await;
                n += IN_FLIGHT as u64;
            }
        });
    }
    tasks.join_all().await;
    let head = journal.checkpoint().await.expect("signed");
    let each_cpu = (processor_time() - cpu) / u32::try_from(head.seq).expect("some million");
    report.line("fill", format!("{} records in {:?}, cpu {each_cpu:?} each", head.seq, begun.elapsed()), true);

    let mut picks: (Vec<EvidenceId>, Vec<String>) = Default::default();
    for n in 1..=50 {
        let page = journal.list(Filter::default(), Some(head.seq * n / 51 + 500), 500).await.expect("a page");
        let begin = page.items.iter().rev().filter_map(|record| record.fields().ok()).find(|f| &*f.kind == "begin");
        let begin = begin.expect("one of 500 is a begin");
        picks.0.push(begin.id.parse().expect("an id"));
        picks.1.push(begin.exec_id.expect("an exec").to_string());
    }
    reads(report, &journal, &picks.0, &picks.1).await;

    let (begun, cpu) = (Instant::now(), processor_time());
    let verdict = journal.verify(Some(head.hash)).await.expect("readable");
    let rate = verdict.records as f64 / begun.elapsed().as_secs_f64();
    let each_cpu = (processor_time() - cpu) / u32::try_from(head.seq).expect("some million");
    assert!(verdict.ok, "{verdict:?}");
    report.line("verify", format!("{rate:.0} records/s, cpu {each_cpu:?} each"), rate >= VERIFY_LEAST);

    let begun = Instant::now();
    let file = tempfile::tempfile().expect("a temporary file");
    let out = BufWriter::with_capacity(1 << 18, file.try_clone().expect("the same file"));
    let (out, exported) = journal.export(Scope::default(), out).await.expect("an export");
    drop(out);
    let rate = exported.records as f64 / begun.elapsed().as_secs_f64();
    report.line("export", format!("{rate:.0} records/s"), true);
    let begun = Instant::now();
    let mut file = file;
    std::io::Seek::rewind(&mut file).expect("a file");
    let verdict = verify_export(BufReader::with_capacity(1 << 18, file), &journal.public_key(), Some(head.hash));
    let verdict = verdict.expect("an export");
    assert!(verdict.ok, "{verdict:?}");
    let rate = verdict.records as f64 / begun.elapsed().as_secs_f64();
    report.line("verify of an export", format!("{rate:.0} records/s"), rate >= VERIFY_LEAST);

    let path = journal.path().to_owned();
    journal.close().await;
    let each = std::fs::metadata(&path).expect("the file").len() as f64 / head.seq as f64;
    report.line("database", format!("{each:.0} bytes per record"), each < BYTES_MOST);
    let begun = Instant::now();
    let journal = open(directory.path(), Durability::Process);
    report.line("start", format!("{:?}", begun.elapsed()), true);
    journal.close().await;
    std::io::stdout().flush().expect("a terminal");
}

fn main() -> ExitCode {
    let mut report = Report { missed: false };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(run(&mut report));
    if report.missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
