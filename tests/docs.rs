//! What the documents point to is there: links between them, and the tests that the walls are said to have.

use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let docs = std::fs::read_dir("docs").expect("docs/").flatten().map(|entry| entry.path());
    let mut all: Vec<_> = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    all.extend(["README.md", "seccomp/README.md", "tests/vm/README.md", "tests/probe/README.md"].map(PathBuf::from));
    all
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `tests/{a,b}.rs` is two paths.
fn spelled_out(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?))) {
        Some((head, (words, tail))) => words.split(',').map(|word| format!("{head}{word}{tail}")).collect(),
        None => vec![path.to_owned()],
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let (mut seen, mut broken) = (0, Vec::new());
    for document in documents() {
        let text = text(&document);
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            seen += 1;
            if !document.parent().expect("it lies somewhere").join(target).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(seen > 10, "only {seen} links were found");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_wall_names_tests_that_are_there() {
    let text = text(Path::new("docs/security.md"));
    let table = text.lines().skip_while(|line| !line.starts_with("| wall")).skip(2);
    let mut walls = 0;
    for line in table.take_while(|line| line.starts_with('|')) {
        walls += 1;
        let tests = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<String> = tests.split('`').skip(1).step_by(2).flat_map(spelled_out).collect();
        assert!(!named.is_empty(), "a wall without a test: {line}");
        assert_eq!(tests.matches("](../").count(), named.len(), "a test without a link to it: {line}");
        for name in named {
            let there =
                [PathBuf::from(&name), Path::new("tests/security").join(&name)].iter().any(|path| path.exists());
            assert!(there, "there is no {name}, which stands in: {line}");
        }
    }
    assert!(walls > 15, "only {walls} walls were found");
}
