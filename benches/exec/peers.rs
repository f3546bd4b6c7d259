//! Other programs that put a program behind walls, those of them that are on this machine.
//!
//! Each is told to do the most comparable thing that it can: fresh namespaces, a root of its own with the host's /usr in
//! it, nothing kept. None does all that sandboxd does; what it does is said beside its name. One that is not installed or
//! does not work here is left out, with the reason.

use super::contender::Caller;
use super::cpu::Account;
use super::program::Program;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// How one is called.
struct Recipe {
    /// The name of the program, too.
    name: &'static str,
    /// What comes before the words of the program that it is to run.
    words: fn() -> String,
    /// What it puts up.
    walls: &'static str,
    /// Whether it reads what to run from a directory.
    bundle: bool,
}

const RECIPES: [Recipe; 7] = [
    Recipe {
        name: "bwrap",
        words: bubblewrap,
        walls: "all namespaces, own root; no filter, Landlock, cgroup",
        bundle: false,
    },
    Recipe {
        name: "unshare",
        words: unshare,
        walls: "all namespaces and /proc; the host's root, nothing else",
        bundle: false,
    },
    Recipe {
        name: "minijail0",
        words: minijail,
        walls: "all namespaces, no capabilities; no filter, cgroup",
        bundle: false,
    },
    Recipe {
        name: "nsjail",
        words: nsjail,
        walls: "all namespaces, own root, rlimits, cgroup; no filter",
        bundle: false,
    },
    Recipe {
        name: "firejail",
        words: firejail,
        walls: "namespaces, filter, no capabilities; no cgroup, Landlock",
        bundle: false,
    },
    Recipe { name: "crun", words: container, walls: "namespaces but user, own root, cgroups; no filter", bundle: true },
    Recipe { name: "runc", words: container, walls: "namespaces but user, own root, cgroups; no filter", bundle: true },
];

fn bubblewrap() -> String {
    "--unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
     --proc /proc --dev /dev --tmpfs /tmp"
        .to_owned()
}

fn unshare() -> String {
    "--user --map-root-user --mount --pid --net --ipc --uts --cgroup --fork --mount-proc".to_owned()
}

fn minijail() -> String {
    "-u nobody -g nogroup -v -p -r -l -e -N --uts -n -c 0 --".to_owned()
}

fn nsjail() -> String {
    "--mode o --really_quiet --user 65534 --group 65534 --bindmount_ro /usr --symlink usr/bin:/bin --symlink usr/lib:/lib \
     --symlink usr/lib64:/lib64 --tmpfsmount /tmp --cgroup_mem_max 1073741824 --cgroup_pids_max 256 --"
        .to_owned()
}

fn firejail() -> String {
    "--quiet --noprofile --net=none --private-tmp --private-dev --caps.drop=all --nonewprivs --seccomp".to_owned()
}

/// The directories come with the bundle; a container's name is its own.
fn container() -> String {
    "--root @bundle/state run --bundle @bundle/@program @id".to_owned()
}

/// What nobody gets around (`yardstick.c`).
struct Yardstick {
    name: &'static str,
    flags: &'static [&'static str],
    walls: &'static str,
}

/// One small process beside the program.
pub const PROCESS: &str = "process";
/// The same, and seven fresh namespaces.
pub const NAMESPACES: &str = "namespaces";

const YARDSTICKS: [Yardstick; 2] = [
    Yardstick { name: PROCESS, flags: &["-DNAMESPACES=0"], walls: "none: one small static process beside the program" },
    Yardstick { name: NAMESPACES, flags: &[], walls: "the same and seven namespaces; the host's root and /proc" },
];

/// One that works here.
pub struct Peer {
    /// Its name in the tables.
    pub name: &'static str,
    /// What it says of itself.
    pub version: String,
    /// What it puts up.
    pub walls: &'static str,
    /// Its processor time.
    pub account: Account,
    words: String,
    bundle: Option<TempDir>,
}

impl Peer {
    /// The yardsticks, and all that work here; says which do not.
    pub fn all() -> Vec<Self> {
        let found =
            RECIPES.iter().filter_map(|recipe| Self::find(recipe).map_err(|why| println!("left out: {why}")).ok());
        YARDSTICKS.iter().map(Self::yardstick).chain(found).collect()
    }

    /// A small program of our own, which needs a compiler.
    fn yardstick(&Yardstick { name, flags, walls }: &Yardstick) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/exec/yardstick.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut compile = Command::new("cc");
        compile.args(["-static", "-nostdlib", "-O2", "-s", "-Wall", "-o"]).arg(&program).args(flags).arg(&source);
        assert!(compile.status().is_ok_and(|ended| ended.success()), "cc does not compile {}", source.display());
        let (version, account) = ("yardstick.c".to_owned(), Account::new(name));
        let peer = Self { name, version, walls, account, words: program.display().to_string(), bundle: None };
        let tried = peer.caller(Program::True).try_call();
        tried.map(|()| peer).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    fn find(recipe: &Recipe) -> Result<Self, String> {
        let name = recipe.name;
        let said = Command::new(name).arg("--version").output().map_err(|_| format!("{name} (not installed)"))?;
        let version = String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().trim().to_owned();
        let bundle = recipe.bundle.then(|| bundle().expect("a directory for containers can be made"));
        let words = format!("{name} {}", (recipe.words)());
        let peer = Self { name, version, walls: recipe.walls, account: Account::new(name), words, bundle };
        let tried = peer.caller(Program::True).try_call();
        tried.map(|()| peer).map_err(|why| format!("{name} (it does not work here: {})", why.trim_end()))
    }

    /// A client of it.
    pub fn caller(&self, program: Program) -> Caller {
        let argv = program.argv();
        let mut words: Vec<String> = self.words.split_whitespace().map(str::to_owned).collect();
        let Some(bundle) = &self.bundle else {
            words.extend(argv);
            return Caller::spawn(words, program);
        };
        let directory = bundle.path().join(format!("{program:?}"));
        fs::create_dir_all(&directory).expect("a directory for a container can be made");
        let config = specification(&bundle.path().join("rootfs"), &argv).to_string();
        fs::write(directory.join("config.json"), config).expect("a container can be described");
        let place = bundle.path().display().to_string();
        let words =
            words.iter().map(|word| word.replace("@bundle", &place).replace("@program", &format!("{program:?}")));
        Caller::spawn(words.collect(), program)
    }
}

/// A root with the places that something is mounted on.
fn bundle() -> std::io::Result<TempDir> {
    let bundle = tempfile::Builder::new().prefix("sandboxd-bench-").tempdir()?;
    let root = bundle.path().join("rootfs");
    for place in ["usr", "proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(place))?;
    }
    for link in ["bin", "lib", "lib64"] {
        symlink(format!("usr/{link}"), root.join(link))?;
    }
    Ok(bundle)
}

/// `config.json` of the OCI runtime specification.
fn specification(root: &Path, argv: &[String]) -> Value {
    let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": place, "type": kind, "source": source, "options": options});
    let none: [&str; 0] = [];
    let namespaces = ["pid", "network", "ipc", "uts", "mount", "cgroup"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 1000, "gid": 1000}, "args": argv, "env": ["PATH=/usr/bin:/bin"], "cwd": "/", "noNewPrivileges": true,
            "capabilities": {"bounding": none, "effective": none, "permitted": none},
        },
        "root": {"path": root, "readonly": true},
        "hostname": "sandbox",
        "mounts": [
            mount("/usr", "bind", "/usr", &["rbind", "ro"]),
            mount("/proc", "proc", "proc", &[]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755"]),
            mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev"]),
        ],
        "linux": {
            "namespaces": namespaces,
            "resources": {"memory": {"limit": 1 << 30}, "pids": {"limit": 256}},
            "maskedPaths": ["/proc/kcore", "/proc/keys"],
        },
    })
}
