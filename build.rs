//! Compiles the program that sandboxes are made by (`src/isolation/child`), which the daemon carries in itself.
//!
//! It can't be a target of this package: it has no standard library, so it must not unwind, and cargo knows no such choice
//! for one target alone. It has no dependencies, so one call of the compiler makes it. Under clippy the same call is
//! clippy's, with warnings denied, so that `make lint` looks at these files too.
//!
//! It also tells the build a number of its sources, by which `sandboxd` and `sandboxd-warden` know each other.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

const CHILD: &str = "src/isolation/child";

/// What makes it small: no C runtime, fixed addresses, and code that shares its page with the read-only data.
const FLAGS: [&str; 15] = [
    "--crate-name=sandboxd_init",
    "--crate-type=bin",
    "--edition=2024",
    "-Copt-level=2",
    "-Cpanic=abort",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Crelocation-model=static",
    "-Cstrip=symbols",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-no-pie",
    "-Clink-arg=-Wl,--build-id=none",
    "-Clink-arg=-Wl,-z,norelro",
];
const LINTS: [&str; 6] = [
    "-Dwarnings",
    "-Dunsafe_op_in_unsafe_fn",
    "-Dclippy::undocumented_unsafe_blocks",
    "-Dclippy::multiple_unsafe_ops_per_block",
    "-Wclippy::unwrap_used",
    "-Aclippy::wildcard_imports",
];

/// What goes into the programs: front and warden of one daemon are made of the same.
const SOURCES: [&str; 3] = ["src", "profiles", "seccomp"];

/// A number that differs for other sources. Against mistakes, not against people.
fn digest() -> u64 {
    let mut files = Vec::new();
    let mut directories: Vec<PathBuf> = SOURCES.iter().map(PathBuf::from).collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of sources").flatten() {
            let path = entry.path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        (&file, fs::read(&file).expect("a source")).hash(&mut hasher);
    }
    hasher.finish()
}

fn main() {
    for directory in SOURCES {
        println!("cargo::rerun-if-changed={directory}");
    }
    println!("cargo::rustc-env=SANDBOXD_BUILD={:016x}", digest());
    let set = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let image = PathBuf::from(set("OUT_DIR")).join("sandboxd-init");
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").filter(|wrapper| !wrapper.is_empty());
    let mut compile = match &wrapper {
        Some(wrapper) => {
            let mut compile = Command::new(wrapper);
            compile.arg(set("RUSTC")).args(LINTS);
            compile
        }
        None => Command::new(set("RUSTC")),
    };
    compile.args(FLAGS).arg("--target").arg(set("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut flag = std::ffi::OsString::from("-Clinker=");
        flag.push(linker);
        compile.arg(flag);
    }
    compile.arg(format!("{CHILD}/main.rs")).arg("-o").arg(&image);
    let compiled = compile.status().expect("the compiler can be started");
    assert!(compiled.success(), "{CHILD} does not compile");
}
