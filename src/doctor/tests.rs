//! Facts of hosts, made up one by one, and what is said about each.

use super::*;
use std::path::PathBuf;

/// A host on which nothing is missing.
fn good() -> Facts {
    Facts {
        release: "6.12.41+deb13-cloud-amd64".to_owned(),
        root: true,
        capabilities: u64::MAX,
        missing_namespaces: vec![],
        max_user_namespaces: Some(63_000),
        memfd_noexec: Some(1),
        core_pattern: "core".to_owned(),
        unprivileged_userns_clone: Some(1),
        apparmor_restricts_userns: None,
        apparmor_label: "unconfined".to_owned(),
        lsm: Some("lockdown,capability,landlock,yama,apparmor".to_owned()),
        landlock_abi: 6,
        seccomp: true,
        filtered: false,
        over_proc: vec![],
        cgroups: v2(false, true),
        systemd: true,
        container: None,
        state_place: PathBuf::from("/var/lib/sandboxd"),
        state_file_system: "ext4".to_owned(),
        store: Store { image: true, btrfs: true, loops: true, mkfs: true },
    }
}

fn v2(read_only: bool, delegated: bool) -> Cgroups {
    let controllers = ["cpuset", "cpu", "io", "memory", "pids"].map(str::to_owned).to_vec();
    Cgroups::V2 { controllers, read_only, delegated }
}

/// What is not ok, in words.
fn wrong(facts: &Facts) -> Vec<(&'static str, State, String)> {
    let bad = findings(facts).into_iter().filter(|finding| finding.state != State::Ok);
    bad.map(|bad| (bad.name, bad.state, format!("{}; {}", bad.found, bad.cure.expect("what is not ok has a cure"))))
        .collect()
}

/// The one thing that is wrong, with `words` in what is said of it.
#[track_caller]
fn only(facts: &Facts, name: &str, state: State, words: &[&str]) {
    let wrong = wrong(facts);
    let [(found, how, said)] = wrong.as_slice() else { panic!("{name}: {wrong:#?}") };
    assert_eq!((*found, *how), (name, state), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[test]
fn on_a_good_host_nothing_is_wrong_and_no_cure_is_given() {
    assert_eq!(wrong(&good()), []);
    assert!(findings(&good()).iter().all(|finding| finding.cure.is_none()));
    let hybrid = Cgroups::V1 { controllers: CONTROLLERS.map(str::to_owned).to_vec() };
    assert_eq!(wrong(&Facts { cgroups: hybrid, systemd: false, ..good() }), []);
}

#[test]
fn an_old_kernel_is_named_with_the_one_to_boot() {
    let of = |release: &str| Facts { release: release.to_owned(), ..good() };
    only(&of("5.10.0-32-amd64"), "kernel", State::Failed, &["5.10", "5.14", "6.12"]);
    only(&of("6.1.0-38-amd64"), "kernel", State::Degraded, &["6.1.0", "6.12"]);
    assert_eq!(wrong(&of("7.0-rc1")), []);
    assert_eq!(version("6.12.41+deb13"), Some((6, 12)));
    assert_eq!(version("odd"), None);
}

#[test]
fn landlock_that_is_off_is_told_from_one_that_is_not_there() {
    let off = Facts { landlock_abi: 0, lsm: Some("lockdown,capability,yama,apparmor".to_owned()), ..good() };
    only(&off, "landlock", State::Failed, &["off", "lsm=landlock,lockdown,capability,yama,apparmor"]);
    let none = Facts { landlock_abi: 0, lsm: None, ..good() };
    only(&none, "landlock", State::Failed, &["not in this kernel", "CONFIG_SECURITY_LANDLOCK"]);
    let old = Facts { landlock_abi: 2, ..good() };
    only(&old, "landlock", State::Degraded, &["ABI 2", "truncate", "tcp", "landlock_min_abi"]);
}

#[test]
fn a_host_that_executes_nothing_from_memory_is_told_so() {
    let facts = Facts { memfd_noexec: Some(2), ..good() };
    only(&facts, "memory files", State::Failed, &["sysctl vm.memfd_noexec=1"]);
}

#[test]
fn a_collector_of_core_dumps_is_named() {
    for core_pattern in ["|/usr/lib/systemd/systemd-coredump %P", "@/run/collector.sock"] {
        let facts = Facts { core_pattern: core_pattern.to_owned(), ..good() };
        only(&facts, "core dumps", State::Degraded, &["sysctl kernel.core_pattern=core"]);
    }
}

#[test]
fn every_way_of_keeping_user_namespaces_back_has_its_own_cure() {
    let name = "user namespaces";
    let none = Facts { max_user_namespaces: Some(0), ..good() };
    only(&none, name, State::Failed, &["sysctl user.max_user_namespaces="]);
    let debian = Facts { unprivileged_userns_clone: Some(0), ..good() };
    only(&debian, name, State::Degraded, &["sysctl kernel.unprivileged_userns_clone=1"]);
    let ubuntu = Facts { apparmor_restricts_userns: Some(1), ..good() };
    only(&ubuntu, name, State::Degraded, &["AppArmor", "apparmor_parser -r /etc/apparmor.d/sandboxd"]);
    let labelled = Facts { apparmor_label: "sandboxd (unconfined)".to_owned(), ..ubuntu };
    assert_eq!(wrong(&labelled), []);
    let without = Facts { missing_namespaces: vec!["user".to_owned()], ..good() };
    only(&without, name, State::Failed, &["CONFIG_USER_NS"]);
    let without = Facts { missing_namespaces: vec!["cgroup".to_owned()], ..good() };
    only(&without, name, State::Failed, &["cgroup"]);
}

#[test]
fn what_the_kernel_or_the_unit_lacks_is_named() {
    only(&Facts { seccomp: false, ..good() }, "seccomp", State::Failed, &["CONFIG_SECCOMP_FILTER"]);
    only(&Facts { root: false, ..good() }, "capabilities", State::Failed, &["root", "sudo"]);
    let weak = Facts { capabilities: !(1 << SYS_ADMIN), ..good() };
    only(&weak, "capabilities", State::Failed, &["CAP_SYS_ADMIN", "CapabilityBoundingSet="]);
    let hidden = Facts { over_proc: vec!["/proc/kcore".to_owned()], ..good() };
    only(&hidden, "proc", State::Failed, &["/proc/kcore", "ProtectKernelTunables="]);
}

#[test]
fn cgroups_without_delegation_controllers_or_a_way_to_write_are_told_apart() {
    let of = |cgroups| Facts { cgroups, ..good() };
    only(&of(Cgroups::None), "cgroups", State::Failed, &["mount cgroup2"]);
    only(&of(v2(false, false)), "cgroups", State::Degraded, &["Delegate=yes", "systemctl start sandboxd"]);
    only(&of(v2(true, true)), "cgroups", State::Failed, &["read-only", "remount,rw"]);
    let few = Cgroups::V1 { controllers: vec!["cpu".to_owned(), "pids".to_owned()] };
    only(&of(few), "cgroups", State::Failed, &["no controller memory", "cgroup_enable=memory"]);
    // Without systemd nobody delegates, and nobody takes away.
    assert_eq!(wrong(&Facts { systemd: false, ..of(v2(false, false)) }), []);
}

#[test]
fn the_place_of_the_state_decides_what_workspaces_can_be() {
    let on = |kind: &str| Facts { state_file_system: kind.to_owned(), ..good() };
    only(&on("overlay"), "state_dir", State::Failed, &["overlay", "ext4, xfs or btrfs"]);
    only(&on("tmpfs"), "state_dir", State::Degraded, &["next boot"]);
    only(&on("type 0x6969"), "state_dir", State::Degraded, &["0x6969"]);
    let with = |image, btrfs, loops, mkfs| Facts { store: Store { image, btrfs, loops, mkfs }, ..good() };
    only(&with(false, true, true, true), "store", State::Degraded, &["without a quota", "sandboxctl store init"]);
    only(&with(false, false, true, false), "store", State::Degraded, &["modprobe btrfs", "btrfs-progs"]);
    only(&with(true, true, false, true), "store", State::Failed, &["modprobe loop"]);
    assert_eq!(wrong(&with(true, true, true, false)), [], "a store that is there needs no mkfs");
}

/// `docker run` without anything: no capability, a filter, AppArmor, masked /proc, read-only cgroups, overlay.
fn plain(container: Container) -> Facts {
    Facts {
        container: Some(container),
        capabilities: 0xa804_25fb,
        filtered: true,
        apparmor_label: "docker-default (enforce)".to_owned(),
        over_proc: ["/proc/bus", "/proc/kcore", "/proc/sys"].map(str::to_owned).to_vec(),
        cgroups: v2(true, false),
        systemd: false,
        state_file_system: "overlay".to_owned(),
        ..good()
    }
}

#[test]
fn a_plain_container_is_told_what_its_run_line_lacks() {
    let of = |container| findings(&plain(container)).pop().expect("the container is the last");
    let docker = of(Container::Docker);
    assert_eq!((docker.name, docker.state, docker.found.as_str()), ("container", State::Failed, "inside Docker"));
    assert_eq!(
        docker.cure.as_deref(),
        Some(
            "docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_RESOURCE --security-opt seccomp=unconfined \
             --security-opt apparmor=unconfined --security-opt systempaths=unconfined --cgroupns=host \
             -v /sys/fs/cgroup:/sys/fs/cgroup:rw -v sandboxd:/var/lib/sandboxd … (or --privileged -v \
             sandboxd:/var/lib/sandboxd)"
        )
    );
    let podman = Facts { capabilities: 0x8004_05fb, ..plain(Container::Podman) };
    let podman = findings(&podman).pop().and_then(|finding| finding.cure).expect("a cure");
    assert!(podman.starts_with("podman run --cap-add SYS_ADMIN") && podman.contains("unmask=ALL"), "{podman}");
    assert!(podman.contains("--cap-add MKNOD"), "Docker's containers have it, Podman's don't: {podman}");
    let other = of(Container::Other).cure.expect("a cure");
    assert!(other.contains("privileged: true"), "{other}");
    // The findings before it point to it instead of to sysctls and units that the container does not have.
    for (name, _, said) in wrong(&plain(Container::Docker)) {
        assert!(["container", "store"].contains(&name) || said.contains("see the run line below"), "{name}: {said}");
    }
}

#[test]
fn only_what_is_missing_is_asked_for() {
    let almost =
        Facts { capabilities: u64::MAX, filtered: false, apparmor_label: String::new(), ..plain(Container::Docker) };
    let almost = Facts { cgroups: v2(false, false), state_file_system: "ext4".to_owned(), ..almost };
    let last = findings(&almost).pop().expect("the container");
    assert!(last.cure.is_some_and(|cure| cure.starts_with("docker run --security-opt systempaths=unconfined …")));
    let privileged = Facts { over_proc: vec![], ..almost };
    assert_eq!(wrong(&privileged), []);
}

#[test]
fn this_host_is_seen_as_it_is() {
    let facts = Facts::look(std::path::Path::new("/nonexistent/state"));
    assert_eq!(facts.state_place, std::path::Path::new("/"), "the nearest that is there");
    assert_eq!(facts.release, std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it").trim());
    assert_eq!(facts.root, nix::unistd::geteuid().is_root());
    assert!(facts.missing_namespaces.is_empty() && facts.seccomp, "{facts:?}");
    assert_ne!(facts.state_file_system, "unknown");
}
