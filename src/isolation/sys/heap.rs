//! Memory of a process that forks often: its heap is copied, page by page, with each fork; its text is only mapped.

use std::ffi::c_void;

/// Keeps no list of small free chunks that a large allocation would join. A child that allocates its buffer would otherwise
/// walk through all of its parent's heap first, and each page that it touches is copied: 75 faults of each sandbox.
pub fn join_chunks_early() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes two numbers; an option that it does not know changes nothing.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// Gives what is free of the heap back to the kernel. A process that forks often should hold little.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no conditions; it gives back only what nobody holds.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of program and libraries that can't be written: what is needed again comes back from the page cache.
/// Most of what a start needs (parsers, the filter compiler) is not.
pub fn let_go_of_text() {
    // SAFETY: dl_iterate_phdr(3) calls `unmap_read_only` once per object, with its headers, which live as long as it is loaded.
    unsafe { libc::dl_iterate_phdr(Some(unmap_read_only), std::ptr::null_mut()) };
}

unsafe extern "C" fn unmap_read_only(object: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> libc::c_int {
    // SAFETY: the caller passes a valid object.
    let object = unsafe { &*object };
    if object.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the object's headers are so many, and are there.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let page = rustix::param::page_size() as u64;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let start = (object.dlpi_addr + header.p_vaddr).next_multiple_of(page);
        let end = (object.dlpi_addr + header.p_vaddr + header.p_memsz) / page * page;
        if start < end {
            // Errors don't matter: then the pages stay.
            // SAFETY: these pages are a private mapping of a file that was never writable (no PF_W; relocations of
            // read-only data are in segments that have it), so what comes back is what was there.
            unsafe { libc::madvise(start as *mut c_void, (end - start) as usize, libc::MADV_DONTNEED) };
        }
    }
    0
}
