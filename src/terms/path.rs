//! First wall for paths: syntax. One function for every path field of the API.
//!
//! The second wall is the kernel's: the normalised path goes through `openat2` with `RESOLVE_BENEATH` and no links.

use serde::Serialize;

/// Longest path, as the kernel's PATH_MAX.
const PATH_MAX: usize = 4096;
/// Longest name, as the kernel's NAME_MAX.
const NAME_MAX: usize = 255;

/// Why a path is refused; the names are part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathReason {
    /// Nothing.
    EmptyPath,
    /// A NUL byte.
    NullByte,
    /// Begins with a slash.
    AbsolutePath,
    /// Leads out, or tries to look as if it did not (a name of three or more dots only).
    PathTraversal,
    /// More than 4096 bytes, or a name of more than 255.
    TooLong,
}

/// Checks and normalises a relative path. `.` is the area itself.
pub fn normalise(path: &str) -> Result<String, PathReason> {
    if path.is_empty() {
        return Err(PathReason::EmptyPath);
    }
    if path.contains('\0') {
        return Err(PathReason::NullByte);
    }
    if path.starts_with('/') {
        return Err(PathReason::AbsolutePath);
    }
    if path.len() > PATH_MAX {
        return Err(PathReason::TooLong);
    }
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop().ok_or(PathReason::PathTraversal)?),
            _ if name.len() > NAME_MAX => return Err(PathReason::TooLong),
            _ if name.bytes().all(|byte| byte == b'.') => return Err(PathReason::PathTraversal),
            _ => names.push(name),
        }
    }
    Ok(if names.is_empty() { ".".to_owned() } else { names.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Both tables of the path document, and the rows that SPEC §7 adds.
    #[test]
    fn every_row_of_the_tables() {
        use PathReason::{AbsolutePath, EmptyPath, NullByte, PathTraversal, TooLong};
        let long_name = "n".repeat(256);
        let long_path = "a/".repeat(2049);
        for (given, expected) in [
            ("file.txt", Ok("file.txt")),
            ("valid/path.txt", Ok("valid/path.txt")),
            ("a/b/c.txt", Ok("a/b/c.txt")),
            ("subdir/file.txt", Ok("subdir/file.txt")),
            ("./file.txt", Ok("file.txt")),
            ("./x", Ok("x")),
            ("subdir/../file.txt", Ok("file.txt")),
            ("a/b/../c/d", Ok("a/c/d")),
            ("./a/./b/./c", Ok("a/b/c")),
            ("./a/b/../c.txt", Ok("a/c.txt")),
            ("a/..", Ok(".")),
            ("a//b", Ok("a/b")),
            ("valid/symlink", Ok("valid/symlink")),
            ("symlink_to_outside", Ok("symlink_to_outside")),
            (".hidden", Ok(".hidden")),
            ("...file", Ok("...file")),
            ("../file.txt", Err(PathTraversal)),
            ("a/../../b.txt", Err(PathTraversal)),
            ("../../etc/passwd", Err(PathTraversal)),
            ("../../../etc/passwd", Err(PathTraversal)),
            ("....//....//etc/passwd", Err(PathTraversal)),
            ("...", Err(PathTraversal)),
            ("/etc/passwd", Err(AbsolutePath)),
            ("", Err(EmptyPath)),
            ("file\0.txt", Err(NullByte)),
            (&long_name, Err(TooLong)),
            (&long_path, Err(TooLong)),
        ] {
            assert_eq!(normalise(given).as_deref().map_err(|reason| *reason), expected, "{given:?}");
        }
    }

    proptest! {
        #[test]
        fn a_normalised_path_stays_inside_and_is_stable(path in "(\\.{0,4}|[a-c/.\0]{0,3}|/){0,12}") {
            if let Ok(normal) = normalise(&path) {
                prop_assert!(!normal.starts_with('/') && !normal.is_empty());
                prop_assert!(normal.split('/').all(|name| !name.is_empty() && name != ".."));
                prop_assert_eq!(normalise(&normal), Ok(normal.clone()));
            }
        }
    }
}
