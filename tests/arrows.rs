//! The arrows between modules, as DESIGN draws them: a `use crate::…` that bends one fails here.

use std::path::{Path, PathBuf};

/// Module, and what it may use of the crate. `daemon` sees all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &["model"]),
    ("observe", &["observe", "model"]),
    ("terms", &["terms", "model"]),
    ("profile", &["profile", "terms", "model"]),
    ("policy", &["policy", "profile", "terms", "model"]),
    ("workspace", &["workspace", "model"]),
    ("isolation", &["isolation", "model"]),
    ("socket", &["socket"]),
    ("sqlite", &["sqlite"]),
    ("ledger", &["ledger", "sqlite", "model", "policy"]),
    ("evidence", &["evidence", "sqlite", "model", "policy"]),
    ("executor", &["executor", "evidence", "observe", "policy", "isolation", "socket", "workspace", "model"]),
    (
        "pipeline",
        &["pipeline", "executor", "evidence", "ledger", "observe", "policy", "profile", "terms", "workspace", "model"],
    ),
    // The error mapping names the faults of the layers below; handlers themselves only speak to the pipeline.
    (
        "api",
        &[
            "api",
            "doctor",
            "pipeline",
            "executor",
            "evidence",
            "isolation",
            "ledger",
            "observe",
            "policy",
            "profile",
            "socket",
            "terms",
            "workspace",
            "model",
        ],
    ),
    ("doctor", &["doctor", "isolation::landlock"]),
    // `profile check`, `evidence verify FILE` and `store init` work without a daemon, with what the daemon itself uses.
    ("ctl", &["ctl", "api::wire", "doctor", "evidence", "manual", "profile", "workspace", "model"]),
];

/// Files that may hold `unsafe`: the daemon's calls, and what the program inside a sandbox, which has no library, needs of its
/// own. Everything else forbids it.
const UNSAFE_HOMES: [&str; 4] = [
    "src/isolation/sys/",
    "src/isolation/child/calls.rs",
    "src/isolation/child/room.rs",
    "src/isolation/child/start.rs",
];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn module_of(path: &Path) -> String {
    let below = path.strip_prefix("src").expect("sources lie below src");
    let first = below.components().next().expect("a file has a name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn no_arrow_is_bent() {
    let mut bent = Vec::new();
    let mut seen = 0;
    for path in sources(Path::new("src")) {
        let module = module_of(&path);
        let Some((_, may_use)) = MAY_USE.iter().find(|(name, _)| *name == module) else { continue };
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (place, _) in text.match_indices("crate::") {
            seen += 1;
            let target: String =
                text[place + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
            let permitted =
                may_use.iter().any(|allowed| target == *allowed || target.starts_with(&format!("{allowed}::")));
            if !permitted {
                bent.push(format!("{} uses crate::{target}", path.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} uses were found: the test looks in the wrong place");
    assert!(bent.is_empty(), "{}", bent.join("\n"));
}

#[test]
fn unsafe_has_one_home() {
    let loose: Vec<_> = sources(Path::new("src"))
        .into_iter()
        .filter(|path| !UNSAFE_HOMES.iter().any(|home| path.to_string_lossy().starts_with(home)))
        .filter(|path| std::fs::read_to_string(path).expect("a source file").contains("unsafe {"))
        .collect();
    assert!(loose.is_empty(), "{loose:?}");
}

#[test]
fn no_source_file_outgrows_its_name() {
    let long: Vec<_> = sources(Path::new("src"))
        .into_iter()
        .filter(|path| std::fs::read_to_string(path).expect("a source file").lines().count() > 600)
        .collect();
    assert!(long.is_empty(), "over 600 lines: {long:?}");
}
