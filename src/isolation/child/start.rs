//! What a program without a C library brings along itself: its entry, its end in a panic, and the functions that the
//! compiler may call for copying, comparing and measuring.

use super::calls;
use core::arch::{asm, global_asm};

/// Exit code of a panic: a mistake of ours. The warden sees init die; nothing runs.
const PANIC_EXIT: i32 = 122;

// The kernel enters with the stack pointer at argc; the call leaves the stack aligned as the ABI wants it.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {enter}",
    "ud2",
    enter = sym enter,
);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, #0", "mov x0, sp", "bl {enter}", "brk #1", enter = sym enter);

/// `stack` is what the kernel left: argc, then the pointers to the words.
unsafe extern "C" fn enter(stack: *const usize) -> ! {
    // SAFETY: execve(2) puts argc there.
    let argc = unsafe { *stack };
    if argc < 2 {
        calls::exit_now(PANIC_EXIT);
    }
    // SAFETY: argc is at least 2, so the third word of the stack is argv[1].
    let word = unsafe { *stack.wrapping_add(2) } as *const core::ffi::c_char;
    // SAFETY: the kernel copied argv[1] as a C string, which stays on the stack for as long as we live.
    let word = unsafe { core::ffi::CStr::from_ptr(word) };
    super::main(word.to_bytes())
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    calls::exit_now(PANIC_EXIT)
}

/// memcpy(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges; the direction flag is clear, as the ABI says.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack))
    };
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..len {
        // SAFETY: the caller vouches for both ranges. Volatile, or the compiler would call memcpy for the loop.
        let byte = unsafe { from.wrapping_add(at).read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(at).write_volatile(byte) };
    }
    to
}

/// memmove(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if to.addr() <= from.addr() || to.addr() >= from.addr() + len {
        for at in 0..len {
            // SAFETY: the caller vouches for both ranges; forwards, no byte is overwritten before it is read.
            let byte = unsafe { from.wrapping_add(at).read_volatile() };
            // SAFETY: as above.
            unsafe { to.wrapping_add(at).write_volatile(byte) };
        }
    } else {
        for at in (0..len).rev() {
            // SAFETY: the caller vouches for both ranges; backwards, no byte is overwritten before it is read.
            let byte = unsafe { from.wrapping_add(at).read_volatile() };
            // SAFETY: as above.
            unsafe { to.wrapping_add(at).write_volatile(byte) };
        }
    }
    to
}

/// memset(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    for at in 0..len {
        // SAFETY: the caller vouches for the range. Volatile, or the compiler would call memset for the loop.
        unsafe { to.wrapping_add(at).write_volatile(byte as u8) };
    }
    to
}

/// memcmp(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for at in 0..len {
        // SAFETY: the caller vouches for both ranges.
        let (x, y) = (unsafe { a.wrapping_add(at).read_volatile() }, unsafe { b.wrapping_add(at).read_volatile() });
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// bcmp(3), which the compiler prefers where only equality counts.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller vouches for both ranges.
    unsafe { memcmp(a, b, len) }
}

/// strlen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(word: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller vouches for a NUL at the end.
    while unsafe { word.wrapping_add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}
