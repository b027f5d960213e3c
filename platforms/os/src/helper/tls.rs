//! Thread-local variables of threads that the C library does not create.
//!
//! ```text
//!   static TLS of the modules           thread control block
//!   ... | libc | this | program |TP->   tcb, dtv, self, ..., guards     (x86-64, variant II)
//!         \ copies of their initial contents, at the offsets of the main thread
//! dtv: generation | module 1 | module 2 | ...    the table of __tls_get_addr
//! ```
//! The offsets of modules that are loaded at the start never change. The dtv has more slots than a
//! program has modules with thread-local variables: otherwise the loader would replace the dtv,
//! using the program's malloc, when the program loads more modules.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use rustix::thread::gettid;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Stack size of a manager thread. Its deepest path, a fault with direct reclaim, uses less than
/// 32 KiB.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// Space for the C library's descriptor of a thread: 2304 bytes in glibc 2.36.
pub(super) const CONTROL_BYTES: usize = 16 << 10;

const DTV_SLOTS: usize = 8192;
/// Bytes of the dtv: the slots, and before them their number and the generation.
pub(super) const DTV_BYTES: usize = (DTV_SLOTS + 2) * size_of::<DtvSlot>();

/// The loader's entry for a module in a thread: the address of its variables.
#[derive(Clone, Copy)]
#[repr(C)]
struct DtvSlot {
    value: usize,
    to_free: usize,
}

/// This thread has no variables of the module yet (TLS_DTV_UNALLOCATED).
const UNALLOCATED: usize = usize::MAX;

/// The words of a thread control block that are set here, by index.
mod control {
    pub(super) const SELF: [usize; 2] = [0, 2];
    pub(super) const DTV: usize = 1;
    pub(super) const COPIED: [usize; 2] = [5, 6];
}

/// A module's variables.
#[derive(Clone, Copy, Debug)]
struct Module {
    number: usize,
    /// Bytes below the thread pointer.
    offset: usize,
    /// Initial contents; zeros follow them.
    image: *const u8,
    image_len: usize,
}

/// The layout of thread-local variables in this process.
#[derive(Debug, Default)]
pub(super) struct Layout {
    modules: Vec<Module>,
    /// Offset from the thread pointer of the rseq area, if the C library has one.
    rseq: Option<isize>,
    /// Offset from the thread pointer of the thread id that the C library's locks use.
    number: usize,
}

// SAFETY: the images are parts of modules that are never unloaded.
unsafe impl Send for Layout {}
// SAFETY: as for Send, and it is only read.
unsafe impl Sync for Layout {}

static LAYOUT: OnceLock<Layout> = OnceLock::new();

/// The layout that [`learn`] found.
pub(super) fn layout() -> Option<&'static Layout> {
    LAYOUT.get()
}

/// Finds the layout of thread-local variables. The main thread calls this once the program's
/// libraries are loaded, and before it loads others.
pub fn learn() {
    let mut layout = Layout::default();
    // SAFETY: the argument of the callback is this layout, which lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut layout).cast()) };
    // SAFETY: looks a name up.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if !offset.is_null() {
        // SAFETY: a ptrdiff_t of the C library, constant once it is loaded.
        layout.rseq = Some(unsafe { *offset.cast::<isize>() });
    }
    if let (false, Some(number)) = (layout.modules.is_empty(), number_offset()) {
        layout.number = number;
        let _ = LAYOUT.set(layout);
    }
}

/// The offset of the thread id in glibc on x86-64 since 2.4: behind a control block of 704 bytes
/// and the two pointers of a list.
const NUMBER_USUAL: usize = 720;

/// The offset of this thread's id in the C library's descriptor: the usual offset, or the only one
/// behind the public part of the control block that holds the id. `None` if there are several.
fn number_offset() -> Option<usize> {
    let own = gettid().as_raw_pid() as u32;
    // SAFETY: an aligned word of this thread's descriptor, which is longer than 2 KiB.
    let at = |offset: usize| unsafe { thread_pointer().add(offset).cast::<u32>().read() };
    if at(NUMBER_USUAL) == own {
        return Some(NUMBER_USUAL);
    }
    let mut found = (64..2048).step_by(size_of::<u32>()).filter(|offset| at(*offset) == own);
    found.next().filter(|_| found.next().is_none())
}

/// Sets the thread id for the C library's locks: a thread with id 0 would count as the owner of
/// every free lock.
pub(super) fn set_number() {
    let Some(layout) = layout() else { return };
    let number = gettid().as_raw_pid() as u32;
    // SAFETY: a word of this thread's descriptor.
    unsafe { thread_pointer().add(layout.number).cast::<u32>().write(number) };
}

/// Records the thread-local variables of a loaded object.
///
/// # Safety
/// `object` describes a loaded object, and `layout` is a [`Layout`] of the caller.
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, layout: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object and the caller's layout, valid for this call.
    let (object, layout) = unsafe { (&*object, &mut *layout.cast::<Layout>()) };
    // SAFETY: the number of headers at that address.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let data = object.dlpi_tls_data as usize;
    let here = thread_pointer() as usize;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_TLS) {
        // Variables elsewhere are allocated dynamically; only the program uses them.
        if data == 0 || data > here {
            continue;
        }
        layout.modules.push(Module {
            number: object.dlpi_tls_modid,
            offset: here - data,
            image: ptr::with_exposed_provenance((object.dlpi_addr + header.p_vaddr) as usize),
            image_len: header.p_filesz as usize,
        });
    }
    0
}

/// The thread pointer of the calling thread.
#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> *mut u8 {
    let found: usize;
    // SAFETY: reads the word that holds its own address.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) found, options(nostack, readonly)) };
    ptr::with_exposed_provenance_mut(found)
}

#[cfg(not(target_arch = "x86_64"))]
compile_error!("thread-local variables are laid out for x86-64 only");

impl Layout {
    /// The bytes needed below the thread pointer.
    pub(super) fn below(&self) -> usize {
        let modules = self.modules.iter().map(|module| module.offset);
        let rseq = self.rseq.map_or(0, |offset| usize::try_from(-offset).unwrap_or(0));
        modules.chain([rseq]).max().unwrap_or(0)
    }

    /// Initialises the thread-local variables of a new thread.
    ///
    /// # Safety
    /// Zeros are mapped around `pointer`: [`Layout::below`] bytes before it, and [`CONTROL_BYTES`]
    /// and [`DTV_BYTES`] behind it.
    pub(super) unsafe fn fill(&self, pointer: *mut u8) {
        for module in &self.modules {
            let to = pointer.wrapping_sub(module.offset);
            // SAFETY: within the mapped bytes, which do not overlap the module.
            unsafe { ptr::copy_nonoverlapping(module.image, to, module.image_len) };
        }
        let own = thread_pointer().cast::<usize>();
        let words = pointer.cast::<usize>();
        let dtv = pointer.wrapping_add(CONTROL_BYTES).cast::<DtvSlot>().wrapping_add(1);
        // SAFETY: both control blocks have these words.
        unsafe {
            control::SELF.iter().for_each(|word| words.add(*word).write(pointer as usize));
            control::COPIED.iter().for_each(|word| words.add(*word).write(*own.add(*word)));
            words.add(control::DTV).write(dtv as usize);
        }
        // SAFETY: the dtv of this thread, whose first slot has the generation.
        let generation =
            unsafe { *ptr::with_exposed_provenance::<DtvSlot>(own.add(control::DTV).read()) };
        // SAFETY: DTV_SLOTS slots are mapped, and one before them.
        let slots = unsafe { std::slice::from_raw_parts_mut(dtv.sub(1), DTV_SLOTS + 1) };
        slots[0] = DtvSlot { value: DTV_SLOTS - 1, to_free: 0 };
        slots[1] = generation;
        for module in self.modules.iter().filter(|module| module.number < DTV_SLOTS - 1) {
            slots[1 + module.number].value = pointer as usize - module.offset;
        }
        let last = self.modules.iter().map(|module| module.number).max().unwrap_or(0);
        let free = |slot: &&mut DtvSlot| slot.value == 0;
        slots[2..2 + last].iter_mut().filter(free).for_each(|slot| slot.value = UNALLOCATED);
    }
}

/// Size and signature of an rseq area, as every C library registers it.
const RSEQ_BYTES: usize = 32;
const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// The CPU number of an area that is not registered.
const RSEQ_UNREGISTERED: u32 = u32::MAX;

/// Registers an rseq area: the kernel keeps this thread's CPU number where sched_getcpu(3) reads
/// it.
pub(super) fn register_rseq() {
    let Some(offset) = layout().and_then(|layout| layout.rseq) else { return };
    let area = thread_pointer().wrapping_offset(offset);
    // SAFETY: the second word of the area, within this thread's block.
    let cpu = unsafe { AtomicU32::from_ptr(area.cast::<u32>().add(1)) };
    cpu.store(RSEQ_UNREGISTERED, Relaxed);
    let call = libc::SYS_rseq;
    // If the kernel refuses, the number stays unknown.
    // SAFETY: the area belongs to this thread as long as it lives.
    unsafe { libc::syscall(call, area, RSEQ_BYTES, 0, RSEQ_SIGNATURE) };
}
