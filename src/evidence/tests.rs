//! The journal as its callers see it, on real files.

use super::id::Short;
use super::*;
use crate::model::{CgroupMode, CgroupReport, Enforcement, Hold, LandlockReport, SeccompReport, Usage};
use std::fs;
use std::io::BufReader;

const NOW: u64 = 1_790_000_000_000;

fn settings() -> EvidenceSettings {
    EvidenceSettings { durability: Durability::Process, ..EvidenceSettings::default() }
}

fn open(directory: &tempfile::TempDir) -> (Journal, Opened) {
    Journal::open(directory.path(), &settings(), NOW).expect("a journal")
}

fn fresh() -> (tempfile::TempDir, Journal) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (journal, _) = open(&directory);
    (directory, journal)
}

fn begin(tenant: &str, subject: &str, at_ms: u64) -> Begin {
    let mut begin = Begin::new(Operation::Exec, tenant, subject, "process.exec:python", at_ms);
    begin.exec_id = Some(crate::model::ExecId::generate().to_string());
    begin
}

fn enforcement(note: &str) -> Enforcement {
    Enforcement {
        namespaces: ["user", "mount", "pid"].map(str::to_owned).to_vec(),
        landlock: LandlockReport { abi: 7, status: Hold::Full },
        seccomp: SeccompReport { filter: "default".to_owned(), hash: "611b".to_owned() },
        cgroup: CgroupReport { mode: CgroupMode::V2, controllers: vec!["memory".to_owned()] },
        privileges: Hold::Full,
        workspace: "tmpfs".to_owned(),
        store: None,
        degraded: vec![note.to_owned()],
    }
}

fn refused(code: &str) -> Refused {
    Refused { code: code.to_owned(), class: "POLICY.DENY_TOOL".to_owned(), reason: Some("field tool".to_owned()) }
}

async fn whole_list(journal: &Journal, filter: &Filter, limit: usize) -> Vec<Record> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = journal.list(filter.clone(), cursor, limit).await.expect("a page");
        found.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return found;
        }
    }
}

async fn exported(journal: &Journal, scope: Scope) -> Vec<u8> {
    journal.export(scope, Vec::new()).await.expect("an export").0
}

#[tokio::test]
async fn a_begin_and_its_end_are_found_from_each_other() {
    let (_directory, journal) = fresh();
    let open = journal.begin(begin("acme", "uid:7", NOW + 5)).await.expect("begun");
    let begun = open.id().clone();
    assert!(journal.get(begun.clone()).await.expect("readable").expect("there").counterpart.is_none());
    let usage = Usage { wall_ms: 3, cpu_ms: 1, ..Usage::default() };
    let end = End {
        exit_code: Some(0),
        outputs_digest: Some(Digest::of("out")),
        usage: Some(usage),
        enforcement: Some(enforcement("")),
        ..End::new(Status::Ok, NOW + 9)
    };
    let ended = open.end(end).await.expect("ended");
    for (id, other) in [(&begun, &ended), (&ended, &begun)] {
        let shown = journal.get(id.clone()).await.expect("readable").expect("there");
        assert_eq!(*shown.record.fields().expect("JSON").id, *id.as_str());
        assert_eq!(*shown.counterpart.expect("a pair").fields().expect("JSON").id, *other.as_str());
        let report: Enforcement = serde_json::from_str(&shown.enforcement.expect("resolved")).expect("a report");
        assert_eq!(report, enforcement(""));
    }
    let verdict = journal.verify(None).await.expect("readable");
    // genesis, begin, enforcement, end
    assert!(verdict.ok && verdict.records == 4 && verdict.open == 0, "{verdict:?}");
    assert_eq!(journal.get(EvidenceId::generate()).await.expect("readable"), None);
}

#[tokio::test]
async fn an_enforcement_is_recorded_once_for_all_ends_under_it() {
    let (directory, journal) = fresh();
    for n in 0..10 {
        let open = journal.begin(begin("acme", "uid:7", NOW)).await.expect("begun");
        let note = if n % 2 == 0 { "even" } else { "odd" };
        open.end(End { enforcement: Some(enforcement(note)), ..End::new(Status::Ok, NOW) }).await.expect("ended");
    }
    assert_eq!(journal.head().seq, 1 + 20 + 2);
    journal.close().await;
    let (journal, _) = self::open(&directory);
    let before = journal.head().seq;
    let open = journal.begin(begin("acme", "uid:7", NOW)).await.expect("begun");
    open.end(End { enforcement: Some(enforcement("even")), ..End::new(Status::Ok, NOW) }).await.expect("ended");
    assert_eq!(journal.head().seq, before + 2, "a restart knows them");
}

#[tokio::test]
async fn a_record_that_is_dropped_or_not_waited_for_ends_as_lost() {
    let (_directory, journal) = fresh();
    drop(journal.begin(begin("acme", "dropped", NOW)).await.expect("begun"));
    drop(journal.begin(begin("acme", "not waited for", NOW))); // the caller is gone before the answer
    let open = journal.begin(begin("acme", "ended", NOW)).await.expect("begun");
    drop(open.end(End::new(Status::Ok, NOW))); // nor is the end's answer
    journal.checkpoint().await.expect("after all of that");
    for (subject, status) in [("dropped", "lost"), ("not waited for", "lost"), ("ended", "ok")] {
        let filter = Filter { subject: Some(subject.to_owned()), ..Filter::default() };
        let mut found = Vec::new();
        // The end of a dropped handle is posted by the writer to itself.
        for _ in 0..100 {
            found = whole_list(&journal, &filter, 10).await;
            if found.len() == 2 {
                break;
            }
            journal.checkpoint().await.expect("one more turn of the writer");
        }
        let statuses: Vec<_> =
            found.iter().map(|record| record.fields().expect("JSON").status.map(|s| s.to_string())).collect();
        assert_eq!(statuses, [Some(status.to_owned()), None], "{subject}");
    }
    assert_eq!(journal.verify(None).await.expect("readable").open, 0);
}

#[tokio::test]
async fn a_refusal_is_one_record_with_its_code() {
    let (_directory, journal) = fresh();
    let asked = begin("acme", "uid:7", NOW);
    let id = journal.refuse(&asked, &refused("override_widens")).await.expect("recorded");
    assert_eq!(id, asked.id);
    let filter = Filter { code: Some("override_widens".to_owned()), ..Filter::default() };
    let found = whole_list(&journal, &filter, 10).await;
    let fields = found[0].fields().expect("JSON");
    assert_eq!((found.len(), fields.status.as_deref(), &*fields.kind), (1, Some("refused"), "refusal"));
    assert!(journal.verify(None).await.expect("readable").ok);
}

#[tokio::test]
async fn a_begin_has_one_end_and_one_beginning() {
    let (_directory, journal) = fresh();
    let one = begin("acme", "uid:7", NOW);
    let first = journal.begin(one.clone()).await.expect("begun");
    assert!(matches!(journal.begin(one).await, Err(EvidenceError::BegunBefore(_))));
    first.end(End::new(Status::Ok, NOW)).await.expect("ended");
    assert!(journal.verify(None).await.expect("readable").ok);
}

#[tokio::test]
async fn lists_agree_with_looking_at_every_record() {
    let (directory, journal) = fresh();
    let tenants = ["acme", "globex", "initech"];
    let mut waiting = Vec::new();
    for n in 0..900_u64 {
        let mut one = begin(tenants[n as usize % 3], &format!("uid:{}", n % 7), NOW + n);
        one.grant_id = (n % 5 == 0).then(|| format!("gr_{}", n % 10));
        one.sandbox_id = (n % 4 == 0).then(|| "sb_00000000000000000000000000".to_owned());
        if n % 11 == 0 {
            waiting.push(tokio::spawn({
                let refusal = journal.refuse(&one, &refused(&format!("code_{}", n % 2)));
                async move { refusal.await.map(drop) }
            }));
        } else {
            let (journal, status) = (journal.clone(), if n % 50 == 0 { Status::OomKilled } else { Status::Ok });
            waiting.push(tokio::spawn(async move {
                journal.begin(one).await?.end(End::new(status, NOW + n)).await.map(drop)
            }));
        }
    }
    for one in waiting {
        one.await.expect("no panic").expect("recorded");
    }
    let some = |text: &str| Some(text.to_owned());
    let filters = [
        Filter::default(),
        Filter { tenant: some("acme"), ..Filter::default() },
        Filter { tenant: some("acme"), subject: some("uid:3"), ..Filter::default() },
        Filter { status: some("oom_killed"), ..Filter::default() },
        Filter { status: some("oom_killed"), tenant: some("globex"), ..Filter::default() },
        Filter { code: some("code_1"), ..Filter::default() },
        Filter { grant_id: some("gr_5"), status: some("ok"), ..Filter::default() },
        Filter { sandbox_id: some("sb_00000000000000000000000000"), subject: some("uid:1"), ..Filter::default() },
        Filter { since_ms: Some(NOW + 300), until_ms: Some(NOW + 310), ..Filter::default() },
        Filter { until_ms: Some(NOW + 400), tenant: some("initech"), ..Filter::default() },
        Filter { tenant: some("nobody"), ..Filter::default() },
    ];
    let everything = String::from_utf8(exported(&journal, Scope::default()).await).expect("text");
    let mut lines: Vec<&str> =
        everything.lines().filter_map(|line| line.split_once("\"record\":")?.1.strip_suffix('}')).collect();
    lines.reverse();
    // Some records after the last that is indexed, then a restart with all of them in the index.
    let compare = async |journal: &Journal, newer: usize| {
        for filter in &filters {
            let expected: Vec<_> = lines
                .iter()
                .filter(|line| filter.matches(&Fields::parse(line.as_bytes()).expect("a record")))
                .copied()
                .collect();
            for limit in [7, 1000] {
                let found = whole_list(journal, filter, limit).await;
                let found: Vec<_> = found.iter().map(|record| &*record.line).collect();
                let skipped = if filter.is_empty() { newer } else { 0 };
                assert_eq!(found[skipped..], expected, "{filter:?}");
            }
        }
    };
    compare(&journal, 0).await;
    for _ in 0..3 {
        journal.refuse(&begin("else", "uid:none", NOW + 5000), &refused("x")).await.expect("recorded");
    }
    compare(&journal, 3).await;
    journal.close().await;
    let (journal, _) = self::open(&directory);
    compare(&journal, 3).await;
    let exec =
        Fields::parse(lines[lines.len() - 2].as_bytes()).expect("a record").exec_id.expect("an exec").to_string();
    assert!(!whole_list(&journal, &Filter { exec_id: Some(exec), ..Filter::default() }, 10).await.is_empty());
}

#[tokio::test]
async fn a_clock_that_goes_back_is_recorded_and_does_not_move_the_chain() {
    let (_directory, journal) = fresh();
    for at_ms in [NOW + 100_000, NOW + 99_500, NOW + 10, NOW + 200_000] {
        journal.refuse(&begin("acme", "uid:7", at_ms), &refused("x")).await.expect("recorded");
    }
    let filter = Filter { tenant: Some("acme".to_owned()), ..Filter::default() };
    let times: Vec<_> = whole_list(&journal, &filter, 10)
        .await
        .iter()
        .map(|record| record.fields().map(|fields| (fields.at_ms - NOW, fields.clock_ms)).expect("JSON"))
        .collect();
    assert_eq!(times, [(200_000, None), (100_000, Some(NOW + 10)), (100_000, None), (100_000, None)]);
    assert!(journal.verify(None).await.expect("readable").ok);
}

#[tokio::test]
async fn followers_hear_what_is_committed_in_order() {
    let (_directory, journal) = fresh();
    let mut followed = journal.follow();
    let open = journal.begin(begin("acme", "uid:7", NOW)).await.expect("begun");
    open.end(End::new(Status::Ok, NOW)).await.expect("ended");
    for (seq, kind) in [(2, "begin"), (3, "end")] {
        let record = followed.recv().await.expect("told");
        assert_eq!((record.seq, &*record.fields().expect("JSON").kind), (seq, kind));
    }
}

#[tokio::test]
async fn an_export_verifies_with_nothing_but_the_key_and_a_cut_one_does_not() {
    let (_directory, journal) = fresh();
    for n in 0..20 {
        let open = journal.begin(begin("acme", &format!("uid:{}", n % 2), NOW + n)).await.expect("begun");
        open.end(End { enforcement: Some(enforcement("")), ..End::new(Status::Ok, NOW + n) }).await.expect("ended");
    }
    let key = journal.public_key();
    let export = exported(&journal, Scope::default()).await;
    let verdict = verify_export(&export[..], &key, None).expect("an export");
    assert!(verdict.ok && verdict.records == 43 && verdict.unsigned == 0, "{verdict:?}");
    assert_eq!(verdict.head, journal.head().hash);

    let lines: Vec<&[u8]> = export.split_inclusive(|&byte| byte == b'\n').collect();
    let cut = verify_export(&lines[..20].concat()[..], &key, None).expect("an export");
    assert_eq!(cut.bad.expect("it was cut").fault, Fault::Tail);

    // Cut behind an earlier signature, only the head that somebody kept tells.
    for _ in 0..3 {
        journal.refuse(&begin("acme", "uid:7", NOW + 30), &refused("x")).await.expect("recorded");
    }
    let longer = exported(&journal, Scope::default()).await;
    let head = verify_export(&longer[..], &key, Some(verdict.head)).expect("an export");
    assert!(head.ok, "an earlier head is in a longer chain: {head:?}");
    assert!(verify_export(&export[..], &key, None).expect("an export").ok);
    let short = verify_export(&export[..], &key, Some(head.head)).expect("an export");
    assert_eq!(short.bad.expect("the end is missing").fault, Fault::Head);

    let (_other, stranger) = fresh();
    let foreign = verify_export(&export[..], &stranger.public_key(), None).expect("an export");
    assert_eq!(foreign.bad.expect("another key").fault, Fault::Genesis);
    assert!(matches!(verify_export(&b"{}\n"[..], &key, None), Err(ExportError::Header)));
}

#[tokio::test]
async fn a_filtered_export_withholds_the_rest_and_still_verifies() {
    let (_directory, journal) = fresh();
    for n in 0..30 {
        let open = journal.begin(begin(["acme", "secretive"][n % 2], "uid:7", NOW)).await.expect("begun");
        open.end(End::new(Status::Ok, NOW)).await.expect("ended");
    }
    let filter = Filter { tenant: Some("acme".to_owned()), ..Filter::default() };
    let scope = Scope { from_seq: Some(11), filter };
    let (export, exported) = journal.export(scope, Vec::new()).await.expect("an export");
    let text = String::from_utf8(export.clone()).expect("text");
    assert!(text.contains("acme") && !text.contains("secretive"));
    let verdict = verify_export(&export[..], &journal.public_key(), Some(exported.head.hash)).expect("an export");
    assert!(verdict.ok && verdict.first_seq == 11 && verdict.withheld == exported.withheld, "{verdict:?}");
    assert!(verdict.withheld >= 24, "{verdict:?}");
    let forged = text.replacen("\"digest\":\"", "\"digest\":\"0", 1).replacen("0\",\"seq\"", "\",\"seq\"", 1);
    assert!(!verify_export(forged.as_bytes(), &journal.public_key(), None).expect("an export").ok);
}

#[tokio::test]
async fn what_a_closed_journal_left_open_is_lost_at_the_next_start() {
    let (directory, journal) = fresh();
    let open = journal.begin(begin("acme", "uid:7", NOW)).await.expect("begun");
    let id = open.id().clone();
    // Old enough to stand in the table of open begins, and one that is not.
    for _ in 0..owner::INDEX_EVERY {
        journal.refuse(&begin("acme", "uid:7", NOW), &refused("x")).await.expect("recorded");
    }
    let late = journal.begin(begin("acme", "uid:8", NOW)).await.expect("begun");
    let late_id = late.id().clone();
    assert!(matches!(
        Journal::open(directory.path(), &settings(), NOW),
        Err(EvidenceError::File(FileError::InUse { .. }))
    ));
    journal.clone().close().await;
    assert!(matches!(open.end(End::new(Status::Ok, NOW)).await, Err(EvidenceError::Closed)));
    drop((late, journal));
    let (journal, opened) = self::open(&directory);
    let mut lost = opened.lost.clone();
    lost.sort();
    let mut expected = vec![id.clone(), late_id];
    expected.sort();
    assert_eq!(lost, expected);
    let shown = journal.get(id).await.expect("readable").expect("there");
    assert_eq!(shown.counterpart.expect("closed").fields().expect("JSON").status.as_deref(), Some("lost"));
    let verdict = journal.verify(None).await.expect("readable");
    assert!(verdict.ok && verdict.open == 0, "{verdict:?}");
    journal.close().await;
    assert_eq!(self::open(&directory).1.lost, []);
}

#[tokio::test]
async fn sealed_records_leave_the_database_and_stay_verifiable() {
    let (directory, journal) = fresh();
    let running = journal.begin(begin("acme", "long", NOW)).await.expect("begun");
    for n in 0..2000 {
        let refusal = journal.refuse(&begin("acme", "uid:7", NOW + n), &refused("x"));
        if n % 100 == 0 {
            refusal.await.expect("recorded");
        }
    }
    let head = journal.checkpoint().await.expect("signed");
    let sealed = journal.seal(1500).await.expect("sealed").expect("there is a checkpoint");
    assert!(sealed.first == 1 && sealed.last > 500 && sealed.last <= 1500, "{sealed:?}");
    let filter = Filter { tenant: Some("acme".to_owned()), ..Filter::default() };
    let left = whole_list(&journal, &filter, 1000).await;
    assert!(left.iter().all(|record| record.seq > sealed.last) && left.len() > 400, "{}", left.len());
    running.end(End::new(Status::Ok, NOW + 5000)).await.expect("its begin is sealed, it ends all the same");
    let verdict = journal.verify(Some(head.hash)).await.expect("readable");
    assert!(verdict.ok && verdict.segments == 1 && verdict.first_seq == 1 && verdict.open == 0, "{verdict:?}");
    let read = |path| BufReader::new(fs::File::open(path).expect("the segment"));
    assert!(verify_export(read(&sealed.path), &journal.public_key(), None).expect("a segment").ok);
    // An export is the whole chain again.
    let export = exported(&journal, Scope::default()).await;
    let whole = verify_export(&export[..], &journal.public_key(), Some(head.hash)).expect("an export");
    assert!(whole.ok && whole.first_seq == 1 && whole.records == journal.head().seq, "{whole:?}");

    // A second one, a restart, and then a segment that somebody changed, took away from the middle, or from the start.
    journal.checkpoint().await.expect("signed");
    journal.refuse(&begin("acme", "uid:7", NOW + 5000), &refused("x")).await.expect("recorded");
    let again = journal.seal(u64::MAX).await.expect("sealed").expect("the rest");
    assert_eq!(again.first, sealed.last + 1);
    journal.close().await;
    let (journal, opened) = self::open(&directory);
    assert_eq!(opened.set_aside, None);
    assert!(journal.verify(Some(head.hash)).await.expect("readable").ok);
    let text = fs::read_to_string(&again.path).expect("the segment");
    fs::write(&again.path, text.replacen("\"tenant\":\"acme\"", "\"tenant\":\"acmf\"", 1)).expect("our own file");
    let bad = journal.verify(None).await.expect("readable").bad.expect("it was changed");
    assert!(bad.fault == Fault::Altered && bad.file.is_some() && bad.seq > sealed.last, "{bad}");
    fs::remove_file(&again.path).expect("our own file");
    let bad = journal.verify(None).await.expect("readable").bad.expect("it is gone");
    assert_eq!((bad.seq, bad.fault), (sealed.last + 1, Fault::Missing));
    fs::write(&again.path, text).expect("our own file");
    fs::remove_file(&sealed.path).expect("our own file");
    let verdict = journal.verify(None).await.expect("readable");
    assert!(verdict.ok && verdict.first_seq == sealed.last + 1, "what was moved away shows: {verdict:?}");
}

#[tokio::test]
async fn sealing_that_was_cut_short_goes_on_at_the_next_start() {
    let (directory, journal) = fresh();
    for n in 0..700 {
        journal.refuse(&begin("acme", "uid:7", NOW + n), &refused("x")).await.expect("recorded");
    }
    journal.checkpoint().await.expect("signed");
    journal.refuse(&begin("acme", "uid:7", NOW), &refused("x")).await.expect("recorded");
    journal.close().await;
    // As a kill behind the naming of the segment leaves it: the file is there, and so are its records.
    let before = tempfile::tempdir().expect("a temporary directory");
    for name in [FILE_NAME, SECRET_NAME, "checkpoint.json"] {
        fs::copy(directory.path().join(name), before.path().join(name)).expect("a copy");
    }
    let (journal, _) = open(&directory);
    let sealed = journal.seal(u64::MAX).await.expect("sealed").expect("a checkpoint");
    fs::create_dir(before.path().join(SEGMENTS_DIR)).expect("a directory");
    let name = sealed.path.file_name().expect("a name");
    fs::copy(&sealed.path, before.path().join(SEGMENTS_DIR).join(name)).expect("a copy");

    let (journal, _) = open(&before);
    assert!(journal.verify(None).await.expect("readable").ok, "with records in both places, or just moved");
    let mut at = 0;
    for _ in 0..2000 {
        at = journal.stats().await.expect("figures").sealed;
        if at == sealed.last {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(at, sealed.last);
    let verdict = journal.verify(None).await.expect("readable");
    assert!(verdict.ok && verdict.first_seq == 1 && verdict.segments == 1, "{verdict:?}");
}

#[tokio::test]
async fn a_journal_that_grows_too_large_is_sealed_by_itself() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let small = EvidenceSettings { live_max_bytes: 1 << 20, ..settings() };
    let (journal, _) = Journal::open(directory.path(), &small, NOW).expect("a journal");
    let mut sealed = 0;
    for n in 0..20_000 {
        let refusal = journal.refuse(&begin("acme", "uid:7", NOW + n), &refused("x"));
        if n % 200 == 0 {
            refusal.await.expect("recorded");
            sealed = journal.stats().await.expect("figures").sealed;
            if sealed > 3000 {
                break;
            }
        }
    }
    assert!(sealed > 3000, "{sealed}");
    assert!(journal.verify(None).await.expect("readable").ok);
}

#[test]
fn a_report_is_told_apart_by_its_text() {
    assert_ne!(Short::of("a"), Short::of("b"));
    assert_eq!(Short::parse("zz"), None);
}
