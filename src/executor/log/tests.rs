use super::*;
use proptest::prelude::*;

const ALL: Wanted = Wanted { only: None, events: true, characters: false };

fn store() -> (tempfile::TempDir, Arc<Store>) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Arc::new(Store::open(directory.path()).expect("a store"));
    (directory, store)
}

fn log(store: Option<Arc<Store>>) -> Log {
    let log = Log::new(store);
    log.bound([u64::MAX; 2]);
    log
}

async fn read(log: &Log, after: u64, wanted: Wanted, most: usize) -> Excerpt {
    log.after(after, wanted, most, Duration::ZERO).await.expect("within the log")
}

#[tokio::test]
async fn every_byte_and_every_event_takes_a_position() {
    let log = log(None);
    log.event(Event::Queued);
    log.event(Event::Started);
    log.append(Channel::Stdout, b"hel");
    log.append(Channel::Stdout, b"lo");
    log.append(Channel::Stderr, b"uh");
    let whole = read(&log, 0, ALL, 1000).await;
    assert_eq!(whole.pieces.iter().map(|piece| piece.seq).collect::<Vec<_>>(), [1, 2, 7, 9]);
    assert_eq!((whole.next, whole.last), (9, false));
    let rest = read(&log, 5, ALL, 1000).await;
    assert_eq!(rest.pieces[0], Piece { seq: 7, what: What::Output(Channel::Stdout, b"lo".to_vec()) });
    let only = read(&log, 0, Wanted { only: Some(Channel::Stderr), events: false, ..ALL }, 1000).await;
    assert_eq!(only.pieces, [Piece { seq: 9, what: What::Output(Channel::Stderr, b"uh".to_vec()) }]);
    assert_eq!(log.after(10, ALL, 1000, Duration::ZERO).await, Err(Beyond { end: 9 }));
    log.close();
    assert!(read(&log, 9, ALL, 1000).await.last);
    let order = log.order(10).expect("a short one");
    let events = vec![Event::Queued, Event::Started];
    let again = Log::restored(&order, [b"hello", b"uh"], events);
    assert_eq!(read(&again, 0, ALL, 1000).await.pieces, whole.pieces);
    assert_eq!(log.order(3), None);
}

#[tokio::test]
async fn over_the_cap_is_counted_told_once_and_dropped() {
    let log = Log::new(None);
    log.bound([4, 100]);
    for _ in 0..3 {
        log.append(Channel::Stdout, b"abc");
    }
    log.append(Channel::Stderr, b"x");
    let [stdout, stderr] = log.outputs().await;
    assert_eq!((stdout.kept.as_slice(), stdout.total, stdout.truncated()), (&b"abca"[..], 9, true));
    assert_eq!((stderr.kept.as_slice(), stderr.truncated()), (&b"x"[..], false));
    assert_eq!(log.limits_told().iter().map(|hit| hit.limit.as_str()).collect::<Vec<_>>(), ["stdout"]);
}

#[tokio::test]
async fn a_reader_waits_for_what_comes_and_no_longer_than_it_said() {
    let log = Arc::new(log(None));
    let reader = tokio::spawn({
        let log = log.clone();
        async move { log.after(0, ALL, 1000, Duration::from_secs(60)).await.expect("within the log") }
    });
    tokio::task::yield_now().await;
    log.append(Channel::Stdout, b"x");
    assert_eq!(reader.await.expect("no panic").next, 1);
    assert_eq!(read(&log, 1, ALL, 1000).await.pieces, []);
}

#[tokio::test]
async fn what_leaves_memory_comes_back_from_the_disk() {
    let (_directory, store) = store();
    let log = log(Some(store));
    let mut written = [Vec::new(), Vec::new()];
    for number in 0..200u32 {
        let channel = if number % 7 == 0 { Channel::Stderr } else { Channel::Stdout };
        let bytes = number.to_le_bytes().repeat(4096);
        log.append(channel, &bytes);
        log.make_room().await;
        written[channel as usize].extend(bytes);
        assert!(log.inner().memory.len() <= 3 * TAIL);
    }
    assert!(log.inner().spilled > 0, "nothing was moved");
    let check = async |log: &Log| {
        let mut seen = [Vec::new(), Vec::new()];
        let mut next = 0;
        loop {
            let part = read(log, next, ALL, 10_000).await;
            next = part.next;
            for piece in part.pieces {
                if let What::Output(channel, bytes) = piece.what {
                    seen[channel as usize].extend(bytes);
                }
            }
            if part.last {
                return seen;
            }
        }
    };
    log.close();
    assert!(check(&log).await == written);
    log.settle().await;
    assert!(log.inner().memory.len() <= TAIL_ENDED);
    assert!(check(&log).await == written);
    assert!(log.outputs().await.map(|output| output.kept) == written);
}

#[tokio::test]
async fn text_ends_with_a_whole_character_and_binary_does_not_wait() {
    let log = log(None);
    let text = Wanted { characters: true, ..ALL };
    log.append(Channel::Stdout, "aé".as_bytes());
    log.append(Channel::Stdout, &"é".as_bytes()[..1]);
    let first = read(&log, 0, text, 100).await;
    assert_eq!((first.next, &first.pieces[0].what), (3, &What::Output(Channel::Stdout, "aé".into())));
    let alone = read(&log, 3, text, 100).await;
    assert_eq!((alone.next, &alone.pieces[0].what), (4, &What::Output(Channel::Stdout, vec![0xc3])));
    log.append(Channel::Stdout, &"é".as_bytes()[1..]);
    assert_eq!(read(&log, 3, text, 100).await.pieces[0].what, What::Output(Channel::Stdout, "é".into()));
}

proptest! {
    #[test]
    fn a_reader_that_comes_back_anywhere_gets_each_byte_once(
        writes in proptest::collection::vec((any::<bool>(), 0..3u8, proptest::collection::vec(any::<u8>(), 0..9)), 0..40),
        sizes in proptest::collection::vec(1..20usize, 1..50),
        characters in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let log = log(None);
            let mut expected = Vec::new();
            for (stdout, event, bytes) in &writes {
                if *event == 0 {
                    log.event(Event::Queued);
                }
                let channel = if *stdout { Channel::Stdout } else { Channel::Stderr };
                log.append(channel, bytes);
                expected.extend(bytes.iter().map(|byte| (channel, *byte)));
            }
            log.close();
            let (mut seen, mut next, mut sizes) = (Vec::new(), 0, sizes.iter().cycle());
            loop {
                let wanted = Wanted { characters, ..ALL };
                let part = read(&log, next, wanted, *sizes.next().expect("a cycle")).await;
                prop_assert!(part.next > next || part.last);
                next = part.next;
                for piece in part.pieces {
                    if let What::Output(channel, bytes) = piece.what {
                        seen.extend(bytes.into_iter().map(|byte| (channel, byte)));
                    }
                }
                if part.last {
                    break;
                }
            }
            prop_assert_eq!(seen, expected);
            Ok(())
        })?;
    }
}
