use super::super::tests::{fresh, owners};
use super::*;

pub(in crate::ledger) fn started(owner: &Owner, queued_at_ms: u64) -> ExecStarted {
    ExecStarted {
        exec_id: ExecId::generate(),
        owner: owner.clone(),
        sandbox_id: Some(SandboxId::from("sb_1")),
        project_id: Some("p1".parse().expect("an id")),
        task_ref: Some("t-7".to_owned()),
        skill_id: None,
        grant_id: Some(GrantId::from("gr_1")),
        profile: "python-default".to_owned(),
        kind: Kind::Process,
        command: "/bin/ls".to_owned(),
        args: vec!["-l".to_owned(), "ä\"".to_owned()],
        cwd: None,
        env_keys: vec!["LANG".to_owned()],
        policy: r#"{"profile":"python-default"}"#.to_owned(),
        queued_at_ms,
        started_at_ms: Some(queued_at_ms + 2),
        artifacts_path: Some("p1/artifacts".to_owned()),
        evidence_begin: Some("ev_1".to_owned()),
    }
}

pub(in crate::ledger) fn ended(exec: &ExecStarted, ending: Ending, ended_at_ms: u64) -> ExecEnded {
    ExecEnded {
        exec_id: exec.exec_id.clone(),
        ending,
        exit_code: Some(3),
        signal: None,
        error_reason: None,
        started_at_ms: None,
        ended_at_ms,
        stdout_truncated: true,
        stderr_truncated: false,
        usage: Usage { wall_ms: 5, cpu_ms: 1, memory_peak_bytes: Some(7), ..Usage::default() },
        evidence_end: Some("ev_2".to_owned()),
    }
}

#[tokio::test]
async fn an_exec_is_read_back_as_it_was_posted() {
    let (directory, ledger) = fresh();
    let [me, other] = owners();
    let exec = started(&me, 10);
    ledger.post_started(exec.clone()).expect("it fits");
    let row = ledger.get_exec(&me, &exec.exec_id).await.expect("posts come before what is asked later");
    assert_eq!((row.status, row.ended_at_ms, row.usage), (ExecStatus::Running, None, None));
    assert_eq!(row.started, exec);
    ledger.post_ended(ended(&exec, Ending::NonzeroExit, 20));
    ledger.exec_ended(ended(&exec, Ending::Cancelled, 30)).await.expect("no error");
    ledger.close().await;

    let ledger = Ledger::open(directory.path()).expect("the same ledger");
    let row = ledger.get_exec(&me, &exec.exec_id).await.expect("the exec");
    assert_eq!(row.status, ExecStatus::Ended(Ending::NonzeroExit), "the first end stays");
    assert_eq!((row.exit_code, row.ended_at_ms, row.duration_ms), (Some(3), Some(20), Some(8)));
    assert_eq!((row.stdout_truncated, row.stderr_truncated), (true, false));
    assert_eq!(row.usage.expect("counted").memory_peak_bytes, Some(7));
    assert_eq!((row.evidence_end.as_deref(), row.started), (Some("ev_2"), exec.clone()));
    let foreign = ledger.get_exec(&other, &exec.exec_id).await;
    assert!(matches!(foreign, Err(LedgerError::ExecNotFound(_))), "{foreign:?}");
    let unknown = ledger.exec_ended(ended(&started(&me, 1), Ending::Ok, 2)).await;
    assert!(matches!(unknown, Err(LedgerError::ExecNotFound(_))), "{unknown:?}");
    let twice = ledger.exec_started(exec).await;
    assert!(matches!(twice, Err(LedgerError::Statement(_))), "{twice:?}");
}

#[tokio::test]
async fn an_exec_that_waited_has_the_start_that_its_end_tells() {
    let (_directory, ledger) = fresh();
    let [me, _] = owners();
    let exec = ExecStarted { started_at_ms: None, ..started(&me, 10) };
    ledger.exec_started(exec.clone()).await.expect("written");
    assert_eq!(ledger.get_exec(&me, &exec.exec_id).await.expect("it").status, ExecStatus::Queued);
    let running = ExecStarted { started_at_ms: Some(15), ..exec.clone() };
    ledger.exec_started(running).await.expect("its turn came");
    assert_eq!(ledger.get_exec(&me, &exec.exec_id).await.expect("it").status, ExecStatus::Running);
    let end = ExecEnded { started_at_ms: Some(15), ..ended(&exec, Ending::Ok, 21) };
    ledger.exec_ended(end).await.expect("ended");
    let row = ledger.get_exec(&me, &exec.exec_id).await.expect("it");
    assert_eq!((row.started.started_at_ms, row.duration_ms), (Some(15), Some(6)));
    let never = ExecStarted { started_at_ms: None, ..started(&me, 10) };
    ledger.exec_started(never.clone()).await.expect("written");
    ledger.exec_ended(ended(&never, Ending::FailedToStart, 21)).await.expect("ended");
    assert_eq!(ledger.get_exec(&me, &never.exec_id).await.expect("it").duration_ms, None);
}

#[tokio::test]
async fn lists_hold_what_every_filter_lets_through_in_pages() {
    let (_directory, ledger) = fresh();
    let [me, other] = owners();
    let mut mine = Vec::new();
    for n in 0..30u64 {
        let mut exec = started(if n % 3 == 2 { &other } else { &me }, n);
        exec.task_ref = Some(format!("t-{}", n % 2));
        exec.sandbox_id = (n % 4 != 0).then(|| SandboxId::from("sb_1"));
        exec.project_id = Some(if n < 15 { "early" } else { "late" }.parse().expect("an id"));
        ledger.post_started(exec.clone()).expect("it fits");
        if n % 5 == 0 {
            ledger.post_ended(ended(&exec, Ending::Ok, n + 1));
        }
        if n % 3 != 2 {
            mine.push((n, exec.exec_id));
        }
    }
    let none = ExecFilter::default;
    type Keeps = fn(u64) -> bool;
    let cases: [(ExecFilter, Keeps); 9] = [
        (none(), |_| true),
        (ExecFilter { task_ref: Some("t-1".to_owned()), ..none() }, |n| n % 2 == 1),
        (ExecFilter { sandbox_id: Some(SandboxId::from("sb_1")), ..none() }, |n| n % 4 != 0),
        (ExecFilter { project_id: "late".parse().ok(), ..none() }, |n| n >= 15),
        (ExecFilter { status: Some(ExecStatus::Ended(Ending::Ok)), ..none() }, |n| n % 5 == 0),
        (ExecFilter { status: Some(ExecStatus::Running), ..none() }, |n| n % 5 != 0),
        (ExecFilter { since_ms: Some(7), until_ms: Some(21), ..none() }, |n| (7..21).contains(&n)),
        (ExecFilter { task_ref: Some("t-0".to_owned()), since_ms: Some(10), ..none() }, |n| n % 2 == 0 && n >= 10),
        (ExecFilter { task_ref: Some("t-2".to_owned()), ..none() }, |_| false),
    ];
    for (filter, keeps) in cases {
        let expected: Vec<_> = mine.iter().rev().filter(|(n, _)| keeps(*n)).map(|(_, id)| id.clone()).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = ledger.list_execs(&me, filter.clone(), after, 4).await.expect("a page");
            assert!(page.items.len() <= 4);
            seen.extend(page.items.into_iter().map(|row| row.started.exec_id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "{filter:?}");
    }
    let foreign = ledger.list_execs(&other, none(), Some(mine[0].1.clone()), 4).await;
    assert!(matches!(foreign, Err(LedgerError::ExecNotFound(_))), "{foreign:?}");
}

#[tokio::test]
async fn what_is_open_at_the_start_is_lost() {
    let (_directory, ledger) = fresh();
    let [me, other] = owners();
    let execs = [started(&me, 1), started(&other, 2), started(&me, 3)];
    for exec in &execs {
        ledger.exec_started(exec.clone()).await.expect("written");
    }
    ledger.exec_ended(ended(&execs[0], Ending::Ok, 9)).await.expect("ended");
    let lost = ledger.close_open_execs(50).await.expect("a list");
    assert_eq!(lost, [execs[1].exec_id.clone(), execs[2].exec_id.clone()]);
    let row = ledger.get_exec(&me, &execs[2].exec_id).await.expect("it");
    assert_eq!((row.status, row.ended_at_ms), (ExecStatus::Ended(Ending::Lost), Some(50)));
    assert_eq!((row.duration_ms, row.usage, row.error_reason.as_deref()), (None, None, Some(LOST)));
    let row = ledger.get_exec(&me, &execs[0].exec_id).await.expect("it");
    assert_eq!(row.status, ExecStatus::Ended(Ending::Ok));
    assert_eq!(ledger.close_open_execs(51).await.expect("a list"), []);
}

#[tokio::test]
async fn old_execs_and_those_beyond_the_count_are_forgotten_but_never_open_ones() {
    let (_directory, ledger) = fresh();
    let [me, other] = owners();
    let mut mine = Vec::new();
    for n in 0..10 {
        let exec = started(&me, n);
        ledger.post_started(exec.clone()).expect("it fits");
        if n != 0 {
            ledger.post_ended(ended(&exec, Ending::Ok, n * 10));
        }
        mine.push(exec.exec_id);
    }
    let theirs = started(&other, 0);
    ledger.post_started(theirs.clone()).expect("it fits");
    ledger.post_ended(ended(&theirs, Ending::Ok, 95));
    let left = async || -> Vec<ExecId> {
        let page = ledger.list_execs(&me, ExecFilter::default(), None, 100).await.expect("a page");
        page.items.into_iter().rev().map(|row| row.started.exec_id).collect()
    };
    let forget = async |before: u64, most: u64| {
        let old = ledger.old_execs(before, most).await.expect("a list");
        ledger.forget_execs(old.into_iter().map(|old| old.exec_id).collect()).await.expect("a count")
    };
    assert_eq!(forget(40, u64::MAX).await, 3, "10, 20 and 30");
    assert_eq!(left().await, [&mine[..1], &mine[4..]].concat());
    assert_eq!(forget(0, 2).await, 4);
    assert_eq!(left().await, [&mine[..1], &mine[8..]].concat());
    assert_eq!(forget(0, 2).await, 0);
    assert!(ledger.get_exec(&other, &theirs.exec_id).await.is_ok(), "another owner's count is another");
    assert_eq!(ledger.forget_execs(mine[..1].to_vec()).await.expect("a count"), 0, "the open one stays");
}

#[tokio::test]
async fn what_describes_is_cut_and_what_is_looked_up_is_refused() {
    let (_directory, ledger) = fresh();
    let [me, _] = owners();
    let long = "ä".repeat(WORDS_MAX);
    let exec = ExecStarted {
        command: long.clone(),
        args: vec!["x".to_owned(), long.clone(), "never".to_owned()],
        env_keys: vec!["K".to_owned(); 10_000],
        ..started(&me, 1)
    };
    ledger.post_started(exec.clone()).expect("it is cut");
    let end = ExecEnded { error_reason: Some(long.clone()), ..ended(&exec, Ending::Ok, 9) };
    ledger.post_ended(end);
    let row = ledger.get_exec(&me, &exec.exec_id).await.expect("it");
    assert!(row.started.command.len() <= WORDS_MAX + 3 && row.started.command.ends_with("ä…"));
    assert_eq!((row.started.args.len(), row.started.args[0].as_str()), (2, "x"));
    assert!(row.started.args[1].len() < WORDS_MAX && row.started.args[1].ends_with('…'));
    assert_eq!(row.started.env_keys.len(), WORDS_MAX / 4 + 1);
    assert!(row.error_reason.expect("a reason").len() <= REASON_MAX + 3);
    for wrong in [
        ExecStarted { task_ref: Some(long.clone()), ..started(&me, 1) },
        ExecStarted { policy: "x".repeat(POLICY_MAX + 1), ..started(&me, 1) },
        ExecStarted { cwd: Some(long.clone()), ..started(&me, 1) },
        ExecStarted { profile: long.clone(), ..started(&me, 1) },
    ] {
        assert!(matches!(ledger.post_started(wrong.clone()), Err(LedgerError::TooLong { .. })));
        assert!(matches!(ledger.exec_started(wrong).await, Err(LedgerError::TooLong { .. })));
    }
}

#[test]
fn every_status_has_a_name_that_is_read_back() {
    for status in [ExecStatus::Queued, ExecStatus::Running, ExecStatus::Ended(Ending::OomKilled)] {
        assert_eq!(ExecStatus::from_name(&status.name()), Some(status));
    }
    assert_eq!(ExecStatus::from_name("oom_killed"), Some(ExecStatus::Ended(Ending::OomKilled)));
    assert_eq!(ExecStatus::from_name("sideways"), None);
}
