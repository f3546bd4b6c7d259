use super::*;
use std::sync::mpsc;

type Numbered = (u32, Option<oneshot::Sender<()>>);
type Commits = mpsc::Receiver<(Vec<u32>, Option<String>)>;

/// Sends the jobs of each commit on, and the name of the thread that made it.
struct Told {
    commits: mpsc::Sender<(Vec<u32>, Option<String>)>,
    quick: bool,
    /// Held by a test that wants a commit to last.
    gate: Arc<Mutex<()>>,
}

/// A job that no commit survives.
const PANIC: u32 = 666;

impl Commit for Told {
    type Job = Numbered;

    fn commit(&mut self, batch: &mut Vec<Self::Job>) {
        let numbers: Vec<u32> = batch.iter().map(|(number, _)| *number).collect();
        let panics = numbers.contains(&PANIC);
        let name = std::thread::current().name().map(str::to_owned);
        self.commits.send((numbers, name)).expect("the test listens");
        drop(self.gate.lock());
        assert!(!panics, "a commit that panics, as the test wants it");
        for (_, answer) in batch.drain(..) {
            answer.map(|answer| answer.send(()));
        }
    }

    fn is_quick(&self, jobs: &[Numbered]) -> bool {
        self.quick && jobs.len() <= 2
    }

    fn close(self) {}
}

fn writer_that(quick: bool) -> (Writer<Told>, Commits, Arc<Mutex<()>>) {
    let (commits, made) = mpsc::channel();
    let gate = Arc::default();
    let told = Told { commits, quick, gate: Arc::clone(&gate) };
    (Writer::start("the writer", told).expect("a thread"), made, gate)
}

fn writer() -> (Writer<Told>, Commits) {
    let (writer, commits, _) = writer_that(false);
    (writer, commits)
}

fn close(writer: &Writer<Told>) {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(writer.close());
}

fn lay(writer: &Writer<Told>, number: u32) -> (Laid<Told>, oneshot::Receiver<()>) {
    let (answer, answered) = oneshot::channel();
    (writer.lay((number, Some(answer))).expect("the writer lives"), answered)
}

const THREAD: Option<&str> = Some("the writer");

#[test]
fn what_is_sent_finds_done_what_was_posted_before() {
    let (writer, commits) = writer();
    writer.post((1, None));
    writer.post((2, None));
    let (answer, answered) = oneshot::channel();
    writer.send((3, Some(answer))).expect("the thread lives");
    answered.blocking_recv().expect("an answer");
    assert_eq!(commits.recv().expect("a commit").0, [1, 2, 3]);
}

#[test]
fn what_is_posted_alone_is_done_a_little_later_and_together() {
    let (writer, commits) = writer();
    (1..=3).for_each(|number| writer.post((number, None)));
    let mut done = commits.recv().expect("a commit").0;
    while done.len() < 3 {
        done.extend(commits.recv().expect("a commit").0); // a machine that stood still between two of them
    }
    assert_eq!(done, [1, 2, 3]);
    writer.post((4, None));
    assert_eq!(commits.recv().expect("a commit").0, [4], "the next one is told of again");
}

#[test]
fn closing_waits_for_what_was_posted_and_what_was_laid_down() {
    let (writer, commits) = writer();
    writer.post((1, None));
    let (laid, answered) = lay(&writer, 2);
    close(&writer);
    assert_eq!(commits.try_recv().expect("a commit").0, [1, 2]);
    answered.blocking_recv().expect("an answer");
    laid.commit(); // finds nothing left to do
    assert!(writer.send((3, None)).is_err(), "closed");
    close(&writer); // again: comes back
}

#[test]
fn many_that_are_posted_are_not_kept_waiting() {
    let (writer, commits) = writer();
    let many = 3 * BATCH as u32;
    (0..many).for_each(|number| writer.post((number, None)));
    let mut done = Vec::new();
    while done.len() < many as usize {
        done.extend(commits.recv().expect("a commit").0);
    }
    assert!(done.into_iter().eq(0..many));
}

#[test]
fn whoever_waits_first_commits_for_all_in_their_order_if_that_is_quick() {
    let (writer, commits, _) = writer_that(true);
    let (first, answered_first) = lay(&writer, 1);
    let (second, answered_second) = lay(&writer, 2);
    second.commit();
    let (numbers, by) = commits.try_recv().expect("done when it comes back");
    assert_eq!((numbers, by.as_deref() == THREAD), (vec![1, 2], false));
    first.commit();
    for answered in [answered_first, answered_second] {
        answered.blocking_recv().expect("an answer");
    }
    assert!(commits.try_recv().is_err(), "nothing twice");
    let laid: Vec<_> = (3..6).map(|number| lay(&writer, number)).collect();
    laid.into_iter().for_each(|(laid, answered)| {
        laid.commit();
        answered.blocking_recv().expect("an answer");
    });
    let (numbers, by) = commits.recv().expect("a commit");
    assert_eq!((numbers, by.as_deref()), (vec![3, 4, 5], THREAD), "three are not quick");
}

#[test]
fn a_job_whose_caller_went_away_is_done_by_the_thread() {
    let (writer, commits, _) = writer_that(true);
    let (laid, answered) = lay(&writer, 1);
    drop(laid);
    answered.blocking_recv().expect("an answer");
    assert_eq!(commits.recv().expect("a commit").1.as_deref(), THREAD);
}

#[test]
fn what_comes_while_somebody_commits_is_done_afterwards_and_closing_waits_for_both() {
    let (writer, commits, gate) = writer_that(true);
    let closed = std::thread::scope(|scope| {
        let held = gate.lock().expect("the gate");
        let (laid, _) = lay(&writer, 1);
        scope.spawn(|| laid.commit());
        assert_eq!(commits.recv().expect("a commit").0, [1]);
        let (laid, answered) = lay(&writer, 2);
        laid.commit(); // comes back at once: it is the thread's
        let closing = scope.spawn(|| close(&writer));
        std::thread::sleep(Duration::from_millis(20));
        assert!(commits.try_recv().is_err() && !closing.is_finished(), "one at a time");
        drop(held);
        answered.blocking_recv().expect("an answer");
        closing.join()
    });
    closed.expect("closed");
    assert_eq!(commits.recv().expect("a commit"), (vec![2], THREAD.map(str::to_owned)));
}

#[test]
fn after_a_panic_everybody_hears_that_it_is_over() {
    let (writer, commits, gate) = writer_that(true);
    let held = gate.lock().expect("the gate");
    let (laid, unanswered) = lay(&writer, PANIC);
    let panicked = std::thread::spawn(|| laid.commit());
    assert_eq!(commits.recv().expect("a commit").0, [PANIC]);
    let (late, left_waiting) = lay(&writer, 1);
    late.commit();
    drop(held);
    assert!(panicked.join().is_err());
    assert!(unanswered.blocking_recv().is_err() && left_waiting.blocking_recv().is_err());
    assert!(writer.send((2, None)).is_err());
    writer.post((3, None)); // goes nowhere
    close(&writer);
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let (writer, commits) = writer();
    let other = writer.clone();
    writer.post((1, None));
    drop(writer);
    drop(other);
    assert_eq!(commits.recv().expect("a commit").0, [1]);
    assert!(commits.recv().is_err(), "the committer is gone");
}
