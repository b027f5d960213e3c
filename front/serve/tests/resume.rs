//! A thread that served a fault in a signal handler continues with its registers unchanged.

use crate::common::{Paged, Setup, memory};
use highwater_devices::{Arena, Device, Lenders, Reason};
use highwater_platform::{DeviceInfo, Io};
use highwater_uffd::{Delivery, Mapping};
use highwater_units::{Bytes, PAGE_SIZE};
use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGES: u64 = 600;

fn paged() -> Paged {
    paged_on(memory())
}

fn paged_on(device: Box<dyn Device>) -> Paged {
    let (mapping, delivery) = (Mapping::Copy, Delivery::InThread);
    Paged::new(Setup { frames: 128, pages: PAGES, region: PAGES, mapping, delivery }, device)
}

/// Calls `act` with the address of each page in turn, twice: none is resident.
fn on_missing_pages(paged: &Paged, mut act: impl FnMut(*mut u8)) {
    for page in (0..PAGES).chain(0..PAGES) {
        paged.watchdog.beat();
        act(paged.address(page));
    }
}

/// Registers without the vector registers, and the red zone.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct General {
    red_zone: [u64; 16],
    /// rax, rbx, rcx, rdx, rbp, rsi, r8 to r15.
    registers: [u64; 14],
    flags: u64,
    mxcsr: u64,
}

/// CF, PF, AF, ZF, SF, DF, OF.
const FLAGS: u64 = 0xcd5;
/// With this flag, iretq fails.
const FLAG_NT: u64 = 1 << 14;
/// All exceptions masked; rounding is to the nearest.
const MXCSR: u64 = 0x1f80;
/// Rounding is towards zero.
const MXCSR_TRUNCATE: u64 = MXCSR | 0x6000;

impl General {
    fn numbered(first: u64, flags: u64, mxcsr: u64) -> General {
        let number = |index: usize| first + index as u64;
        let red_zone = std::array::from_fn(number);
        let registers = std::array::from_fn(|index| number(index + 16));
        General { red_zone, registers, flags, mxcsr }
    }
}

/// Loads all registers from `General` and fills the red zone, stores a byte to a page, and records
/// the registers and the red zone afterwards. No instruction in between changes flags.
///
/// # Safety
/// The page is one of a served space.
#[unsafe(naked)]
unsafe extern "C" fn store_with_general(page: *mut u8, put: &General, found: &mut General) {
    naked_asm!(
        ".irp r, rbx, rbp, r12, r13, r14, r15",
        "push \\r",
        ".endr",
        "push rdx",
        "ldmxcsr [rsi + {mxcsr}]",
        "push qword ptr [rsi + {flags}]",
        "popfq",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "mov rax, [rsi + 8*\\i]",
        "mov [rsp - 8 - 8*\\i], rax",
        ".endr",
        "mov rax, [rsi + {registers}]",
        "mov rbx, [rsi + {registers} + 8]",
        "mov rcx, [rsi + {registers} + 16]",
        "mov rdx, [rsi + {registers} + 24]",
        "mov rbp, [rsi + {registers} + 32]",
        ".irp i, 8, 9, 10, 11, 12, 13, 14, 15",
        "mov r\\i, [rsi + {registers} + 8*\\i - 16]",
        ".endr",
        "mov rsi, [rsi + {registers} + 40]",
        "mov byte ptr [rdi], 1",
        "xchg rdi, [rsp]",
        "mov [rdi + {registers}], rax",
        "mov [rdi + {registers} + 8], rbx",
        "mov [rdi + {registers} + 16], rcx",
        "mov [rdi + {registers} + 24], rdx",
        "mov [rdi + {registers} + 32], rbp",
        "mov [rdi + {registers} + 40], rsi",
        ".irp i, 8, 9, 10, 11, 12, 13, 14, 15",
        "mov [rdi + {registers} + 8*\\i - 16], r\\i",
        ".endr",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "mov rax, [rsp - 8 - 8*\\i]",
        "mov [rdi + 8*\\i], rax",
        ".endr",
        "pushfq",
        "pop qword ptr [rdi + {flags}]",
        "push 2",
        "popfq",
        "stmxcsr [rdi + {mxcsr}]",
        "push {usual_mxcsr}",
        "ldmxcsr [rsp]",
        "add rsp, 16",
        ".irp r, r15, r14, r13, r12, rbp, rbx",
        "pop \\r",
        ".endr",
        "ret",
        registers = const offset_of!(General, registers),
        flags = const offset_of!(General, flags),
        mxcsr = const offset_of!(General, mxcsr),
        usual_mxcsr = const MXCSR,
    )
}

/// The vector registers of AVX, or those of AVX-512 and its mask registers.
#[repr(C, align(64))]
#[derive(Clone, Debug, PartialEq, Eq)]
struct Vectors {
    registers: [[u64; 8]; 32],
    masks: [u64; 8],
}

/// As [`store_with_general`], with the registers of AVX.
///
/// # Safety
/// The page is one of a served space, and the processor has AVX.
#[unsafe(naked)]
unsafe extern "C" fn store_with_ymm(page: *mut u8, put: &Vectors, found: &mut Vectors) {
    naked_asm!(
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqa ymm\\i, [rsi + 64*\\i]",
        ".endr",
        "mov byte ptr [rdi], 2",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqa [rdx + 64*\\i], ymm\\i",
        ".endr",
        "vzeroupper",
        "ret",
    )
}

/// As [`store_with_general`], with the registers of AVX-512.
///
/// # Safety
/// The page is one of a served space, and the processor has AVX-512 F and BW.
#[unsafe(naked)]
unsafe extern "C" fn store_with_zmm(page: *mut u8, put: &Vectors, found: &mut Vectors) {
    naked_asm!(
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqa64 zmm\\i, [rsi + 64*\\i]",
        ".endr",
        ".irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
        "vmovdqa64 zmm\\i, [rsi + 64*\\i]",
        ".endr",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7",
        "kmovq k\\i, [rsi + {masks} + 8*\\i]",
        ".endr",
        "mov byte ptr [rdi], 3",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqa64 [rdx + 64*\\i], zmm\\i",
        ".endr",
        ".irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
        "vmovdqa64 [rdx + 64*\\i], zmm\\i",
        ".endr",
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7",
        "kmovq [rdx + {masks} + 8*\\i], k\\i",
        ".endr",
        "vzeroupper",
        "ret",
        masks = const offset_of!(Vectors, masks),
    )
}

#[test]
fn general_registers_flags_and_red_zone_survive_a_fault() {
    let paged = paged();
    let mut first = 1;
    on_missing_pages(&paged, |page| {
        let (flags, mxcsr) = match first % 300 {
            1 => (FLAGS, MXCSR_TRUNCATE),
            101 => (FLAG_NT, MXCSR),
            _ => (0, MXCSR),
        };
        let put = General::numbered(first, flags, mxcsr);
        let mut found = General::numbered(0, 0, 0);
        // SAFETY: stores to the first byte of a page of the space.
        unsafe { store_with_general(page, &put, &mut found) };
        found.flags &= FLAGS | FLAG_NT;
        assert_eq!(found, put);
        first += 100;
    });
    paged.finish();
}

#[test]
fn vector_registers_survive_a_fault() {
    type Store = unsafe extern "C" fn(*mut u8, &Vectors, &mut Vectors);
    let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    let (store, registers, words): (Store, usize, usize) = match wide {
        true => (store_with_zmm, 32, 8),
        false if is_x86_feature_detected!("avx") => (store_with_ymm, 16, 4),
        false => return eprintln!("skipped: no AVX"),
    };
    let paged = paged();
    let mut next = 1u64;
    let mut number = || {
        next = next.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1;
        next
    };
    let none = Vectors { registers: [[0; 8]; 32], masks: [0; 8] };
    on_missing_pages(&paged, |page| {
        let mut put = none.clone();
        for register in &mut put.registers[..registers] {
            register[..words].fill_with(&mut number);
        }
        if wide {
            put.masks.fill_with(&mut number);
        }
        let mut found = none.clone();
        // SAFETY: stores to the first byte of a page of the space; the processor has the
        // instructions.
        unsafe { store(page, &put, &mut found) };
        assert_eq!(found, put);
    });
    paged.finish();
}

/// A device each of whose transfers makes a system call that fails.
struct Fails(Box<dyn Device>);

impl Fails {
    fn fail() {
        // SAFETY: there is no such descriptor.
        assert_eq!(unsafe { libc::close(-1) }, -1);
    }
}

impl Device for Fails {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.0.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.0.read(arena, batch) };
        Fails::fail();
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.0.write(arena, batch) };
        Fails::fail();
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.0.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.0.inherit()
    }

    fn resident(&self) -> Bytes {
        self.0.resident()
    }
}

#[test]
fn errno_survives_a_fault() {
    let paged = paged_on(Box::new(Fails(memory())));
    let mut number = 1000;
    on_missing_pages(&paged, |page| {
        number += 1;
        // SAFETY: errno is the thread's own; the access is to a page of the space.
        let found = unsafe {
            *libc::__errno_location() = number;
            page.write_volatile(page.read_volatile() + 1);
            *libc::__errno_location()
        };
        assert_eq!(found, number);
    });
    paged.finish();
}

/// Ends the process if this thread calls sigreturn(2) from now on.
fn forbid_sigreturn() {
    let [load, jump, ret] = [0x20, 0x15, 0x06];
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let filter = [
        step(load, 0, 0),
        step(jump, libc::SYS_rt_sigreturn as u32, 1),
        step(ret, libc::SECCOMP_RET_KILL_PROCESS, 0),
        step(ret, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: a filter of four instructions for this thread.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_served_fault_needs_no_sigreturn() {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    if status.contains("shstk") || !is_x86_feature_detected!("xsave") {
        return eprintln!("skipped: returns past the kernel are off");
    }
    let paged = paged();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid_sigreturn();
            // SAFETY: stores to the first byte of a page of the space.
            on_missing_pages(&paged, |page| unsafe { page.write_volatile(4) });
        });
    });
    paged.finish();
}

/// The kernel disarms such a stack when it delivers a signal.
#[test]
fn an_alternate_stack_that_is_disarmed_survives_a_fault() {
    const SS_AUTODISARM: libc::c_int = libc::c_int::MIN;
    const BYTES: usize = 1 << 16;
    let mut memory = vec![0u8; BYTES];
    let sp = memory.as_mut_ptr().cast();
    let stack = libc::stack_t { ss_sp: sp, ss_flags: SS_AUTODISARM, ss_size: BYTES };
    let mut before = stack;
    // SAFETY: no handler of this program uses alternate stacks but that of stack overflows.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, &raw mut before) }, 0);
    let paged = paged();
    on_missing_pages(&paged, |page| {
        let mut now = before;
        // SAFETY: stores to the first byte of a page of the space; `now` is written.
        unsafe {
            page.write_volatile(7);
            assert_eq!(libc::sigaltstack(std::ptr::null(), &raw mut now), 0);
        }
        assert_eq!((now.ss_sp, now.ss_flags, now.ss_size), (sp, SS_AUTODISARM, BYTES));
    });
    // SAFETY: this thread's previous stack.
    assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
    paged.finish();
}

/// In the child: pages that the program's handler is to touch and to map.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// A program's handler: uses paged memory, and makes the failed access possible.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    // SAFETY: the page that could not be accessed, and a page of the space.
    unsafe {
        let failed = (*info).si_addr();
        assert_eq!(failed as usize, MAPPED.load(SeqCst));
        (TOUCHED.load(SeqCst) as *mut u8).write_volatile(5);
        assert_eq!(libc::mmap(failed, PAGE_SIZE, access, flags, -1, 0), failed);
    }
}

/// The first manager of a process finds the handler that was installed before, so this test runs in
/// a process of its own.
fn pass_on() {
    // SAFETY: zeros are a valid action; the handler has the form of SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
    let paged = paged();
    let empty = tempfile::tempfile().expect("a file");
    on_missing_pages(&paged, |page| {
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, behind the end of its file.
        unsafe {
            let none = std::ptr::null_mut();
            let file = empty.as_raw_fd();
            let at = libc::mmap(none, PAGE_SIZE, access, libc::MAP_SHARED, file, 0).cast::<u8>();
            TOUCHED.store(page as usize, SeqCst);
            MAPPED.store(at as usize, SeqCst);
            at.write_volatile(6);
            assert_eq!((at.read_volatile(), page.read_volatile()), (6, 5));
            libc::munmap(at.cast(), PAGE_SIZE);
        }
    });
    paged.finish();
}

#[test]
fn a_bus_error_elsewhere_reaches_the_programs_handler() {
    const IN_CHILD: &str = "HIGHWATER_TEST_BUS_ERROR";
    if std::env::var_os(IN_CHILD).is_some() {
        return pass_on();
    }
    let name = "resume::a_bus_error_elsewhere_reaches_the_programs_handler";
    let program = std::env::current_exe().expect("this program");
    let mut child = std::process::Command::new(program);
    let output = child.args(["--exact", name, "--nocapture"]).env(IN_CHILD, "1").output();
    let output = output.expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}
