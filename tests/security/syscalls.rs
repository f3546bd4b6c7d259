//! System calls: the mount family, namespaces, the host's switches, the kernel's larger doors, tracing, identity,
//! terminals, and the other ABIs of the same kernel.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside_alone, named, outside};

const WALL: &str = "syscalls";

#[test]
fn mounts_and_namespaces_cannot_be_made_or_entered() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "mounts"), 14);
    assert_contained(group(&rows, "namespaces"), 26);
}

#[test]
fn the_host_cannot_be_administered() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "host"), 20);
}

#[test]
fn the_kernels_larger_doors_are_shut() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "kernel"), 21);
    assert_contained(group(&rows, "tracing"), 8);
}

#[test]
fn no_call_changes_who_the_program_is() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "identity"), 20);
}

#[test]
fn a_terminal_cannot_be_typed_into_and_other_abis_are_refused() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "terminal"), 4);
    assert_contained(group(&rows, "abi"), 6);
}

#[test]
fn strict_refuses_every_one_of_them_too() {
    assert_contained(&inside_alone(STRICT, WALL), 120);
}

#[test]
fn clone3_is_said_not_to_exist_so_that_libc_falls_back() {
    let rows = inside_alone(DEFAULT, WALL);
    for name in ["clone3-newuser", "clone3-newns", "clone3-newtime"] {
        assert_eq!(named(&rows, name).errno, "ENOSYS", "{}", named(&rows, name));
    }
}

#[test]
fn outside_the_same_calls_get_past_the_permission_check() {
    let rows = outside(WALL);
    assert_provable(&rows, 80);
    assert_provable(group(&rows, "namespaces"), 20);
    assert_provable(group(&rows, "mounts"), 10);
    assert_provable(group(&rows, "identity"), 15);
    assert_provable(group(&rows, "tracing"), 8);
    assert_provable(group(&rows, "terminal"), 4);
}
