//! The generated /etc of `rootfs = "host"`: what programs need to start, nothing that tells of the host.
#![forbid(unsafe_code)]

use super::plan::{HOME, INSIDE_UID};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Files taken from the host as they are: none has a secret, each lets ordinary programs work.
const COPIED: &[&str] = &[
    "ld.so.cache",                   // without it every start searches the library directories
    "localtime",                     // wall-clock time in the host's zone
    "mime.types",                    // python's mimetypes, git send-email
    "protocols",                     // getprotobyname
    "services",                      // getservbyname
    "ssl/openssl.cnf",               // OpenSSL reads it when it starts
    "ssl/certs/ca-certificates.crt", // one file with all trusted roots
    "ca-certificates.conf",
    "debian_version",
    "lsb-release",
    "fonts/fonts.conf",
    "magic",
    "inputrc",
];

/// Directories of symbolic links or small plain files, taken one level deep.
const COPIED_DIRECTORIES: &[&str] = &[
    "alternatives", // cc, awk, editor, … are links through here
];

/// Directories whose names begin so are copied whole: language runtimes keep their start-up files there.
const RUNTIME_PREFIXES: &[&str] = &["python3", "java-"];

/// Largest file that is copied; the certificates have about 220 KiB.
const COPY_MAX_BYTES: u64 = 2 << 20;

/// Lays a generated /etc down in `target`.
pub fn generate(target: &Path) -> io::Result<()> {
    let user = format!("sandbox:x:{INSIDE_UID}:{INSIDE_UID}:sandbox:{HOME}:/bin/bash\n");
    let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
    for (name, text) in [
        ("passwd", format!("root:x:0:0:root:/:/usr/sbin/nologin\n{user}{nobody}")),
        ("group", format!("root:x:0:\nsandbox:x:{INSIDE_UID}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n".to_owned()),
        ("hostname", "sandbox\n".to_owned()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n".to_owned()),
        ("host.conf", "multi on\n".to_owned()),
        ("resolv.conf", String::new()), // no network, so no resolver: a look-up fails at once instead of waiting
        ("shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ("ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n".to_owned()),
    ] {
        std::fs::write(target.join(name), text)?;
    }
    symlink("/proc/self/mounts", target.join("mtab"))?;
    symlink("../usr/lib/os-release", target.join("os-release"))?;
    let host = Path::new("/etc");
    for name in COPIED {
        copy_file(&host.join(name), &target.join(name))?;
    }
    for name in COPIED_DIRECTORIES {
        copy_directory(&host.join(name), &target.join(name), 1)?;
    }
    for entry in std::fs::read_dir(host)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if RUNTIME_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            copy_directory(&entry.path(), &target.join(&*name), 4)?;
        }
    }
    Ok(())
}

/// Copies the bytes of one file if it is there, small and readable by everybody. Links are followed.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(known) = std::fs::metadata(from) else { return Ok(()) };
    let public = known.permissions().mode() & 0o004 != 0;
    if !known.is_file() || !public || known.len() > COPY_MAX_BYTES {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(to, std::fs::read(from)?)
}

/// Copies links and public files, `depth` levels deep.
fn copy_directory(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    let Ok(entries) = std::fs::read_dir(from) else { return Ok(()) };
    std::fs::create_dir_all(to)?;
    for entry in entries.flatten() {
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_symlink() {
            symlink(std::fs::read_link(entry.path())?, target)?;
        } else if kind.is_dir() && depth > 1 {
            copy_directory(&entry.path(), &target, depth - 1)?;
        } else {
            copy_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_etc_has_users_and_no_secrets() {
        let target = tempfile::tempdir().expect("a directory");
        generate(target.path()).expect("the host's /etc can be read");
        let read = |name: &str| std::fs::read_to_string(target.path().join(name)).expect(name);
        assert!(read("passwd").contains("sandbox:x:1000:1000"));
        assert!(!read("passwd").contains("sandboxd"));
        for secret in ["shadow", "gshadow", "ssh", "sudoers", "ssl/private", "crontab"] {
            assert!(!target.path().join(secret).exists(), "{secret}");
        }
    }
}
