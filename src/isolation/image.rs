//! The program that sandboxes are made by (`child/`), and the sheet that tells it of a profile: two sealed files without
//! names, in memory.
//!
//! ```text
//! start   Image::make ── the bytes that build.rs compiled ──▶ memfd, sealed, opened again to be read
//! plan    sheet_of(plan) ── filters, limits, rules, masks, areas ──▶ memfd, sealed
//! spawn   execveat(image, "<numbers of descriptors> …")  ─▶  the child maps its sheet and begins
//! ```
//!
//! Nothing in either can be changed once it is sealed, by whoever. The numbers of steps and the shape of a sheet are
//! shared with the child by file (`steps.rs`) or held by the tests below.
#![forbid(unsafe_code)]

use super::landlock;
use super::plan::{Area, Mask, NEW_ROOT, SandboxPlan};
use super::rlimits;
use super::seccomp::Instruction;
use super::warden::protocol::Life;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::stat::Mode;
use nix::unistd::write;
use rustix::fs::MemfdFlags;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// The child, as `build.rs` made it.
static CHILD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandboxd-init"));
/// `MFD_EXEC` of linux/memfd.h (6.3): said, because a host may have files without it be not executable by default.
const EXECUTABLE: MemfdFlags = MemfdFlags::from_bits_retain(0x10);
/// The sheet's byte for "no step is to fail".
const NO_STEP: u8 = 0xff;

/// A sealed file and its length.
#[derive(Debug)]
pub struct Sealed {
    /// Opened to be read.
    pub file: OwnedFd,
    /// In bytes.
    pub len: usize,
}

/// The program, ready to be executed.
pub fn program() -> Result<Sealed, Errno> {
    match seal(c"sandboxd-init", CHILD, EXECUTABLE) {
        Err(Errno::EINVAL) => seal(c"sandboxd-init", CHILD, MemfdFlags::empty()), // a kernel before 6.3
        sealed => sealed,
    }
}

/// What the child is to know of a profile.
pub fn sheet(plan: &SandboxPlan) -> Result<Sealed, Errno> {
    seal(c"sandboxd-sheet", &write_sheet(plan, ignored_signals()), MemfdFlags::empty())
}

fn seal(name: &CStr, bytes: &[u8], flags: MemfdFlags) -> Result<Sealed, Errno> {
    let to_errno = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let draft = rustix::fs::memfd_create(name, flags).map_err(to_errno)?;
    let mut left = bytes;
    while !left.is_empty() {
        left = &left[write(&draft, left)?..];
    }
    let all = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&draft, FcntlArg::F_ADD_SEALS(all))?;
    // A file that somebody has open for writing can't be executed; this one is for reading, and the draft goes.
    let path = format!("/proc/self/fd/{}", draft.as_raw_fd());
    let file = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(Sealed { file, len: bytes.len() })
}

/// Fields one after the other, little endian, as `child/fields.rs` reads them.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn count(&mut self, value: usize) {
        self.0.extend(u16::try_from(value).expect("a plan has a few dozen of anything").to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn bytes(&mut self, value: &[u8]) {
        self.0.extend(u32::try_from(value.len()).expect("a plan is small").to_le_bytes());
        self.0.extend(value);
    }
    fn word(&mut self, value: &CStr) {
        self.0.extend(value.to_bytes_with_nul());
    }
    /// How many of them, and all of them behind their length.
    fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Fields, &T)) {
        let mut all = Fields::default();
        items.iter().for_each(|item| write(&mut all, item));
        self.count(items.len());
        self.bytes(&all.0);
    }
}

fn filter_bytes(program: &[Instruction]) -> Vec<u8> {
    let bytes = |i: &Instruction| {
        let [code, k] = [u64::from(i.code), u64::from(i.k)];
        (code | u64::from(i.jt) << 16 | u64::from(i.jf) << 24 | k << 32).to_le_bytes()
    };
    program.iter().flat_map(bytes).collect()
}

/// The signals that this process ignores, and with it whatever it executes; all of them if that can't be read.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(u64::MAX)
}

/// The sheet of a plan; `child/sheet.rs` reads it.
fn write_sheet(plan: &SandboxPlan, ignored_signals: u64) -> Vec<u8> {
    let mut sheet = Fields::default();
    sheet.u8(plan.sabotage.map_or(NO_STEP, |step| step as u8));
    sheet.u8(plan.filter_ahead.into());
    sheet.u64(ignored_signals);
    sheet.bytes(&filter_bytes(&plan.filter));
    sheet.bytes(&filter_bytes(&plan.init_filter));
    for limit in rlimits::of(&plan.limits, Life::Once) {
        sheet.0.extend(limit.number().to_le_bytes());
        sheet.u64(limit.amount());
        sheet.u8(limit.comes_late().into());
    }
    match landlock::wanted(plan.landlock_abi, plan.tcp) {
        None => sheet.u8(0),
        Some(wanted) => {
            sheet.u8(wanted.attributes_len);
            wanted.attributes.into_iter().for_each(|bits| sheet.u64(bits));
            sheet.u64(wanted.write);
            let areas = Area::ALL.map(|area| (wanted.write, area.path()));
            let rules = [&[(wanted.read, "/"), (wanted.devices, "/dev")][..], &areas].concat();
            sheet.list(&rules, |out, &(access, path)| {
                out.u64(access);
                out.0.extend(path.as_bytes());
                out.u8(0);
            });
        }
    }
    sheet.list(&plan.masks, |out, mask| {
        out.u8(match mask.mask {
            Mask::File => 0,
            Mask::Directory => 1,
            Mask::ReadOnly => 2,
        });
        out.0.extend(below_proc(&mask.path));
        out.u8(0);
    });
    sheet.list(&plan.areas, |out, (target, options)| {
        out.word(target);
        out.word(options);
    });
    sheet.0
}

/// The child stands in /proc when it masks: a name from there is found sooner.
fn below_proc(path: &CStr) -> &[u8] {
    let proc_dir = std::path::Path::new(NEW_ROOT).join("proc");
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    path.strip_prefix(proc_dir).unwrap_or(path).as_os_str().as_bytes()
}

#[cfg(test)]
#[path = "child/numbers.rs"]
#[allow(dead_code, missing_docs, reason = "the child's own; not every number has a twin in libc")]
mod numbers;

#[cfg(test)]
mod tests;
