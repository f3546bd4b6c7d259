//! Every step there is, made to fail by `SandboxPlan::sabotage`: none can be added that fails without a word.

use super::Test;
use super::attempt::{Attempt, ByHand};
use super::world::World;
use nix::errno::Errno;
use sandboxd::isolation::fault::Step;
use sandboxd::model::Tty;
use std::os::fd::OwnedFd;

/// One per step.
pub fn tests() -> Vec<Test> {
    let test = |&step: &Step| {
        let name = format!("sabotage::when_{}_fails_it_is_named_and_no_program_runs", snake_case(step));
        Test::new(name, move |world| fails_at(world, step))
    };
    Step::ALL.iter().map(test).collect()
}

fn fails_at(world: &mut World, step: Step) {
    let mut attempt = Attempt::new(world);
    attempt.plan.sabotage = Some(step);
    attempt.run.tty = (matches!(step, Step::OpenTerminal | Step::Terminal)).then(Tty::default);
    attempt.plan.filter_ahead = step != Step::Seccomp; // it is loaded at one of two steps
    if step == Step::JoinCgroup && world.joins_by_birth() {
        // cgroup v2: the clone itself joins, so there is no file to write to unless one is given.
        let join: OwnedFd = world.kit.null().try_clone_to_owned().expect("a descriptor can be copied");
        attempt.by_hand = Some(ByHand { join: Some(join), ..ByHand::default() });
    }
    attempt.make(world).assert_fault(step, 0, Errno::EHWPOISON);
}

/// `JoinCgroup` as `join_cgroup`.
fn snake_case(step: Step) -> String {
    let mut name = String::new();
    for letter in format!("{step:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
