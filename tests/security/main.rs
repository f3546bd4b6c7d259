//! The walls, one file each. A test has two halves: the probe is refused inside, and the same probe gets through outside,
//! so that a probe that can't tell fails as well. What a kernel does not have (`absent` outside) proves nothing and is
//! not counted; how many must be provable stands in each outside half.
#![allow(clippy::unwrap_used)] // tests

#[path = "../harness/mod.rs"]
mod harness;

mod allowed;
mod descriptors;
mod filesystem;
mod network;
mod privileges;
mod proc;
mod processes;
mod regression;
mod resources;
mod sockets;
mod syscalls;

use harness::host::Side;
use harness::{Daemon, Host, Outcome, Row, outside_probe, probe};

/// The profile for ordinary programs: if a wall holds here it holds in the tighter ones.
const DEFAULT: &str = "python-default";
/// The tightest one.
const STRICT: &str = "strict";

/// All attempts of a wall inside, each of them answered.
fn inside(daemon: &Daemon, host: &Host, profile: &str, wall: &str) -> Vec<Row> {
    let mut args = vec!["--wall".to_owned(), wall.to_owned()];
    args.extend(host.arguments(Side::Inside, Some(daemon)));
    complete(daemon.run_probe(profile, &args), wall)
}

/// All attempts of a wall inside, with a daemon and a host of their own.
fn inside_alone(profile: &str, wall: &str) -> Vec<Row> {
    inside(&Daemon::start(), &Host::new(), profile, wall)
}

/// All attempts of a wall on the host.
fn outside(wall: &str) -> Vec<Row> {
    outside_with(&Host::new(), wall)
}

fn outside_with(host: &Host, wall: &str) -> Vec<Row> {
    let mut args = vec!["--wall".to_owned(), wall.to_owned()];
    args.extend(host.arguments(Side::Outside, None));
    complete(outside_probe(&args), wall)
}

fn complete(rows: Vec<Row>, wall: &str) -> Vec<Row> {
    let named: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let silent: Vec<String> = probe::list()
        .into_iter()
        .filter(|(of, _, name)| of == wall && !named.contains(&name.as_str()))
        .map(|(_, _, name)| name)
        .collect();
    assert!(silent.is_empty(), "attempts that were not answered: {silent:?}");
    rows
}

fn group<'a>(rows: &'a [Row], group: &str) -> Vec<&'a Row> {
    rows.iter().filter(|row| row.group == group).collect()
}

fn named<'a>(rows: &'a [Row], name: &str) -> &'a Row {
    rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("the probe has no attempt '{name}'"))
}

fn lines<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    rows.into_iter().map(|row| format!("  {row}\n")).collect()
}

/// None went through, and there were at least so many to try.
fn assert_contained<'a>(rows: impl IntoIterator<Item = &'a Row>, at_least: usize) {
    let rows: Vec<&Row> = rows.into_iter().collect();
    assert!(rows.len() >= at_least, "only {} attempts were made, {at_least} were expected", rows.len());
    let holes: Vec<&Row> = rows.iter().copied().filter(|row| !row.contained()).collect();
    assert!(
        holes.is_empty(),
        "{} of {} attempts went through:\n{}",
        holes.len(),
        rows.len(),
        lines(holes.iter().copied())
    );
}

/// At least so many went through: the probe can tell. The others are listed, and do not count.
fn assert_provable<'a>(rows: impl IntoIterator<Item = &'a Row>, at_least: usize) {
    let (worked, rest): (Vec<&Row>, Vec<&Row>) = rows.into_iter().partition(|row| row.result == Outcome::Worked);
    println!("{} provable outside; not provable on this host:\n{}", worked.len(), lines(rest.iter().copied()));
    assert!(
        worked.len() >= at_least,
        "only {} attempts get through outside, {at_least} must for the test to mean anything; the others:\n{}",
        worked.len(),
        lines(rest.iter().copied())
    );
}

/// All of them went through.
fn assert_works<'a>(rows: impl IntoIterator<Item = &'a Row>) {
    let broken: Vec<&Row> = rows.into_iter().filter(|row| row.result != Outcome::Worked).collect();
    assert!(broken.is_empty(), "{} things that must work do not:\n{}", broken.len(), lines(broken.iter().copied()));
}
