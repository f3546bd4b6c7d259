//! Socket families and protocols. Many kernels have few of them, so the floor outside is low and named one by one.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside_alone, named, outside};
use crate::harness::Outcome;

const WALL: &str = "sockets";

#[test]
fn rare_socket_families_are_refused() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "families"), 26);
}

#[test]
fn netlink_raw_sockets_and_odd_protocols_are_refused() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "netlink"), 11);
    assert_contained(group(&rows, "raw"), 6);
    assert_contained(group(&rows, "protocols"), 4);
}

#[test]
fn strict_refuses_them_too() {
    assert_contained(&inside_alone(STRICT, WALL), 50);
}

#[test]
fn outside_what_the_kernel_has_can_be_opened() {
    let rows = outside(WALL);
    assert_provable(&rows, 10);
    for name in ["af-packet", "raw-inet", "raw-icmp", "netlink-uevent", "netlink-generic"] {
        assert_eq!(named(&rows, name).result, Outcome::Worked, "{}", named(&rows, name));
    }
}
