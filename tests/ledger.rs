//! The ledger across processes: what a killed daemon leaves, who may open it, what lies in its files; and any order of
//! deeds against a model.
//!
//! The children are this binary again, told by [`CHILD`] which directory to work in.

use proptest::prelude::*;
use sandboxd::ledger::{
    Claimed, ExecEnded, ExecStarted, ExecStatus, IdempotencyKey, Ledger, LedgerError, NewGrant, NewSandbox, NewToken,
    Reservation,
};
use sandboxd::model::{Amounts, Budget, Ending, ExecId, GrantId, Kind, Meter, Owner, SandboxId, Usage};
use sandboxd::sqlite::file::FileError;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Variable that makes a test of this binary a child; its value is the state directory.
const CHILD: &str = "SANDBOXD_TEST_LEDGER_CHILD";
/// Tasks in a child that reserve at the same time.
const TASKS: u64 = 4;
/// Amounts of one reservation, and of one settlement.
const RESERVED_CPU_MS: u64 = 7;
const USED_CPU_MS: u64 = 3;

fn grant(decision: &str, calls: u64) -> NewGrant {
    NewGrant {
        tenant: "acme".to_owned(),
        subject: "uid:7".to_owned(),
        tool: "exec".to_owned(),
        call_id: "call-1".to_owned(),
        capabilities: "[]".to_owned(),
        expires_at_ms: u64::MAX,
        budget: Budget::default().with(Meter::Calls, Some(calls)),
        decision_key_fingerprint: decision.to_owned(),
        issued_by: "uid:0".to_owned(),
    }
}

fn amounts(cpu_ms: u64) -> Amounts {
    Amounts::default().with(Meter::Calls, 1).with(Meter::CpuMs, cpu_ms)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Starts the test `name` of this binary as a child on `directory`.
fn child(name: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this binary runs")
}

/// As a child: every task reserves on the tight and the wide grant by turns until it is killed, settles every other
/// reservation, and says each thing after it was answered.
#[test]
fn child_that_reserves_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    runtime().block_on(async {
        let ledger = Ledger::open(Path::new(&directory)).expect("the ledger");
        let grants = ledger.list(Default::default(), None, 10).await.expect("a list").items;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let (ledger, grants) = (ledger.clone(), grants.clone());
            tasks.spawn(async move {
                for turn in task.. {
                    let grant = &grants[turn as usize % grants.len()];
                    match ledger.reserve(&grant.id, amounts(RESERVED_CPU_MS), 1).await {
                        Ok(reservation) => {
                            say(format!("granted {}\n", grant.id));
                            if turn % 4 < 2 {
                                reservation.settle(amounts(USED_CPU_MS)).await.expect("settled");
                                say(format!("settled {}\n", grant.id));
                            } else {
                                std::mem::forget(reservation); // an exec that is still running when the kill comes
                            }
                        }
                        Err(LedgerError::Exceeded { .. }) => tokio::task::yield_now().await,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

/// One write per line, so that a kill never leaves half of one between two others.
fn say(line: String) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
}

#[test]
fn twenty_kills_never_forget_a_reservation_nor_overspend() {
    const KILLS: u64 = 20;
    const TIGHT: u64 = 300;
    const WIDE: u64 = 10_000_000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime = runtime();
    let ids = runtime.block_on(async {
        let ledger = Ledger::open(directory.path()).expect("a new ledger");
        let tight = ledger.issue(grant("tight", TIGHT), 0).await.expect("a grant").id;
        let wide = ledger.issue(grant("wide", WIDE), 0).await.expect("a grant").id;
        ledger.close().await;
        [tight, wide]
    });
    let (mut granted, mut settled, mut lost) = ([0u64; 2], [0u64; 2], 0);
    for kill in 0..KILLS {
        let mut child = child("child_that_reserves_until_it_is_killed", directory.path());
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        // The kill falls somewhere in the first 40 ms after the first reservation; later kills find other moments.
        let mut killer = None;
        let pid = rustix::process::Pid::from_child(&child);
        let moment = Duration::from_micros((kill * 7919 + u64::from(std::process::id()) * 104_729) % 40_000);
        for line in lines.by_ref() {
            let (word, id) = line.split_once(' ').unwrap_or_default();
            let place = |id: &str| ids.iter().position(|known| known.as_str() == id);
            match (word, place(id)) {
                ("granted", Some(place)) => granted[place] += 1,
                ("settled", Some(place)) => settled[place] += 1,
                _ => continue, // what the test harness says, or a line that the kill cut
            }
            killer.get_or_insert_with(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(moment);
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our own child");
                })
            });
        }
        killer.expect("the child reserved something").join().expect("no panic");
        let ended = child.wait().expect("our own child");
        assert!(ended.code().is_none(), "the child ended by itself: {ended}");

        // After every kill: all that was told is counted, and at most one untold deed per task and kill besides.
        let rows = runtime.block_on(async {
            let ledger = Ledger::open(directory.path()).expect("the ledger is sound after a kill");
            lost += ledger.recovered().len();
            let rows = [ledger.get(&ids[0]).await.expect("tight"), ledger.get(&ids[1]).await.expect("wide")];
            ledger.close().await;
            rows
        });
        let untold = TASKS * (kill + 1);
        for (place, row) in rows.iter().enumerate() {
            let (calls, cpu_ms) = (row.spent.get(Meter::Calls), row.spent.get(Meter::CpuMs));
            assert!(calls >= granted[place], "{calls} of {} told are counted", granted[place]);
            assert!(calls <= granted[place] + untold, "{calls} counted, {} told", granted[place]);
            assert!(Some(calls) <= row.budget.get(Meter::Calls), "{calls} overspend");
            let least = (granted[place] - settled[place]) * RESERVED_CPU_MS + settled[place] * USED_CPU_MS;
            let spare = RESERVED_CPU_MS - USED_CPU_MS; // a settlement that was kept and not told
            assert!(cpu_ms + spare * untold >= least && cpu_ms <= least + RESERVED_CPU_MS * untold, "{cpu_ms} {least}");
        }
    }
    println!("{KILLS} kills: granted {granted:?}, settled {settled:?}, lost with their daemon {lost}");
    assert!(granted[0] + TASKS * KILLS >= TIGHT, "the tight grant was not used up: {granted:?}");
    assert!(lost > 0, "no kill left a reservation open");
}

fn me() -> Owner {
    Owner { tenant: "acme".to_owned(), subject: "uid:7".to_owned() }
}

fn exec_starting() -> ExecStarted {
    ExecStarted {
        exec_id: ExecId::generate(),
        owner: me(),
        sandbox_id: None,
        project_id: None,
        task_ref: None,
        skill_id: None,
        grant_id: None,
        profile: "python-default".to_owned(),
        kind: Kind::Shell,
        command: "bash".to_owned(),
        args: Vec::new(),
        cwd: None,
        env_keys: Vec::new(),
        policy: "{}".to_owned(),
        queued_at_ms: 1,
        started_at_ms: Some(2),
        artifacts_path: None,
        evidence_begin: None,
    }
}

fn exec_ending(exec_id: ExecId) -> ExecEnded {
    ExecEnded {
        exec_id,
        ending: Ending::Ok,
        exit_code: Some(0),
        signal: None,
        error_reason: None,
        started_at_ms: None,
        ended_at_ms: 9,
        stdout_truncated: false,
        stderr_truncated: false,
        usage: Usage::default(),
        evidence_end: None,
    }
}

fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey { owner: me(), route: "POST /v1/execs".to_owned(), key: key.to_owned() }
}

/// As a child: execs, keys and sandboxes by turns until it is killed; says each thing after it was answered, and
/// `deleting` before. Every other exec is never ended and every other key never answered.
#[test]
fn child_that_keeps_books_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    runtime().block_on(async {
        let ledger = Ledger::open(Path::new(&directory)).expect("the ledger");
        ledger.close_open_execs(5).await.expect("closed");
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let ledger = ledger.clone();
            tasks.spawn(async move {
                for turn in task.. {
                    let even = turn % 2 == 0;
                    let exec = exec_starting();
                    let id = exec.exec_id.clone();
                    if even {
                        ledger.post_started(exec).expect("it fits");
                        ledger.exec_ended(exec_ending(id.clone())).await.expect("ended");
                        say(format!("ended {id}\n"));
                    } else {
                        ledger.exec_started(exec).await.expect("started");
                        say(format!("started {id}\n"));
                    }
                    let Ok(Claimed::Fresh(claim)) = ledger.claim(key(id.as_str()), [7; 32], 1).await else {
                        panic!("a new key is fresh");
                    };
                    if even {
                        claim.complete(200, id.as_str().into()).await.expect("kept");
                        say(format!("kept {id}\n"));
                    } else {
                        std::mem::forget(claim); // a request that is still worked on when the kill comes
                        say(format!("claimed {id}\n"));
                    }
                    let new = NewSandbox {
                        owner: me(),
                        profile: "shell".to_owned(),
                        project_id: "p1".parse().expect("an id"),
                        labels: BTreeMap::new(),
                        expires_at_ms: 1000,
                        idle_ms: None,
                    };
                    let id = ledger.create_sandbox(new, 1).await.expect("a sandbox").id;
                    say(format!("made {id}\n"));
                    if even {
                        say(format!("deleting {id}\n"));
                        ledger.delete_sandbox(&me(), &id, 2).await.expect("deleted");
                        say(format!("deleted {id}\n"));
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

#[test]
fn ten_kills_lose_no_exec_no_answer_and_no_sandbox() {
    const KILLS: u64 = 10;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime = runtime();
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut lost, mut freed) = (0, 0);
    for kill in 0..KILLS {
        let mut child = child("child_that_keeps_books_until_it_is_killed", directory.path());
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut killer = None;
        let pid = rustix::process::Pid::from_child(&child);
        let moment = Duration::from_micros((kill * 7919 + u64::from(std::process::id()) * 104_729) % 40_000);
        for line in lines.by_ref() {
            let Some((word, id)) = line.split_once(' ').filter(|(_, id)| id.len() == 29) else { continue };
            told.entry(word.to_owned()).or_default().insert(id.to_owned());
            killer.get_or_insert_with(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(moment);
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our own child");
                })
            });
        }
        killer.expect("the child did something").join().expect("no panic");
        let ended = child.wait().expect("our own child");
        assert!(ended.code().is_none(), "the child ended by itself: {ended}");

        runtime.block_on(async {
            let ledger = Ledger::open(directory.path()).expect("the ledger is sound after a kill");
            let all = |word: &str| told.get(word).cloned().unwrap_or_default();
            let open: BTreeSet<String> =
                ledger.close_open_execs(50).await.expect("a list").iter().map(ToString::to_string).collect();
            lost += open.len();
            assert!(open.is_disjoint(&all("ended")), "an end that was told is forgotten");
            for id in all("ended").union(&all("started")) {
                let status = ledger.get_exec(&me(), &id.parse().expect("an id")).await.expect("a told exec").status;
                let lost = ExecStatus::Ended(Ending::Lost);
                assert_eq!(status, if all("ended").contains(id) { ExecStatus::Ended(Ending::Ok) } else { lost });
            }
            for id in all("kept") {
                let replay = ledger.claim(key(&id), [7; 32], 2).await;
                assert!(
                    matches!(&replay, Ok(Claimed::Replay { status: 200, body: Some(body) }) if body == id.as_bytes()),
                    "{replay:?}"
                );
            }
            for id in all("claimed") {
                let fresh = ledger.claim(key(&id), [8; 32], 2).await;
                assert!(matches!(fresh, Ok(Claimed::Fresh(_))), "a dead daemon's claim is free: {fresh:?}");
                freed += 1;
            }
            let live: BTreeSet<String> =
                ledger.live_sandboxes().await.expect("a list").iter().map(|row| row.id.to_string()).collect();
            assert!(live.is_disjoint(&all("deleted")), "a sandbox that was told to be deleted is back");
            let kept: BTreeSet<String> = all("made").difference(&all("deleting")).cloned().collect();
            assert!(live.is_superset(&kept), "a sandbox that was told to be made is gone");
            for id in kept {
                ledger.get_sandbox(&me(), &SandboxId::from(id)).await.expect("a told sandbox");
            }
            ledger.close().await;
        });
    }
    let counts: Vec<_> = told.iter().map(|(word, ids)| (word.as_str(), ids.len())).collect();
    println!("{KILLS} kills: {counts:?}, lost {lost}, claims freed {freed}");
    assert!(lost > 0 && freed > 0, "no kill left anything open");
}

/// Prints what writing an exec down costs: to who waits, and to who does not.
#[test]
fn an_exec_costs_little_to_write_down() {
    const TURNS: usize = 1000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    runtime().block_on(async {
        let ledger = Ledger::open(directory.path()).expect("a new ledger");
        let (mut waited, mut posted) = (Vec::with_capacity(TURNS), Vec::with_capacity(TURNS));
        for _ in 0..TURNS {
            let (first, second) = (exec_starting(), exec_starting());
            let (first_end, second_end) = (exec_ending(first.exec_id.clone()), exec_ending(second.exec_id.clone()));
            let begun = Instant::now();
            ledger.exec_started(first).await.expect("written");
            ledger.exec_ended(first_end).await.expect("written");
            waited.push(begun.elapsed());
            let begun = Instant::now();
            ledger.post_started(second).expect("it fits");
            ledger.post_ended(second_end);
            posted.push(begun.elapsed());
        }
        for times in [&mut waited, &mut posted] {
            times.sort();
        }
        let p = |times: &[Duration]| (times[TURNS / 2], times[TURNS * 95 / 100]);
        println!("an exec's two rows: waited for p50, p95 {:?}; posted {:?}", p(&waited), p(&posted));
        let open = ledger.close_open_execs(1).await.expect("a list");
        assert_eq!(open, [], "all that was posted was written");
        assert!(p(&posted).0 < Duration::from_millis(5), "{posted:?}");
    });
}

/// As a child: says how opening went.
#[test]
fn child_that_opens() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    match Ledger::open(Path::new(&directory)) {
        Err(LedgerError::File(FileError::InUse { .. })) => say("opening: in use\n".to_owned()),
        other => say(format!("opening: {other:?}\n")),
    }
}

#[test]
fn another_process_cannot_open_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let opening = || {
        let output = child("child_that_opens", directory.path()).wait_with_output().expect("the child ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.split("opening: ").nth(1).expect("it said").lines().next().expect("a line").to_owned()
    };
    let ledger = Ledger::open(directory.path()).expect("a new ledger");
    assert_eq!(opening(), "in use");
    runtime().block_on(ledger.close());
    assert!(opening().starts_with("Ok(Ledger"));
}

#[test]
fn secrets_are_nowhere_in_the_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // By another process: closing a file here would let go of SQLite's lock on it.
    let files = |what: &str| {
        let script = format!("cat {}/{what}", directory.path().display());
        Command::new("sh").args(["-c", &script]).output().expect("cat").stdout
    };
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    runtime().block_on(async {
        let ledger = Ledger::open(directory.path()).expect("a new ledger");
        let mut secrets = Vec::new();
        for n in 0..20 {
            let token = NewToken {
                name: format!("name-of-{n}"),
                tenant: "acme".to_owned(),
                subject: "agent".to_owned(),
                roles: vec!["user".to_owned()],
                profiles: None,
                expires_at_ms: None,
            };
            secrets.push(ledger.create_token(token, 1).await.expect("a token").1);
        }
        let open = files("*");
        ledger.close().await;
        let closed = files("*");
        for bytes in [&open, &closed] {
            assert!(holds(bytes, b"name-of-19"), "the search finds what is there");
            assert!(!holds(bytes, b"sbx_"));
            for secret in &secrets {
                assert!(!holds(bytes, &secret.reveal().as_bytes()[4..20]), "part of a secret is in a file");
            }
        }
    });
}

/// Prints what a reservation costs. Not a test of anything but that it is far below an exec.
#[test]
fn reserve_and_settle_cost_little() {
    const TURNS: usize = 2000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let turn = async |ledger: &Ledger, id: &GrantId| {
        let begun = Instant::now();
        let reservation = ledger.reserve(id, amounts(RESERVED_CPU_MS), 1).await.expect("reserved");
        reservation.settle(amounts(USED_CPU_MS)).await.expect("settled");
        begun.elapsed()
    };
    runtime().block_on(async {
        let ledger = Ledger::open(directory.path()).expect("a new ledger");
        let id = ledger.issue(grant("d1", 1_000_000), 0).await.expect("a grant").id;
        let mut times = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            times.push(turn(&ledger, &id).await);
        }
        times.sort();
        let (p50, p95) = (times[TURNS / 2], times[TURNS * 95 / 100]);
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (ledger, id) = (ledger.clone(), id.clone());
            tasks.spawn(async move {
                for _ in 0..TURNS / 64 {
                    let reservation = ledger.reserve(&id, amounts(RESERVED_CPU_MS), 1).await.expect("reserved");
                    reservation.settle(amounts(USED_CPU_MS)).await.expect("settled");
                }
            });
        }
        tasks.join_all().await;
        let each = begun.elapsed() / u32::try_from(TURNS / 64 * 64).expect("small");
        println!("reserve + settle: one caller p50 {p50:?} p95 {p95:?}; 64 callers {each:?} each");
        assert!(p50 < Duration::from_millis(20), "{p50:?}");
    });
}

#[derive(Debug, Clone)]
enum Deed {
    Reserve { least: Amounts, most: Amounts },
    Settle(usize, Amounts),
    GiveBack(usize),
    Drop(usize),
    DropStarted(usize),
    Restart,
}

fn any_amounts() -> impl Strategy<Value = Amounts> {
    proptest::array::uniform6(0u64..12).prop_map(Amounts::from)
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (any_amounts(), any_amounts()).prop_map(|(least, most)| Deed::Reserve { least, most }),
        4 => (any::<usize>(), any_amounts()).prop_map(|(which, used)| Deed::Settle(which, used)),
        1 => any::<usize>().prop_map(Deed::GiveBack),
        1 => any::<usize>().prop_map(Deed::Drop),
        1 => any::<usize>().prop_map(Deed::DropStarted),
        1 => Just(Deed::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// The ledger against a model on one page: what is spent, what each open reservation holds.
    #[test]
    fn no_interleaving_overspends(
        budget in proptest::array::uniform6(proptest::option::weighted(0.8, 0u64..40)).prop_map(Budget::from),
        deeds in proptest::collection::vec(deed(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let directory = tempfile::tempdir().expect("a temporary directory");
                let mut ledger = Ledger::open(directory.path()).expect("a new ledger");
            let id = ledger.issue(NewGrant { budget, ..grant("d1", 0) }, 0).await.expect("a grant").id;
            let mut open: Vec<Reservation> = Vec::new();
            let mut spent = Amounts::default(); // settled, without what is open
            let sum = |a: Amounts, b: Amounts| Amounts::each(|meter| a.get(meter) + b.get(meter));
            for deed in deeds {
                match deed {
                    Deed::Reserve { least, most } => {
                        let held = open.iter().fold(spent, |held, one| sum(held, one.amounts()));
                        let left = |meter| budget.get(meter).map_or(u64::MAX, |b: u64| b.saturating_sub(held.get(meter)));
                        let short = Meter::ALL.into_iter().find(|&m| least.get(m).min(most.get(m)) > left(m));
                        match (ledger.reserve_between(&id, least, most, 1).await, short) {
                            (Ok(given), None) => {
                                prop_assert_eq!(given.amounts(), Amounts::each(|m| most.get(m).min(left(m))));
                                open.push(given);
                            }
                            (Err(LedgerError::Exceeded { which, left: said, .. }), Some(meter)) => {
                                prop_assert_eq!((which, said), (meter, left(meter)));
                            }
                            (answer, short) => prop_assert!(false, "{:?}, the model: {:?}", answer, short),
                        }
                    }
                    Deed::Restart => {
                        let held: Vec<_> = open.iter().map(Reservation::amounts).collect();
                        ledger.close().await;
                        open.clear();
                        ledger = Ledger::open(directory.path()).expect("the same ledger");
                        let lost: Vec<_> = ledger.recovered().iter().map(|lost| lost.amounts).collect();
                        prop_assert_eq!(&lost, &held);
                        spent = held.into_iter().fold(spent, sum);
                    }
                    Deed::Settle(..) | Deed::GiveBack(_) | Deed::Drop(_) | Deed::DropStarted(_) if open.is_empty() => {}
                    Deed::Settle(which, used) => {
                        open.remove(which % open.len()).settle(used).await.expect("settled");
                        spent = sum(spent, used);
                    }
                    Deed::GiveBack(which) => {
                        open.remove(which % open.len()).give_back().await.expect("given back");
                    }
                    Deed::Drop(which) => drop(open.remove(which % open.len())),
                    Deed::DropStarted(which) => {
                        let mut one = open.remove(which % open.len());
                        one.started();
                        spent = sum(spent, one.amounts());
                    }
                }
                let row = ledger.get(&id).await.expect("the grant");
                let held = open.iter().fold(spent, |held, one| sum(held, one.amounts()));
                prop_assert_eq!(row.spent, held);
                for meter in Meter::ALL {
                    let left = budget.get(meter).map(|most| most.saturating_sub(held.get(meter)));
                    prop_assert_eq!(row.remaining().get(meter), left);
                }
            }
            Ok(())
        })?;
    }
}
