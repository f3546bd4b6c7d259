//! A program that swaps files, directories, links, hard links and FIFOs while the front works in the same area.
//!
//! Whatever it does: never a byte from outside, never a change outside, no wait without end, no panic, and no error
//! that blames the host. The first test shows that the races are real: without the second wall they are lost.
//!
//! `SANDBOXD_RACES` sets how many races are run (10,000), `SANDBOXD_STREAM_MIB` how large the streamed file is (64).

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat, renameat2};
use sandboxd::model::{ExecId, Owner, ProjectId};
use sandboxd::workspace::{
    ArchiveBounds, AreaDir, AreaKind, Contents, Existing, Expected, FileKind, Listing, Make, ManifestBounds, Parents,
    Store, WorkspaceError,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What no operation may ever read.
const SECRET: &[u8] = b"these bytes are from outside";
/// How the names of files outside begin. No operation may ever list one.
const SECRET_NAME: &str = "outside-";
/// Longer than all races together take, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);
const MAKE: Make = Make { existing: Existing::Replace, parents: Parents::MustExist, mode: None, limit: 1 << 20 };

/// The same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// A store, a project in it, and beside it what must not be touched.
struct World {
    directory: TempDir,
    store: Store,
    project: ProjectId,
}

impl World {
    fn new(place: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("sandboxd-races-").tempdir_in(place).expect("a directory");
        fs::create_dir(directory.path().join("projects")).expect("the projects");
        let store = Store::open(&directory.path().join("projects")).expect("a store");
        let project: ProjectId = "p1".parse().expect("a name");
        store.claim(&Self::owner(), &project).expect("a project");
        let world = Self { directory, store, project };
        for path in ["inner", "victims"] {
            fs::create_dir_all(world.outside(path)).expect("a directory outside");
        }
        for number in 0..4 {
            fs::write(world.outside(&format!("{SECRET_NAME}{number}")), SECRET).expect("a file outside");
            fs::write(world.outside(&format!("inner/{SECRET_NAME}{number}")), SECRET).expect("a file outside");
        }
        world
    }

    fn owner() -> Owner {
        Owner { tenant: "t".into(), subject: "a".into() }
    }

    fn area(&self, kind: &AreaKind) -> AreaDir {
        self.store.area(&Self::owner(), &self.project, kind).expect("an area")
    }

    fn work(&self, path: &str) -> PathBuf {
        self.directory.path().join("projects/p1/work").join(path)
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.directory.path().join("beyond").join(path)
    }

    /// Everything outside that could have been changed.
    fn snapshot(&self) -> BTreeMap<PathBuf, (u32, u64, i64, i64, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut directories = vec![self.outside("")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("a directory outside").flatten() {
                let known = entry.metadata().expect("an entry outside");
                let content = if known.is_dir() { vec![] } else { fs::read(entry.path()).expect("a file outside") };
                // Not the time of change: a second name of a file, made by the program, moves it.
                let facts = (known.mode(), known.size(), known.mtime(), known.mtime_nsec(), content);
                found.insert(entry.path(), facts);
                if known.is_dir() {
                    directories.push(entry.path());
                }
            }
        }
        found
    }
}

/// Ends the program when the test is over, also when it fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn fifo(path: &Path) {
    let _ = nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o644)); // it may be there
}

/// A new file, and nothing if the name is taken: a FIFO there would make us wait.
fn new_file(path: &Path) -> io::Result<()> {
    File::options().write(true).create_new(true).open(path)?.write_all(b"inside")
}

fn clear(path: &Path) {
    // Whatever it is. Both may fail: the front changes the same names.
    if fs::remove_file(path).is_err() {
        let _ = fs::remove_dir_all(path);
    }
}

/// One step of the program: makes something new under a name of its own and puts it in the place of `name`.
/// Every error is dropped: the front removes, moves and makes the same names.
fn misbehave(world: &World, program: usize, dice: &mut Dice) {
    // Names of its own: what is made under one must not go through what the other program left there.
    let fresh = |dice: &mut Dice| world.work(&format!("fresh-{program}-{}", dice.roll(4)));
    let aside = fresh(dice);
    let fresh = fresh(dice);
    clear(&fresh);
    let (name, kinds) = [("f", 6), ("d", 7), ("d/sub", 7), ("d/g", 6), ("h", 3)][dice.roll(5) as usize];
    if name == "h" {
        // A second name of a file outside. The kernel does not let a program make one: every area is a mount of its
        // own. So `h` is only written and removed here, as reading it would rightly give what is in it.
        let _ = match dice.roll(kinds) {
            0 => fs::hard_link(world.outside("victims/hard"), &fresh),
            _ => new_file(&fresh),
        };
        let _ = fs::rename(&fresh, world.work(name));
        return;
    }
    match dice.roll(kinds) {
        0 => drop(symlink(world.outside(&format!("{SECRET_NAME}1")), &fresh)),
        1 => drop(symlink(world.outside(""), &fresh)),
        2 => fifo(&fresh),
        3 => drop(symlink("../../../beyond", &fresh)),
        kind if name.starts_with('d') && name != "d/g" => {
            let _ = fs::create_dir(&fresh);
            let _ = fs::create_dir(fresh.join("sub"));
            let _ = new_file(&fresh.join("g"));
            let _ = new_file(&fresh.join("sub/g"));
            if kind == 4 {
                let _ = symlink(world.outside("inner"), fresh.join("out"));
            }
        }
        _ => drop(new_file(&fresh)),
    }
    // Below `d` as it is, not through a link in its place: the kernel keeps a program inside, and so must we.
    let Ok((parent, leaf)) = place_of(world, name) else { return };
    // Two ways to swap: in one step, or out from under whoever is in it.
    let exchange = RenameFlags::RENAME_EXCHANGE;
    let swapped = renameat2(AT_FDCWD, &fresh, &parent, leaf, exchange);
    if swapped.is_err() || dice.roll(4) == 0 {
        let _ = renameat(&parent, leaf, AT_FDCWD, &aside);
        let _ = renameat(AT_FDCWD, &fresh, &parent, leaf);
    }
}

fn place_of<'a>(world: &World, name: &'a str) -> io::Result<(File, &'a str)> {
    let (directory, leaf) = name.split_once('/').unwrap_or((".", name));
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    Ok((File::options().read(true).custom_flags(flags).open(world.work(directory))?, leaf))
}

/// Runs `test` beside a program that misbehaves, and fails if it does not come back.
fn beside_a_program(place: &Path, test: impl FnOnce(&World, &mut Dice) + Send + 'static) {
    let place = place.to_owned();
    let (done, finished) = mpsc::channel();
    let runner = std::thread::spawn(move || {
        let world = World::new(&place);
        fs::write(world.outside("victims/hard"), SECRET).expect("a file outside");
        // So that the file always has a name more than the one that the front may come by.
        fs::hard_link(world.outside("victims/hard"), world.outside("victims/keep")).expect("a second name");
        let before = world.snapshot();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (program, seed) in [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03].into_iter().enumerate() {
                let (world, stop) = (&world, &stop);
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    let started = Instant::now();
                    while !stop.load(Ordering::Relaxed) && started.elapsed() < PATIENCE {
                        misbehave(world, program, &mut dice);
                    }
                });
            }
            let _stop = Stop(&stop);
            test(&world, &mut Dice(42));
        });
        assert_eq!(world.snapshot(), before, "something outside was changed");
        let _ = done.send(()); // nobody listens any more: it took too long
    });
    match finished.recv_timeout(PATIENCE) {
        Ok(()) => runner.join().expect("the test"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("an operation hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(runner.join().expect_err("it ended without a word"))
        }
    }
}

/// Memory if there is some: races are denser where nothing waits for a disk.
fn quick_place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// How often each operation came through and how often it was refused.
#[derive(Debug, Default)]
struct Score(BTreeMap<&'static str, (u64, u64)>);

impl Score {
    fn note<T>(&mut self, what: &'static str, answer: Result<T, WorkspaceError>) -> Option<T> {
        let score = self.0.entry(what).or_default();
        match answer {
            Ok(value) => {
                score.0 += 1;
                Some(value)
            }
            Err(WorkspaceError::Host { what: doing, source }) => {
                panic!("{what}: a program made the host look guilty: could not {doing}: {source}")
            }
            Err(_) => {
                score.1 += 1;
                None
            }
        }
    }
}

fn assert_inside(what: &str, bytes: &[u8]) {
    let leaked = bytes.windows(SECRET.len()).any(|window| window == SECRET);
    assert!(!leaked, "{what} gave bytes from outside");
}

/// One operation of the front on a name that the program is playing with.
fn operate(area: &AreaDir, dice: &mut Dice, score: &mut Score) {
    let path = ["f", "d/g", "d/sub/g", "d/sub/sub/g", "d/out/outside-1", "d/outside-1"][dice.roll(6) as usize];
    // Not a name from outside: what the front makes itself must not look like a leak.
    let new = ["f", "d/g", "d/sub/g", "d/sub/sub/g", "d/out/new", "d/new"][dice.roll(6) as usize];
    let directory = ["d", "d/sub", "d/sub/sub", "d/out"][dice.roll(4) as usize];
    match dice.roll(14) {
        0 => {
            if let Some(content) = score.note("read", area.read(path, 0, 1 << 20)) {
                assert_inside("read", &content.bytes);
            }
        }
        1 => {
            if let Some(mut download) = score.note("download", area.download(path)) {
                let mut buffer = vec![0; 4096];
                while let Some(count @ 1..) = score.note("download", download.read(&mut buffer)) {
                    assert_inside("download", &buffer[..count]);
                }
            }
        }
        2 => drop(score.note("write", area.write(new, b"inside", MAKE))),
        3 => drop(score.note("append", area.append(new, b"inside", MAKE))),
        4 => {
            let make = Make { parents: Parents::Make, existing: Existing::Refuse, ..MAKE };
            if let Some(mut upload) = score.note("upload", area.upload(new, make)) {
                score.note("upload", upload.write(b"in").and_then(|()| upload.write(b"side")));
                score.note("upload", upload.commit(Expected { size: Some(6), sha256: None }));
            }
        }
        5 => drop(score.note("append to a hard link", area.append("h", b"inside", MAKE))),
        6 => {
            score.note("write over a hard link", area.write("h", b"inside", MAKE));
        }
        7 => drop(score.note("remove", area.remove(path, Contents::Refuse))),
        8 => drop(score.note("remove a tree", area.remove(directory, Contents::Remove))),
        9 => {
            let listing = Listing { path: directory, levels: 5, limit: 3, after: None };
            if let Some(page) = score.note("list", area.list(listing)) {
                for entry in page.entries {
                    let name = entry.path.to_string_lossy().into_owned();
                    assert!(!name.contains(SECRET_NAME), "listed {name} from outside");
                }
                let after = page.next.as_deref();
                score.note("list on", area.list(Listing { after, ..listing }));
            }
        }
        10 => {
            let to = ["d/moved", "moved", "d/sub/moved", "d/out/moved"][dice.roll(4) as usize];
            let existing = if dice.roll(2) == 0 { Existing::Refuse } else { Existing::Replace };
            score.note("move", area.rename(path, to, existing));
        }
        11 => {
            let mut archive = Vec::new();
            let bounds = ArchiveBounds { entries: 1000, bytes: 1 << 20 };
            let whole = score.note("archive", area.archive(directory, bounds, &mut archive)).is_some();
            assert_inside("an archive", &archive);
            if whole {
                for entry in tar::Archive::new(&archive[..]).entries().expect("an archive") {
                    let entry = entry.expect("an entry");
                    let name = entry.path().expect("a path").to_string_lossy().into_owned();
                    assert!(!name.contains(SECRET_NAME), "archived {name} from outside");
                }
            }
        }
        12 => {
            score.note("make directories", area.make_directory("d/sub/made/deep", Parents::Make));
            score.note("usage", area.disk_usage());
        }
        _ => {
            if let Some(meta) = score.note("stat", area.stat(path)) {
                let secret = meta.kind == FileKind::File && meta.size == SECRET.len() as u64;
                assert!(!secret, "looked at a file outside");
            }
        }
    }
}

#[test]
fn the_races_are_lost_without_the_wall() {
    beside_a_program(&quick_place(), |world, _| {
        let started = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            // As a careless daemon would: look first, then open by name. Not waiting for FIFOs, for the test's sake.
            let path = world.work("f");
            let plain = fs::symlink_metadata(&path).is_ok_and(|known| known.is_file());
            let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            let mut content = Vec::new();
            if plain && let Ok(mut file) = opened {
                let _ = file.read_to_end(&mut content); // a directory by now
            }
            if content == SECRET {
                println!("lost after {tries} tries");
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "never in {tries} tries: the program is too tame");
        }
    });
}

#[test]
fn ten_thousand_races_stay_inside() {
    beside_a_program(&quick_place(), |world, dice| {
        let area = world.area(&AreaKind::Work);
        let mut score = Score::default();
        for _ in 0..number("SANDBOXD_RACES", 10_000) {
            operate(&area, dice, &mut score);
        }
        println!("came through / refused: {:#?}", score.0);
        // A race that always ends the same way is none. What these do is never refused by right.
        let never_refused = ["usage", "list on", "write over a hard link"];
        for (what, (through, refused)) in &score.0 {
            assert!(*through > 0, "{what} never came through");
            assert!(*refused > 0 || never_refused.contains(what), "{what} was never refused");
        }
        let left = fs::read_dir(world.directory.path().join("projects/p1/.new")).expect("the staging directory");
        assert_eq!(left.count(), 0, "half-written files are left");
    });
}

#[test]
fn races_on_a_disk_stay_inside() {
    beside_a_program(&std::env::temp_dir(), |world, dice| {
        let area = world.area(&AreaKind::Work);
        let mut score = Score::default();
        let started = Instant::now();
        for _ in 0..number("SANDBOXD_RACES", 10_000) / 10 {
            operate(&area, dice, &mut score);
            if started.elapsed() > PATIENCE / 3 {
                println!("a slow disk: {:#?}", score.0);
                break;
            }
        }
    });
}

#[test]
fn recording_wins_over_a_program_that_plants_our_names() {
    let world = World::new(&quick_place());
    let exec = ExecId::generate();
    let none: Vec<(&str, &[u8])> = vec![];
    world.store.lay(&exec, &World::owner(), Some(&world.project), "", none.into_iter()).expect("laid down");
    let area = world.area(&AreaKind::Artifacts(exec.clone()));
    let path = world.directory.path().join("projects/p1/artifacts").join(exec.as_str());
    let before = world.snapshot();
    let stop = AtomicBool::new(false);
    let mut score = Score::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(7);
            let started = Instant::now();
            while !stop.load(Ordering::Relaxed) && started.elapsed() < PATIENCE {
                let name = ["stdout.txt", "stderr.txt", "meta.json", "manifest.json"][dice.roll(4) as usize];
                let (name, fresh) = (path.join(name), path.join("fresh"));
                clear(&fresh);
                match dice.roll(4) {
                    0 => drop(symlink(world.outside("outside-1"), &fresh)),
                    1 => drop(symlink(world.outside(""), &fresh)),
                    2 => fifo(&fresh),
                    _ => drop(fs::create_dir_all(fresh.join("deep"))),
                }
                let _ = fs::rename(&fresh, &name);
            }
        });
        let _stop = Stop(&stop);
        let bounds = ManifestBounds { entries: 1000, bytes: 1 << 20 };
        for _ in 0..number("SANDBOXD_RACES", 10_000) / 20 {
            score.note("record", area.record(b"out", b"err", &serde_json::json!({}), bounds));
        }
    });
    println!("{:?}", score.0);
    let bounds = ManifestBounds { entries: 1000, bytes: 1 << 20 };
    area.record(b"out", b"err", &serde_json::json!({}), bounds).expect("the program has ended");
    for (name, content) in [("stdout.txt", "out"), ("stderr.txt", "err"), ("meta.json", "{}\n")] {
        assert!(fs::symlink_metadata(path.join(name)).expect("ours").is_file());
        assert_eq!(fs::read_to_string(path.join(name)).expect("ours"), content);
    }
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_file_whose_length_changes_is_whole_or_reported() {
    const LONG: u64 = 1 << 20;
    let world = World::new(&quick_place());
    let area = world.area(&AreaKind::Work);
    let file = File::create(world.work("f")).expect("a file");
    let stop = AtomicBool::new(false);
    let (mut whole, mut shrank) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            while !stop.load(Ordering::Relaxed) && started.elapsed() < PATIENCE {
                file.set_len(LONG).expect("longer");
                std::thread::yield_now();
                file.set_len(LONG / 2).expect("shorter");
            }
        });
        let _stop = Stop(&stop);
        let mut buffer = vec![0; 16 << 10];
        let started = Instant::now();
        while (whole < 100 || shrank < 100) && started.elapsed() < Duration::from_secs(60) {
            let mut download = area.download("f").expect("the file");
            let promised = download.meta().size;
            let mut received = 0;
            loop {
                match download.read(&mut buffer) {
                    Ok(0) => {
                        assert_eq!(received, promised, "less came than was promised, in silence");
                        whole += 1;
                        break;
                    }
                    Ok(count) => received += count as u64,
                    Err(WorkspaceError::Shrank { .. }) => {
                        shrank += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    println!("whole {whole}, reported as shorter {shrank}");
    assert!(whole >= 100 && shrank >= 100, "both must happen: {whole} {shrank}");
}

/// The most memory that this process ever held, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the peak of memory");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[test]
fn a_large_file_streams_both_ways_in_little_memory() {
    let mib = number("SANDBOXD_STREAM_MIB", 64);
    let world = World::new(&std::env::temp_dir());
    let area = world.area(&AreaKind::Work);
    let chunk = vec![0; 1 << 20];
    let before = peak_kib();
    let started = Instant::now();
    let mut upload = area.upload("large", Make { limit: mib << 20, ..MAKE }).expect("begun");
    for _ in 0..mib {
        upload.write(&chunk).expect("a chunk");
    }
    assert!(matches!(upload.write(b"x"), Err(WorkspaceError::TooLarge { .. })));
    let written = upload.commit(Expected { size: Some(mib << 20), sha256: None }).expect("committed");
    let uploaded = started.elapsed();
    let download = area.download("large").expect("the file");
    assert_eq!(download.left(), mib << 20);
    assert_eq!(download.sha256().expect("a digest"), written.sha256);
    let grown = peak_kib().saturating_sub(before);
    println!("{mib} MiB up in {uploaded:?}, down in {:?}, {grown} KiB more memory", started.elapsed() - uploaded);
    // The other tests of this process have their share in it.
    assert!(grown < 40 << 10, "{grown} KiB more memory for {mib} MiB");
}

#[test]
fn an_archive_of_a_large_file_streams() {
    let world = World::new(&std::env::temp_dir());
    let area = world.area(&AreaKind::Work);
    File::create(world.work("hole")).expect("a file").set_len(64 << 20).expect("a sparse file");
    let bounds = ArchiveBounds { entries: 10, bytes: 64 << 20 };
    let archived = area.archive(".", bounds, io::sink()).expect("an archive");
    assert_eq!((archived.entries, archived.bytes), (1, 64 << 20));
}
