//! The journal against the world: `kill -9` at any moment, a hand in its files, a full disk, a second daemon.
//!
//! The children are this binary again, told by [`CHILD`] which directory to work in.

use proptest::prelude::*;
use rusqlite::Connection;
use sandboxd::evidence::{
    Bad, Begin, Digest, Durability, End, EvidenceError, EvidenceId, EvidenceSettings, FILE_NAME, Fault, Filter,
    Journal, Operation, Refused, Scope, Status, verify_export,
};
use sandboxd::sqlite::file::FileError;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Variable that makes a test of this binary a child; its value is the directory.
const CHILD: &str = "SANDBOXD_TEST_EVIDENCE_CHILD";
/// Variable that says how durable the child writes.
const DURABILITY: &str = "SANDBOXD_TEST_EVIDENCE_DURABILITY";
/// Tasks in a child that record at the same time.
const TASKS: u64 = 8;
const NOW: u64 = 1_790_000_000_000;

fn settings(durability: Durability) -> EvidenceSettings {
    EvidenceSettings { durability, ..EvidenceSettings::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn begin(subject: &str) -> Begin {
    let mut begin = Begin::new(Operation::Exec, "acme", subject, "process.exec:python", NOW);
    begin.inputs_digest = Some(Digest::of(subject));
    begin
}

fn refused() -> Refused {
    Refused { code: "x".to_owned(), class: "POLICY.DENY_TOOL".to_owned(), reason: None }
}

/// Starts the test `name` of this binary as a child on `directory`.
fn child(name: &str, directory: &Path, durability: &str) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, directory)
        .env(DURABILITY, durability)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this binary runs")
}

/// One write per line, so that a kill never leaves half of one between two others.
fn say(line: String) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
}

/// As a child: every task begins, ends, refuses and forgets until it is killed, and says each thing after it was answered.
#[test]
fn child_that_records_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let durability = match std::env::var(DURABILITY).as_deref() {
        Ok("fsync") => Durability::Fsync,
        _ => Durability::Process,
    };
    runtime().block_on(async {
        let (journal, _) = Journal::open(Path::new(&directory), &settings(durability), NOW).expect("the journal");
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let journal = journal.clone();
            tasks.spawn(async move {
                for turn in 0.. {
                    let begin = begin(&format!("task {task}"));
                    if turn % 7 == 3 {
                        let id = journal.refuse(&begin, &refused()).await.expect("recorded");
                        say(format!("refused {id}\n"));
                        continue;
                    }
                    let open = journal.begin(begin).await.expect("begun");
                    let id = open.id().clone();
                    say(format!("begun {id}\n"));
                    if turn % 5 == 4 {
                        std::mem::forget(open); // an exec that is still running when the kill comes
                    } else {
                        open.end(End::new(Status::Ok, NOW)).await.expect("ended");
                        say(format!("ended {id}\n"));
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

#[test]
fn kills_at_any_moment_lose_nothing_that_was_answered() {
    const KILLS: u64 = 20;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime = runtime();
    let mut told: HashMap<EvidenceId, &str> = HashMap::new();
    let (mut lost, mut from_slate) = (0, 0);
    for kill in 0..KILLS {
        let durability = if kill % 2 == 0 { "process" } else { "fsync" };
        let mut child = child("child_that_records_until_it_is_killed", directory.path(), durability);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut killer = None;
        let pid = rustix::process::Pid::from_child(&child);
        // Some kills fall into the first commits, others behind an index and a checkpoint.
        let moment = Duration::from_micros((kill * 7919 + u64::from(std::process::id()) * 104_729) % 150_000);
        for line in lines.by_ref() {
            let (word, id) = line.split_once(' ').unwrap_or_default();
            let Ok(id) = id.parse::<EvidenceId>() else { continue }; // the harness, or a line that the kill cut
            match word {
                "begun" => drop(told.insert(id, "begun")),
                "ended" => drop(told.insert(id, "ended")),
                "refused" => drop(told.insert(id, "refused")),
                _ => continue,
            }
            killer.get_or_insert_with(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(moment);
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our own child");
                })
            });
        }
        killer.expect("the child recorded something").join().expect("no panic");
        let ended = child.wait().expect("our own child");
        assert!(ended.code().is_none(), "the child ended by itself: {ended}");

        runtime.block_on(async {
            let (journal, opened) =
                Journal::open(directory.path(), &settings(Durability::Process), NOW).expect("sound after a kill");
            assert_eq!((opened.set_aside, opened.warnings), (None, Vec::new()));
            lost += opened.lost.len();
            from_slate += opened.from_slate;
            let verdict = journal.verify(None).await.expect("readable");
            assert!(verdict.ok && verdict.open == 0, "{verdict:?}");
            let (mut kinds, mut ends): (HashMap<String, String>, HashMap<String, Vec<String>>) = Default::default();
            let mut cursor = None;
            loop {
                let page = journal.list(Filter::default(), cursor, 1000).await.expect("a page");
                for record in &page.items {
                    let fields = record.fields().expect("JSON");
                    kinds.insert(fields.id.to_string(), fields.kind.to_string());
                    if let (Some(begin), Some(status)) = (&fields.begin, &fields.status) {
                        ends.entry(begin.to_string()).or_default().push(status.to_string());
                    }
                }
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            for (id, word) in &told {
                let ends = ends.get(id.as_str()).map_or(&[][..], |ends| &ends[..]);
                match *word {
                    "refused" => assert_eq!(kinds[id.as_str()], "refusal"),
                    // The end may have been kept and not told.
                    "begun" => assert!(ends == ["lost"] || ends == ["ok"], "{id}: {ends:?}"),
                    _ => assert_eq!(ends, ["ok"], "{id}"),
                }
            }
            for (id, _) in kinds.iter().filter(|(_, kind)| *kind == "begin") {
                assert_eq!(ends[id].len(), 1, "{id} has one end");
            }
            journal.close().await;
        });
    }
    println!("{KILLS} kills: {} records told, {from_slate} from the slate, {lost} lost with their daemon", told.len());
    assert!(lost > 0, "no kill left a record open");
    assert!(from_slate > 0, "no kill left a record on the slate");
}

/// A journal with some hundred records, some of them indexed, a segment, and its export; made once.
struct Sample {
    directory: tempfile::TempDir,
    key: sandboxd::evidence::PublicKey,
    export: Vec<u8>,
    first: u64,
    last: u64,
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        runtime().block_on(async {
            let (journal, _) =
                Journal::open(directory.path(), &settings(Durability::Process), NOW).expect("a new journal");
            for n in 0..150 {
                let open = journal.begin(begin(&format!("uid:{}", n % 3))).await.expect("begun");
                open.end(End::new(Status::Ok, NOW)).await.expect("ended");
            }
            journal.checkpoint().await.expect("signed");
            journal.refuse(&begin("uid:7"), &refused()).await.expect("recorded");
            let sealed = journal.seal(u64::MAX).await.expect("sealed").expect("a checkpoint");
            for n in 0..300 {
                let open = journal.begin(begin(&format!("uid:{}", n % 3))).await.expect("begun");
                open.end(End::new(Status::Ok, NOW)).await.expect("ended");
            }
            let scope = Scope { from_seq: Some(sealed.last + 1), ..Scope::default() };
            let (export, exported) = journal.export(scope, Vec::new()).await.expect("an export");
            let key = journal.public_key();
            journal.close().await;
            Sample { directory, key, export, first: sealed.last + 1, last: exported.head.seq }
        })
    })
}

/// A copy of the sample that may be spoilt.
fn copy_of(sample: &Sample) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copied =
        Command::new("cp").args(["-a", "--"]).arg(sample.directory.path().join(".")).arg(directory.path()).status();
    assert!(copied.expect("cp").success());
    let file = directory.path().join(FILE_NAME);
    (directory, file)
}

#[derive(Debug, Clone)]
enum Meddling {
    /// One byte of one line.
    Flip(u64, usize, u8),
    /// One byte of one hash.
    Hash(u64, usize, u8),
    Drop(u64),
    Swap(u64, u64),
    /// A copy of a record between two others.
    Insert(u64),
    /// What it is listed under.
    Key(u64),
    NoKey(u64),
    MoreKey(u64),
}

impl Meddling {
    /// The first record that is not what it was.
    fn first_bad(&self) -> u64 {
        match *self {
            Self::Flip(seq, ..) | Self::Hash(seq, ..) | Self::Drop(seq) => seq,
            Self::Key(seq) | Self::NoKey(seq) | Self::MoreKey(seq) => seq,
            Self::Swap(a, b) => a.min(b),
            Self::Insert(seq) => seq + 1,
        }
    }

    /// On the database. The writer is not running; `verify` sees what a hand left there.
    fn meddle(&self, connection: &Connection) {
        let change = |sql: &str, seq: u64| assert!(connection.execute(sql, [seq]).expect("a change") > 0, "{self:?}");
        let blob = |column: &str, seq: u64| -> Vec<u8> {
            let sql = format!("SELECT {column} FROM records WHERE seq = ?1");
            connection.query_row(&sql, [seq], |row| row.get(0)).expect("a record")
        };
        let set = |column: &str, seq: u64, bytes: &[u8]| {
            let sql = format!("UPDATE records SET {column} = ?1 WHERE seq = ?2");
            assert_eq!(connection.execute(&sql, (bytes, seq)).expect("a change"), 1);
        };
        match *self {
            Self::Flip(seq, place, with) | Self::Hash(seq, place, with) => {
                let column = if matches!(self, Self::Flip(..)) { "line" } else { "hash" };
                let mut bytes = blob(column, seq);
                let place = place % bytes.len();
                bytes[place] ^= with;
                set(column, seq, &bytes);
            }
            Self::Drop(seq) => change("DELETE FROM records WHERE seq = ?1", seq),
            Self::Swap(a, b) => {
                for column in ["line", "hash"] {
                    let (of_a, of_b) = (blob(column, a), blob(column, b));
                    set(column, a, &of_b);
                    set(column, b, &of_a);
                }
            }
            Self::Insert(seq) => {
                connection
                    .execute_batch(&format!(
                        "UPDATE records SET seq = -seq - 1 WHERE seq > {seq}; UPDATE records SET seq = -seq WHERE seq < 0;
                         INSERT INTO records SELECT seq + 1, hash, line FROM records WHERE seq = {seq}"
                    ))
                    .expect("an insertion");
            }
            Self::Key(seq) => change(
                // The highest: one above it is none of the others, where the ids of a begin and its end may be neighbours.
                "UPDATE keys SET key = key + 1 WHERE seq = ?1 AND key = (SELECT max(key) FROM keys WHERE seq = ?1)",
                seq,
            ),
            Self::NoKey(seq) => {
                change("DELETE FROM keys WHERE seq = ?1 AND key = (SELECT max(key) FROM keys WHERE seq = ?1)", seq)
            }
            Self::MoreKey(seq) => change("INSERT INTO keys (key, seq) VALUES (7, ?1)", seq),
        }
    }

    /// The same on an export.
    fn meddle_export(&self, sample: &Sample) -> Option<Vec<u8>> {
        let mut lines: Vec<Vec<u8>> =
            sample.export.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        let line = |seq: u64| usize::try_from(seq - sample.first).expect("small") + 1;
        match *self {
            Self::Flip(seq, place, with) => {
                // Behind the hash, before the end of the line.
                let length = lines[line(seq)].len();
                lines[line(seq)][83 + place % (length - 83 - 2)] ^= with;
            }
            Self::Hash(seq, place, with) => lines[line(seq)][9 + place % 64] ^= with,
            Self::Drop(seq) => drop(lines.remove(line(seq))),
            Self::Swap(a, b) => lines.swap(line(a), line(b)),
            Self::Insert(seq) => lines.insert(line(seq) + 1, lines[line(seq)].clone()),
            Self::Key(_) | Self::NoKey(_) | Self::MoreKey(_) => return None,
        }
        Some(lines.concat())
    }
}

fn meddling() -> impl Strategy<Value = Meddling> {
    let sample = sample();
    // Not the last, whose loss is the head's business; and the index reaches to the export's checkpoint.
    let seq = sample.first..sample.last;
    let byte = 1u8..=255;
    prop_oneof![
        (seq.clone(), any::<usize>(), byte.clone()).prop_map(|(seq, place, with)| Meddling::Flip(seq, place, with)),
        (seq.clone(), any::<usize>(), byte).prop_map(|(seq, place, with)| Meddling::Hash(seq, place, with)),
        seq.clone().prop_map(Meddling::Drop),
        (seq.clone(), seq.clone()).prop_filter("two", |(a, b)| a != b).prop_map(|(a, b)| Meddling::Swap(a, b)),
        seq.clone().prop_map(Meddling::Insert),
        seq.clone().prop_map(Meddling::Key),
        seq.clone().prop_map(Meddling::NoKey),
        seq.prop_map(Meddling::MoreKey),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_one_change_is_found_and_the_first_bad_record_named(meddling in meddling()) {
        let sample = sample();
        let (directory, file) = copy_of(sample);
        let bad = runtime().block_on(async {
            // Open first: a start looks at the end of the chain and would set aside what it finds there.
            let (journal, opened) =
                Journal::open(directory.path(), &settings(Durability::Process), NOW).expect("the copy");
            assert_eq!(opened.set_aside, None);
            meddling.meddle(&Connection::open(&file).expect("a hand in the file"));
            let bad = journal.verify(None).await.expect("readable").bad;
            journal.close().await;
            bad
        });
        let Bad { seq, fault, .. } = bad.expect("it is found");
        prop_assert_eq!(seq, meddling.first_bad(), "{:?}: {}", meddling, fault);
        let of_index = matches!(meddling, Meddling::Key(_) | Meddling::NoKey(_) | Meddling::MoreKey(_));
        prop_assert_eq!(fault == Fault::Index, of_index, "{:?}: {}", meddling, fault);
        if let Some(export) = meddling.meddle_export(sample) {
            let verdict = verify_export(&export[..], &sample.key, None).expect("an export");
            prop_assert_eq!(verdict.bad.map(|bad| bad.seq), Some(meddling.first_bad()), "export, {:?}", meddling);
        }
    }
}

#[test]
fn the_sample_itself_is_good() {
    let sample = sample();
    assert!(verify_export(&sample.export[..], &sample.key, None).expect("an export").ok);
    let (directory, _) = copy_of(sample);
    runtime().block_on(async {
        let (journal, _) = Journal::open(directory.path(), &settings(Durability::Process), NOW).expect("the copy");
        let verdict = journal.verify(None).await.expect("readable");
        assert!(verdict.ok && verdict.segments == 1, "{verdict:?}");
    });
}

/// What a start makes of a journal that `spoil` had its hands in.
fn reopened(spoil: impl FnOnce(&Path)) -> (tempfile::TempDir, Journal, sandboxd::evidence::Opened) {
    let (directory, file) = copy_of(sample());
    spoil(&file);
    let (journal, opened) =
        Journal::open(directory.path(), &settings(Durability::Process), NOW + 1).expect("a journal in any case");
    (directory, journal, opened)
}

#[test]
fn a_damaged_journal_is_set_aside_and_named_by_the_next() {
    let bytes = |file: &Path| std::fs::read(file).expect("the file");
    let sql = |file: &Path, sql: &str| Connection::open(file).expect("a hand").execute_batch(sql).expect("a change");
    type Spoil<'a> = Box<dyn FnOnce(&Path) + 'a>;
    let cases: Vec<(&str, Spoil<'_>)> = vec![
        ("text", Box::new(|file| std::fs::write(file, "no database, long enough".repeat(500)).expect("ours"))),
        ("empty", Box::new(|file| std::fs::write(file, "").expect("ours"))),
        ("cut", Box::new(|file| std::fs::write(file, &bytes(file)[..20_000]).expect("ours"))),
        ("zeroes", Box::new(|file| std::fs::write(file, vec![0; bytes(file).len()]).expect("ours"))),
        ("foreign", Box::new(|file| sql(file, "PRAGMA application_id = 7"))),
        ("no end", Box::new(|file| sql(file, "DELETE FROM records WHERE seq > (SELECT max(seq) - 5 FROM records)"))),
        ("no records", Box::new(|file| sql(file, "DELETE FROM records"))),
        ("nothing", Box::new(|file| sql(file, "DELETE FROM records; DELETE FROM state"))),
        (
            "last changed",
            Box::new(|file| {
                sql(
                    file,
                    "UPDATE records SET line = CAST(replace(CAST(line AS TEXT), 'acme', 'acmf') AS BLOB) WHERE seq = (SELECT max(seq) - 3 FROM records)",
                );
            }),
        ),
        ("gone", Box::new(|file| std::fs::remove_file(file).expect("ours"))),
    ];
    for (name, spoil) in cases {
        let mut before = None;
        let (directory, journal, opened) = reopened(|file| {
            spoil(file);
            before = std::fs::read(file).ok();
        });
        let set_aside = opened.set_aside.unwrap_or_else(|| panic!("{name}: it was taken"));
        let left = set_aside.path.as_ref().map(|path| std::fs::read(path).expect("what was set aside"));
        assert_eq!(left, before, "{name}: it is kept as it was");
        runtime().block_on(async {
            let page = journal.list(Filter::default(), None, 10).await.expect("a page");
            let genesis: serde_json::Value = serde_json::from_str(&page.items[0].line).expect("JSON");
            let file = set_aside.path.as_ref().and_then(|path| path.file_name()).and_then(|file| file.to_str());
            assert_eq!(genesis["previous"]["file"].as_str(), file, "{name}: {genesis}");
            assert_eq!(genesis["previous"]["why"].as_str(), Some(&*set_aside.why), "{name}");
            assert!(genesis["previous"]["checkpoint_seq"].is_u64(), "{name}: what was signed for is known: {genesis}");
            journal.refuse(&begin("uid:7"), &refused()).await.expect("it works");
            let verdict = journal.verify(None).await.expect("readable");
            assert!(verdict.ok && verdict.segments == 1, "{name}: the old chain's segment is still good: {verdict:?}");
            journal.close().await;
        });
        let (journal, opened) =
            Journal::open(directory.path(), &settings(Durability::Process), NOW + 2).expect("the new one");
        assert_eq!(opened.set_aside, None, "{name}: once is enough");
        drop(journal);
    }
}

#[test]
fn a_key_that_is_gone_or_another_stops_the_start_and_changes_nothing() {
    let (directory, _) = copy_of(sample());
    let open = || Journal::open(directory.path(), &settings(Durability::Process), NOW);
    let key = directory.path().join(sandboxd::evidence::SECRET_NAME);
    let secret = std::fs::read(&key).expect("the key");
    std::fs::remove_file(&key).expect("ours");
    assert!(matches!(open(), Err(EvidenceError::Key(_))));
    std::fs::write(&key, "11".repeat(32)).expect("ours");
    assert!(matches!(open(), Err(EvidenceError::Key(_))));
    std::fs::write(&key, secret).expect("ours");
    assert_eq!(open().expect("as before").1.set_aside, None);
}

/// As a child: says how opening went.
#[test]
fn child_that_opens() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    match Journal::open(Path::new(&directory), &settings(Durability::Process), NOW) {
        Err(EvidenceError::File(FileError::InUse { .. })) => say("opening: in use\n".to_owned()),
        other => say(format!("opening: {}\n", if other.is_ok() { "fine" } else { "failed" })),
    }
}

#[test]
fn another_process_cannot_open_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let opening = || {
        let output = child("child_that_opens", directory.path(), "process").wait_with_output().expect("the child ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.split("opening: ").nth(1).expect("it said").lines().next().expect("a line").to_owned()
    };
    let (journal, _) = Journal::open(directory.path(), &settings(Durability::Process), NOW).expect("a new journal");
    assert_eq!(opening(), "in use");
    runtime().block_on(journal.close());
    assert_eq!(opening(), "fine");
}

/// Runs `work` with a tmpfs of so many bytes on a directory of its own. It is mounted in a mount namespace of the
/// thread's, so nobody else sees it and it goes away with the thread.
fn on_a_small_disk(bytes: u64, work: impl FnOnce(&Path) + Send + 'static) {
    use nix::mount::{MsFlags, mount};
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_owned();
    let ran = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("a mount namespace; run as root");
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).expect("private mounts");
        let options = format!("size={bytes},mode=0700");
        mount(Some("small"), &path, Some("tmpfs"), MsFlags::empty(), Some(&*options)).expect("a tmpfs");
        work(&path);
    });
    ran.join().expect("no panic");
}

#[test]
fn on_a_full_disk_nothing_is_begun_and_what_runs_is_ended() {
    const RUNNING: usize = 40;
    on_a_small_disk(32 << 20, |disk| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let directory = disk.join("evidence");
            let (journal, _) = Journal::open(&directory, &settings(Durability::Fsync), NOW).expect("a new journal");
            let mut running = Vec::new();
            for n in 0..RUNNING {
                running.push(journal.begin(begin(&format!("uid:{n}"))).await.expect("begun"));
            }
            let mut filler = std::fs::File::create(disk.join("filler")).expect("a file");
            let full = (0..1000).find_map(|_| filler.write_all(&[7; 65536]).err()).expect("the disk fills up");
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

            // The log has a little room that is its own already; when that is used up, nothing is begun.
            let mut begun = 0;
            let error = loop {
                match journal.begin(begin("uid:more")).await {
                    Ok(open) => running.push(open),
                    Err(error) => break error,
                }
                begun += 1;
                assert!(begun < 5000, "it never noticed");
            };
            assert!(matches!(error, EvidenceError::Full { .. }), "{error:?}");
            assert!(error.to_string().contains("full; nothing is started"), "{error}");
            assert!(matches!(journal.refuse(&begin("uid:no"), &refused()).await, Err(EvidenceError::Full { .. })));
            assert!(journal.stats().await.expect("figures").full);
            let all = running.len() as u64;
            for open in running {
                open.end(End::new(Status::Ok, NOW)).await.expect("there is room for every end");
            }
            let verdict = journal.verify(None).await.expect("readable");
            assert!(verdict.ok && verdict.open == 0 && verdict.records > 2 * all, "{verdict:?}");
            assert!(matches!(journal.begin(begin("uid:more")).await, Err(EvidenceError::Full { .. })));

            drop(filler);
            std::fs::remove_file(disk.join("filler")).expect("our own file");
            let mut again = Err(EvidenceError::Closed);
            for _ in 0..100 {
                again = journal.begin(begin("uid:again")).await;
                if again.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            again.expect("there is room again").end(End::new(Status::Ok, NOW)).await.expect("ended");
            let stats = journal.stats().await.expect("figures");
            assert!(!stats.full && stats.open == 0, "{stats:?}");
            journal.close().await;
            println!("{begun} begins fitted into what the log had");
        });
    });
}
