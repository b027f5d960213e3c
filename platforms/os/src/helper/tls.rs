//! Thread-local variables for threads that the C library does not make.
//!
//! ```text
//!   static TLS of the modules           thread control block
//!   ... | libc | this | program |TP->   tcb, dtv, self, ..., guards     (x86-64, variant II)
//!         \ copies of their initial contents, at the offsets that the main thread has them
//! dtv: generation | module 1 | module 2 | ...    where __tls_get_addr looks
//! ```
//! The dynamic loader fixes the offsets of what is loaded at the start for good. The dtv has more
//! slots than a program has modules with thread-local variables, so that the loader never has to
//! replace it, with the program's malloc, when the program loads more.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use rustix::thread::gettid;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Stack of a manager thread: its deepest path, a fault with direct reclaim, uses under 32 KiB.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// Room for the C library's descriptor of a thread: 2304 bytes in glibc 2.36.
pub(super) const CONTROL_BYTES: usize = 16 << 10;

const DTV_SLOTS: usize = 8192;
/// Slots, and before them their number and the generation.
pub(super) const DTV_BYTES: usize = (DTV_SLOTS + 2) * size_of::<DtvSlot>();

/// What the loader has of a module in a thread: where its variables are.
#[derive(Clone, Copy)]
#[repr(C)]
struct DtvSlot {
    value: usize,
    to_free: usize,
}

/// No variables of the module have been allocated in this thread (TLS_DTV_UNALLOCATED).
const UNALLOCATED: usize = usize::MAX;

/// The words of a thread control block that are set here, by number.
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
    /// Initial contents; what follows is zeros.
    image: *const u8,
    image_len: usize,
}

/// How thread-local variables lie in this process.
#[derive(Debug, Default)]
pub(super) struct Layout {
    modules: Vec<Module>,
    /// From the thread pointer to the area for restartable sequences, if the C library has one.
    rseq: Option<isize>,
    /// From the thread pointer to the number by which the C library's locks know a thread.
    number: usize,
}

// SAFETY: the images are parts of modules that are never unloaded.
unsafe impl Send for Layout {}
// SAFETY: likewise, and only read.
unsafe impl Sync for Layout {}

static LAYOUT: OnceLock<Layout> = OnceLock::new();

/// What [`learn`] has found.
pub(super) fn layout() -> Option<&'static Layout> {
    LAYOUT.get()
}

/// Finds out how thread-local variables lie. To be called by the main thread when the program's
/// libraries have been loaded, and before it loads others.
pub fn learn() {
    let mut layout = Layout::default();
    // SAFETY: the callback gets this layout, which lives for the call.
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

/// Where glibc on x86-64 has had a thread's number since 2.4: behind a control block of 704 bytes
/// and a list's two pointers.
const NUMBER_USUAL: usize = 720;

/// Where the C library has the number of this thread: at the usual place, or at the only one behind
/// the public part of the control block that holds it. `None`: it cannot be told.
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

/// Tells the C library's locks which thread this is: they take a thread without a number for the
/// holder of every free one.
pub(super) fn set_number() {
    let Some(layout) = layout() else { return };
    let number = gettid().as_raw_pid() as u32;
    // SAFETY: a word of this thread's own descriptor.
    unsafe { thread_pointer().add(layout.number).cast::<u32>().write(number) };
}

/// Notes the thread-local variables of a loaded object.
///
/// # Safety
/// `object` describes a loaded object, and `layout` is a [`Layout`] of the caller's.
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, layout: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object and the caller's layout, both for this call.
    let (object, layout) = unsafe { (&*object, &mut *layout.cast::<Layout>()) };
    // SAFETY: so many headers begin there.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let data = object.dlpi_tls_data as usize;
    let here = thread_pointer() as usize;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_TLS) {
        // Others lie in blocks of their own, and are the program's alone.
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

/// The calling thread's.
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
    /// Bytes that are needed below the thread pointer.
    pub(super) fn below(&self) -> usize {
        let modules = self.modules.iter().map(|module| module.offset);
        let rseq = self.rseq.map_or(0, |offset| usize::try_from(-offset).unwrap_or(0));
        modules.chain([rseq]).max().unwrap_or(0)
    }

    /// Makes the thread-local variables of a new thread.
    ///
    /// # Safety
    /// Zeros are mapped around `pointer`, as much as [`Layout::below`] says before it and
    /// [`CONTROL_BYTES`] and [`DTV_BYTES`] behind it.
    pub(super) unsafe fn fill(&self, pointer: *mut u8) {
        for module in &self.modules {
            let to = pointer.wrapping_sub(module.offset);
            // SAFETY: within what is mapped, and apart from the module.
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
        // SAFETY: so many slots are mapped, and one before them.
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

/// Bytes and signature of an area for restartable sequences, as every C library registers it.
const RSEQ_BYTES: usize = 32;
const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// What the C library finds where the area was not registered.
const RSEQ_UNREGISTERED: u32 = u32::MAX;

/// Has the kernel keep the CPU number of this thread where sched_getcpu(3) looks for it.
pub(super) fn register_rseq() {
    let Some(offset) = layout().and_then(|layout| layout.rseq) else { return };
    let area = thread_pointer().wrapping_offset(offset);
    // SAFETY: the second word of the area, within this thread's block.
    let cpu = unsafe { AtomicU32::from_ptr(area.cast::<u32>().add(1)) };
    cpu.store(RSEQ_UNREGISTERED, Relaxed);
    let call = libc::SYS_rseq;
    // SAFETY: the area is this thread's as long as it lives. Refused, the number stays unknown.
    unsafe { libc::syscall(call, area, RSEQ_BYTES, 0, RSEQ_SIGNATURE) };
}
